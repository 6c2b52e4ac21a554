package trial_test

import (
	"encoding/json"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/experiment/trial"
)

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
