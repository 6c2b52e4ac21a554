package server

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/internal/fakellm"
	"sluice/router"
	"sluice/upstream"
)

// edit applies one of router's edits to the current document and makes it the table.
func (p *plane) edit(change func(d *router.Document, revision int64) error) {
	p.t.Helper()
	next := p.doc.Clone()
	next.Revision = p.doc.Revision + 1
	if err := change(next, next.Revision); err != nil {
		p.t.Error(err)
		return
	}
	p.compile(next)
}

func killCanary(d *router.Document, revision int64) error {
	return router.Kill(d, revision, time.Now(), "exp", "canary")
}

// TestKillAsTheLastEndpointFails kills the variant while its only endpoint
// fails: the baseline serves, as it does for every request from then on.
func TestKillAsTheLastEndpointFails(t *testing.T) {
	for name, fallback := range map[string]string{"no fallback": "", "falls back to the baseline": "control"} {
		t.Run(name, func(t *testing.T) {
			a, b := fake(t, fakellm.Options{}), fake(t, fakellm.Options{})
			doc := twoVariants(a.URL(), b.URL(), 0, 10000)
			doc.Experiments[0].Variants[1].Fallback = fallback
			p := newPlane(t, doc, nil)
			var once sync.Once
			b.OnCall(func(fakellm.Call, http.Header) { once.Do(func() { p.edit(killCanary) }) })
			b.Set(fakellm.Behaviour{Fault: fakellm.Status, Status: 503})
			resp, body := p.post("/v1/chat/completions", ask("hi", false), "X-User-Id", "u1")
			if resp.StatusCode != 200 || resp.Header.Get("X-Sluice-Variant") != "control" || resp.Header.Get("X-Sluice-Reason") != "killed" {
				t.Errorf("%d %s %v", resp.StatusCode, body, resp.Header)
			}
			if h := resp.Header; h.Get("X-Sluice-Assigned") != "canary" || h.Get("X-Sluice-Fallback-From") != "" {
				t.Errorf("headers: %v", h)
			}
		})
	}
}

// TestKillWhileTheFallbackServes: the baseline is the fallback already, and its
// other endpoint is still worth a try.
func TestKillWhileTheFallbackServes(t *testing.T) {
	a, b, c := fake(t, fakellm.Options{}), fake(t, fakellm.Options{}), fake(t, fakellm.Options{})
	doc := twoVariants(a.URL(), b.URL(), 0, 10000)
	doc.Upstreams[0].Endpoints = []string{a.URL(), c.URL()}
	p := newPlane(t, doc, nil)
	b.Set(fakellm.Behaviour{Fault: fakellm.Status, Status: 503})
	var once sync.Once
	for _, s := range []*fakellm.Server{a, c} {
		s.OnCall(func(fakellm.Call, http.Header) {
			once.Do(func() {
				p.edit(killCanary)
				s.Set(fakellm.Behaviour{Fault: fakellm.Status, Status: 503})
			})
		})
	}
	resp, body := p.post("/v1/chat/completions", ask("hi", false), "X-User-Id", "u1")
	if resp.StatusCode != 200 || resp.Header.Get("X-Sluice-Variant") != "control" || resp.Header.Get("X-Sluice-Attempts") != "3" {
		t.Errorf("%d %s %v", resp.StatusCode, body, resp.Header)
	}
}

// TestDeniedFieldsOfEveryTarget: what an upstream does not accept from clients
// does not reach it by way of a fallback or a kill either.
func TestDeniedFieldsOfEveryTarget(t *testing.T) {
	body := strings.Replace(ask("hi", false), "{", `{"priority":1,`, 1)
	setup := func(t *testing.T) (*plane, *fakellm.Server, *fakellm.Server) {
		a, b := fake(t, fakellm.Options{Dialect: "vllm"}), fake(t, fakellm.Options{})
		doc := twoVariants(a.URL(), b.URL(), 0, 10000)
		doc.Upstreams[0].Dialect = "vllm" // denies priority; the canary's upstream denies nothing
		return newPlane(t, doc, nil), a, b
	}
	t.Run("fallback", func(t *testing.T) {
		p, a, b := setup(t)
		b.Set(fakellm.Behaviour{Fault: fakellm.Status, Status: 503})
		resp, text := p.post("/v1/chat/completions", body, "X-User-Id", "u1")
		if resp.StatusCode != 503 || resp.Header.Get("X-Sluice-Variant") != "canary" || resp.Header.Get("X-Sluice-Fallback-From") != "" {
			t.Errorf("%d %s %v", resp.StatusCode, text, resp.Header)
		}
		if n := a.Counts().Calls; n != 0 {
			t.Errorf("the fallback got %d calls with a member that it denies", n)
		}
		if ev := p.rec.wait(t, 1)[0]; ev.Upstream != "v2" || ev.Endpoint != b.URL() {
			t.Errorf("the record of a failed request names %s %q, want v2 %q", ev.Upstream, ev.Endpoint, b.URL())
		}
	})
	t.Run("kill", func(t *testing.T) {
		p, a, b := setup(t)
		b.OnCall(func(fakellm.Call, http.Header) { p.edit(killCanary) })
		b.Set(fakellm.Behaviour{Fault: fakellm.Status, Status: 503})
		resp, text := p.post("/v1/chat/completions", body, "X-User-Id", "u1")
		if e := envelope(t, text); resp.StatusCode != 400 || e.Param == nil || *e.Param != "priority" {
			t.Errorf("%d %s", resp.StatusCode, text)
		}
		if n := a.Counts().Calls; n != 0 {
			t.Errorf("the baseline got %d calls with a member that it denies", n)
		}
		if ev := p.rec.wait(t, 1)[0]; ev.Outcome != "client_error" || ev.Status != 400 || len(ev.Attempts) != 1 {
			t.Errorf("event: %+v", ev)
		}
	})
}

