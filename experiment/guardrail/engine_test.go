package guardrail_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"sluice/experiment/guardrail"
)

// of is a tick of one unit per trial.
func of(nc, kc, nb, kb int64) *guardrail.Tick { return tick(0, nc, kc, nb, kb) }

func TestVerdicts(t *testing.T) {
	type change = func(*guardrail.Config, *guardrail.Gates)
	latency := func(c *guardrail.Config, _ *guardrail.Gates) { *c = guardrail.New(guardrail.SlowTTFA) }
	tests := []struct {
		name     string
		change   change
		ticks    []*guardrail.Tick
		load     float64
		decision guardrail.Decision
		code     guardrail.Code
		note     guardrail.Note
		text     string
	}{
		{name: "nothing yet", decision: guardrail.Open, code: guardrail.NoData,
			text: "error: canary 0 of 0, baseline 0 of 0; the canary has had no trial in this step"},
		{name: "no canary traffic", ticks: []*guardrail.Tick{of(0, 0, 1000, 3)}, decision: guardrail.Open, code: guardrail.NoData},
		{name: "no baseline traffic", ticks: []*guardrail.Tick{of(100, 3, 0, 0)}, decision: guardrail.Open, code: guardrail.NoBaseline},
		{name: "proved good against ok_rate alone", ticks: []*guardrail.Tick{of(400, 0, 0, 0)}, decision: guardrail.Pass, code: guardrail.Absolute},
		{name: "a baseline without errors, a canary with 5 %", ticks: []*guardrail.Tick{of(1000, 50, 1000, 0)},
			decision: guardrail.Fail, code: guardrail.Relative,
			text: "error: canary 50 of 1,000 (5 %), baseline 0 of 1,000 (0 %); more than 1.5 times the baseline (e-value 11,620,354,370, needs 4,000)"},
		{name: "a bad baseline does not fail a good canary", change: func(c *guardrail.Config, _ *guardrail.Gates) { c.MaxRate = 0 },
			ticks: []*guardrail.Tick{of(1000, 50, 1000, 300)}, decision: guardrail.Pass, code: guardrail.Relative},
		{name: "a bad baseline promotes nobody", ticks: []*guardrail.Tick{of(1000, 50, 1000, 300)}, decision: guardrail.Open, code: guardrail.BaselineUnhealthy},
		{name: "worse, but four bad trials", ticks: []*guardrail.Tick{of(4, 4, 4000, 0)}, decision: guardrail.Open, code: guardrail.FewBadTrials},
		{name: "worse, but two users", ticks: []*guardrail.Tick{{Canary: guardrail.Counts{N: 50, K: 20}, Baseline: guardrail.Counts{N: 4000, K: 4},
			BadUnits: []uint64{1, 2, 1, 2}}}, decision: guardrail.Open, code: guardrail.FewBadUnits,
			text: "error: canary 20 of 50 (40 %), baseline 4 of 4,000 (0.1 %); worse, but all bad trials are of 2 users, 3 are needed"},
		{name: "worse, but too little to matter", ticks: []*guardrail.Tick{of(10000, 60, 10000, 2)},
			change:   func(c *guardrail.Config, _ *guardrail.Gates) { c.OKRate = 0 },
			decision: guardrail.Open, code: guardrail.SmallEffect},
		{name: "the same below an SLO", ticks: []*guardrail.Tick{of(10000, 60, 10000, 2)},
			change:   func(c *guardrail.Config, _ *guardrail.Gates) { c.SetSLO(0.001) },
			decision: guardrail.Fail, code: guardrail.Relative},
		{name: "good, but few users", ticks: []*guardrail.Tick{{Canary: guardrail.Counts{N: 1000}, Baseline: guardrail.Counts{N: 1000},
			Units: []uint64{1, 2, 3}}}, decision: guardrail.Open, code: guardrail.FewUnits},
		{name: "above max_rate without a baseline", ticks: []*guardrail.Tick{of(100, 60, 0, 0)}, decision: guardrail.Fail, code: guardrail.Absolute},
		{name: "above max_rate, a baseline of too few trials does not excuse", ticks: []*guardrail.Tick{of(100, 60, 4, 2)},
			decision: guardrail.Fail, code: guardrail.Absolute},
		{name: "above max_rate like the baseline", change: func(c *guardrail.Config, _ *guardrail.Gates) { c.PassRatio = 1.5 },
			// 9.5 % never makes the baseline unhealthy, yet excuses 14 %.
			ticks: repeat(60, of(100, 14, 1000, 95)), decision: guardrail.Open, code: guardrail.AsBaseline},
		{name: "rejected has no absolute fail", change: func(c *guardrail.Config, _ *guardrail.Gates) { *c = guardrail.New(guardrail.Rejected) },
			ticks: []*guardrail.Tick{of(1000, 300, 1000, 290)}, decision: guardrail.Pass, code: guardrail.Relative},
		{name: "nothing rejected anywhere passes", change: func(c *guardrail.Config, _ *guardrail.Gates) { *c = guardrail.New(guardrail.Rejected) },
			ticks: []*guardrail.Tick{of(600, 0, 6000, 0)}, decision: guardrail.Pass, code: guardrail.Absolute},
		{name: "slow under more than twice the load", change: latency, ticks: []*guardrail.Tick{of(1000, 250, 1000, 20)}, load: 2.1,
			decision: guardrail.Open, code: guardrail.NotComparable},
		{name: "slow under twice the load", change: latency, ticks: []*guardrail.Tick{of(1000, 250, 1000, 20)}, load: 2,
			decision: guardrail.Fail, code: guardrail.Relative},
		{name: "fast under light load", change: latency, ticks: []*guardrail.Tick{of(1000, 20, 1000, 30)}, load: 0.4,
			decision: guardrail.Pass, code: guardrail.Relative, note: guardrail.LightLoad,
			text: "slow_ttfa: canary 20 of 1,000 (2 %), baseline 30 of 1,000 (3 %); less than 2 times the baseline (e-value 392, needs 40) (at 0.4 times the baseline's load for each server)"},
		{name: "errors do not depend on load", ticks: []*guardrail.Tick{of(1000, 50, 1000, 0)}, load: 5, decision: guardrail.Fail, code: guardrail.Relative},
		{name: "load is not a number", change: latency, ticks: []*guardrail.Tick{of(1000, 250, 1000, 20)}, load: math.NaN(),
			decision: guardrail.Fail, code: guardrail.Relative},
		{name: "suspended ticks count for nobody", ticks: []*guardrail.Tick{suspended(of(1000, 900, 1000, 0))}, decision: guardrail.Open, code: guardrail.NoData},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var changes []change
			if tt.change != nil {
				changes = append(changes, tt.change)
			}
			test := errorTest(t, changes...)
			var s guardrail.State
			for i, tk := range tt.ticks {
				tk := *tk
				tk.At += int64(i) * 1000
				if err := test.Add(&s, &tk); err != nil {
					t.Fatal(err)
				}
			}
			v := test.Verdict(&s, guardrail.Conditions{Load: tt.load})
			if v.Decision != tt.decision || v.Code != tt.code || v.Note != tt.note {
				t.Errorf("%s %s %s, want %s %s %s; %s", v.Decision, v.Code, v.Note, tt.decision, tt.code, tt.note, v.Text())
			}
			if tt.text != "" && v.Text() != tt.text {
				t.Errorf("text:\n%s\nwant:\n%s", v.Text(), tt.text)
			}
		})
	}
}

