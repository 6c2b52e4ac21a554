package trial_test

import (
	"encoding/json"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/experiment/guardrail"
	"sluice/experiment/trial"
)

var began = time.UnixMilli(1_800_000_000_000)

// watch is one with every kind of guardrail; index 0 error, 1 slow_ttfa (2 s),
// 2 rejected, 3 empty, 4 cost.
func watch(t testing.TB, change func(*trial.Watch, *trial.Setup)) *trial.Watch {
	t.Helper()
	configs, err := guardrail.Parse(json.RawMessage(`[{"metric":"error"},{"metric":"slow_ttfa","threshold":"2s"},{"metric":"rejected"},{"metric":"empty"},{"metric":"cost_per_request"}]`), false)
	if err != nil {
		t.Fatal(err)
	}
	w := &trial.Watch{Experiment: "e", Generation: 1, Epoch: 7, Variants: 2, Configs: configs}
	thresholds, settled := trial.Fix(configs, new(trial.Profile))
	s := trial.Setup{Since: began.UnixMilli(), Thresholds: thresholds, Settled: settled}
	if change != nil {
		change(w, &s)
	}
	if w.Plan, err = trial.NewPlan(configs, s); err != nil {
		t.Fatal(err)
	}
	return w
}

// start is the n-th request of a unit of its own.
func start(n, variant int) *trial.Start {
	s := &trial.Start{Experiment: "e", Generation: 1, Variant: variant, Analysed: true, At: began, ID: fmt.Sprint("request-", n), HasUnit: true, Prompt: 10}
	s.Unit = [8]byte{byte(n >> 8), byte(n), 3, 4, 5, 6, byte(n >> 8), byte(n)}
	return s
}

func of(n, k, started int64) guardrail.Counts { return guardrail.Counts{N: n, K: k, Started: started} }

func TestCollector(t *testing.T) {
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	tests := []struct {
		name string
		do   func(r *trial.Request)
		want [4]guardrail.Counts // error, slow_ttfa, rejected, empty
	}{
		{"answered", func(r *trial.Request) {
			r.First(ms(50))
			r.Answer(ms(100))
			r.Ended(trial.End{After: ms(300), Ending: trial.Answered})
		}, [4]guardrail.Counts{of(1, 0, 1), of(1, 0, 1), of(1, 0, 1), of(1, 0, 1)}},
		{"slow", func(r *trial.Request) {
			r.Answer(ms(2100))
			r.Ended(trial.End{After: ms(3000), Ending: trial.Answered})
		}, [4]guardrail.Counts{of(1, 0, 1), of(1, 1, 1), of(1, 0, 1), of(1, 0, 1)}},
		{"a thought is no answer", func(r *trial.Request) {
			r.First(ms(50))
			r.Answer(ms(2500))
			r.Ended(trial.End{After: ms(3000), Ending: trial.Answered})
		}, [4]guardrail.Counts{of(1, 0, 1), of(1, 1, 1), of(1, 0, 1), of(1, 0, 1)}},
		{"failed at once", func(r *trial.Request) { r.Ended(trial.End{After: ms(5), Ending: trial.Fault}) },
			[4]guardrail.Counts{of(1, 1, 1), of(0, 0, 1), of(0, 0, 1), of(0, 0, 1)}},
		{"refused", func(r *trial.Request) { r.Ended(trial.End{After: ms(5), Ending: trial.Refusal}) },
			[4]guardrail.Counts{of(0, 0, 1), of(0, 0, 1), of(1, 1, 1), of(0, 0, 1)}},
		{"empty", func(r *trial.Request) {
			r.Ended(trial.End{After: ms(5), Ending: trial.Answered, Flags: trial.EmptyAnswer})
		}, [4]guardrail.Counts{of(1, 1, 1), of(0, 0, 1), of(1, 0, 1), of(1, 1, 1)}},
		{"hangs for a second", func(*trial.Request) {}, [4]guardrail.Counts{of(0, 0, 1), of(0, 0, 1), of(0, 0, 1), of(0, 0, 1)}},
		{"left early", func(r *trial.Request) { r.Left(ms(500)) }, [4]guardrail.Counts{of(0, 0, 1), of(0, 0, 1), of(0, 0, 1), of(0, 0, 1)}},
		{"left late", func(r *trial.Request) { r.Left(ms(2500)) }, [4]guardrail.Counts{of(0, 0, 1), of(1, 1, 1), of(0, 0, 1), of(0, 0, 1)}},
		{"the first attempt counts", func(r *trial.Request) {
			r.Ended(trial.End{After: ms(5), Ending: trial.Fault})
			r.Ended(trial.End{After: ms(50), Ending: trial.Answered})
		}, [4]guardrail.Counts{of(1, 1, 1), of(0, 0, 1), of(0, 0, 1), of(0, 0, 1)}},
		{"ended by the gateway", func(r *trial.Request) { r.Close(ms(5), 0, false, 0) },
			[4]guardrail.Counts{of(0, 0, 1), of(0, 0, 1), of(0, 0, 1), of(0, 0, 1)}},
		{"closed twice", func(r *trial.Request) {
			r.Ended(trial.End{After: ms(5), Ending: trial.Fault})
			r.Close(ms(5), 0, false, 0)
			r.Close(ms(6), 1, true, 0)
			r.Answer(ms(7))
		}, [4]guardrail.Counts{of(1, 1, 1), of(0, 0, 1), of(0, 0, 1), of(0, 0, 1)}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := trial.NewCollector(nil)
			c.Set(map[string]*trial.Watch{"e": watch(t, nil)})
			tt.do(c.Begin(start(1, 1)))
			tick := c.Drain(began.Add(time.Second))["e"]
			var got [4]guardrail.Counts
			copy(got[:], tick.Variants[1].Counts)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
			if again := c.Drain(began.Add(1100 * time.Millisecond))["e"]; again.Variants[1].Counts[0] != (guardrail.Counts{}) {
				t.Errorf("drained twice: %+v", again.Variants[1].Counts)
			}
		})
	}
}

