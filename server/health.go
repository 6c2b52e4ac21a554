package server

import (
	"context"
	"net/http"
	"time"
)

// firstChecks is how long the first checks of the endpoints may hold back the
// readiness of a process that has a table.
const firstChecks = 2 * time.Second

// skewTime is how long the verbose answer may wait for what the other replicas
// serve.
const skewTime = 100 * time.Millisecond

// healthz says that the process lives; it depends on nothing.
func (s *Server) healthz(w http.ResponseWriter, r *http.Request) {
	s.writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
}

// readyz says that traffic may come: a table is loaded, the first checks of the
// endpoints are back, and the process is not draining. It never depends on
// whether upstreams or stores are healthy; ?verbose tells those.
func (s *Server) readyz(w http.ResponseWriter, r *http.Request) {
	t := s.cfg.Live.Load()
	status, code := "ready", http.StatusOK
	switch {
	case s.draining.Load():
		status, code = "draining", http.StatusServiceUnavailable
	case t == nil:
		status, code = "no configuration yet", http.StatusServiceUnavailable
	case !s.checked():
		status, code = "first endpoint checks are running", http.StatusServiceUnavailable
	}
	degraded := s.Degraded()
	if code == http.StatusOK && len(degraded) > 0 {
		status = "degraded"
	}
	out := map[string]any{"status": status}
	if r.URL.Query().Has("verbose") {
		out["degraded"] = degraded
		out["in_flight"] = s.inflight.Load()
		if t != nil {
			out["revision"] = t.Revision
		}
		if s.cfg.Skew != nil {
			ctx, cancel := context.WithTimeout(r.Context(), skewTime)
			defer cancel()
			out["replicas"], out["skew"] = s.cfg.Skew(ctx)
		}
	}
	s.writeJSON(w, code, out)
}

// checked says whether the first checks have had their time. It stays true: an
// upstream that is added later and does not answer must not make every replica
// unready at once.
func (s *Server) checked() bool {
	if s.cfg.Ready == nil || s.ready.Load() {
		return true
	}
	now := time.Now().UnixNano()
	s.loaded.CompareAndSwap(0, now)
	if s.cfg.Ready() || now-s.loaded.Load() >= int64(firstChecks) {
		s.ready.Store(true)
	}
	return s.ready.Load()
}
