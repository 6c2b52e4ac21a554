package ramp_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/experiment/guardrail"
	"sluice/experiment/ramp"
	"sluice/experiment/trial"
)

// court is a judge of two variants with error, slowness, cost and a limit.
func court(t testing.TB, change func(*ramp.Case)) *ramp.Judge {
	t.Helper()
	c := ramp.Default()
	list, err := c.Guardrails([]byte(`[{"metric":"error"},{"metric":"slow_ttfa"},{"metric":"cost_per_request"},{"metric":"waiting","max":10}]`), false)
	if err != nil {
		t.Fatal(err)
	}
	k := ramp.Case{Generation: 3, Epoch: 77, Variants: []string{"v1", "v2"}, Weights: []int{9500, 500}, Ramping: 1, Steps: 5, Config: &c, Guardrails: list}
	if change != nil {
		change(&k)
	}
	j, err := ramp.NewJudge(k)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// tick makes one of a replica: n requests of the baseline, a twentieth of it of
// the canary, with so many errors of the canary.
func tick(j *ramp.Judge, r *rand.Rand, at int64, n int, bad int) *trial.Tick {
	arm := func(n, k int) trial.ArmTick {
		a := trial.ArmTick{Started: int64(n), Ready: 2, Endpoints: 2, Counts: make([]guardrail.Counts, len(j.Guardrails)),
			BadUnits: make([][]uint64, len(j.Guardrails)), Means: make([][]trial.Sum, len(j.Guardrails))}
		for g := range 2 {
			a.Counts[g] = guardrail.Counts{N: int64(n), Started: int64(n)}
		}
		a.Counts[0].K = int64(min(k, n))
		for range a.Counts[0].K {
			a.BadUnits[0] = append(a.BadUnits[0], r.Uint64())
		}
		for range n {
			u := r.Uint64()
			a.Units = append(a.Units, u)
			a.Means[2] = append(a.Means[2], trial.Sum{Group: uint8(u >> 32), N: 1, X: 1 + r.Float64()})
		}
		return a
	}
	base := arm(n, 0)
	base.Profile = new(trial.Profile)
	return &trial.Tick{Generation: j.Generation, Epoch: j.Epoch, From: at - 1000, To: at, Replica: fmt.Sprint(r.IntN(3)), Variants: []trial.ArmTick{base, arm(n/20, bad)}}
}

func fill(j *ramp.Judge, e *ramp.Evidence, now int64) *ramp.Input {
	in := canary(func(*ramp.Input) {})
	j.Fill(in, e, now, func(string, *guardrail.Config) (float64, bool) { return 3, true })
	j.Estimate(in, e)
	return in
}

// A stream that is folded again gives the same evidence and the same decisions,
// also if a new leader goes on from a checkpoint at any point.
func TestReplayDecidesTheSame(t *testing.T) {
	t.Parallel()
	j := court(t, nil)
	r := rand.New(rand.NewPCG(5, 5))
	var stream [][]byte
	for at := int64(1); at <= 400; at++ {
		tk := tick(j, r, at*1000, 40, r.IntN(10)/9)
		tk.Variants[1].NotReady = at > 100 && at < 110
		data, err := json.Marshal(tk)
		if err != nil {
			t.Fatal(err)
		}
		stream = append(stream, data)
	}
	run := func(checkpoint int) (decisions []string, final string) {
		e := j.Begin(nil)
		for i, data := range stream {
			if checkpoint > 0 && i%checkpoint == 0 {
				saved, err := json.Marshal(e)
				if err != nil {
					t.Fatal(err)
				}
				e = new(ramp.Evidence)
				if err := json.Unmarshal(saved, e); err != nil || !j.Fits(e) {
					t.Fatal(err, "a checkpoint does not fit")
				}
			}
			var tk trial.Tick
			if err := json.Unmarshal(data, &tk); err != nil {
				t.Fatal(err)
			}
			if ok, err := j.Add(e, &tk, tk.To); !ok || err != nil {
				t.Fatal(err)
			}
			in := fill(j, e, tk.To)
			d, _ := json.Marshal([]any{ramp.Decide(in), in, ramp.WhyNot(in)})
			decisions = append(decisions, string(d))
		}
		out, _ := json.Marshal(e)
		return decisions, string(out)
	}
	want, final := run(0)
	if len(final) > 100_000 {
		t.Errorf("a checkpoint of %d bytes", len(final))
	}
	for _, every := range []int{1, 37} {
		got, end := run(every)
		for i := range want {
			if got[i] != want[i] {
				t.Fatalf("checkpoints every %d: tick %d: %s", every, i, cmp.Diff(want[i], got[i]))
			}
		}
		if end != final {
			t.Errorf("checkpoints every %d: other evidence", every)
		}
	}
	if !strings.Contains(want[len(want)-1], `"rollback"`) {
		t.Errorf("10 %% errors were not rolled back: %.600s", want[len(want)-1])
	}
}

func TestFoldLeavesOutWhatIsNotItsOwn(t *testing.T) {
	t.Parallel()
	j := court(t, nil)
	r := rand.New(rand.NewPCG(1, 1))
	e := j.Begin(nil)
	for name, change := range map[string]func(*trial.Tick){
		"epoch":      func(t *trial.Tick) { t.Epoch++ },
		"generation": func(t *trial.Tick) { t.Generation-- },
		"variants":   func(t *trial.Tick) { t.Variants = t.Variants[:1] },
		"guardrails": func(t *trial.Tick) { t.Variants[0].Counts = t.Variants[0].Counts[:2] },
		"more bad":   func(t *trial.Tick) { t.Variants[1].Counts[0].K = 999 },
		"negative":   func(t *trial.Tick) { t.Variants[1].Started = -1 },
		"a mean":     func(t *trial.Tick) { t.Variants[0].Means[2][0].X = -1 },
	} {
		tk := tick(j, r, 1000, 40, 0)
		change(tk)
		if ok, err := j.Add(e, tk, 1000); ok || (err == nil) != (name == "epoch" || name == "generation") {
			t.Errorf("%s: %v, %v", name, ok, err)
		}
	}
	if e.Ticks != 0 || e.Foreign != 2 || e.Damaged != 5 || e.Arms[0].Started != 0 {
		t.Errorf("%+v", e)
	}
}

func TestSuspendedTicksCountForNobody(t *testing.T) {
	t.Parallel()
	j := court(t, nil)
	r := rand.New(rand.NewPCG(2, 1))
	e := j.Begin(nil)
	for at := int64(1); at <= 60; at++ {
		tk := tick(j, r, at*1000, 40, 2) // everything of the canary fails
		tk.Variants[int(at)%2].NotReady = at%3 != 0
		tk.Variants[int(at)%2].Provisional = at%3 == 0
		if _, err := j.Add(e, tk, at*1000); err != nil {
			t.Fatal(err)
		}
	}
	in := fill(j, e, 60_000)
	v := in.Treatments[0].Verdicts
	if v[0].Canary.N != 0 || v[0].Decision != guardrail.Open || v[2].Canary.N != 0 || e.Suspended != 60 || in.Treatments[0].Load != 0 {
		t.Errorf("suspended ticks were compared: %+v", v)
	}
	if e.Ratio.LogE != 0 {
		t.Error("the sample ratio was looked at while units were answered otherwise")
	}
}

// A slow canary on servers with three times the load is not to blame.
func TestComparableLoad(t *testing.T) {
	t.Parallel()
	j := court(t, nil)
	r := rand.New(rand.NewPCG(3, 1))
	e := j.Begin(nil)
	for at := int64(1); at <= 120; at++ {
		tk := tick(j, r, at*1000, 400, 0)
		tk.Variants[0].Ready, tk.Variants[1].Ready = 60, 1
		tk.Variants[1].Counts[1].K = 10
		tk.Variants[1].BadUnits[1] = tk.Variants[1].Units[:8]
		if _, err := j.Add(e, tk, at*1000); err != nil {
			t.Fatal(err)
		}
	}
	in := fill(j, e, 120_000)
	if v := in.Treatments[0].Verdicts[1]; v.Code != guardrail.NotComparable || in.Treatments[0].Load < 2.9 || in.Treatments[0].Load > 3.1 {
		t.Errorf("load %v: %s %s", in.Treatments[0].Load, v.Decision, v.Code)
	}
	if d := ramp.Decide(in); d.Action == ramp.Rollback {
		t.Errorf("%+v", d)
	}
}

// One user whose app breaks on the canary in the middle of a step fails nobody,
// however often it calls; many users do.
func TestOneUserFailsNobody(t *testing.T) {
	t.Parallel()
	for _, many := range []bool{false, true} {
		j := court(t, nil)
		r := rand.New(rand.NewPCG(4, 1))
		e := j.Begin(nil)
		for at := int64(1); at <= 600; at++ {
			tk := tick(j, r, at*1000, 40, 0)
			c := &tk.Variants[1]
			if at%10 == 0 {
				c.Counts[0].K, c.BadUnits[0] = 1, []uint64{42}
				if many {
					c.BadUnits[0][0] = c.Units[0]
				}
			}
			if at%200 == 0 { // and what happens to everybody
				c.Counts[0].K++
				c.BadUnits[0] = append(c.BadUnits[0], c.Units[1])
			}
			if _, err := j.Add(e, tk, at*1000); err != nil {
				t.Fatal(err)
			}
		}
		v := fill(j, e, 600_000).Treatments[0].Verdicts[0]
		if !many && (v.Decision == guardrail.Fail || v.Code != guardrail.OneUnit) || many && v.Decision != guardrail.Fail {
			t.Errorf("many %v: %s", many, v.Text())
		}
	}
}

// Hours of health do not hide a late fault.
func TestLateFault(t *testing.T) {
	t.Parallel()
	j := court(t, nil)
	r := rand.New(rand.NewPCG(6, 1))
	e := j.Begin(nil)
	failed := int64(0)
	const healthy = 6 * 3600
	for at := int64(5); failed == 0 && at < healthy+1800; at += 5 {
		bad := 0
		if at > healthy && r.IntN(4) == 0 {
			bad = 1
		}
		tk := tick(j, r, at*1000, 100, bad)
		if _, err := j.Add(e, tk, at*1000); err != nil {
			t.Fatal(err)
		}
		if at > healthy && ramp.Decide(fill(j, e, at*1000)).Action == ramp.Rollback {
			failed = at - healthy
		}
	}
	t.Logf("5 %% errors after six healthy hours at one request a second: rolled back after %d s", failed)
	if failed == 0 || failed > 900 {
		t.Errorf("a late fault was found after %d s", failed)
	}
}

// Units that go missing on one side are a mismatch; the ones seen in the step
// before are not looked at twice.
func TestSampleRatio(t *testing.T) {
	t.Parallel()
	half := func(c *ramp.Case) { c.Weights = []int{5000, 5000} }
	for _, lost := range []float64{0, 0.3} {
		j := court(t, half)
		r := rand.New(rand.NewPCG(7, 1))
		e := j.Begin(nil)
		var ones []*trial.Tick
		for at := int64(1); at <= 600; at++ {
			tk := &trial.Tick{Generation: 3, Epoch: 77, From: at*1000 - 1000, To: at * 1000, Variants: make([]trial.ArmTick, 2), Replica: fmt.Sprint(at % 20)}
			for range 4 {
				v := r.IntN(2)
				if v == 1 && r.Float64() < lost {
					continue
				}
				tk.Variants[v].Units = append(tk.Variants[v].Units, r.Uint64())
			}
			ones = append(ones, tk)
			if _, err := j.Add(e, tk, at*1000); err != nil {
				t.Fatal(err)
			}
		}
		in := fill(j, e, 600_000)
		if in.SRM.Alarm != (lost > 0) || in.SRM.Alarm && !strings.Contains(in.SRM.Text, "v2 has") {
			t.Errorf("%v lost: %+v", lost, in.SRM)
		}
		if d := ramp.Decide(in); (d.Code == ramp.CodeSRM) != (lost > 0) {
			t.Errorf("%v lost: %+v", lost, d)
		}
		next := court(t, func(c *ramp.Case) { half(c); c.Epoch = 78 })
		later := next.Begin(e)
		for _, tk := range ones {
			tk.Epoch = 78
			if _, err := next.Add(later, tk, tk.To); err != nil {
				t.Fatal(err)
			}
		}
		if later.Ratio.LogE != e.Ratio.LogE {
			t.Errorf("%v lost: the same units gave %v, then %v", lost, e.Ratio.LogE, later.Ratio.LogE)
		}
	}
}
