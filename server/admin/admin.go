// Package admin is the admin listener's surface: the REST API below /admin/v1
// that the CLI and the UI use, the UI's pages, /metrics and /debug/pprof. It
// hides authentication, preconditions, problems and idempotency; what a change
// means is decided by router's edits and committed by control.
package admin

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/pprof"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"sluice/experiment/ramp"
	"sluice/metrics"
	"sluice/router"
	"sluice/upstream"
)

// Control commits changes and knows the replicas; *control.Controller.
type Control interface {
	Commit(ctx context.Context, ch router.Change) (router.CommitResult, error)
	Kill(ctx context.Context, experiment, variant string, ch router.Change) (router.CommitResult, error)
	Rollback(ctx context.Context, experiment string, ch router.Change) (router.CommitResult, error)
	WaitApplied(ctx context.Context, revision int64, timeout time.Duration) (applied bool, missing []string)
	Status(ctx context.Context) router.Status
	Degraded() []router.Degraded
}

// Store is what the API reads beside the document; *store.Store. Its errors
// have a method Unavailable() bool while the database is away.
type Store interface {
	Audit(ctx context.Context, f router.AuditFilter) ([]router.Audit, int64, error)
	VerifyAudit(ctx context.Context) (int64, error)
	Usage(ctx context.Context, q metrics.UsageQuery) ([]metrics.UsageRow, bool, error)
	ExperimentStats(ctx context.Context, experiment string, since time.Time) ([]metrics.VariantStats, error)
	// IdempotencyBegin answers the state "new", "running", "mismatch" or "done".
	IdempotencyBegin(ctx context.Context, key, actor, route, bodyHash string) (state string, status int, header, body []byte, err error)
	IdempotencyFinish(ctx context.Context, key, actor, route string, status int, header, body []byte) error
	IdempotencyAbandon(ctx context.Context, key, actor, route string) error
}

// Recorder has the live figures of this replica; *metrics.Recorder.
type Recorder interface{ Live() []metrics.ArmStats }

// Config is what New needs. Control, Store, Live and Recorder are required.
type Config struct {
	Control  Control
	Store    Store
	Pool     *upstream.Pool
	Live     *router.Live
	Recorder Recorder
	Pins     router.Pins // for explain; nil: pins are not shown
	// Rollouts and Preflights tell of ramps; nil: nobody watches, nothing is probed.
	Rollouts   Rollouts
	Preflights Preflights
	// Notify tells people outside what a person did to an experiment; nil: nobody
	// is told. It must not block.
	Notify   func(ramp.Notice)
	Metrics  http.Handler
	Extra    http.Handler // served below /demo/, for the demo's buttons
	Token    string       // "" is loopback only, Host and Origin checked
	Listen   string
	BasePath string // prefix of everything behind a proxy, "" or "/sluice"
	Badge    string // environment shown in the UI
	Version  string
	AuthKeys bool // whether the data plane asks for keys
	// Done ends streams of events when it is closed; nil: with their connection.
	Done <-chan struct{}
	Log  *slog.Logger
}

// API is the handler's state.
type API struct {
	cfg    Config
	log    *slog.Logger
	events *hub
	born   time.Time
}

