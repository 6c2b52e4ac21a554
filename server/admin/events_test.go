package admin_test

import (
	"bufio"
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// listener reads GET /events over a real connection.
type listener struct {
	t      testing.TB
	lines  chan string // closed at the end of the stream
	resp   *http.Response
	cancel context.CancelFunc
}

func listen(t testing.TB, url string, headers ...string) *listener {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/admin/v1/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	l := &listener{t, make(chan string, 1000), resp, cancel}
	go func() {
		defer close(l.lines)
		for s := bufio.NewScanner(resp.Body); s.Scan(); {
			l.lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		cancel()
		resp.Body.Close()
		for range l.lines {
		}
	})
	return l
}

// event waits for the next one.
func (l *listener) event() string {
	l.t.Helper()
	var lines []string
	for {
		select {
		case line, open := <-l.lines:
			if !open {
				l.t.Fatalf("the stream ended after %q", lines)
			}
			if line == "" {
				return strings.Join(lines, "\n")
			}
			lines = append(lines, line)
		case <-time.After(20 * time.Second):
			l.t.Fatalf("no event, only %q", lines)
		}
	}
}

func (l *listener) ends() {
	l.t.Helper()
	for {
		select {
		case _, open := <-l.lines:
			if !open {
				return
			}
		case <-time.After(20 * time.Second):
			l.t.Fatal("the stream does not end")
		}
	}
}

func has(t testing.TB, event string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(event, p) {
			t.Errorf("the event lacks %q: %q", p, event)
		}
	}
}

func TestEvents(t *testing.T) {
	t.Parallel()
	g := newGateway(t, nil)
	srv := httptest.NewServer(g.api)
	t.Cleanup(srv.Close) // after the listeners, which are made later
	a, b := listen(t, srv.URL), listen(t, srv.URL)
	if a.resp.StatusCode != 200 || a.resp.Header.Get("Content-Type") != "text/event-stream" || !strings.Contains(a.resp.Header.Get("Cache-Control"), "no-cache") {
		t.Errorf("%d %v", a.resp.StatusCode, a.resp.Header)
	}
	for _, l := range []*listener{a, b} {
		has(t, l.event(), "event: degraded", `data: {"degraded":[]}`)
	}
	first := g.write("PUT", exp+"/weights", "", `{"weights": {"control": 8000, "canary": 2000}, "reason": "up\nevent: forged"}`).want(200)
	rev := strings.Trim(first.header.Get("ETag"), `"`)
	for _, l := range []*listener{a, b} {
		has(t, l.event(), "event: change\nid: "+rev, `data: {"revision":`+rev+`,"action":"experiment.set_weights","object":"experiment/exp","actor":"local"}`)
	}
	g.failing.set(true)
	g.v1("POST", exp+":rollback", "", "If-Match: *").want(200).has("write.deferred", true)
	var all string
	for !strings.Contains(all, "event: change") || !strings.Contains(all, "database") {
		all += a.event()
	}
	has(t, all, `data: {"revision":`+rev+`}`, `"code":"database"`)
	g.failing.set(false)
	for !strings.Contains(all, "experiment.rollback") {
		all += a.event()
	}
	b.cancel()
	// Who comes back reads what was missed.
	c := listen(t, srv.URL, "Last-Event-ID: "+rev)
	has(t, c.event(), "event: change", "experiment.rollback")
	has(t, c.event(), "event: degraded")
	g.v1("GET", "/events", "", "Last-Event-ID: x").refused(422, "invalid_parameter")
	g.v1("GET", "/events", "", "Last-Event-ID: -1").refused(422, "invalid_parameter")
	close(g.done)
	a.ends()
	c.ends()
}

func TestStreamsAreBounded(t *testing.T) {
	t.Parallel()
	g := newGateway(t, nil)
	srv := httptest.NewServer(g.api)
	t.Cleanup(srv.Close) // after the listeners, which are made later
	var all []*listener
	for range 100 {
		all = append(all, listen(t, srv.URL))
	}
	for _, l := range all {
		l.event()
	}
	g.v1("GET", "/events", "").refused(429, "too_many_streams")
	all[0].cancel()
	eventually(t, "a free place", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/admin/v1/events", nil)
		r.RemoteAddr = "127.0.0.1:1"
		g.api.ServeHTTP(w, r)
		return w.Code == 200
	})
}