// A server that hangs is slow at the threshold, not without data.
func TestHungRequestIsSlow(t *testing.T) {
	c := trial.NewCollector(nil)
	c.Set(map[string]*trial.Watch{"e": watch(t, nil)})
	r := c.Begin(start(1, 1))
	for at, want := range map[time.Duration]guardrail.Counts{1900 * time.Millisecond: {Started: 1}} {
		if got := c.Drain(began.Add(at))["e"].Variants[1].Counts[1]; got != want {
			t.Errorf("after %v: %+v, want %+v", at, got, want)
		}
	}
	if got := c.Drain(began.Add(2 * time.Second))["e"].Variants[1].Counts[1]; got != (guardrail.Counts{N: 1, K: 1}) {
		t.Errorf("at the threshold: %+v", got)
	}
	r.Ended(trial.End{After: time.Minute, Ending: trial.Fault})
	got := c.Drain(began.Add(time.Minute))["e"].Variants[1].Counts
	if got[1] != (guardrail.Counts{}) || got[0] != (guardrail.Counts{N: 1, K: 1}) {
		t.Errorf("when it failed at last: %+v", got)
	}
}

func TestOutside(t *testing.T) {
	for why, change := range map[trial.Why]func(*trial.Start){
		trial.Outside:    func(s *trial.Start) { s.Analysed = false },
		trial.SDKRetry:   func(s *trial.Start) { s.Retry = 1 },
		trial.BeforeStep: func(s *trial.Start) { s.At = s.At.Add(-time.Millisecond) },
	} {
		c := trial.NewCollector(nil)
		c.Set(map[string]*trial.Watch{"e": watch(t, nil)})
		s := start(1, 1)
		change(s)
		r := c.Begin(s)
		r.Ended(trial.End{After: 5, Ending: trial.Fault})
		r.Close(5, 0, false, 0)
		got := c.Drain(began.Add(time.Second))["e"].Variants[1]
		if got.Counts[0] != (guardrail.Counts{}) || got.Outside[why] != 1 || got.Started != 0 {
			t.Errorf("%s: %+v", why, got)
		}
	}
	c := trial.NewCollector(nil)
	none := c.Begin(start(1, 1))
	none.First(1)
	none.Answer(1)
	none.Left(1)
	none.Ended(trial.End{})
	none.Close(1, 0, false, 0)
	c.Set(map[string]*trial.Watch{"e": watch(t, nil)})
	for _, s := range []*trial.Start{{Experiment: "other"}, {Experiment: "e", Generation: 2}, {Experiment: "e", Generation: 1, Variant: 2}, {Experiment: "e", Generation: 1, Variant: -1}} {
		if c.Begin(s) != nil {
			t.Errorf("%+v is watched", s)
		}
	}
}

