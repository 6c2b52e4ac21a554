package server

import (
	"context"
	"testing"
	"time"

	"sluice/internal/fakellm"
	"sluice/router"
	"sluice/upstream"
)

// TestBeside: a second call is sent only for a variant that the current table
// still has; asking changes nothing of what was decided, and a replica counts
// as changed once the call has left.
func TestBeside(t *testing.T) {
	mask := func(d *router.Document, revision int64) error {
		return router.SetWeights(d, revision, time.Now(), "exp", map[string]int{"control": 10000, "canary": 0})
	}
	other := func(d *router.Document, _ int64) error {
		d.Models[0].ExposeHeaders = nil
		return nil
	}
	for name, c := range map[string]struct {
		edit   func(d *router.Document, revision int64) error
		stands bool
	}{
		"nothing happened": {nil, true},
		"something else":   {other, true},
		"killed":           {killCanary, false},
		"weight 0":         {mask, false},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := fake(t, fakellm.Options{}), fake(t, fakellm.Options{})
			var p *plane
			asked := false
			p = newPlane(t, twoVariants(a.URL(), b.URL(), 0, 10000), func(conf *Config) {
				pool := conf.Doer
				conf.Doer = doer(func(ctx context.Context, r *upstream.Request, s upstream.Sink) upstream.Result {
					next, first := r.Next, true
					r.Next = func(n int, last *upstream.Attempt, same bool) (upstream.Target, string, bool) {
						target, reason, ok := next(n, last, same)
						if !first {
							return target, reason, ok
						}
						first, asked = false, true
						r.Sent() // the first call has left
						before := p.live.Load().Revision
						left, stands := r.Beside(target)
						if !stands {
							t.Error("refused before anything happened")
							return target, reason, ok
						}
						quiet := func() bool {
							ctx, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
							defer cancel()
							p.srv.Quiesced(ctx, before+1)
							return ctx.Err() == nil
						}
						if quiet() {
							t.Error("the call that has not left is not waited for")
						}
						left()
						if !quiet() {
							t.Error("waits although it has left")
						}
						if c.edit != nil {
							p.edit(c.edit)
						}
						if left, stands = r.Beside(target); stands != c.stands {
							t.Errorf("stands %v, want %v", stands, c.stands)
						}
						if stands {
							left()
						}
						return target, reason, ok
					}
					return pool.Do(ctx, r, s)
				})
			})
			resp, body := p.post("/v1/chat/completions", ask("hi", false), "X-User-Id", "u1")
			if h := resp.Header; resp.StatusCode != 200 || !asked || h.Get("X-Sluice-Variant") != "canary" || h.Get("X-Sluice-Reason") != "bucket" {
				t.Errorf("%d %s %v", resp.StatusCode, body, h)
			}
		})
	}
}
