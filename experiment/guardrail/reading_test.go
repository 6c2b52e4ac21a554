package guardrail

import "testing"

func TestReading(t *testing.T) {
	bound := Bound{TolerateRatio: 1.5, MaxRate: 0.05, MinEffectRate: 0.01}
	for name, c := range map[string]struct {
		v            Verdict
		value, bound float64 // negative: unknown
	}{
		"against a baseline":           {Verdict{Kind: Rate, Canary: Counts{N: 50, K: 5}, Baseline: Counts{N: 100, K: 2}, Bound: bound}, 0.1, 0.03},
		"against a sound baseline":     {Verdict{Kind: Rate, Canary: Counts{N: 50}, Baseline: Counts{N: 100}, Bound: bound}, 0, 0.01},
		"without a baseline":           {Verdict{Kind: Rate, Canary: Counts{N: 50, K: 5}, Bound: bound}, 0.1, 0.05},
		"relative, without a baseline": {Verdict{Kind: Rate, Canary: Counts{N: 50, K: 5}, Bound: Bound{TolerateRatio: 2}}, 0.1, -1},
		"no data":                      {Verdict{Kind: Rate, Code: NoData, Baseline: Counts{N: 100, K: 2}, Bound: bound}, -1, 0.03},
		"mean":                         {Verdict{Kind: Mean, Value: 0.12, Bound: Bound{Max: 0.2}}, 0.12, 0.2},
		"limit at its max of 0":        {Verdict{Kind: Limit, Value: 3}, 3, 0},
	} {
		t.Run(name, func(t *testing.T) {
			show := func(p *float64) float64 {
				if p == nil {
					return -1
				}
				return *p
			}
			value, bound := c.v.Reading()
			if d := show(value) - c.value; d > 1e-12 || d < -1e-12 || show(bound)-c.bound > 1e-12 || show(bound)-c.bound < -1e-12 {
				t.Errorf("got %v against %v, want %v against %v", show(value), show(bound), c.value, c.bound)
			}
		})
	}
}
