package guardrail

import "math"

// TrialsToPass estimates how many trials of the canary a PASS takes if it is as
// good as the baseline, whose bad rate is rate, at the share of traffic (0 to 1)
// that the canary has: the trials at which the expected path of the faster
// process reaches its threshold. About half of all rollouts take longer. +Inf
// where neither ever does.
func (t *Test) TrialsToPass(rate, share float64) float64 {
	if !in(rate, 0, 1) || !(share > 0 && share <= 1) {
		return math.Inf(1)
	}
	abs, rel := make([]float64, 0, len(phi)), make([]float64, 0, len(phi))
	for i, g := range phi {
		if t.OKRate > 0 {
			abs = append(abs, rate*lnPhi[i]-math.Log1p(t.OKRate*(g-1)))
		}
		if share < 1 {
			rest := (1 - share) / share // trials of the baseline for one of the canary
			all := rate * (1 + rest)
			rel = append(rel, rate*lnPhi[i]+all*math.Log((t.PassRatio+rest)/(g*t.PassRatio+rest)))
		}
	}
	return math.Ceil(min(reach(abs, t.passAt), reach(rel, t.passAt)))
}

// reach is the n at which the log of the mean of exp(n drift) is at.
func reach(drift []float64, at float64) float64 {
	best := 0.0
	for _, d := range drift {
		best = max(best, d)
	}
	if best <= 0 {
		return math.Inf(1)
	}
	l := make([]float64, len(drift))
	log := func(n float64) float64 {
		for i, d := range drift {
			l[i] = n * d
		}
		return logMean(l)
	}
	lo, hi := 0.0, 1.0
	for log(hi) < at {
		lo, hi = hi, 2*hi
		if hi > 1e15 {
			return math.Inf(1)
		}
	}
	for range 60 {
		if mid := (lo + hi) / 2; log(mid) < at {
			lo = mid
		} else {
			hi = mid
		}
	}
	return hi
}