// New returns the handler of the admin listener.
func New(c Config) (http.Handler, error) {
	if c.Control == nil || c.Store == nil || c.Live == nil || c.Recorder == nil {
		return nil, errors.New("admin: Control, Store, Live and Recorder are required")
	}
	a := &API{cfg: c, log: c.Log, born: time.Now()}
	if a.log == nil {
		a.log = slog.New(slog.DiscardHandler)
	}
	a.events = &hub{a: a}
	r := chi.NewRouter()
	r.Use(a.requestID, a.recover, middleware.GetHead)
	r.NotFound(a.notFound)
	r.MethodNotAllowed(a.notAllowed(r))
	r.Get("/healthz", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	a.pages(r)
	var err error
	r.Group(func(r chi.Router) {
		r.Use(a.authenticate)
		r.Route("/admin/v1", func(r chi.Router) { err = a.api(r) })
		if c.Metrics != nil {
			r.Method(http.MethodGet, "/metrics", c.Metrics)
		}
		if c.Extra != nil {
			r.Handle("/demo/*", c.Extra)
		}
		r.HandleFunc("/debug/pprof/*", pprof.Index)
		r.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		r.HandleFunc("/debug/pprof/profile", pprof.Profile)
		r.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		r.HandleFunc("/debug/pprof/trace", pprof.Trace)
	})
	if err != nil {
		return nil, err
	}
	base := strings.TrimRight(c.BasePath, "/")
	if base == "" {
		return r, nil
	}
	outer := chi.NewRouter()
	outer.NotFound(a.requestID(http.HandlerFunc(a.notFound)).ServeHTTP)
	outer.Mount(base, http.StripPrefix(base, r))
	return outer, nil
}

// api mounts the operations. Each file registers its own.
func (a *API) api(r chi.Router) error {
	r.Use(a.strictQuery, a.strictBody)
	api := a.newAPI(r)
	api.UseMiddleware(a.idempotent)
	a.registerExperiments(api)
	a.registerWeights(api)
	a.registerVerbs(api)
	a.registerRollouts(api)
	a.registerObjects(api)
	a.registerDocument(api)
	a.registerKeys(api)
	a.registerAudit(api)
	a.registerStatus(api)
	a.registerFigures(api)
	a.registerEvents(r, api)
	return a.finish(r, api)
}

// table is what serves on this replica.
func (a *API) table() (*router.Table, error) {
	t := a.cfg.Live.Load()
	if t == nil {
		p := newProblem(http.StatusServiceUnavailable, "not_started", "No document is loaded yet; try again in a moment.")
		p.retryAfter = "1"
		return nil, p
	}
	return t, nil
}

func (a *API) snapshot() (*router.Snapshot, error) {
	t, err := a.table()
	if err != nil {
		return nil, err
	}
	return t.Snapshot, nil
}

func (a *API) notFound(w http.ResponseWriter, r *http.Request) {
	a.writeProblem(w, r, newProblem(http.StatusNotFound, "not_found", "There is no "+clip(r.URL.Path, 200)+" here; the API is below /admin/v1 (openapi.json lists it), the UI is /ui."))
}

var methods = []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}

// notAllowed answers 405 with Allow. A POST to an item is a verb that does not
// exist: /experiments/a:nope matches /experiments/{key}.
func (a *API) notAllowed(routes chi.Routes) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		path := r.URL.Path
		if r.URL.RawPath != "" {
			path = r.URL.RawPath
		}
		last := path[strings.LastIndexByte(path, '/')+1:]
		if _, verb, ok := strings.Cut(last, ":"); ok && r.Method == http.MethodPost {
			a.writeProblem(w, r, newProblem(http.StatusNotFound, "unknown_verb", "There is no verb "+clip(verb, 40)+" here; an experiment has "+verbNames()+"."))
			return
		}
		var allow []string
		for _, m := range methods {
			if routes.Match(chi.NewRouteContext(), m, path) {
				allow = append(allow, m)
				if m == http.MethodGet {
					allow = append(allow, http.MethodHead)
				}
			}
		}
		w.Header().Set("Allow", strings.Join(allow, ", "))
		a.writeProblem(w, r, newProblem(http.StatusMethodNotAllowed, "method_not_allowed", clip(r.Method, 20)+" is not allowed on "+clip(r.URL.Path, 200)+"; use "+strings.Join(allow, ", ")+"."))
	}
}

func (a *API) recover(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			v := recover()
			if v == nil {
				return
			}
			if v == http.ErrAbortHandler {
				panic(v)
			}
			a.log.Error("panic in the admin API", "request_id", requestID(r.Context()), "path", r.URL.Path, "panic", v)
			a.writeProblem(w, r, newProblem(http.StatusInternalServerError, "internal_error", internalDetail))
		}()
		next.ServeHTTP(w, r)
	})
}
