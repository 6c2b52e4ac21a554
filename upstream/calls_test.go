package upstream

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"sluice/upstream/h1"
	"sluice/upstream/wire"
)

// A request that waits for a server which stops, or is put to sleep, is answered
// by another as soon as that is known, not when its own time-out passes.
func TestHungCallsGoElsewhere(t *testing.T) {
	for _, tt := range []struct {
		name  string
		other string
		check func(ctx context.Context, path string) (int, string, error)
		want  Outcome
		after time.Duration
	}{
		{"stopped", "b", func(ctx context.Context, _ string) (int, string, error) { <-ctx.Done(); return 0, "", ctx.Err() }, Success, 22 * time.Second},
		{"asleep", "b", func(_ context.Context, path string) (int, string, error) {
			return 200, `{"is_sleeping":true}`, nil
		}, Success, 3 * time.Second},
		{"failing checks are no silence", "b", func(context.Context, string) (int, string, error) { return 500, "", nil }, Success, time.Minute},
		{"nobody else is there", "a", func(ctx context.Context, _ string) (int, string, error) { <-ctx.Done(); return 0, "", ctx.Err() }, Success, time.Minute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var s script
				stopped := false
				s.on(func(ctx context.Context, r *h1.Request) (int, string, error) {
					s.mu.Lock()
					hangs := stopped && r.URL.Host == "a"
					s.mu.Unlock()
					switch {
					case r.Method == "GET" && hangs:
						return tt.check(ctx, r.URL.Path)
					case r.Method == "GET":
						return 200, "{}", nil
					case r.URL.Host == "a":
						select { // in the end it answers
						case <-time.After(time.Minute):
						case <-ctx.Done():
							return 0, "", ctx.Err()
						}
					}
					return 200, okBody, nil
				})
				c := Config{Name: "u", Dialect: wire.VLLM, Balance: balanceRound, Endpoints: []string{"http://a"}}
				if tt.other == "b" {
					c.Endpoints = append(c.Endpoints, "http://b")
				}
				p, ups := poolWith(t, s.options(), c)
				defer p.Close()
				start := time.Now()
				time.AfterFunc(time.Millisecond, func() { s.mu.Lock(); stopped = true; s.mu.Unlock() })
				res, _ := do(t, p, request(t, chatBody, to(ups["u"])))
				if took := time.Since(start); res.Outcome != tt.want || took > tt.after+time.Second || took < tt.after/2 && tt.name != "asleep" {
					t.Errorf("%s after %v: %s", res.Outcome, took, outcomes(res))
				}
				if l := ups["u"].endpoints()[0].calls.list(); len(l) != 0 {
					t.Errorf("%d calls are left", len(l))
				}
			})
		})
	}
}

// The list survives whatever order calls end in.
func TestCalls(t *testing.T) {
	var l calls
	a, b, c := &entry{}, &entry{}, &entry{}
	for _, order := range [][]*entry{{a, b, c}, {c, b, a}, {b, a, c}, {b, c, a}} {
		for _, x := range []*entry{a, b, c} {
			*x = entry{}
			l.add(x, &call{})
		}
		for i, x := range order {
			if got := len(l.list()); got != 3-i {
				t.Errorf("%d in the list, want %d", got, 3-i)
			}
			l.remove(x)
		}
		if l.first != nil {
			t.Error("the list is not empty")
		}
	}
}
