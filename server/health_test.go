package server

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sluice/internal/fakellm"
	"sluice/metrics"
	"sluice/router"
	"sluice/upstream"
)

// TestReadyIsForGood: first checks hold readiness back for at most 2 s, once.
// An upstream that is added later, and does not answer its check, must not take
// every replica out of its load balancer.
func TestReadyIsForGood(t *testing.T) {
	table := newPlane(t, document(fake(t, fakellm.Options{}).URL()), nil).live.Load()
	synctest.Test(t, func(t *testing.T) {
		var checked atomic.Bool
		live := &router.Live{}
		s, err := New(Config{Live: live, Doer: (*upstream.Pool)(nil), Recorder: discard{}, Ready: checked.Load})
		if err != nil {
			t.Fatal(err)
		}
		status := func() int {
			w := httptest.NewRecorder()
			s.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/readyz", nil))
			return w.Code
		}
		want := func(what string, code int) {
			t.Helper()
			if got := status(); got != code {
				t.Errorf("%s: %d, want %d", what, got, code)
			}
		}
		want("without a table", 503)
		time.Sleep(10 * time.Second)
		live.Store(table)
		want("checks are running", 503)
		time.Sleep(time.Second)
		want("checks are running still", 503)
		checked.Store(true)
		want("checks are back", 200)
		checked.Store(false)
		want("a new upstream is being checked", 200)

		s, err = New(Config{Live: live, Doer: (*upstream.Pool)(nil), Recorder: discard{}, Ready: checked.Load})
		if err != nil {
			t.Fatal(err)
		}
		want("a new process", 503)
		time.Sleep(2*time.Second + time.Millisecond)
		want("a check that does not return", 200)
	})
}

// TestSkewIsTold: the verbose answer says how many replicas live and how far
// apart they are; without a control plane it says nothing of it.
func TestSkewIsTold(t *testing.T) {
	for _, c := range []struct {
		skew       func(context.Context) (int, int64)
		path, want string
	}{
		{func(ctx context.Context) (int, int64) {
			if _, ok := ctx.Deadline(); !ok {
				t.Error("the answer waits for Redis without bound")
			}
			return 3, 7
		}, "/readyz?verbose", `"replicas":3,"revision":1,"skew":7`},
		{nil, "/readyz?verbose", `"revision":1`},
		{func(context.Context) (int, int64) { t.Error("asked by a plain check"); return 0, 0 }, "/readyz", `{"status":"ready"}`},
	} {
		p := newPlane(t, document(fake(t, fakellm.Options{}).URL()), func(cfg *Config) { cfg.Skew = c.skew })
		w := httptest.NewRecorder()
		p.srv.Handler().ServeHTTP(w, httptest.NewRequest("GET", c.path, nil))
		if body := w.Body.String(); !strings.Contains(body, c.want) || (c.skew == nil && strings.Contains(body, "skew")) {
			t.Errorf("%s: %s, want %s", c.path, body, c.want)
		}
	}
}

type discard struct{}

func (discard) Record(metrics.Event) {}

// TestMethods: HEAD asks like GET, and a 405 says what is allowed.
func TestMethods(t *testing.T) {
	p := newPlane(t, document(fake(t, fakellm.Options{}).URL()), nil)
	for _, tt := range []struct {
		method, path string
		status       int
		allow        string
	}{
		{"HEAD", "/healthz", 200, ""},
		{"HEAD", "/readyz", 200, ""},
		{"HEAD", "/v1/models", 200, ""},
		{"PUT", "/healthz", 405, "GET, HEAD"},
		{"DELETE", "/v1/models/chat", 405, "GET, HEAD"},
		{"GET", "/v1/chat/completions", 405, "POST"},
		{"PUT", "/embeddings/", 405, "POST"},
		{"GET", "/nothing", 404, ""},
	} {
		req, err := http.NewRequest(tt.method, p.url+tt.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if resp.StatusCode != tt.status || resp.Header.Get("Allow") != tt.allow {
			t.Errorf("%s %s: %d, allow %q; want %d, %q", tt.method, tt.path, resp.StatusCode, resp.Header.Get("Allow"), tt.status, tt.allow)
		}
	}
}
