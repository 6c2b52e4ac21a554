package admin

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/go-chi/chi/v5"

	"sluice/web"
)

// uiHandler is the listener's handler with the pages alone, as New mounts it.
func uiHandler(token, base string) http.Handler {
	a := &API{cfg: Config{Token: token, BasePath: base, Version: "test"}}
	r := chi.NewRouter()
	a.pages(r)
	if base == "" {
		return r
	}
	outer := chi.NewRouter()
	outer.Mount(base, http.StripPrefix(base, r))
	return outer
}

func ask(h http.Handler, method, path, host, remote string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, nil)
	r.Host, r.RemoteAddr = host, remote
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

const here = "127.0.0.1:5555"

func TestPagesAreServed(t *testing.T) {
	for _, base := range []string{"", "/sluice"} {
		h := uiHandler("", base)
		for path, title := range map[string]string{
			"/ui": "Experiments", "/ui/experiments": "Experiments", "/ui/experiments/chat-v2": "chat-v2",
			"/ui/upstreams": "Upstreams", "/ui/keys": "Keys", "/ui/audit": "Audit",
		} {
			w := ask(h, "GET", base+path, "localhost:8081", here)
			if w.Code != 200 || !strings.Contains(w.Body.String(), "<title>"+title+" ·") {
				t.Errorf("%s%s: status %d, want the page %s", base, path, w.Code, title)
			}
			if got := w.Header().Get("Content-Security-Policy"); got != web.Policy {
				t.Errorf("%s%s: policy %q", base, path, got)
			}
			if w := ask(h, "HEAD", base+path, "localhost:8081", here); w.Code != 200 || w.Body.Len() != 0 {
				t.Errorf("HEAD %s%s: status %d and %d bytes", base, path, w.Code, w.Body.Len())
			}
		}
		for _, path := range []string{"/ui/nothing", "/ui/experiments/UPPER", "/ui/experiments/a/b", "/ui/experiments/" + strings.Repeat("a", 64), "/ui/notfound"} {
			if w := ask(h, "GET", base+path, "localhost", here); w.Code != 404 || !strings.Contains(w.Body.String(), "Nothing is here") {
				t.Errorf("%s%s: status %d, want the page for 404", base, path, w.Code)
			}
		}
		if w := ask(h, "GET", base+"/", "localhost", here); w.Code != 302 || w.Header().Get("Location") != base+"/ui" {
			t.Errorf("%s/: %d to %q", base, w.Code, w.Header().Get("Location"))
		}
	}
}

func TestAssetsOfPagesAreServed(t *testing.T) {
	site, err := web.New(web.Config{BasePath: "/sluice"})
	if err != nil {
		t.Fatal(err)
	}
	h := uiHandler("", "/sluice")
	for _, name := range site.AssetNames() {
		w := ask(h, "GET", "/sluice/ui/assets/"+site.Hash()+"/"+name, "localhost", here)
		if w.Code != 200 || !strings.Contains(w.Header().Get("Cache-Control"), "immutable") || w.Header().Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: status %d, %v", name, w.Code, w.Header())
		}
	}
	for _, path := range []string{"/sluice/ui/assets/" + site.Hash() + "/web.go", "/sluice/ui/assets/" + site.Hash() + "/..%2fweb.go", "/sluice/ui/assets/x"} {
		if w := ask(h, "GET", path, "localhost", here); w.Code != 404 {
			t.Errorf("%s: status %d, want 404", path, w.Code)
		}
	}
}

// A name of a stranger's that resolves to this machine must not get the pages,
// nor may another machine while there is no token.
func TestPagesWithoutTokenAreLocal(t *testing.T) {
	for _, c := range []struct {
		name, token, host, remote string
		want                      int
	}{
		{"localhost", "", "localhost:8081", here, 200},
		{"loopback", "", "127.0.0.1:8081", here, 200},
		{"loopback 6", "", "[::1]:8081", "[::1]:5555", 200},
		{"rebound name", "", "evil.example:8081", here, 403},
		{"another machine", "", "localhost", "192.0.2.7:5555", 403},
		{"token, another machine", "secret", "gateway.example", "192.0.2.7:5555", 200},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := uiHandler(c.token, "")
			for _, path := range []string{"/", "/ui", "/ui/experiments/chat", "/ui/nothing"} {
				w := ask(h, "GET", path, c.host, c.remote)
				if (w.Code == 403) != (c.want == 403) {
					t.Errorf("%s: status %d, want %d", path, w.Code, c.want)
				}
			}
			if w := ask(h, "GET", "/ui", c.host, c.remote); c.token != "" && strings.Contains(w.Body.String(), c.token) {
				t.Error("the token is in the page")
			}
		})
	}
}
