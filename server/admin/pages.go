package admin

import (
	"net/http"
	"regexp"
	"strings"

	"github.com/go-chi/chi/v5"

	"sluice/web"
)

var experimentKeyForm = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)

// pages mounts the UI. The shells hold no data, so they need no token; what
// they show comes from /admin/v1. Without a token the same rule as there keeps
// pages of other names that resolve to this machine out.
func (a *API) pages(r chi.Router) {
	site, err := web.New(web.Config{BasePath: a.cfg.BasePath, Version: a.cfg.Version})
	if err != nil {
		a.log.Error("the UI cannot be served", "err", err)
		return
	}
	a.mountSite(r, site)
}

func (a *API) mountSite(r chi.Router, site *web.Site) {
	base := strings.TrimRight(a.cfg.BasePath, "/")
	page := func(name string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) { site.ServePage(w, r, name, "") }
	}
	r.Group(func(r chi.Router) {
		r.Use(a.localPages)
		get := func(pattern string, h http.HandlerFunc) {
			r.Get(pattern, h)
			r.Head(pattern, h)
		}
		get("/", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, base+"/ui", http.StatusFound) })
		get("/ui", page("experiments"))
		get("/ui/experiments", page("experiments"))
		get("/ui/experiments/{key}", func(w http.ResponseWriter, r *http.Request) {
			key := chi.URLParam(r, "key")
			if !experimentKeyForm.MatchString(key) {
				site.ServePage(w, r, web.NotFound, "")
				return
			}
			site.ServePage(w, r, "experiment", key)
		})
		for _, name := range []string{"upstreams", "keys", "audit"} {
			get("/ui/"+name, page(name))
		}
		get("/ui/assets/{hash}/*", func(w http.ResponseWriter, r *http.Request) {
			site.ServeAsset(w, r, chi.URLParam(r, "hash"), chi.URLParam(r, "*"))
		})
		get("/ui/*", page(web.NotFound))
	})
}

// localPages is authenticate's rule for a listener without a token.
func (a *API) localPages(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, loopback := peer(r); a.cfg.Token == "" && (!loopback || !localHost(r.Host)) {
			a.writeProblem(w, r, newProblem(http.StatusForbidden, "forbidden",
				"Without admin.token the admin listener answers this machine only, under the name localhost or a loopback address; set admin.token to use it from elsewhere."))
			return
		}
		next.ServeHTTP(w, r)
	})
}