func repeat(n int, tk *guardrail.Tick) (out []*guardrail.Tick) {
	for range n {
		out = append(out, tk)
	}
	return out
}

func suspended(tk *guardrail.Tick) *guardrail.Tick { tk.Suspended = true; return tk }

func TestSatisfied(t *testing.T) {
	tests := []struct {
		decision guardrail.Decision
		require  guardrail.Require
		action   guardrail.Action
		want     bool
	}{
		{guardrail.Pass, guardrail.RequirePass, guardrail.ActionRollback, true},
		{guardrail.Open, guardrail.RequirePass, guardrail.ActionRollback, false},
		{guardrail.Open, guardrail.RequireNoFail, guardrail.ActionRollback, true},
		{guardrail.Fail, guardrail.RequireNoFail, guardrail.ActionRollback, false},
		{guardrail.Fail, guardrail.RequireNoFail, guardrail.ActionHold, false},
		{guardrail.Fail, guardrail.RequirePass, guardrail.ActionWarn, true},
		{guardrail.Open, guardrail.RequirePass, guardrail.ActionWarn, true},
		{"", guardrail.RequireNoFail, guardrail.ActionRollback, false},
	}
	for _, tt := range tests {
		v := guardrail.Verdict{Decision: tt.decision, Require: tt.require, Action: tt.action}
		if got := v.Satisfied(); got != tt.want {
			t.Errorf("%s, require %s, action %s: %t, want %t", tt.decision, tt.require, tt.action, got, tt.want)
		}
	}
}