// What began in another step ends nowhere.
func TestNewEpoch(t *testing.T) {
	c := trial.NewCollector(nil)
	first := watch(t, nil)
	c.Set(map[string]*trial.Watch{"e": first})
	r := c.Begin(start(1, 1))
	more := *first
	more.Replicas = 3
	c.Set(map[string]*trial.Watch{"e": &more})
	if got := c.Drain(began.Add(time.Second))["e"].Variants[1].Counts[0]; got.Started != 1 {
		t.Errorf("another number of replicas began to count anew: %+v", got)
	}
	c.Set(map[string]*trial.Watch{"e": watch(t, func(w *trial.Watch, _ *trial.Setup) { w.Epoch = 8 })})
	r.Ended(trial.End{After: 5, Ending: trial.Fault})
	r.Close(6, 0, false, 0)
	tick := c.Drain(began.Add(2 * time.Second))["e"]
	if got := tick.Variants[1].Counts[0]; got != (guardrail.Counts{}) || tick.Epoch != 8 {
		t.Errorf("epoch %d has %+v of the one before", tick.Epoch, got)
	}
	c.Set(nil)
	if c.Begin(start(2, 1)) != nil || len(c.Drain(began)) != 0 {
		t.Error("nothing is watched, and yet it is")
	}
	r.Close(7, 0, false, 0)
}

// A unit that failed on the baseline before the rollout is in neither arm of
// that guardrail; the past does not grow once it is frozen.
func TestPreTreatment(t *testing.T) {
	c := trial.NewCollector(nil)
	calls := 0
	fail := func(n, variant int) guardrail.Counts {
		s := start(n, variant)
		calls++
		s.At = began.Add(time.Duration(calls) * 11 * time.Minute) // the unit's first request of its window
		r := c.Begin(s)
		r.Ended(trial.End{After: 5, Ending: trial.Fault})
		r.Close(6, 0, false, 0)
		return c.Drain(began.Add(time.Second))["e"].Variants[variant].Counts[0]
	}
	c.Set(map[string]*trial.Watch{"e": watch(t, nil)})
	fail(1, 0)
	lists := c.Failing("e")
	if len(lists.Errors) != 1 || len(lists.Slow) != 0 {
		t.Fatalf("%+v", lists)
	}
	frozen := func(w *trial.Watch, _ *trial.Setup) { w.Epoch, w.Frozen = 8, true }
	c.Set(map[string]*trial.Watch{"e": watch(t, frozen)})
	if got := fail(1, 1); got.N != 0 || got.Started != 0 {
		t.Errorf("a unit with a failing past is a witness: %+v", got)
	}
	fail(2, 0)
	if got := fail(2, 1); got.N != 1 {
		t.Errorf("the past grew after it was frozen: %+v", got)
	}
	// What all replicas know wins over what this one does.
	c.Set(map[string]*trial.Watch{"e": watch(t, func(w *trial.Watch, s *trial.Setup) {
		frozen(w, s)
		w.Epoch, w.Excluded = 9, &trial.Exclusions{Errors: []uint64{uint64(0x0003_0304_0506_0003)}}
	})})
	if got := fail(1, 1); got.N != 1 {
		t.Errorf("a unit that is not on the list is excluded: %+v", got)
	}
	if got := fail(3, 1); got.N != 0 {
		t.Errorf("a unit that is on the list is not: %+v", got)
	}
}

