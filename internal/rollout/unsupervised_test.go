package rollout_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"sluice/experiment/ramp"
	"sluice/internal/rollout"
	"sluice/internal/sticky"
	"sluice/router"
)

// leaderless never has a lease while it is closed, as when Redis is there but
// every candidate is cut off from the database.
type leaderless struct {
	*sticky.Store
	closed chan struct{} // closed: leases are given
}

func (l *leaderless) Lease(ctx context.Context, floor int64) (*sticky.Lease, error) {
	select {
	case <-l.closed:
		return l.Store.Lease(ctx, floor)
	default:
		return nil, nil
	}
}

// served counts what a hundred users of the canary get, by variant and reason.
func served(t *testing.T, r *replica) map[string]int {
	t.Helper()
	out := map[string]int{}
	for i := range 300 {
		q := &router.Query{Model: "chat", AuthNone: true, Unsupervised: r.roll.Unsupervised, Header: http.Header{"X-User-Id": {fmt.Sprint("user-", i)}}}
		p, err := r.live.Load().Route(t.Context(), q, nil)
		if err != nil {
			t.Fatal(err)
		}
		out[p.Variant.Name+" "+string(p.Decision.Reason)]++
	}
	return out
}

// TestUnsupervised: when nobody leads for longer than stale_after a canary's users
// stay, or get the baseline until somebody leads; never before, and never where
// it is not asked for.
func TestUnsupervised(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, policy string
		baseline     bool
	}{
		{"hold", `"stale_after": "6s", "on_unsupervised": "hold"`, false},
		{"baseline", `"stale_after": "6s", "on_unsupervised": "baseline"`, true},
		{"off", `"on_unsupervised": "hold"`, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			gate := make(chan struct{})
			r := start(t, settings{id: "a", db: sqliteURL(t), policy: strings.Replace(slow, "{", "{"+c.policy+", ", 1),
				sticky: func(s *sticky.Store) rollout.Sticky { return &leaderless{s, gate} }})
			r.begin(t)
			r.must(t, "experiment.advance", func(d *router.Document, rev int64, now time.Time) error {
				return router.RampAdvance(d, rev, now, key)
			})
			if got := served(t, r); got["canary bucket"] == 0 || got["control unsupervised"] > 0 {
				t.Fatalf("before stale_after: %v", got)
			}
			if !c.baseline {
				time.Sleep(8 * time.Second)
				if got := served(t, r); got["canary bucket"] == 0 || got["control unsupervised"] > 0 {
					t.Errorf("after stale_after: %v", got)
				}
			} else {
				eventually(t, 30*time.Second, "the baseline", func() bool { return served(t, r)["control unsupervised"] == 300 })
			}
			if e := r.experiment(); e.State != router.StateRunning || r.ramp().Phase != ramp.Ramping || r.ramp().Step != 0 {
				t.Errorf("%s, %+v: what nobody decides about stays as it is", e.State, r.ramp())
			}
			close(gate)
			eventually(t, 30*time.Second, "the canary again", func() bool { return r.roll.Leads() && served(t, r)["canary bucket"] > 0 })
			if got := served(t, r); got["control unsupervised"] > 0 {
				t.Errorf("with a leader: %v", got)
			}
		})
	}
}