func TestImpossibleTicksChangeNothing(t *testing.T) {
	test := errorTest(t)
	for _, tk := range []*guardrail.Tick{
		of(-1, 0, 0, 0), of(0, 1, 0, 0), of(5, 6, 0, 0), of(5, -1, 5, 0), of(5, 0, 5, 6), of(math.MaxInt64, 0, 0, 0),
		{Canary: guardrail.Counts{Started: -1}}, {Baseline: guardrail.Counts{Started: math.MaxInt64}},
	} {
		var s guardrail.State
		if err := test.Add(&s, tk); err == nil {
			t.Errorf("%+v was counted", tk)
		}
		if diff := cmp.Diff(guardrail.State{}, s); diff != "" {
			t.Errorf("state changed:\n%s", diff)
		}
	}
}

// A canary that answers at four times the length settles its good trials late
// and its bad ones at once. Counting what began keeps that from looking like
// errors; counting what settled would roll back a good canary.
func TestLongAnswersAreNotErrors(t *testing.T) {
	run := func(starts bool) (failed, passed int) {
		test := errorTest(t, func(_ *guardrail.Config, g *guardrail.Gates) { g.Starts = starts })
		r := rand.New(rand.NewPCG(3, 3))
		for range 40 {
			var s guardrail.State
			settle := map[int][2]guardrail.Counts{} // by second
			decision := guardrail.Open
			for sec := range 300 {
				now := settle[sec]
				for arm, n := range [2]int{20, 180} { // started this second
					now[arm].Started = int64(n)
					for range n {
						after := 1 // errors show within the second
						bad := r.Float64() < 0.03
						if !bad {
							after = []int{60, 5}[arm]
						}
						c := settle[sec+after]
						c[arm].N++
						if bad {
							c[arm].K++
						}
						settle[sec+after] = c
					}
				}
				tk := guardrail.Tick{At: int64(sec) * 1000, Canary: now[0], Baseline: now[1]}
				for u := range 30 {
					tk.Units, tk.BadUnits = append(tk.Units, uint64(u)), append(tk.BadUnits, uint64(u))
				}
				if err := test.Add(&s, &tk); err != nil {
					t.Fatal(err)
				}
				if decision = test.Verdict(&s, guardrail.Conditions{}).Decision; decision == guardrail.Fail {
					failed++
					break
				}
			}
			if decision == guardrail.Pass {
				passed++
			}
		}
		return failed, passed
	}
	if failed, passed := run(true); failed != 0 || passed < 30 {
		t.Errorf("counting starts: %d of 40 good canaries failed, %d passed", failed, passed)
	}
	if failed, _ := run(false); failed == 0 {
		t.Error("counting what settled fails no good canary: then Starts is not needed")
	}
}

// A canary that hangs settles nothing, and nothing passes.
func TestHungCanaryDoesNotPass(t *testing.T) {
	test := errorTest(t, func(_ *guardrail.Config, g *guardrail.Gates) { g.Starts = true })
	var s guardrail.State
	for i := range 600 {
		tk := tick(i, 0, 0, 180, 3)
		tk.Canary.Started, tk.Baseline.Started = 20, 180
		if err := test.Add(&s, tk); err != nil {
			t.Fatal(err)
		}
	}
	v := test.Verdict(&s, guardrail.Conditions{})
	if v.Decision != guardrail.Open || v.Code != guardrail.NoData {
		t.Errorf("%s %s", v.Decision, v.Code)
	}
	if want := "none of 12,000 trials of the canary that began has settled"; !strings.Contains(v.Text(), want) {
		t.Errorf("%q does not say %q", v.Text(), want)
	}
}

// A failure that shows in a second without a start is compared in the next that
// has one, not lost.
func TestLateFailuresAreKept(t *testing.T) {
	test := errorTest(t, func(_ *guardrail.Config, g *guardrail.Gates) { g.Starts = true })
	var s guardrail.State
	for i := range 40 {
		tk := tick(i, 0, 0, 20, 0)
		tk.Baseline.Started = 20
		if i%2 == 0 {
			tk.Canary.Started = 1
		} else {
			tk = tick(i, 1, 1, 20, 0)
			tk.Baseline.Started = 20
		}
		if err := test.Add(&s, tk); err != nil {
			t.Fatal(err)
		}
	}
	if v := test.Verdict(&s, guardrail.Conditions{}); v.Decision != guardrail.Fail || v.Code != guardrail.Relative {
		t.Errorf("20 failures of 20: %s %s, %s", v.Decision, v.Code, v.Text())
	}
}