// A unit of n requests gives about 1 + 2 ln n trials, over several replicas too.
func TestAdmission(t *testing.T) {
	for _, replicas := range []int{1, 3} {
		trials := int64(0)
		for k := range replicas {
			c := trial.NewCollector(nil)
			c.Set(map[string]*trial.Watch{"e": watch(t, func(w *trial.Watch, _ *trial.Setup) { w.Replicas = replicas })})
			for i := k; i < 3000; i += replicas {
				s := start(1, 1)
				s.ID = fmt.Sprint("agent-", i)
				r := c.Begin(s)
				r.Ended(trial.End{After: 5, Ending: trial.Fault})
			}
			trials += c.Drain(began.Add(time.Second))["e"].Variants[1].Counts[0].N
		}
		if want := 1 + 2*math.Log(3000); math.Abs(float64(trials)-want) > 3*math.Sqrt(want)+2 {
			t.Errorf("%d replicas: %d trials of 3,000 requests, want about %.0f", replicas, trials, want)
		}
	}
}

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

func TestMeansAndProfile(t *testing.T) {
	c := trial.NewCollector(nil)
	c.Set(map[string]*trial.Watch{"e": watch(t, func(_ *trial.Watch, s *trial.Setup) { s.Settled = time.Second })})
	for n := range 300 {
		r := c.Begin(start(n, n%2))
		r.Answer(100 * time.Millisecond)
		r.Ended(trial.End{After: 200 * time.Millisecond, Ending: trial.Answered, Usage: true, Input: 3, Output: 5})
		r.Close(200*time.Millisecond, 2, true, 1.5)
	}
	late := c.Begin(start(1000, 1)) // longer than the baseline's p99: its cost is known when it is closed
	late.Ended(trial.End{After: 2 * time.Second, Ending: trial.Answered})
	early := c.Drain(began.Add(900 * time.Millisecond))["e"]
	if early.Variants[1].Means != nil {
		t.Error("means of answers that are younger than the baseline's p99")
	}
	if p := early.Variants[0].Profile; p == nil || p.TTFA[0].Count() != 150 {
		t.Errorf("profile of the baseline: %+v", p)
	}
	tick := c.Drain(began.Add(time.Second))["e"]
	for v := range 2 {
		var n, x float64
		for _, s := range tick.Variants[v].Means[4] {
			n, x = n+s.N, x+s.X
		}
		if n != 150 || x != 225 {
			t.Errorf("variant %d: %v requests, %v in all, want 150 and 225 (1.5 is the most one can cost)", v, n, x)
		}
	}
	late.Close(2*time.Second, 7, true, 0)
	if sums := c.Drain(began.Add(2 * time.Second))["e"].Variants[1].Means; sums == nil || len(sums[4]) != 1 || sums[4][0].N != 1 || sums[4][0].X != 7 {
		t.Errorf("of a long answer: %+v", sums)
	}
}

// What waits for its age is bounded, and what is left out is counted.
func TestCrowd(t *testing.T) {
	c := trial.NewCollector(nil)
	c.Set(map[string]*trial.Watch{"e": watch(t, func(_ *trial.Watch, s *trial.Setup) { s.Settled = time.Minute })})
	const all = 5000
	for n := range all {
		in := start(1, 1) // one unit is in one shard
		in.ID = fmt.Sprint(n)
		r := c.Begin(in)
		r.Ended(trial.End{After: 5, Ending: trial.Answered})
		r.Close(5, 1, true, 0)
	}
	tick := c.Drain(began.Add(time.Minute))["e"].Variants[1]
	if sums := tick.Means[4]; len(sums) != 1 || sums[0].N != 4096 || tick.Outside[trial.Crowded] != all-4096 {
		t.Errorf("%+v, outside %v", sums, tick.Outside)
	}
	r := c.Begin(start(1, 1))
	r.Ended(trial.End{After: 5, Ending: trial.Answered})
	r.Close(5, 1, true, 0)
	if sums := c.Drain(began.Add(2 * time.Minute))["e"].Variants[1].Means; sums == nil || sums[4][0].N != 1 {
		t.Errorf("when the crowd is gone: %+v", sums)
	}
}

