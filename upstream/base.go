package upstream

import (
	"errors"
	"fmt"
	"net/url"
	"path"
	"strconv"
	"strings"
)

// dnsPrefix marks an endpoint that stands for every address of its name.
const dnsPrefix = "dns:"

// NormalizeBase checks a configured base URL and returns its one form: scheme
// and host in lower case, no trailing or double slash, /v1 when there was no
// path at all. Any other path is kept as given (http://h/openai/v1). A leading
// "dns:" stays.
func NormalizeBase(s string) (string, error) {
	rest, dns := strings.CutPrefix(s, dnsPrefix)
	u, err := parseBase(rest)
	if err != nil {
		return "", fmt.Errorf("endpoint %q: %w", redactURL(s), err)
	}
	if dns {
		return dnsPrefix + u.String(), nil
	}
	return u.String(), nil
}

func parseBase(s string) (*url.URL, error) {
	if s == "" {
		return nil, errors.New("it is empty; write a base URL such as http://gpu1:8000/v1")
	}
	for _, c := range []byte(s) {
		if c <= ' ' || c == 0x7f || c == '\\' {
			return nil, errors.New("it has a space, a backslash or a control character")
		}
	}
	u, err := url.Parse(s)
	if err != nil {
		// The cause quotes the whole URL, which may hold a password.
		return nil, errors.New("it is not a URL; write a base URL such as http://gpu1:8000/v1")
	}
	u.Scheme, u.Host = strings.ToLower(u.Scheme), strings.ToLower(u.Host)
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New("the scheme must be http or https, as in http://gpu1:8000/v1")
	case u.Opaque != "" || u.Hostname() == "":
		return nil, errors.New("the host is missing, as in http://gpu1:8000/v1")
	case u.Scheme == "http" && strings.ContainsFunc(u.Host, func(r rune) bool { return r > 0x7e }):
		return nil, errors.New("write the host name in its ASCII form, as in http://xn--bcher-kva.example/v1")
	case u.User != nil:
		return nil, errors.New("a user or password in the URL is not allowed; use credential")
	case u.RawQuery != "" || u.ForceQuery || strings.Contains(s, "#"):
		return nil, errors.New("a query or fragment is not allowed in a base URL")
	}
	if _, port, ok := strings.Cut(u.Host[strings.LastIndexByte(u.Host, ']')+1:], ":"); ok {
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return nil, errors.New("the port must be a number from 1 to 65535")
		}
	}
	p := path.Clean("/" + u.EscapedPath())
	if p == "/" {
		p = "/v1"
	}
	for _, tail := range []string{"/chat/completions", "/completions", "/embeddings", "/responses", "/models"} {
		if strings.HasSuffix(p, tail) {
			return nil, fmt.Errorf("give the base URL without %s", tail)
		}
	}
	if u.Path, err = url.PathUnescape(p); err != nil {
		return nil, errors.New("the path is not valid")
	}
	u.RawPath = p
	return u, nil
}

// redactURL removes what may be a secret from a URL that did not parse.
func redactURL(s string) string {
	if i := strings.LastIndexByte(s, '@'); i >= 0 {
		if j := strings.Index(s, "://"); j >= 0 && j < i {
			s = s[:j+3] + "…" + s[i:]
		}
	}
	if i := strings.IndexAny(s, "?#"); i >= 0 {
		s = s[:i] + "…"
	}
	return s
}

// join returns the URL of a path below the base.
func join(base *url.URL, p string) *url.URL {
	u := *base
	u.RawPath = base.EscapedPath() + p
	u.Path += p
	return &u
}

// serverRoot is where an engine's own paths (/health) are: the base without a
// final /v1.
func serverRoot(base *url.URL) *url.URL {
	u := *base
	u.RawPath = strings.TrimSuffix(base.EscapedPath(), "/v1")
	u.Path = strings.TrimSuffix(base.Path, "/v1")
	return &u
}

// hostRoot is scheme and host alone.
func hostRoot(base *url.URL) *url.URL {
	return &url.URL{Scheme: base.Scheme, Host: base.Host}
}
