package server

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/internal/fakellm"
	"sluice/metrics"
	"sluice/router"
	"sluice/upstream"
)

// recorder keeps the events of a test.
type recorder struct {
	mu  sync.Mutex
	evs []metrics.Event
}

func (r *recorder) Record(ev metrics.Event) { r.mu.Lock(); r.evs = append(r.evs, ev); r.mu.Unlock() }

// wait returns the events once n are there.
func (r *recorder) wait(t testing.TB, n int) []metrics.Event {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		r.mu.Lock()
		evs := append([]metrics.Event(nil), r.evs...)
		r.mu.Unlock()
		if len(evs) >= n {
			return evs
		}
	}
	t.Fatalf("fewer than %d events", n)
	return nil
}

// plane is a data plane in front of fakes, on a real listener.
type plane struct {
	t    testing.TB
	url  string
	srv  *Server
	live *router.Live
	pool *upstream.Pool
	rec  *recorder
	doc  *router.Document
	keys []router.Key
	log  lockedBuffer
}

// document puts the named upstreams behind the model "chat" without experiment.
func document(urls ...string) *router.Document {
	in, out := "0.20", "0.80"
	d := &router.Document{Revision: 1}
	d.Upstreams = []router.Upstream{{Name: "v1", Dialect: "openai", Endpoints: urls, Price: &router.Price{Input: &in, Output: &out}}}
	d.Models = []router.Model{{Name: "chat", Default: router.Route{Upstream: "v1", Model: "served"}}}
	return d
}

func newPlane(t testing.TB, doc *router.Document, change func(*Config)) *plane {
	t.Helper()
	p := &plane{t: t, live: &router.Live{}, rec: &recorder{}, doc: doc}
	log := slog.New(slog.NewTextHandler(&p.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	p.pool = upstream.NewPool(upstream.PoolOptions{Log: log})
	t.Cleanup(p.pool.Close)
	p.swap(doc)
	c := Config{Live: p.live, Doer: p.pool, Recorder: p.rec, Log: log}
	if change != nil {
		change(&c)
	}
	var err error
	if p.srv, err = New(c); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.url = "http://" + ln.Addr().String()
	done := make(chan error, 1)
	go func() { done <- p.srv.Serve(ln) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		p.srv.Shutdown(ctx)
		<-done
	})
	p.pool.Ready(context.Background(), 5*time.Second)
	return p
}

// swap compiles a document and makes it the current table.
func (p *plane) swap(doc *router.Document) {
	p.t.Helper()
	next := doc.Clone()
	prev := &router.Document{}
	if old := p.live.Load(); old != nil {
		prev = &old.Snapshot.Document
		next.Revision = prev.Revision + 1
	}
	if err := router.Normalize(next, prev, next.Revision, time.Now(), nil); err != nil {
		p.t.Fatal(err)
	}
	p.compile(next)
}

// compile makes an edited document the current table.
func (p *plane) compile(next *router.Document) {
	p.t.Helper()
	cfgs, problems := router.UpstreamConfigs(next, func(string) (string, bool) { return "upstream-secret", true })
	if err := problems.Err(); err != nil {
		p.t.Fatal(err)
	}
	ups, err := p.pool.Apply(cfgs)
	if err != nil {
		p.t.Fatal(err)
	}
	table, err := router.Compile(&router.Snapshot{Document: *next, Keys: p.keys}, ups, router.CompileOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	if !p.live.Store(table) {
		p.t.Fatalf("revision %d did not replace %d", table.Revision, p.live.Load().Revision)
	}
	p.doc = next
}

// post sends a body to path and returns the answer, read whole.
func (p *plane) post(path, body string, header ...string) (*http.Response, string) {
	p.t.Helper()
	req, err := http.NewRequest("POST", p.url+path, strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return resp, string(b)
}

// envelope decodes an error body and checks that it has all four keys.
func envelope(t testing.TB, body string) (e struct {
	Message string
	Type    string
	Param   *string
	Code    *string
}) {
	t.Helper()
	var v struct {
		Error map[string]json.RawMessage `json:"error"`
	}
	if err := json.Unmarshal([]byte(body), &v); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	for _, k := range []string{"message", "type", "param", "code"} {
		if _, ok := v.Error[k]; !ok {
			t.Errorf("the envelope has no %s: %s", k, body)
		}
	}
	b, _ := json.Marshal(v.Error)
	json.Unmarshal(b, &e)
	return e
}

func fake(t testing.TB, o fakellm.Options) *fakellm.Server {
	t.Helper()
	s, err := fakellm.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func ask(text string, stream bool) string {
	b, _ := json.Marshal(map[string]any{"model": "chat", "stream": stream, "messages": []any{map[string]string{"role": "user", "content": text}}})
	return string(b)
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}
func (l *lockedBuffer) String() string { l.mu.Lock(); defer l.mu.Unlock(); return l.b.String() }
