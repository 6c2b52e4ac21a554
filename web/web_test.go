package web

import (
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"io/fs"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
)

func site(t *testing.T, c Config) *Site {
	t.Helper()
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func page(s *Site, name, subject string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	s.ServePage(w, httptest.NewRequest("GET", "/ui", nil), name, subject)
	return w
}

func fetch(s *Site, hash, name, encoding string) *httptest.ResponseRecorder {
	w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/x", nil)
	r.Header.Set("Accept-Encoding", encoding)
	s.ServeAsset(w, r, hash, name)
	return w
}

func TestPages(t *testing.T) {
	s := site(t, Config{Version: "1.2.3"})
	for name := range pages {
		t.Run(name, func(t *testing.T) {
			w := page(s, name, "")
			want := 200
			if name == NotFound {
				want = 404
			}
			if w.Code != want {
				t.Errorf("status %d, want %d", w.Code, want)
			}
			for h, v := range map[string]string{"Content-Security-Policy": Policy, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache",
				"Content-Type": "text/html; charset=utf-8", "Referrer-Policy": "no-referrer"} {
				if got := w.Header().Get(h); got != v {
					t.Errorf("%s: %q, want %q", h, got, v)
				}
			}
			body := w.Body.String()
			for _, want := range []string{`<html lang="en"`, `<main id="main"`, `<nav class="side" aria-label="Main">`, `class="skip" href="#main"`, "<noscript>", "1.2.3"} {
				if !strings.Contains(body, want) {
					t.Errorf("the page lacks %s", want)
				}
			}
			if n := strings.Count(body, "<h1"); n != 1 {
				t.Errorf("%d h1, want 1", n)
			}
		})
	}
}

// The policy has no nonce and no unsafe-inline: nothing inline may be written.
func TestNothingInline(t *testing.T) {
	s := site(t, Config{})
	inline := regexp.MustCompile(`(?i)<script>|<style|\son[a-z]+=|\sstyle=|javascript:|https?://`)
	for name := range pages {
		if m := inline.FindString(page(s, name, "a-key").Body.String()); m != "" {
			t.Errorf("page %s has %q", name, m)
		}
	}
	unsafe := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser|https?://(?:www\.w3\.org/2000/svg|127\.0\.0\.1|gpu1)?`)
	for name, a := range s.assets {
		if path.Ext(name) != ".js" {
			continue
		}
		for _, m := range unsafe.FindAllString(string(a.body), -1) {
			if m != "http://www.w3.org/2000/svg" && m != "http://127.0.0.1" && m != "http://gpu1" {
				t.Errorf("%s has %s", name, m)
			}
		}
		if regexp.MustCompile(`\bstyle:|'style'`).Match(a.body) {
			t.Errorf("%s sets a style attribute, which the policy blocks", name)
		}
	}
}

func TestEverySubjectIsEscaped(t *testing.T) {
	body := page(site(t, Config{}), "experiment", `"><script>alert(1)</script>`).Body.String()
	if strings.Contains(body, "<script>alert") {
		t.Error("the subject reached the page as markup")
	}
}

var reference = regexp.MustCompile(`(?:href|src|action)="([^"#]+)"`)

func TestBasePath(t *testing.T) {
	for _, base := range []string{"", "/sluice", "/a/b"} {
		s := site(t, Config{BasePath: base + "/"})
		for name := range pages {
			body := page(s, name, "chat-v2").Body.String()
			if !strings.Contains(body, `data-base="`+base+`"`) {
				t.Errorf("base %q, page %s: no data-base", base, name)
			}
			for _, m := range reference.FindAllStringSubmatch(body, -1) {
				if !strings.HasPrefix(m[1], base+"/ui/") {
					t.Errorf("base %q, page %s links to %s", base, name, m[1])
				}
				if a, ok := strings.CutPrefix(m[1], base+"/ui/assets/"+s.Hash()+"/"); ok && s.assets[a].kind == "" {
					t.Errorf("page %s links to an asset that does not exist: %s", name, a)
				}
			}
		}
	}
	for _, bad := range []string{"sluice", "//evil.example"} {
		if _, err := New(Config{BasePath: bad}); err == nil {
			t.Errorf("base path %q was accepted", bad)
		}
	}
}

func TestAssets(t *testing.T) {
	s := site(t, Config{BasePath: "/sluice"})
	for _, name := range s.AssetNames() {
		w := fetch(s, s.Hash(), name, "")
		if w.Code != 200 || w.Body.Len() == 0 || w.Header().Get("Cache-Control") != "public, max-age=31536000, immutable" ||
			w.Header().Get("X-Content-Type-Options") != "nosniff" || w.Header().Get("Content-Type") == "" {
			t.Errorf("%s: status %d, headers %v", name, w.Code, w.Header())
		}
		z := fetch(s, s.Hash(), name, "br, gzip;q=0.5")
		if z.Header().Get("Content-Encoding") != "gzip" {
			continue
		}
		r, err := gzip.NewReader(z.Body)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(r); err != nil || string(b) != w.Body.String() {
			t.Errorf("%s: the packed form differs (%v)", name, err)
		}
	}
	if w := fetch(s, s.Hash(), "js/shell.js", "gzip;q=0"); w.Header().Get("Content-Encoding") != "" {
		t.Error("gzip was sent to a client that refuses it")
	}
	w := fetch(s, "0123456789abcdef", "js/shell.js", "")
	if w.Code != 302 || w.Header().Get("Location") != "/sluice/ui/assets/"+s.Hash()+"/js/shell.js" || w.Header().Get("Cache-Control") != "no-store" {
		t.Errorf("another version's address: %d %v", w.Code, w.Header())
	}
	for _, name := range []string{"", "js", "../web.go", "js/../../web.go", "js/none.js"} {
		if w := fetch(s, s.Hash(), name, ""); w.Code != 404 {
			t.Errorf("asset %q: status %d, want 404", name, w.Code)
		}
	}
}

// Every relative import must exist: nothing else checks that before a browser does.
func TestImportsResolve(t *testing.T) {
	s := site(t, Config{})
	imports := regexp.MustCompile(`(?m)^(?:import|export) .*from '([^']+)'`)
	used := map[string]bool{"js/theme.js": true}
	for name := range pages {
		used["js/pages/"+name+".js"] = true
	}
	for name, a := range s.assets {
		for _, m := range imports.FindAllSubmatch(a.body, -1) {
			target := path.Join(path.Dir(name), string(m[1]))
			if s.assets[target].kind == "" {
				t.Errorf("%s imports %s, which does not exist", name, m[1])
			}
			used[target] = true
		}
	}
	for name := range s.assets {
		if path.Ext(name) == ".js" && !used[name] {
			t.Errorf("%s is imported by nothing", name)
		}
	}
}

func TestHashFollowsContent(t *testing.T) {
	files := func(css string) fstest.MapFS {
		m := fstest.MapFS{"assets/app.css": {Data: []byte(css)}, "templates/layout.html": {Data: []byte(`{{template "content" .}}`)}}
		for name := range pages {
			m["templates/"+name+".html"] = &fstest.MapFile{Data: []byte(`{{define "content"}}{{.Assets}}{{end}}`)}
		}
		return m
	}
	a, b, again := site(t, Config{Files: files("a{}")}), site(t, Config{Files: files("b{}")}), site(t, Config{Files: files("a{}")})
	if a.Hash() == b.Hash() || a.Hash() != again.Hash() {
		t.Errorf("hashes %s %s %s: want the first and the last equal and the second another", a.Hash(), b.Hash(), again.Hash())
	}
	strange := files("a{}")
	strange["assets/x.exe"] = &fstest.MapFile{Data: []byte("x")}
	if _, err := New(Config{Files: strange}); err == nil {
		t.Error("a file without a content type was accepted")
	}
}

// vendored describes a file of others: it must be what its VENDOR.json says.
type vendored struct{ Package, Version, File, SHA256, Licence string }

// A script or style is either ours, and says so, or listed with its checksum
// beside its licence.
func TestThirdParty(t *testing.T) {
	err := fs.WalkDir(embedded, "assets", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || path.Ext(name) != ".js" && path.Ext(name) != ".css" {
			return err
		}
		body, err := fs.ReadFile(embedded, name)
		if err != nil {
			return err
		}
		first, _, _ := strings.Cut(string(body), "\n")
		if strings.Contains(first, "SPDX-License-Identifier: Apache-2.0") {
			return nil
		}
		dir := path.Dir(name)
		list, err := fs.ReadFile(embedded, path.Join(dir, "VENDOR.json"))
		if err != nil {
			t.Errorf("%s has no licence line of ours and no VENDOR.json beside it", name)
			return nil
		}
		var all []vendored
		if err := json.Unmarshal(list, &all); err != nil {
			return err
		}
		sum := sha256.Sum256(body)
		for _, v := range all {
			if v.File == path.Base(name) && v.SHA256 == hex.EncodeToString(sum[:]) && v.Licence != "" {
				if _, err := os.Stat(filepath.Join(filepath.FromSlash(dir), "LICENSE")); err != nil {
					t.Errorf("%s: its licence is missing: %v", name, err)
				}
				return nil
			}
		}
		t.Errorf("%s is not what %s/VENDOR.json lists", name, dir)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Colours must carry in both themes: each text colour on each ground that it is used on.
func TestContrast(t *testing.T) {
	css, err := fs.ReadFile(embedded, "assets/css/base.css")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile(`(?s)color-scheme: (light dark|dark);\s*(--bg.*?)\}`).FindAllStringSubmatch(string(css), -1)
	if len(blocks) != 2 {
		t.Fatalf("%d blocks of colours, want light and dark", len(blocks))
	}
	token := regexp.MustCompile(`--([a-z-]+): (#[0-9a-f]{3,6});`)
	pairs := map[string][]string{
		"text": {"bg", "panel", "sunk", "warn-bg", "bad-bg", "good-bg"}, "soft": {"bg", "panel", "sunk"}, "link": {"bg", "panel"}, "accent-text": {"accent"},
		"good": {"panel", "good-bg"}, "warn": {"panel", "warn-bg"}, "bad": {"panel", "bad-bg"},
		"a": {"panel"}, "b": {"panel"}, "c": {"panel"}, "d": {"panel"}, "e": {"panel"}, "f": {"panel"},
	}
	for _, b := range blocks {
		colours := map[string]string{}
		for _, m := range token.FindAllStringSubmatch(b[2], -1) {
			colours[m[1]] = m[2]
		}
		for fore, grounds := range pairs {
			for _, back := range grounds {
				if got := contrast(t, colours[fore], colours[back]); got < 4.5 {
					t.Errorf("%s: %s %s on %s %s has %.2f:1, want 4.5", b[1], fore, colours[fore], back, colours[back], got)
				}
			}
		}
	}
}
