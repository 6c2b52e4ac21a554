package admin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/goleak"

	"sluice/internal/control"
	"sluice/internal/fakellm"
	"sluice/internal/sticky"
	"sluice/internal/store"
	"sluice/metrics"
	"sluice/router"
	"sluice/server"
	"sluice/server/admin"
	"sluice/upstream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const seed = `{
  "upstreams": [{"name": "v1", "endpoints": ["%[1]s"], "credential": "vllm"}, {"name": "v2", "endpoints": ["%[1]s"]}],
  "models": [{"name": "chat", "default": {"upstream": "v1"}}, {"name": "spare", "default": {"upstream": "v2"}}],
  "experiments": [{"key": "exp", "model": "chat", "kind": "canary", "state": "running", "baseline": "control",
    "variants": [{"name": "control", "weight": 9000, "upstream": "v1"}, {"name": "canary", "weight": 1000, "upstream": "v2", "version": "v2-1"}]}]
}`

// tester is a *testing.T or a *rapid.T.
type tester interface {
	Helper()
	Error(args ...any)
	Errorf(format string, args ...any)
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// gateway is one process without its listeners: real stores, controller and handlers.
type gateway struct {
	t       tester
	ctx     context.Context
	api     http.Handler
	data    *server.Server
	store   *store.Store
	sticky  *sticky.Store
	control *control.Controller
	live    *router.Live
	rec     *metrics.Recorder
	logs    *syncBuffer
	token   string
	failing *failing
	done    chan struct{}
	dir     string // of the database
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// awayError is what the store answers while its database is away.
type awayError struct{}

func (awayError) Error() string     { return "dial tcp 10.1.2.3:5432 password=hunter2: connection refused" }
func (awayError) Unavailable() bool { return true }

// failing is the store with a switch: a file cannot be unplugged.
type failing struct {
	*store.Store
	mu   sync.Mutex
	away bool
}

func (f *failing) set(away bool) { f.mu.Lock(); f.away = away; f.mu.Unlock() }

func (f *failing) err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.away {
		return awayError{}
	}
	return nil
}

func (f *failing) Latest(ctx context.Context) (*router.Snapshot, error) {
	if err := f.err(); err != nil {
		return nil, err
	}
	return f.Store.Latest(ctx)
}

func (f *failing) LatestRevision(ctx context.Context) (int64, error) {
	if err := f.err(); err != nil {
		return 0, err
	}
	return f.Store.LatestRevision(ctx)
}

func (f *failing) CommitAbove(ctx context.Context, floor int64, ch router.Change) (*router.Snapshot, *router.Audit, error) {
	if err := f.err(); err != nil {
		return nil, nil, err
	}
	return f.Store.CommitAbove(ctx, floor, ch)
}

func (f *failing) Audit(ctx context.Context, q router.AuditFilter) ([]router.Audit, int64, error) {
	if err := f.err(); err != nil {
		return nil, 0, err
	}
	return f.Store.Audit(ctx, q)
}

func (f *failing) VerifyAudit(ctx context.Context) (int64, error) {
	if err := f.err(); err != nil {
		return 0, err
	}
	return f.Store.VerifyAudit(ctx)
}

func (f *failing) Usage(ctx context.Context, q metrics.UsageQuery) ([]metrics.UsageRow, bool, error) {
	if err := f.err(); err != nil {
		return nil, false, err
	}
	return f.Store.Usage(ctx, q)
}

func (f *failing) ExperimentStats(ctx context.Context, exp string, since time.Time) ([]metrics.VariantStats, error) {
	if err := f.err(); err != nil {
		return nil, err
	}
	return f.Store.ExperimentStats(ctx, exp, since)
}

func (f *failing) IdempotencyBegin(ctx context.Context, key, actor, route, hash string) (string, int, []byte, []byte, error) {
	if err := f.err(); err != nil {
		return "", 0, nil, nil, err
	}
	return f.Store.IdempotencyBegin(ctx, key, actor, route, hash)
}

func newGateway(t testing.TB, change func(*admin.Config)) *gateway {
	t.Helper()
	llm, err := fakellm.Start(fakellm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	g := &gateway{t: t, ctx: t.Context(), live: &router.Live{}, logs: &syncBuffer{}, done: make(chan struct{}), dir: t.TempDir()}
	log := slog.New(slog.NewJSONHandler(g.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	if g.store, err = store.Open(t.Context(), store.Options{URL: "sqlite:" + filepath.Join(g.dir, "sluice.db")}); err != nil {
		t.Fatal(err)
	}
	g.failing = &failing{Store: g.store}
	if g.sticky, err = sticky.Open(t.Context(), sticky.Options{ReplicaID: "test", Log: log}); err != nil {
		t.Fatal(err)
	}
	pool := upstream.NewPool(upstream.PoolOptions{Log: log})
	reg := prometheus.NewRegistry()
	g.rec = metrics.New(metrics.Options{Registerer: reg, Writer: g.store, Log: log})
	doc, err := router.ParseDocument(fmt.Appendf(nil, seed, llm.URL()))
	if err != nil {
		t.Fatal(err)
	}
	g.control, err = control.New(control.Options{Store: g.failing, Sticky: g.sticky, Pool: pool, Live: g.live, Seed: doc, ReplicaID: "test", Log: log,
		Secrets: func(name string) (string, bool) { return "upstream-secret", name == "vllm" }})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.control.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if g.data, err = server.New(server.Config{Live: g.live, Doer: pool, Pins: g.sticky, Recorder: g.rec, Log: log, AuthKeys: true}); err != nil {
		t.Fatal(err)
	}
	cfg := admin.Config{Control: g.control, Store: g.failing, Pool: pool, Live: g.live, Recorder: g.rec, Pins: g.sticky, Log: log,
		Metrics: promhttp.HandlerFor(reg, promhttp.HandlerOpts{}), Version: "test", AuthKeys: true, Done: g.done}
	if change != nil {
		change(&cfg)
	}
	g.token = cfg.Token
	if g.api, err = admin.New(cfg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = g.control.Run(ctx) })
	wg.Go(func() { _ = g.rec.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
		pool.Close()
		end, stop := context.WithTimeout(context.Background(), 5*time.Second)
		defer stop()
		g.sticky.Close(end)
		g.store.Close()
		llm.Close()
	})
	return g
}

// reply is an answer, read.
type reply struct {
	t      tester
	what   string
	status int
	header http.Header
	body   []byte
}

// call sends one request; headers are "Name: value".
func (g *gateway) call(method, path, body string, headers ...string) *reply {
	g.t.Helper()
	var content io.Reader
	if body != "" {
		content = strings.NewReader(body)
	}
	r := httptest.NewRequestWithContext(g.ctx, method, "http://127.0.0.1:8081"+path, content)
	r.RemoteAddr = "127.0.0.1:50000"
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	if g.token != "" {
		r.Header.Set("Authorization", "Bearer "+g.token)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		switch {
		case name == "Host":
			r.Host = value
		case name == "From":
			r.RemoteAddr = value
		case value == "":
			r.Header.Del(name)
		default:
			r.Header.Set(name, value)
		}
	}
	w := httptest.NewRecorder()
	g.api.ServeHTTP(w, r)
	out := &reply{g.t, method + " " + path, w.Code, w.Header(), w.Body.Bytes()}
	if w.Code >= 400 {
		out.checkProblem()
	}
	if strings.Contains(w.Body.String(), "$schema") {
		g.t.Errorf("%s: the answer has $schema", out.what)
	}
	return out
}

// v1 is call below /admin/v1.
func (g *gateway) v1(method, path, body string, headers ...string) *reply {
	g.t.Helper()
	return g.call(method, "/admin/v1"+path, body, headers...)
}

// etag is the present one of an object.
func (g *gateway) etag(path string) string {
	g.t.Helper()
	return g.v1("GET", path, "").want(200).header.Get("ETag")
}

// write is v1 with the present ETag of the object at path up to a colon or query.
func (g *gateway) write(method, object, rest, body string, headers ...string) *reply {
	g.t.Helper()
	return g.v1(method, object+rest, body, append([]string{"If-Match: " + g.etag(object)}, headers...)...)
}

func (r *reply) want(status int) *reply {
	r.t.Helper()
	if r.status != status {
		r.t.Fatalf("%s: status %d, want %d: %s", r.what, r.status, status, r.body)
	}
	return r
}

// refused checks a problem's status and code.
func (r *reply) refused(status int, code string) *reply {
	r.t.Helper()
	if got := r.get("code"); r.status != status || got != code {
		r.t.Errorf("%s: %d %v, want %d %s: %s", r.what, r.status, got, status, code, r.body)
	}
	return r
}

// checkProblem holds every error to RFC 9457 and our own form.
func (r *reply) checkProblem() {
	r.t.Helper()
	var p struct {
		Type, Title, Detail, Code string
		RequestID                 string `json:"request_id"`
		Status                    int
		Errors                    []struct{ Location, Message string }
	}
	err := json.Unmarshal(r.body, &p)
	switch {
	case len(r.body) == 0 && strings.HasPrefix(r.what, "HEAD"):
	case err != nil || r.header.Get("Content-Type") != "application/problem+json":
		r.t.Errorf("%s: %d is no problem: %s %s", r.what, r.status, r.header.Get("Content-Type"), r.body)
	case p.Status != r.status || p.Title == "" || p.Code == "" || p.Type != "urn:sluice:problem:"+p.Code || p.RequestID == "" || p.RequestID != r.header.Get("X-Request-Id"):
		r.t.Errorf("%s: an incomplete problem: %s", r.what, r.body)
	case len(p.Detail) < 15 || !strings.HasSuffix(p.Detail, ".") && !strings.Contains(p.Detail, ": "):
		r.t.Errorf("%s: the detail does not say what to do: %q", r.what, p.Detail)
	}
	for _, e := range p.Errors {
		if e.Location == "" || e.Message == "" || strings.HasPrefix(e.Location, "/") {
			r.t.Errorf("%s: an incomplete field: %s", r.what, r.body)
		}
	}
}

// get reads one value by a dotted path with list indexes, nil where there is none.
func (r *reply) get(path string) any {
	r.t.Helper()
	var v any
	if err := json.Unmarshal(r.body, &v); err != nil {
		r.t.Fatalf("%s: %d is no JSON: %q", r.what, r.status, r.body)
	}
	for part := range strings.SplitSeq(path, ".") {
		switch x := v.(type) {
		case map[string]any:
			v = x[part]
		case []any:
			var i int
			if _, err := fmt.Sscan(part, &i); err != nil || i >= len(x) {
				return nil
			}
			v = x[i]
		default:
			return nil
		}
	}
	return v
}

// has checks values by path.
func (r *reply) has(pairs ...any) *reply {
	r.t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		if got, want := fmt.Sprint(r.get(pairs[i].(string))), fmt.Sprint(pairs[i+1]); got != want {
			r.t.Errorf("%s: %s is %s, want %s: %s", r.what, pairs[i], got, want, r.body)
		}
	}
	return r
}

// eventually waits for what another goroutine does.
func eventually(t tester, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within 20 s", what)
		}
	}
}

func (g *gateway) weight(variant string) int {
	g.t.Helper()
	return router.WeightsView(g.live.Load().Snapshot.Document.Experiment("exp"))[variant]
}

func (g *gateway) revision() int64 {
	g.t.Helper()
	rev, err := g.store.LatestRevision(g.ctx)
	if err != nil {
		g.t.Fatal(err)
	}
	return rev
}

func (g *gateway) lastAudit() router.Audit {
	g.t.Helper()
	rows, _, err := g.store.Audit(g.ctx, router.AuditFilter{Limit: 1})
	if err != nil || len(rows) == 0 {
		g.t.Fatal("no audit row", err)
	}
	return rows[0]
}
