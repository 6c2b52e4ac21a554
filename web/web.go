// Package web is the UI: page shells, styles and ES modules, plain files in the
// binary. It hides the file layout, the hashing of asset addresses and the
// headers that keep a page's scripts at home. Pages carry no data of the
// gateway; their scripts ask the admin API for it.
package web

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
)

//go:embed assets templates
var embedded embed.FS

// Policy is the Content-Security-Policy of every page and asset.
const Policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; " +
	"form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

// NotFound is the page of every address that has no other.
const NotFound = "notfound"

// pages are the shells: the name is that of the template and of the script.
var pages = map[string]string{
	"experiments": "Experiments",
	"experiment":  "Experiment",
	"upstreams":   "Upstreams",
	"keys":        "Keys",
	"audit":       "Audit",
	NotFound:      "Not found",
}

// Config is what New needs; the zero value serves the embedded files at /ui.
type Config struct {
	BasePath string // prefix of every address, "" or "/sluice"
	Version  string // shown in the footer
	Files    fs.FS  // in place of the embedded files, for work on them
}

// Site serves pages and assets. It is immutable and safe for concurrent use.
type Site struct {
	base, version string
	hash          string // of all assets; part of their addresses
	templates     map[string]*template.Template
	assets        map[string]asset
}

type asset struct {
	kind string // Content-Type
	body []byte
	gzip func() []byte // made when first asked for; nil where it does not pay
}

// shell fills the layout.
type shell struct{ Base, Assets, Page, Title, Subject, Version string }

// New reads and hashes all files and parses the templates; it fails on a base
// path that is not one, a template that does not parse or a kind of file that
// it cannot name.
func New(c Config) (*Site, error) {
	s := &Site{base: strings.TrimRight(c.BasePath, "/"), version: c.Version, templates: map[string]*template.Template{}, assets: map[string]asset{}}
	if s.base != "" && (!strings.HasPrefix(s.base, "/") || strings.HasPrefix(s.base, "//")) {
		return nil, fmt.Errorf("web: base path %q: want a path such as /sluice", c.BasePath)
	}
	files := c.Files
	if files == nil {
		files = embedded
	}
	for name := range pages {
		t, err := template.New("layout.html").ParseFS(files, "templates/layout.html", "templates/"+name+".html")
		if err != nil {
			return nil, fmt.Errorf("web: page %s: %w", name, err)
		}
		s.templates[name] = t
	}
	if err := s.load(files); err != nil {
		return nil, err
	}
	return s, nil
}

// kinds are named here, not by the system's tables, which differ by machine.
var kinds = map[string]string{
	".js":   "text/javascript; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".svg":  "image/svg+xml",
	".json": "application/json",
	".txt":  "text/plain; charset=utf-8",
}

// load takes in the assets. One hash over all of them is part of every address:
// a module's relative imports then stay within one version of the whole.
func (s *Site) load(files fs.FS) error {
	sum := sha256.New()
	err := fs.WalkDir(files, "assets", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		kind := kinds[path.Ext(name)]
		if kind == "" {
			return fmt.Errorf("web: %s: no content type for %q", name, path.Ext(name))
		}
		body, err := fs.ReadFile(files, name)
		if err != nil {
			return fmt.Errorf("web: %w", err)
		}
		name = strings.TrimPrefix(name, "assets/")
		fmt.Fprintf(sum, "%s %d\n", name, len(body))
		sum.Write(body)
		s.assets[name] = asset{kind: kind, body: body, gzip: sync.OnceValue(func() []byte { return squeeze(body) })}
		return nil
	})
	if err == nil && len(s.assets) == 0 {
		err = errors.New("web: no assets")
	}
	s.hash = hex.EncodeToString(sum.Sum(nil))[:16]
	return err
}

func squeeze(body []byte) []byte {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil
	}
	if _, err := z.Write(body); err != nil || z.Close() != nil || b.Len() > len(body)*9/10 {
		return nil
	}
	return b.Bytes()
}

// Hash is the version of the assets in their addresses.
func (s *Site) Hash() string { return s.hash }

// AssetNames lists the assets, sorted, relative to BASE/ui/assets/HASH/.
func (s *Site) AssetNames() []string {
	names := make([]string, 0, len(s.assets))
	for n := range s.assets {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

func (s *Site) headers(h http.Header) {
	h.Set("Content-Security-Policy", Policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}

// ServePage writes the shell of a page; subject is the object that it is about,
// "" for none. A page that does not exist is NotFound, with status 404.
func (s *Site) ServePage(w http.ResponseWriter, r *http.Request, page, subject string) {
	status := http.StatusOK
	if _, ok := pages[page]; !ok || page == NotFound {
		page, status = NotFound, http.StatusNotFound
	}
	v := shell{Base: s.base, Assets: s.base + "/ui/assets/" + s.hash, Page: page, Title: pages[page], Subject: subject, Version: s.version}
	if subject != "" && page != NotFound {
		v.Title = subject
	}
	var b bytes.Buffer
	if err := s.templates[page].Execute(&b, v); err != nil {
		http.Error(w, "the page cannot be rendered: "+err.Error(), http.StatusInternalServerError)
		return
	}
	h := w.Header()
	s.headers(h)
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Cache-Control", "no-cache")
	h.Set("Content-Length", strconv.Itoa(b.Len()))
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		w.Write(b.Bytes())
	}
}

// ServeAsset writes the asset of that name. Under the hash of this binary it may
// be kept for good; another hash is that of another version, whose page is sent
// to this one's files, so that a rolling update never mixes the two.
func (s *Site) ServeAsset(w http.ResponseWriter, r *http.Request, hash, name string) {
	h := w.Header()
	s.headers(h)
	a, ok := s.assets[name]
	switch {
	case !ok:
		h.Set("Cache-Control", "no-store")
		http.Error(w, "there is no such asset", http.StatusNotFound)
		return
	case hash != s.hash:
		h.Set("Cache-Control", "no-store")
		http.Redirect(w, r, s.base+"/ui/assets/"+s.hash+"/"+name, http.StatusFound)
		return
	}
	body := a.body
	h.Set("Content-Type", a.kind)
	h.Set("Cache-Control", "public, max-age=31536000, immutable")
	h.Set("Vary", "Accept-Encoding")
	if acceptsGzip(r.Header.Get("Accept-Encoding")) {
		if z := a.gzip(); z != nil {
			body = z
			h.Set("Content-Encoding", "gzip")
		}
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	if r.Method != http.MethodHead {
		w.Write(body)
	}
}

func acceptsGzip(header string) bool {
	for one := range strings.SplitSeq(header, ",") {
		coding, params, _ := strings.Cut(one, ";")
		if strings.TrimSpace(coding) == "gzip" {
			q := strings.ReplaceAll(params, " ", "")
			return q != "q=0" && !strings.HasPrefix(q, "q=0.000") && q != "q=0.0" && q != "q=0.00"
		}
	}
	return false
}
