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
	"reflect"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"
	"github.com/go-chi/chi/v5"

	"sluice/internal/control"
	"sluice/internal/store"
	"sluice/metrics"
	"sluice/router"
	"sluice/upstream"
)

// Control commits changes and knows the replicas; *control.Controller.
type Control interface {
	Commit(ctx context.Context, ch router.Change) (control.CommitResult, error)
	Kill(ctx context.Context, experiment, variant string, ch router.Change) (control.CommitResult, error)
	Rollback(ctx context.Context, experiment string, ch router.Change) (control.CommitResult, error)
	WaitApplied(ctx context.Context, revision int64, timeout time.Duration) (applied bool, missing []string)
	Status(ctx context.Context) control.Status
}

// Store is what the API reads beside the document; *store.Store.
type Store interface {
	Audit(ctx context.Context, f store.AuditFilter) ([]router.Audit, int64, error)
	VerifyAudit(ctx context.Context) (int64, error)
	Usage(ctx context.Context, q store.UsageQuery) ([]store.UsageRow, bool, error)
	ExperimentStats(ctx context.Context, experiment string, since time.Time) ([]store.VariantStats, error)
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
	Metrics  http.Handler
	Extra    http.Handler // served below /demo/, for the demo's buttons
	Token    string       // "" is loopback only, Host and Origin checked
	Listen   string
	BasePath string // prefix of everything behind a proxy, "" or "/sluice"
	Badge    string // environment shown in the UI
	Version  string
	AuthKeys bool // whether the data plane asks for keys
	Log      *slog.Logger
}

// API is the handler's state.
type API struct {
	cfg Config
	log *slog.Logger
}

// New returns the handler of the admin listener.
func New(c Config) (http.Handler, error) {
	if c.Control == nil || c.Store == nil || c.Live == nil || c.Recorder == nil {
		return nil, errors.New("admin: Control, Store, Live and Recorder are required")
	}
	a := &API{cfg: c, log: c.Log}
	if a.log == nil {
		a.log = slog.New(slog.DiscardHandler)
	}
	r := chi.NewRouter()
	r.Use(a.requestID, a.recover)
	mount := func(r chi.Router) {
		r.Get("/healthz", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
		a.pages(r)
		r.Group(func(r chi.Router) {
			r.Use(a.authenticate)
			r.Route("/admin/v1", a.api)
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
	}
	mount(r)
	r.NotFound(func(w http.ResponseWriter, r *http.Request) {
		a.writeProblem(w, r, newProblem(http.StatusNotFound, "not_found", "There is no "+r.URL.Path+" here; the API is below /admin/v1, the UI is /ui."))
	})
	r.MethodNotAllowed(func(w http.ResponseWriter, r *http.Request) {
		a.writeProblem(w, r, newProblem(http.StatusMethodNotAllowed, "method_not_allowed", r.Method+" is not allowed on "+r.URL.Path+"."))
	})
	base := strings.TrimRight(c.BasePath, "/")
	if base == "" {
		return r, nil
	}
	outer := chi.NewRouter()
	outer.Mount(base, http.StripPrefix(base, r))
	return outer, nil
}

// api mounts the operations. Each file registers its own.
func (a *API) api(r chi.Router) {
	cfg := huma.DefaultConfig("Sluice admin API", "1")
	cfg.CreateHooks = nil // no $schema member, which would quote the Host header
	cfg.DocsPath = ""     // the stock page loads scripts from elsewhere
	cfg.Servers = []*huma.Server{{URL: strings.TrimRight(a.cfg.BasePath, "/") + "/admin/v1"}}
	cfg.Components.SecuritySchemes = map[string]*huma.SecurityScheme{"bearer": {Type: "http", Scheme: "bearer"}}
	cfg.Security = []map[string][]string{{"bearer": {}}}
	api := humachi.New(r, cfg)
	api.OpenAPI().Components.Schemas.RegisterTypeAlias(reflect.TypeFor[router.Duration](), reflect.TypeFor[string]())
	api.UseMiddleware(a.idempotent(api))
	a.registerExperiments(api)
	a.registerWeights(api)
	a.registerVerbs(api)
	a.registerObjects(api)
	a.registerDocument(api)
	a.registerKeys(api)
	a.registerReads(api)
}

// snapshot is what serves on this replica.
func (a *API) snapshot() (*router.Snapshot, error) {
	t := a.cfg.Live.Load()
	if t == nil {
		return nil, newProblem(http.StatusServiceUnavailable, "not_started", "No document is loaded yet; try again in a moment.")
	}
	return t.Snapshot, nil
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
			a.writeProblem(w, r, newProblem(http.StatusInternalServerError, "internal_error", "The request failed here; its id tells the operator where."))
		}()
		next.ServeHTTP(w, r)
	})
}
