package router_test

import (
	"fmt"
	"testing"

	"sluice/experiment"
	"sluice/router"
)

// oneInEach finds one user for each bucket of the canary, so that users are
// counted as exactly as buckets.
func oneInEach(t testing.TB, table *router.Table) []string {
	t.Helper()
	users := make([]string, experiment.Buckets)
	for i, left := 0, len(users); left > 0; i++ {
		id := fmt.Sprint("user-", i)
		if b := route(t, table, query("chat", id)).Decision.Digest.Bucket; users[b] == "" {
			users[b] = id
			left--
		}
	}
	return users
}

// TestRampMovesExactlyTheDistance: each step of a ramp, and each of its way
// back, moves as many users as the weights differ by, all of them in one
// direction, and the way back ends where it began. With pins nobody who was
// served moves at all, and of the others as many as the weights say.
func TestRampMovesExactlyTheDistance(t *testing.T) {
	t.Parallel()
	steps := []int{100, 500, 2000, 5000, 10000, 5000, 2000, 500, 100}
	users := oneInEach(t, compile(t, doc(t))) // whatever the weights
	for _, stickiness := range []string{"bucket", "user"} {
		t.Run(stickiness, func(t *testing.T) {
			t.Parallel()
			d := doc(t, `"kind": "canary"`, `"kind": "canary", "stickiness": "`+stickiness+`"`,
				`"weight": 9000`, `"weight": 9900`, `"weight": 1000`, `"weight": 100`)
			table := compile(t, d)
			store := newPins()
			serve := func(store router.Pins) (on map[string]bool) {
				on = map[string]bool{}
				for _, u := range users {
					p, err := table.Route(t.Context(), query("chat", u), store)
					must(t, err)
					on[u] = p.Variant.Name == "canary"
				}
				return on
			}
			was := serve(store)
			began, at := was, steps[0]
			for i, w := range steps {
				if w != at {
					must(t, router.SetWeights(d, int64(i+2), t0, "chat-v2", map[string]int{"control": 10000 - w, "canary": w}))
					table = compile(t, d)
				}
				now := serve(store)
				up, down := 0, 0
				for u, on := range now {
					switch {
					case on && !was[u]:
						up++
					case !on && was[u]:
						down++
					}
				}
				wantUp, wantDown := max(0, w-at), max(0, at-w)
				if stickiness == "user" {
					wantUp, wantDown = 0, 0
				}
				if up != wantUp || down != wantDown {
					t.Errorf("%d to %d: %d users came to the canary and %d left it, want %d and %d", at, w, up, down, wantUp, wantDown)
				}
				if stickiness == "user" { // who was never seen gets what the weights say
					n := 0
					for _, on := range serve(newPins()) {
						if on {
							n++
						}
					}
					if n != w {
						t.Errorf("%d of 10000 new users get the canary, its weight is %d", n, w)
					}
				}
				was, at = now, w
			}
			for u, on := range serve(store) {
				if on != began[u] {
					t.Fatalf("%s is not where it began", u)
				}
			}
		})
	}
}
