package guardrail_test

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"testing"

	"sluice/experiment/guardrail"
)

func meanTest(t testing.TB, metric string) *guardrail.MeanTest {
	t.Helper()
	test, err := guardrail.NewMeanTest(guardrail.New(metric), guardrail.DefaultGates(0.01, 0.05, 5, 4))
	if err != nil {
		t.Fatal(err)
	}
	return test
}

// spread makes units of one to six requests around mean.
func spread(r *rand.Rand, units int, mean float64) (m guardrail.Moments) {
	for range units {
		level := mean * math.Exp(0.3*r.NormFloat64()-0.045)
		n, x := 0.0, 0.0
		for range 1 + r.IntN(6) {
			d := level * (0.5 + r.Float64())
			m.Observe(n, x, 1, d)
			n, x = n+1, x+d
		}
	}
	return m
}

func TestMeanVerdicts(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	tests := []struct {
		name             string
		canary, baseline guardrail.Moments
		metric           string
		load             float64
		decision         guardrail.Decision
		code             guardrail.Code
	}{
		{"nothing", guardrail.Moments{}, guardrail.Moments{}, guardrail.CostPerRequest, 0, guardrail.Open, guardrail.NoData},
		{"99 users", spread(r, 99, 300), spread(r, 1000, 100), guardrail.CostPerRequest, 0, guardrail.Open, guardrail.FewUnits},
		{"99 users of the baseline", spread(r, 1000, 300), spread(r, 99, 100), guardrail.CostPerRequest, 0, guardrail.Open, guardrail.NoBaseline},
		{"three times the cost", spread(r, 200, 300), spread(r, 1000, 100), guardrail.CostPerRequest, 0, guardrail.Fail, guardrail.Lift},
		{"the same cost", spread(r, 2000, 100), spread(r, 2000, 100), guardrail.CostPerRequest, 0, guardrail.Pass, guardrail.Lift},
		{"at the limit", spread(r, 300, 120), spread(r, 1000, 100), guardrail.CostPerRequest, 0, guardrail.Open, guardrail.Inconclusive},
		{"a free baseline has no lift", spread(r, 300, 120), spread(r, 300, 0), guardrail.CostPerRequest, 0, guardrail.Open, guardrail.NoBaseline},
		{"a cheap canary", spread(r, 300, 0), spread(r, 300, 100), guardrail.CostPerRequest, 0, guardrail.Pass, guardrail.Lift},
		{"slower tokens under load", spread(r, 300, 300), spread(r, 1000, 100), guardrail.TPOT, 3, guardrail.Open, guardrail.NotComparable},
		{"not a number", guardrail.Moments{Units: 500, N: 500, X: math.NaN()}, spread(r, 1000, 100), guardrail.CostPerRequest, 0, guardrail.Open, guardrail.NoBaseline},
		{"infinite", guardrail.Moments{Units: 500, N: math.Inf(1), X: 3}, spread(r, 1000, 100), guardrail.CostPerRequest, 0, guardrail.Open, guardrail.NoBaseline},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v := meanTest(t, tt.metric).Verdict(tt.canary, tt.baseline, guardrail.Conditions{Load: tt.load})
			if v.Decision != tt.decision || v.Code != tt.code {
				t.Errorf("%s %s, want %s %s; %s", v.Decision, v.Code, tt.decision, tt.code, v.Text())
			}
			if v.Text() == "" {
				t.Error("no words")
			}
			if _, err := json.Marshal(v); err != nil {
				t.Error(err)
			}
		})
	}
}

// Looked at after every hundred units, equal arms hardly ever fail, and the
// probability of a false PASS at the limit keeps to its level.
func TestMeanLevels(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 6))
	test := meanTest(t, guardrail.OutputTokens)
	n := runs(200)
	failed, passed := 0, 0
	for range n {
		var same, other, atLimit guardrail.Moments
		fail, pass := false, false
		for range 20 {
			same, other = same.Plus(spread(r, 100, 100)), other.Plus(spread(r, 100, 100))
			atLimit = atLimit.Plus(spread(r, 100, 120))
			fail = fail || test.Verdict(same, other, guardrail.Conditions{}).Decision == guardrail.Fail
			pass = pass || test.Verdict(atLimit, other, guardrail.Conditions{}).Decision == guardrail.Pass
		}
		if fail {
			failed++
		}
		if pass {
			passed++
		}
	}
	if failed > 0 {
		t.Errorf("%d of %d pairs of equal arms failed", failed, n)
	}
	if limit := 0.05 + 3*math.Sqrt(0.05*0.95/float64(n)); float64(passed)/float64(n) > limit {
		t.Errorf("%d of %d passed at the limit", passed, n)
	}
}

func TestLimits(t *testing.T) {
	most := 3.0
	c := guardrail.New(guardrail.Restarts)
	if c.Action != guardrail.ActionRollback || c.Max == nil || *c.Max != most {
		t.Fatalf("restarts: %+v", c)
	}
	tests := []struct {
		name     string
		value    float64
		known    bool
		decision guardrail.Decision
		text     string
	}{
		{"above", 4, true, guardrail.Fail, "restarts: 4 is above the limit of 3"},
		{"at", 3, true, guardrail.Pass, "restarts: 3 is within the limit of 3"},
		{"unknown", 0, false, guardrail.Open, "restarts: there is no reading"},
		{"not a number", math.NaN(), true, guardrail.Open, "restarts: there is no reading"},
		{"infinite", math.Inf(1), true, guardrail.Open, "restarts: there is no reading"},
		{"infinitely small", math.Inf(-1), true, guardrail.Open, "restarts: there is no reading"},
	}
	for _, tt := range tests {
		v := c.Read(tt.value, tt.known)
		if v.Decision != tt.decision || v.Text() != tt.text {
			t.Errorf("%s: %s %q", tt.name, v.Decision, v.Text())
		}
		if v.Decision == guardrail.Open && v.Satisfied() {
			t.Errorf("%s: lets a ramp go on", tt.name)
		}
		if _, err := json.Marshal(v); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}
