package guardrail_test

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/experiment/guardrail"
)

type scenario struct {
	Name  string
	Ticks []struct {
		BaselineUnhealthy bool    `json:"baseline_unhealthy"`
		NC                int64   `json:"n_c"`
		KC                int64   `json:"k_c"`
		NB                int64   `json:"n_b"`
		KB                int64   `json:"k_b"`
		FailRel           float64 `json:"log_e_fail_rel"`
		FailAbs           float64 `json:"log_e_fail_abs"`
		PassRel           float64 `json:"log_e_pass_rel"`
		PassAbs           float64 `json:"log_e_pass_abs"`
		Verdict, Why      string
	}
}

// guardrail.json, tick by tick; every scenario twice, the second time with the
// state written and read back after every tick, which must change no bit.
func TestGuardrailVectors(t *testing.T) {
	var v struct {
		Params   struct{ R, A, Aok float64 }
		Decision struct {
			AlphaFail float64 `json:"alpha_fail"`
			FailAt    float64 `json:"log_threshold_fail"`
			PassAt    float64 `json:"log_threshold_pass"`
		}
		Scenarios []scenario
	}
	load(t, "guardrail.json", &v)
	if len(v.Scenarios) != 9 {
		t.Fatalf("%d scenarios, want 9", len(v.Scenarios))
	}
	test := errorTest(t)
	if !near(test.AlphaFail, v.Decision.AlphaFail) {
		t.Errorf("alpha_fail %v, want %v", test.AlphaFail, v.Decision.AlphaFail)
	}
	for _, sc := range v.Scenarios {
		t.Run(sc.Name, func(t *testing.T) {
			var s, copied guardrail.State
			for i, w := range sc.Ticks {
				tk := tick(i, w.NC, w.KC, w.NB, w.KB)
				if err := test.Add(&s, tk); err != nil {
					t.Fatal(err)
				}
				got := test.Verdict(&s, guardrail.Conditions{})
				for _, p := range []struct {
					name      string
					got, want float64
				}{
					{"fail_rel", got.LogE.FailRel, w.FailRel}, {"fail_abs", got.LogE.FailAbs, w.FailAbs},
					{"pass_rel", got.LogE.PassRel, w.PassRel}, {"pass_abs", got.LogE.PassAbs, w.PassAbs},
					{"fail threshold", got.LogE.FailAt, v.Decision.FailAt}, {"pass threshold", got.LogE.PassAt, v.Decision.PassAt},
				} {
					if !near(p.got, p.want) {
						t.Errorf("tick %d: %s is %v, want %v", i, p.name, p.got, p.want)
					}
				}
				if s.Unhealthy != w.BaselineUnhealthy {
					t.Errorf("tick %d: baseline unhealthy %t, want %t", i, s.Unhealthy, w.BaselineUnhealthy)
				}
				if string(got.Decision) != w.Verdict || w.Why != "" && string(got.Code) != w.Why {
					t.Errorf("tick %d: %s %s, want %s %s", i, got.Decision, got.Code, w.Verdict, w.Why)
				}
				if got.Text() == "" {
					t.Errorf("tick %d: no words", i)
				}
				copied = through(t, copied)
				if err := test.Add(&copied, tk); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(got, test.Verdict(&copied, guardrail.Conditions{})); diff != "" {
					t.Fatalf("tick %d: another verdict after a checkpoint (-was +now):\n%s", i, diff)
				}
			}
		})
	}
}

// through is a state after it was stored and loaded.
func through(t *testing.T, s guardrail.State) guardrail.State {
	t.Helper()
	raw, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var out guardrail.State
	if err := json.Unmarshal(raw, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// binomial.json: the one-sided bounds.
func TestBinomialVectors(t *testing.T) {
	var v struct {
		Intervals []struct {
			K, N  int64
			Alpha float64
			Lower float64 `json:"lower_one_sided"`
			Upper float64 `json:"upper_one_sided"`
		}
	}
	load(t, "binomial.json", &v)
	if len(v.Intervals) != 9 {
		t.Fatalf("%d intervals", len(v.Intervals))
	}
	for _, w := range v.Intervals {
		// The tolerance of quantiles of the beta distribution is 1e-8.
		if got := guardrail.UpperBound(w.K, w.N, w.Alpha); math.Abs(got-w.Upper) > 1e-8*w.Upper {
			t.Errorf("upper bound of %d in %d: %.12g, want %.12g", w.K, w.N, got, w.Upper)
		}
		if w.K == 0 {
			if guardrail.LowerAbove(0, w.N, 1e-9, w.Alpha) {
				t.Errorf("the lower bound of 0 in %d is above 1e-9", w.N)
			}
			continue
		}
		if !guardrail.LowerAbove(w.K, w.N, w.Lower*(1-1e-8), w.Alpha) || guardrail.LowerAbove(w.K, w.N, w.Lower*(1+1e-8), w.Alpha) {
			t.Errorf("the lower bound of %d in %d is not %.12g", w.K, w.N, w.Lower)
		}
	}
}

// delta.json: the ratio of sums over units, its variance and the lift.
func TestDeltaVectors(t *testing.T) {
	var v struct {
		Control, Treatment [][2]float64
		Ratio              map[string]float64
	}
	load(t, "delta.json", &v)
	moments := func(units [][2]float64) (m guardrail.Moments) {
		for _, u := range units {
			// In two goes, as requests come.
			half := math.Floor(u[0] / 2)
			m.Observe(0, 0, u[0]-half, u[1]-1)
			m.Observe(u[0]-half, u[1]-1, half, 1)
		}
		return m
	}
	c, b := moments(v.Treatment), moments(v.Control)
	rc, vc, _ := c.Ratio()
	rb, vb, _ := b.Ratio()
	d, se, ok := guardrail.LiftOf(c, b)
	if !ok {
		t.Fatal("no lift")
	}
	for name, got := range map[string]float64{
		"R_c": rb, "var_c": vb, "k_c": float64(b.Units), "R_t": rc, "var_t": vc, "k_t": float64(c.Units),
		"diff": rc - rb, "se": math.Sqrt(vb + vc), "lift": d, "se_lift": se,
	} {
		if !near(got, v.Ratio[name]) {
			t.Errorf("%s is %.15g, want %.15g", name, got, v.Ratio[name])
		}
	}
}

// asymp_cs.json: the one-sided multipliers.
func TestConfidenceSequenceVectors(t *testing.T) {
	var v struct {
		Cases []struct {
			N     float64
			NStar float64 `json:"n_star"`
			Alpha float64
			Want  float64 `json:"multiplier_one_sided"`
		}
	}
	load(t, "asymp_cs.json", &v)
	if len(v.Cases) < 5 {
		t.Fatalf("%d cases", len(v.Cases))
	}
	for _, c := range v.Cases {
		if got := guardrail.Multiplier(c.N, c.NStar, c.Alpha); !near(got, c.Want) {
			t.Errorf("multiplier at n %v, n* %v, alpha %v: %.15g, want %.15g", c.N, c.NStar, c.Alpha, got, c.Want)
		}
	}
}