// TestOnlyCallsAreAttempts: an upstream without a ready endpoint was not called.
func TestOnlyCallsAreAttempts(t *testing.T) {
	a := fake(t, fakellm.Options{})
	doc := twoVariants(a.URL(), "http://127.0.0.1:1/v1", 0, 10000) // nothing listens there
	p := newPlane(t, doc, nil)
	resp, text := p.post("/v1/chat/completions", ask("hi", false), "X-User-Id", "u1")
	if resp.StatusCode != 200 || resp.Header.Get("X-Sluice-Attempts") != "1" || resp.Header.Get("X-Sluice-Fallback-From") != "canary" {
		t.Errorf("%d %s %v", resp.StatusCode, text, resp.Header)
	}
	if ev := p.rec.wait(t, 1)[0]; len(ev.Attempts) != 1 || ev.Attempts[0].Variant != "control" || ev.Attempts[0].Reason != "fallback" {
		t.Errorf("event: %+v", ev)
	}
	a.Close()
	doc.Upstreams[0].Endpoints = []string{"http://127.0.0.1:2/v1"}
	p = newPlane(t, doc, nil)
	resp, text = p.post("/v1/chat/completions", ask("hi", false), "X-User-Id", "u1")
	if resp.StatusCode != 503 || resp.Header.Get("X-Sluice-Attempts") != "0" {
		t.Errorf("%d %s %v", resp.StatusCode, text, resp.Header)
	}
	if ev := p.rec.wait(t, 1)[0]; len(ev.Attempts) != 0 || ev.Outcome != "no_endpoint" {
		t.Errorf("event: %+v", ev)
	}
}

// TestWeight0WhileARequestIsUnderWay: the request goes where the new weights
// say, and header and record tell the revision that said so. What was sent
// stays assigned to whom it was sent.
func TestWeight0WhileARequestIsUnderWay(t *testing.T) {
	mask := func(d *router.Document, revision int64) error {
		return router.SetWeights(d, revision, time.Now(), "exp", map[string]int{"control": 10000, "canary": 0})
	}
	rollback := func(d *router.Document, revision int64) error {
		return router.Rollback(d, revision, time.Now(), "exp")
	}
	for _, tt := range []struct {
		name       string
		sticky     string
		edit       func(d *router.Document, revision int64) error
		sent       bool // the canary was called before
		reason     string
		assigned   string
		attempts   int
		isAnalysed bool
	}{
		{"weight 0, nothing sent", "bucket", mask, false, "bucket", "control", 1, true},
		{"weight 0, sent", "bucket", mask, true, "bucket", "canary", 2, true},
		{"weight 0, pinned", "user", mask, false, "evicted", "control", 1, false},
		{"weight 0, pinned and sent", "user", mask, true, "evicted", "canary", 2, true},
		{"kill, nothing sent", "bucket", killCanary, false, "killed", "control", 1, false},
		{"kill, sent", "bucket", killCanary, true, "killed", "canary", 2, true},
		{"rollback, nothing sent", "user", rollback, false, "killed", "control", 1, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, b := fake(t, fakellm.Options{}), fake(t, fakellm.Options{})
			doc := twoVariants(a.URL(), b.URL(), 0, 10000)
			doc.Experiments[0].Stickiness = tt.sticky
			var p *plane
			var once sync.Once
			change := func() { once.Do(func() { p.edit(tt.edit) }) }
			p = newPlane(t, doc, func(c *Config) {
				if pool := c.Doer; !tt.sent {
					c.Doer = doer(func(ctx context.Context, r *upstream.Request, s upstream.Sink) upstream.Result {
						change() // it is routed and not sent
						return pool.Do(ctx, r, s)
					})
				}
			})
			if tt.sent {
				b.OnCall(func(fakellm.Call, http.Header) { change() })
				b.Set(fakellm.Behaviour{Fault: fakellm.Status, Status: 503})
			}
			before := p.doc.Revision
			resp, body := p.post("/v1/chat/completions", ask("hi", false), "X-User-Id", "u1")
			h, ev := resp.Header, p.rec.wait(t, 1)[0]
			if resp.StatusCode != 200 || h.Get("X-Sluice-Variant") != "control" || h.Get("X-Sluice-Reason") != tt.reason {
				t.Errorf("%d %s %v", resp.StatusCode, body, h)
			}
			assigned := h.Get("X-Sluice-Assigned")
			if assigned == "" {
				assigned = h.Get("X-Sluice-Variant")
			}
			if assigned != tt.assigned || ev.Assigned != tt.assigned || ev.Served != "control" {
				t.Errorf("assigned %s, event %s, served %s; want %s, control", assigned, ev.Assigned, ev.Served, tt.assigned)
			}
			if want := strconv.FormatInt(before+1, 10); h.Get("X-Sluice-Revision") != want || ev.Revision != before+1 {
				t.Errorf("revision %s, event %d; want %s", h.Get("X-Sluice-Revision"), ev.Revision, want)
			}
			if ev.Reason != tt.reason || len(ev.Attempts) != tt.attempts || ev.Analysed != tt.isAnalysed || ev.Bucket < 0 {
				t.Errorf("event: %+v", ev)
			}
		})
	}
}