// Every reason is counted once for a request, whatever the number of guardrails.
func TestReasonsOnce(t *testing.T) {
	c := trial.NewCollector(nil)
	c.Set(map[string]*trial.Watch{"e": watch(t, nil)})
	c.Begin(start(1, 1)).Left(time.Millisecond)
	c.Begin(start(2, 1)).Close(5, 0, false, 0)
	c.Begin(start(3, 1)).Ended(trial.End{After: 5, Ending: trial.Refusal})
	c.Begin(start(4, 1)).Ended(trial.End{After: 5, Ending: trial.Unreached})
	c.Begin(start(5, 0)).Close(5, 0, false, 0)
	c.Begin(start(5, 1)).Ended(trial.End{After: 5, Ending: trial.Fault}) // moved
	got := c.Drain(began.Add(time.Second))["e"].Variants[1].Outside
	want := map[trial.Why]int64{trial.Withdrawn: 1, trial.Gateway: 1, trial.NotReady: 1, trial.SwitchCost: 1}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// A tick is provisional from a hundredth of its requests on.
func TestProvisional(t *testing.T) {
	for _, tt := range []struct {
		sure, provisional int
		want              bool
	}{{0, 0, false}, {0, 1, true}, {5, 1, true}, {99, 1, true}, {100, 1, false}, {1000, 9, false}, {1000, 11, true}} {
		c := trial.NewCollector(nil)
		c.Set(map[string]*trial.Watch{"e": watch(t, nil)})
		for n := range tt.sure + tt.provisional {
			s := start(n, 1)
			s.Analysed, s.Provisional = n < tt.sure, n >= tt.sure
			c.Begin(s).Close(5, 0, false, 0)
		}
		got := c.Drain(began.Add(time.Second))["e"].Variants
		if got[1].Provisional != tt.want || got[0].Provisional {
			t.Errorf("%d of %d: %t, want %t", tt.provisional, tt.provisional+tt.sure, got[1].Provisional, tt.want)
		}
		if c.Drain(began.Add(2 * time.Second))["e"].Variants[1].Provisional {
			t.Error("the next tick is provisional too")
		}
	}
}

// A replica names each unit of an epoch once, and not more than it may.
func TestNamedUnits(t *testing.T) {
	c := trial.NewCollector(nil)
	c.Set(map[string]*trial.Watch{"e": watch(t, nil)})
	send := func(from, to int) []uint64 {
		for n := from; n < to; n++ {
			c.Begin(start(n, 1)).Close(5, 0, false, 0)
		}
		return c.Drain(began.Add(time.Second))["e"].Variants[1].Units
	}
	if a, b, d := send(0, 10), send(0, 11), send(0, 3000); len(a) != 10 || len(b) != 1 || len(d) != trial.MaxUnits-11 {
		t.Errorf("%d, %d and %d units, want 10, 1 and the rest of %d", len(a), len(b), len(d), trial.MaxUnits)
	}
	c.Set(map[string]*trial.Watch{"e": watch(t, func(w *trial.Watch, _ *trial.Setup) { w.Epoch = 8 })})
	if got := send(0, 10); len(got) != 10 {
		t.Errorf("in a new epoch %d of 10", len(got))
	}
}

func TestHeavyUnits(t *testing.T) {
	c := trial.NewCollector(nil)
	c.Set(map[string]*trial.Watch{"e": watch(t, nil)})
	for i := range 20_000 {
		n := 5 + i%900
		if i%5 == 0 {
			n = 1 // a fifth of all
		}
		s := start(n, 0)
		s.ID, s.Key, s.Tenant = fmt.Sprint("r", i), "key-1", "acme"
		c.Begin(s).Close(5, 0, false, 0)
	}
	got := c.Drain(began.Add(time.Second))["e"].Heavy
	if len(got) != 1 || got[0].Field != "0001030405060001" || got[0].Key != "key-1" || got[0].Tenant != "acme" || math.Abs(got[0].Share-0.2) > 0.02 {
		t.Errorf("%+v", got)
	}
}

// Every request is counted once, whatever happens at the same time.
func TestConcurrent(t *testing.T) {
	c := trial.NewCollector(func(trial.Trip) {})
	w := watch(t, func(w *trial.Watch, s *trial.Setup) { w.Breaker, s.Since = true, 0 })
	c.Set(map[string]*trial.Watch{"e": w})
	var wg sync.WaitGroup
	var n, k, started int64
	stop := make(chan struct{})
	count := func() {
		for _, v := range c.Drain(time.Now())["e"].Variants {
			n, k, started = n+v.Counts[0].N, k+v.Counts[0].K, started+v.Counts[0].Started
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				count()
				more := *w
				more.Replicas = 1
				c.Set(map[string]*trial.Watch{"e": &more})
			}
		}
	}()
	for g := range 4 {
		wg.Go(func() {
			for i := range 2000 {
				s := start(g*2000+i, i%2)
				s.At = time.Now()
				r := c.Begin(s)
				r.Answer(time.Millisecond)
				e := trial.Answered
				if i%4 == 0 {
					e = trial.Fault
				}
				r.Ended(trial.End{After: time.Millisecond, Ending: e})
				r.Close(time.Millisecond, 1, true, 0)
			}
		})
	}
	wg.Wait()
	close(stop)
	<-done
	count()
	if n != 8000 || k != 2000 || started != 8000 {
		t.Errorf("%d trials, %d bad, %d started; want 8000, 2000, 8000", n, k, started)
	}
}

