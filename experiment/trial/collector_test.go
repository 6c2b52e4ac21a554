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
