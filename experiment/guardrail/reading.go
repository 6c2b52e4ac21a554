package guardrail

// Reading is a verdict's value and what it is held against, in one unit, for
// people and charts: the canary's rate and the highest that is tolerated, the
// lift of a mean and its limit, a limit's reading and its max. nil is unknown. A
// verdict is not reached by comparing the two: the evidence must prove it.
func (v *Verdict) Reading() (value, bound *float64) {
	if v.Code == NoData {
		return nil, v.highest()
	}
	switch v.Kind {
	case Rate:
		if v.Canary.N > 0 {
			r := float64(v.Canary.K) / float64(v.Canary.N)
			value = &r
		}
	default:
		x := v.Value
		value = &x
	}
	return value, v.highest()
}

// highest is the highest value that is still good: of a rate tolerate_ratio times
// the baseline's, at least min_effect_rate; max_rate without a baseline.
func (v *Verdict) highest() *float64 {
	b := v.Bound
	if v.Kind != Rate {
		if b.Max == 0 && v.Kind == Mean {
			return nil
		}
		return &b.Max
	}
	bound := b.MaxRate
	if v.Baseline.N > 0 {
		bound = max(b.TolerateRatio*float64(v.Baseline.K)/float64(v.Baseline.N), b.MinEffectRate)
	}
	if bound == 0 {
		return nil
	}
	return &bound
}