func TestHealthWindow(t *testing.T) {
	test := errorTest(t)
	var s guardrail.State
	add := func(at int64, n, k int64) {
		t.Helper()
		if err := test.Add(&s, &guardrail.Tick{At: at, Baseline: guardrail.Counts{N: n, K: k}}); err != nil {
			t.Fatal(err)
		}
	}
	want := func(unhealthy bool, when string) {
		t.Helper()
		if s.Unhealthy != unhealthy {
			t.Errorf("%s: unhealthy is %t", when, s.Unhealthy)
		}
	}
	add(100_000, 100, 50)
	want(true, "half fails")
	s.Restart()
	want(true, "after a restart")
	add(159_000, 1, 0)
	want(true, "within the minute")
	add(161_000, 1, 0)
	want(false, "after it")
	add(162_000, 100, 50)
	want(true, "again")
	add(161_500, 1, 0) // a clock set back a little stands still
	want(true, "a moment earlier")
	add(10_000, 100, 1) // far back: the window begins anew
	want(false, "long before")
	add(-70_000, 100, 50)
	want(true, "before 1970")
	add(math.MaxInt64/2, 100, 0)
	want(false, "in a far future")
}

// Whatever the counts: no panic, finite numbers, a state that survives its
// checkpoint, and never PASS without a settled trial.
func TestEngineProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, g := guardrail.New(rapid.SampledFrom(guardrail.Names(guardrail.Rate)).Draw(t, "metric")), guardrail.DefaultGates(0.01, 0.05, 5, 4)
		c.MaxRate = rapid.SampledFrom([]float64{0, 0.05, 0.3, 0.999999}).Draw(t, "max_rate")
		c.OKRate = min(c.OKRate, max(c.MaxRate, rapid.SampledFrom([]float64{0, 0.02}).Draw(t, "ok_rate")))
		g.Starts = rapid.Bool().Draw(t, "starts")
		test, err := guardrail.NewTest(c, g)
		if err != nil {
			t.Fatal(err)
		}
		var s guardrail.State
		n := rapid.Int64Range(0, 1<<rapid.IntRange(0, 41).Draw(t, "bits"))
		for range rapid.IntRange(1, 20).Draw(t, "ticks") {
			tk := &guardrail.Tick{
				At:        rapid.Int64().Draw(t, "at"),
				Canary:    guardrail.Counts{N: n.Draw(t, "nc"), K: n.Draw(t, "kc"), Started: n.Draw(t, "sc")},
				Baseline:  guardrail.Counts{N: n.Draw(t, "nb"), K: n.Draw(t, "kb"), Started: n.Draw(t, "sb")},
				Units:     rapid.SliceOfN(rapid.Uint64(), 0, 30).Draw(t, "units"),
				BadUnits:  rapid.SliceOfN(rapid.Uint64(), 0, 30).Draw(t, "bad"),
				Suspended: rapid.IntRange(0, 5).Draw(t, "suspended") == 0,
			}
			before := s
			if err := test.Add(&s, tk); err != nil {
				if diff := cmp.Diff(before, s); diff != "" {
					t.Fatalf("a refused tick changed the state:\n%s", diff)
				}
				continue
			}
			v := test.Verdict(&s, guardrail.Conditions{Load: rapid.Float64().Draw(t, "load")})
			for _, x := range []float64{v.LogE.FailRel, v.LogE.FailAbs, v.LogE.PassRel, v.LogE.PassAbs} {
				if math.IsNaN(x) || math.IsInf(x, 0) {
					t.Fatalf("log e is %v", x)
				}
			}
			if v.Decision == guardrail.Pass && s.Canary.N == 0 {
				t.Fatal("PASS without a trial")
			}
			if v.Decision == guardrail.Fail && s.Canary.K < g.MinBadTrials {
				t.Fatal("FAIL without bad trials")
			}
			if v.Text() == "" {
				t.Fatal("no words")
			}
		}
	})
}

// BenchmarkTick is one second of 20 guardrails: what the leader does for one
// experiment.
func BenchmarkTick(b *testing.B) {
	var tests []*guardrail.Test
	for _, metric := range guardrail.Names(guardrail.Rate) {
		test, err := guardrail.NewTest(guardrail.New(metric), guardrail.DefaultGates(0.01, 0.05, 5, 20))
		if err != nil {
			b.Fatal(err)
		}
		tests = append(tests, test)
	}
	for len(tests) < 20 {
		tests = append(tests, tests[0])
	}
	states := make([]guardrail.State, len(tests))
	tk := tick(0, 20, 1, 380, 9)
	b.ReportAllocs()
	for b.Loop() {
		tk.At += 1000
		for i, test := range tests {
			if err := test.Add(&states[i], tk); err != nil {
				b.Fatal(err)
			}
			if v := test.Verdict(&states[i], guardrail.Conditions{Load: 1}); v.Decision == "" {
				b.Fatal("no decision")
			}
		}
	}
}