func TestTickSize(t *testing.T) {
	for _, rate := range []int{200, 2000} {
		c := trial.NewCollector(nil)
		c.Set(map[string]*trial.Watch{"e": watch(t, nil)})
		for n := range rate {
			s := start(n, n%2)
			s.Asks = trial.Asks(n % 1024)
			r := c.Begin(s)
			r.Answer(time.Duration(n) * time.Millisecond / 4)
			r.Ended(trial.End{After: time.Second, Ending: trial.Answered, Usage: true, Input: 9, Output: 9})
			r.Close(time.Second, float64(n), true, 0)
		}
		b, err := json.Marshal(c.Drain(began.Add(time.Second))["e"])
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%d requests of as many new users: %d bytes", rate, len(b))
		if len(b) > 100_000 {
			t.Errorf("a tick of %d requests has %d bytes", rate, len(b))
		}
		var back trial.Tick
		if err := json.Unmarshal(b, &back); err != nil {
			t.Error(err)
		}
	}
}

func BenchmarkBegin(b *testing.B) {
	c := trial.NewCollector(nil)
	c.Set(map[string]*trial.Watch{"e": watch(b, nil)})
	starts := make([]*trial.Start, 4096)
	for n := range starts {
		starts[n] = start(n, n%2)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		c.Begin(starts[i%len(starts)])
		if i%len(starts) == 0 { // what nobody ends is let go
			b.StopTimer()
			c.Set(map[string]*trial.Watch{"e": watch(b, nil)})
			b.StartTimer()
		}
	}
}

func BenchmarkRequest(b *testing.B) {
	c := trial.NewCollector(nil)
	c.Set(map[string]*trial.Watch{"e": watch(b, nil)})
	starts := make([]*trial.Start, 4096)
	for n := range starts {
		starts[n] = start(n, n%2)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		r := c.Begin(starts[i%len(starts)])
		r.First(time.Millisecond)
		r.Answer(2 * time.Millisecond)
		r.Ended(trial.End{After: 3 * time.Millisecond, Ending: trial.Answered})
		r.Close(3*time.Millisecond, 1, true, 0)
	}
}
