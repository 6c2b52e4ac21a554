package server

import (
	"net/http"

	"github.com/go-chi/chi/v5"

	"sluice/upstream/wire"
)

// routes is the whole surface of the data listener.
func (s *Server) routes() http.Handler {
	mux := chi.NewRouter()
	both := func(method, path string, h http.HandlerFunc) {
		// With and without /v1, with and without the trailing slash: one policy for all.
		for _, p := range []string{"/v1" + path, path} {
			mux.Method(method, p, h)
			mux.Method(method, p+"/", h)
			if method == http.MethodGet {
				mux.Head(p, h)
				mux.Head(p+"/", h)
			}
		}
	}
	for _, api := range []wire.API{wire.Chat, wire.Completions, wire.Embeddings, wire.Responses} {
		both(http.MethodPost, api.Path(), s.model(api))
	}
	both(http.MethodGet, "/models", s.listModels)
	both(http.MethodGet, "/models/{id}", s.getModel)
	// A model's name may hold slashes (org/name).
	for _, p := range []string{"/v1/models/*", "/models/*"} {
		mux.Get(p, s.getModel)
		mux.Head(p, s.getModel)
	}
	for p, h := range map[string]http.HandlerFunc{"/healthz": s.healthz, "/readyz": s.readyz} {
		mux.Get(p, h)
		mux.Head(p, h)
	}
	mux.NotFound(func(w http.ResponseWriter, r *http.Request) {
		s.writeError(w, newRequestID(), failure(http.StatusNotFound, "not_found", "There is no "+cut(r.URL.Path, 100)+" here; the API is below /v1."))
	})
	mux.MethodNotAllowed(func(w http.ResponseWriter, r *http.Request) {
		allow := "GET, HEAD"
		if mux.Match(chi.NewRouteContext(), http.MethodPost, r.URL.Path) {
			allow = "POST"
		}
		w.Header().Set("Allow", allow)
		s.writeError(w, newRequestID(), failure(http.StatusMethodNotAllowed, "method_not_allowed", cut(r.Method, 20)+" is not allowed on "+cut(r.URL.Path, 100)+"."))
	})
	if len(s.cfg.CORSOrigins) > 0 {
		return s.cors(mux)
	}
	return mux
}

// cut shortens what a client sent before it is quoted back.
func cut(s string, n int) string {
	if len(s) > n {
		return s[:n] + "…"
	}
	return s
}
