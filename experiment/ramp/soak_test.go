package ramp_test

import (
	"slices"
	"testing"
	"time"

	"sluice/experiment/ramp"
)

// healthy is a service that the issue describes, under the default policy and
// guardrails but for the duration of a step: a service of 500 users needs longer
// than the default two hours for some proofs.
func healthy(users int, perSec float64) world {
	return world{users: users, perSec: perSec, broken: 0.02, long: 0.05, errors: 0.003, replicas: 3, every: 5,
		policy: `{"steps":"auto","max_duration":"6h"}`}
}

// TestSoak is the A/A soak: no healthy canary is rolled back, nearly all are
// promoted, and a canary with ten times the errors of its SLO is not. Virtual
// time, real Collectors, evidence and decisions. SLUICE_SOAK=300 runs it in full.
func TestSoak(t *testing.T) {
	t.Parallel()
	slo := healthy(500, 20)
	slo.policy, slo.errors, slo.fault.errors = `{"steps":"auto","max_duration":"24h","slo":{"error":"0.1%"}}`, 0.001, 0.009
	for _, c := range []struct {
		name             string
		world            world
		few, part        int     // runs: in short, and of SLUICE_SOAK the so-manieth part
		promoted, rolled float64 // at least, at most
		mostPromoted     float64
	}{
		{"healthy, 500 users", healthy(500, 5), 12, 2, 0.95, 0.01, 1},
		{"healthy, 2,000 users", healthy(2000, 20), 3, 2, 0.95, 0.01, 1},
		{"10 times the errors of an SLO of 0.1 %", slo, 4, 1, 0, 1, 0.01},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := c.few
			if full := soakSize(0); full > 0 {
				n = (full + c.part - 1) / c.part
			}
			out := soak(t, c.world, n)
			seconds := 0
			for _, o := range out {
				seconds += o.total
				if (o.decision.Action == ramp.FinishBake) != (c.promoted > 0) {
					t.Log(o.text)
				}
			}
			promoted, rolled := count(out, ramp.FinishBake), count(out, ramp.Rollback)
			t.Logf("%d rollouts: %d promoted, %d rolled back, %d paused, %s on average", n, promoted, rolled, count(out, ramp.Pause),
				(time.Duration(seconds/n) * time.Second))
			// In few runs one stands for chance.
			if rolled > max(int(c.rolled*float64(n)), 1) && c.rolled < 1 {
				t.Errorf("%d of %d rolled back", rolled, n)
			}
			if promoted < int(c.promoted*float64(n))-1 {
				t.Errorf("only %d of %d promoted", promoted, n)
			}
			if promoted > int(c.mostPromoted*float64(n)) {
				t.Errorf("%d of %d promoted", promoted, n)
			}
		})
	}
}

// TestDetection is how long faults take to be found at a 5 % step of 2,000 users
// and 200 requests a second, in one-second ticks, without local breakers.
func TestDetection(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		fault fault
		want  ramp.Action
		most  int // seconds, of the slowest
	}{
		{"every request fails", fault{errors: 1}, ramp.Rollback, 10},
		{"20 % of requests fail", fault{errors: 0.2}, ramp.Rollback, 40},
		{"every request is refused", fault{rejected: 1}, ramp.Rollback, 10},
		{"every answer is empty", fault{empty: 1}, ramp.Rollback, 30},
		{"three times as slow", fault{slow: 3}, ramp.Rollback, 60},
		{"hangs", fault{hang: 1}, ramp.Rollback, 30},
		{"both fail", fault{shared: 0.5}, ramp.Pause, 3 * 3600},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := healthy(2000, 200)
			w.every, w.fault, w.policy = 1, c.fault, `{"steps":[500,10000],"min_duration":"2m","max_duration":"10m"}`
			if c.fault.shared > 0 {
				w.perSec, w.every = 20, 5 // it runs until max_duration
			}
			out := soak(t, w, max(soakSize(2)/30, 2))
			at, canary := []int{}, []int64{}
			for _, o := range out {
				if o.decision.Action != c.want || o.at > c.most {
					t.Errorf("%s", o.text)
				}
				at, canary = append(at, o.at), append(canary, o.canary)
			}
			slices.Sort(at)
			slices.Sort(canary)
			t.Logf("%s after %d to %d s, %d requests of the canary at the median: %s", c.want, at[0], at[len(at)-1], canary[len(canary)/2], out[0].decision.Text)
		})
	}
}
