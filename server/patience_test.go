package server

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"sluice/internal/fakellm"
	"sluice/router"
)

func TestPatience(t *testing.T) {
	t.Parallel()
	start := time.Unix(1000, 0)
	for name, c := range map[string]struct {
		header           http.Header
		deadline, giveUp time.Duration
		bad              bool
	}{
		"none":           {http.Header{}, 0, 0, false},
		"seconds":        {http.Header{"X-Sluice-Timeout": {"30"}}, 30 * time.Second, 0, false},
		"decimals":       {http.Header{"X-Sluice-Timeout": {"2.5"}}, 2500 * time.Millisecond, 0, false},
		"duration":       {http.Header{"X-Request-Timeout": {"1500ms"}}, 1500 * time.Millisecond, 0, false},
		"the earlier":    {http.Header{"X-Sluice-Timeout": {"3"}, "X-Request-Timeout": {"2"}}, 2 * time.Second, 0, false},
		"huge":           {http.Header{"X-Sluice-Timeout": {"1e300"}}, maxPatience, 0, false},
		"tiny":           {http.Header{"X-Sluice-Timeout": {"1e-300"}}, 1, 0, false},
		"zero":           {http.Header{"X-Sluice-Timeout": {"0"}}, 0, 0, true},
		"negative":       {http.Header{"X-Sluice-Timeout": {"-1"}}, 0, 0, true},
		"not a number":   {http.Header{"X-Sluice-Timeout": {"NaN"}}, 0, 0, true},
		"words":          {http.Header{"X-Request-Timeout": {"soon"}}, 0, 0, true},
		"empty":          {http.Header{"X-Sluice-Timeout": {""}}, 0, 0, true},
		"twice":          {http.Header{"X-Sluice-Timeout": {"1", "2"}}, 0, 0, true},
		"of node":        {http.Header{"X-Stainless-Timeout": {"600"}}, 0, 600 * time.Second, false},
		"of python":      {http.Header{"X-Stainless-Read-Timeout": {"600.0"}}, 0, 600 * time.Second, false},
		"of an odd sdk":  {http.Header{"X-Stainless-Timeout": {"None"}}, 0, 0, false},
		"both, of a sdk": {http.Header{"X-Stainless-Timeout": {"60"}, "X-Sluice-Timeout": {"9"}}, 9 * time.Second, time.Minute, false},
	} {
		t.Run(name, func(t *testing.T) {
			at := func(d time.Duration) time.Time {
				if d == 0 {
					return time.Time{}
				}
				return start.Add(d)
			}
			d, g, f := patience(c.header, start)
			if c.bad {
				if f == nil || f.Status != 400 || !strings.HasPrefix(f.Param, "x-") {
					t.Errorf("accepted: %v %+v", d, f)
				}
				return
			}
			if f != nil || !d.Equal(at(c.deadline)) || !g.Equal(at(c.giveUp)) {
				t.Errorf("got %v %v %+v", d, g, f)
			}
		})
	}
}

func TestDeadlineHeader(t *testing.T) {
	t.Parallel()
	up := fake(t, fakellm.Options{})
	p := newPlane(t, document(up.URL()), nil)
	seen := make(chan http.Header, 1)
	up.OnCall(func(_ fakellm.Call, h http.Header) {
		select {
		case seen <- h.Clone():
		default:
		}
	})
	resp, body := p.post("/v1/chat/completions", ask("[[fault:hang]]", false), "X-Sluice-Timeout", "0.2")
	if e := envelope(t, body); resp.StatusCode != 504 || *e.Code != "upstream_timeout" {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	for name := range <-seen {
		if strings.HasPrefix(name, "X-Sluice") || strings.HasPrefix(name, "X-Stainless") {
			t.Errorf("%s went upstream", name)
		}
	}
	resp, body = p.post("/v1/chat/completions", ask("hi", false), "X-Request-Timeout", "later")
	if e := envelope(t, body); resp.StatusCode != 400 || *e.Code != "invalid_request" || *e.Param != "x-request-timeout" {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
}

// TestGivenUp: after the SDK's own time-out no other server is tried.
func TestGivenUp(t *testing.T) {
	t.Parallel()
	slow := func(fakellm.Call) fakellm.Behaviour {
		return fakellm.Behaviour{TTFT: 50 * time.Millisecond, Fault: fakellm.Status, Status: 503}
	}
	a, b := fake(t, fakellm.Options{Choose: slow}), fake(t, fakellm.Options{Choose: slow})
	p := newPlane(t, document(a.URL(), b.URL()), nil)
	resp, body := p.post("/v1/chat/completions", ask("hi", false), "X-Stainless-Timeout", "0.02")
	if n := a.Counts().Calls + b.Counts().Calls; resp.StatusCode != 503 || n != 1 {
		t.Errorf("%d after %d calls: %s", resp.StatusCode, n, body)
	}
	if resp, _ = p.post("/v1/chat/completions", ask("hi", false), "X-Stainless-Timeout", "60"); a.Counts().Calls+b.Counts().Calls != 3 {
		t.Errorf("%d after %d calls in all", resp.StatusCode, a.Counts().Calls+b.Counts().Calls)
	}
}

// TestQueueFull: a refusal of the gateway's own, in its envelope, under the
// variant that was asked for.
func TestQueueFull(t *testing.T) {
	t.Parallel()
	a, b := fake(t, fakellm.Options{}), fake(t, fakellm.Options{})
	doc := twoVariants(a.URL(), b.URL(), 0, 10000)
	doc.Upstreams[1].Limits = &router.Limits{MaxInFlight: 1}
	p := newPlane(t, doc, nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.post("/v1/chat/completions", ask("[[ttft:400ms]]", false), "X-User-Id", "u")
	}()
	for b.Counts().InFlight == 0 {
		time.Sleep(time.Millisecond)
	}
	resp, body := p.post("/v1/chat/completions", ask("hi", false), "X-User-Id", "u")
	e := envelope(t, body)
	if resp.StatusCode != 429 || *e.Code != "queue_full" || e.Type != "rate_limit_error" || resp.Header.Get("Retry-After") == "" ||
		resp.Header.Get("X-Sluice-Error") != "queue_full" || resp.Header.Get("X-Sluice-Variant") != "canary" || resp.Header.Get("X-Should-Retry") == "false" {
		t.Errorf("%d %v %s", resp.StatusCode, resp.Header, body)
	}
	<-done
	evs := p.rec.wait(t, 2)
	for _, ev := range evs {
		if ev.Outcome == "queue_full" && (ev.Status != 429 || len(ev.Attempts) != 0 || ev.Assigned != "canary") {
			t.Errorf("event %+v", ev)
		}
	}
}
