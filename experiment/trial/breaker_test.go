package trial_test

import (
	"testing"
	"time"

	"sluice/experiment/trial"
)

// TestBreaker sends one request after the other, each begun when the one before
// is over, unless together says otherwise.
func TestBreaker(t *testing.T) {
	type send struct {
		count    int
		variant  int
		ending   trial.Ending
		together bool // all begin before the first of them is over
		unit     int  // 0: each its own
	}
	healthy := send{count: 1000, ending: trial.Answered}
	fails := func(n int) send { return send{count: n, variant: 1, ending: trial.Fault} }
	good := func(n int) send { return send{count: n, variant: 1, ending: trial.Answered} }
	baseline := func(n int, e trial.Ending) send { return send{count: n, ending: e} }
	for _, tt := range []struct {
		name  string
		sends []send
		want  int // failures in a row at the trip, 0 none
	}{
		{"five in a row", []send{healthy, fails(1), baseline(20, trial.Answered), fails(9)}, 5},
		{"four, a good one, four", []send{healthy, fails(1), baseline(20, trial.Answered), fails(3), good(1), fails(1), baseline(20, trial.Answered), fails(3)}, 0},
		{"refused ones are between", []send{healthy, fails(1), baseline(20, trial.Answered), fails(3), {count: 9, variant: 1, ending: trial.Refusal}, fails(1)}, 5},
		{"one unit needs twice as many", []send{healthy, {count: 1, variant: 1, ending: trial.Fault, unit: 7}, baseline(20, trial.Answered),
			{count: 1000, variant: 1, ending: trial.Fault, unit: 7}}, 10},
		{"the baseline fails half of the time: twenty", []send{baseline(500, trial.Fault), baseline(500, trial.Answered), fails(1), baseline(20, trial.Answered), fails(25)}, 20},
		{"nobody knows the baseline", []send{fails(50)}, 0},
		{"the baseline was not asked since", []send{healthy, fails(50)}, 0},
		{"both arms fail", []send{healthy, fails(2), baseline(10, trial.Fault), fails(50)}, 0},
		{"both arms fail, the canary is seen first", []send{healthy, fails(6), baseline(10, trial.Fault), fails(50)}, 0},
		{"a fifth of the baseline fails too", []send{healthy, fails(2), baseline(4, trial.Answered), baseline(1, trial.Fault), fails(50)}, 0},
		{"a server died under all that ran", []send{healthy, {count: 50, variant: 1, ending: trial.Broken, together: true}, baseline(20, trial.Answered),
			{count: 50, variant: 1, ending: trial.Unreached}}, 0},
		{"all that ran, and two more", []send{healthy, {count: 10, variant: 1, ending: trial.Broken, together: true}, baseline(20, trial.Answered), fails(5)}, 12},
		{"the baseline's failures count for nobody", []send{baseline(50, trial.Fault)}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var trips []trial.Trip
			c := trial.NewCollector(func(t trial.Trip) { trips = append(trips, t) })
			c.Set(map[string]*trial.Watch{"e": watch(t, func(w *trial.Watch, _ *trial.Setup) { w.Breaker, w.Frozen = true, true })})
			n, now := 0, began
			for _, s := range tt.sends {
				var run []*trial.Request
				for range s.count {
					n++
					in := start(n, s.variant)
					if s.unit > 0 {
						in.Unit = start(s.unit, 1).Unit
					}
					in.At, now = now, now.Add(10*time.Millisecond)
					r := c.Begin(in)
					if s.together {
						run = append(run, r)
						continue
					}
					r.Ended(trial.End{After: 5 * time.Millisecond, Ending: s.ending})
					r.Close(6*time.Millisecond, 0, false, 0)
				}
				for i, r := range run {
					r.Ended(trial.End{After: time.Duration(len(run)-i)*10*time.Millisecond + 5, Ending: s.ending})
				}
			}
			switch {
			case tt.want == 0 && len(trips) > 0:
				t.Errorf("it trips: %+v", trips)
			case tt.want > 0 && (len(trips) != 1 || trips[0].Failures != tt.want || trips[0].Variant != 1 || trips[0].Guardrail != 0 || trips[0].Epoch != 7):
				t.Errorf("trips %+v, want one after %d failures", trips, tt.want)
			}
		})
	}
}

func TestBreakerRearms(t *testing.T) {
	for _, on := range []bool{true, false} {
		trips := 0
		c := trial.NewCollector(func(trial.Trip) { trips++ })
		c.Set(map[string]*trial.Watch{"e": watch(t, func(w *trial.Watch, _ *trial.Setup) { w.Breaker = on })})
		n := 0
		send := func() {
			for i := range 60 {
				n++
				in := start(n, i%2)
				in.At = began.Add(time.Duration(n) * time.Second)
				e := trial.Answered
				if i%2 == 1 {
					e = trial.Fault
				}
				c.Begin(in).Ended(trial.End{After: time.Millisecond, Ending: e})
			}
		}
		want := 0
		for range 3 {
			send()
			c.Rearm("e", 1)
			if on {
				want++
			}
			if trips != want {
				t.Errorf("breaker %t: %d trips, want %d", on, trips, want)
			}
		}
		c.Rearm("e", 9)
		c.Rearm("nothing", 1)
	}
}
