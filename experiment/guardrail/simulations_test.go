package guardrail_test

import (
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"sluice/experiment/guardrail"
)

// binomial draws the number of bad trials; n is small or p is, so that counting
// gaps is fast.
func binomial(r *rand.Rand, n int64, p float64) (k int64) {
	if p <= 0 {
		return 0
	}
	if p >= 1 {
		return n
	}
	for at := int64(0); ; k++ {
		at += 1 + int64(math.Log(1-r.Float64())/math.Log1p(-p))
		if at > n {
			return k
		}
	}
}

// runs is how many repetitions a simulation has: enough to see a fault in the
// arithmetic, more with SLUICE_SOAK=1.
func runs(short int) int {
	if os.Getenv("SLUICE_SOAK") == "1" {
		return 10 * short
	}
	return short
}

// simulations.json, e_process_false_alarm: at the tolerated limit the process
// exceeds 1/alpha in no more than alpha of the runs, whatever rate, share and
// ratio; and the figures are those of the vectors within sampling error.
func TestFalseAlarmSimulations(t *testing.T) {
	t.Parallel()
	var v struct {
		FalseAlarm struct{ Rows [][5]float64 } `json:"e_process_false_alarm"`
	}
	load(t, "simulations.json", &v)
	if len(v.FalseAlarm.Rows) != 57 && len(v.FalseAlarm.Rows) != 60 {
		t.Fatalf("%d rows", len(v.FalseAlarm.Rows))
	}
	n := runs(30)
	for i, row := range v.FalseAlarm.Rows {
		pb, share, ratio, want := row[0], row[1], row[2], row[3]
		test := errorTest(t, func(c *guardrail.Config, _ *guardrail.Gates) {
			c.TolerateRatio, c.MaxRate, c.OKRate = ratio, 0, 0.001
		})
		r := rand.New(rand.NewPCG(1, uint64(i)))
		alarms := 0
		for range n {
			var s guardrail.State
			for range 400 {
				nc := binomial(r, 50, share)
				tk := guardrail.Tick{
					Canary:   guardrail.Counts{N: nc, K: binomial(r, nc, min(ratio*pb, 1))},
					Baseline: guardrail.Counts{N: 50 - nc, K: binomial(r, 50-nc, pb)},
				}
				if err := test.Add(&s, &tk); err != nil {
					t.Fatal(err)
				}
				if test.Verdict(&s, guardrail.Conditions{}).LogE.FailRel >= math.Log(20) {
					alarms++
					break
				}
			}
		}
		// Five standard errors of the sum of both samplings.
		got, p := float64(alarms)/float64(n), max(want, 0.01)
		if limit := want + 5*math.Sqrt(p*(1-p)*(1/float64(n)+1/2000.)); got > limit {
			t.Errorf("rate %v, share %v, ratio %v: %v alarms, %v in the vectors", pb, share, ratio, got, want)
		}
	}
}

// simulations.json, detection_and_pass: canary trials until the verdict.
func TestDetectionSimulations(t *testing.T) {
	t.Parallel()
	var v struct {
		Detection struct {
			Rows []struct {
				Pb, Pc, Share float64
				PFail         float64  `json:"p_fail"`
				PPass         float64  `json:"p_pass"`
				FailP50       *float64 `json:"fail_p50"`
				PassP50       *float64 `json:"pass_p50"`
			}
		} `json:"detection_and_pass"`
	}
	load(t, "simulations.json", &v)
	if len(v.Detection.Rows) < 25 {
		t.Fatalf("%d rows", len(v.Detection.Rows))
	}
	test := errorTest(t, func(_ *guardrail.Config, g *guardrail.Gates) { g.MinBadUnits, g.MinPassUnits = 0, 0 })
	n := runs(60)
	for i, row := range v.Detection.Rows {
		r := rand.New(rand.NewPCG(2, uint64(i)))
		var fails, passes []float64
		most := map[float64]int64{0.01: 3000, 0.05: 4000, 0.2: 6000}[row.Share]
		for range n {
			d, trials := detect(t, test, r, row.Pb, row.Pc, row.Share, most)
			switch d {
			case guardrail.Fail:
				fails = append(fails, trials)
			case guardrail.Pass:
				passes = append(passes, trials)
			}
		}
		about(t, "failed", row.Pb, row.Pc, row.Share, float64(len(fails))/float64(n), row.PFail, n)
		about(t, "passed", row.Pb, row.Pc, row.Share, float64(len(passes))/float64(n), row.PPass, n)
		if row.FailP50 != nil && row.PFail == 1 {
			within(t, "FAIL", row.Pb, row.Pc, row.Share, median(fails), *row.FailP50)
		}
		if row.PassP50 != nil && row.PPass == 1 {
			within(t, "PASS", row.Pb, row.Pc, row.Share, median(passes), *row.PassP50)
			if row.Pb == row.Pc {
				within(t, "forecast of PASS", row.Pb, row.Pc, row.Share, test.TrialsToPass(row.Pb, row.Share), *row.PassP50)
			}
		}
	}
}

// detect runs ticks of 100 requests until a verdict or most canary trials.
func detect(t *testing.T, test *guardrail.Test, r *rand.Rand, pb, pc, share float64, most int64) (guardrail.Decision, float64) {
	t.Helper()
	var s guardrail.State
	for at := int64(0); s.Canary.N < most; at++ {
		nc := binomial(r, 100, share)
		tk := guardrail.Tick{
			At:       at * 1000,
			Canary:   guardrail.Counts{N: nc, K: binomial(r, nc, pc)},
			Baseline: guardrail.Counts{N: 100 - nc, K: binomial(r, 100-nc, pb)},
		}
		if err := test.Add(&s, &tk); err != nil {
			t.Fatal(err)
		}
		if d := test.Verdict(&s, guardrail.Conditions{}).Decision; d != guardrail.Open {
			return d, float64(s.Canary.N)
		}
	}
	return guardrail.Open, float64(s.Canary.N)
}

// about compares shares of runs by their sampling error.
func about(t *testing.T, what string, pb, pc, share, got, want float64, n int) {
	t.Helper()
	p := min(max(want, 0.02), 0.98)
	if math.Abs(got-want) > 5*math.Sqrt(p*(1-p)*(1/float64(n)+1/400.)) {
		t.Errorf("baseline %v, canary %v, share %v: %v %s, %v in the vectors", pb, pc, share, got, what, want)
	}
}

// within compares medians: the ticks of the vectors are not known exactly, and
// both medians are samples.
func within(t *testing.T, what string, pb, pc, share, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 0.35*want+8 {
		t.Errorf("baseline %v, canary %v, share %v: %s after %.0f trials of the canary, %.0f in the vectors", pb, pc, share, what, got, want)
	}
}

func median(x []float64) float64 {
	if len(x) == 0 {
		return math.NaN()
	}
	slices.Sort(x)
	return x[len(x)/2]
}
