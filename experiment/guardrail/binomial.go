package guardrail

import "math"

// tail is P(X >= k) for X ~ Binomial(n, p), 0 < p < 1: the regularised
// incomplete beta function I_p(k, n-k+1).
func tail(k, n int64, p float64) float64 {
	switch {
	case k <= 0:
		return 1
	case k > n:
		return 0
	}
	return incompleteBeta(float64(k), float64(n-k+1), p)
}

// incompleteBeta is I_x(a, b) for a, b > 0 by Lentz's method on the continued
// fraction of DLMF 8.17.22, taken on the side where it converges fast.
func incompleteBeta(a, b, x float64) float64 {
	switch {
	case x <= 0:
		return 0
	case x >= 1:
		return 1
	case x > (a+1)/(a+b+2):
		return 1 - incompleteBeta(b, a, 1-x)
	}
	la, _ := math.Lgamma(a)
	lb, _ := math.Lgamma(b)
	lab, _ := math.Lgamma(a + b)
	front := math.Exp(lab-la-lb+a*math.Log(x)+b*math.Log1p(-x)) / a
	const tiny, enough = 1e-300, 1e-15
	f, c, d := 1.0, 1.0, 0.0
	// Converges in about sqrt(max(a, b)) steps; the bound is for arguments that
	// no count of requests reaches.
	for i := range 100_000 {
		m := float64(i / 2)
		var num float64
		switch {
		case i == 0:
			num = 1
		case i%2 == 0:
			num = m * (b - m) * x / ((a + 2*m - 1) * (a + 2*m))
		default:
			num = -(a + m) * (a + b + m) * x / ((a + 2*m) * (a + 2*m + 1))
		}
		if d = 1 + num*d; math.Abs(d) < tiny {
			d = tiny
		}
		d = 1 / d
		if c = 1 + num/c; math.Abs(c) < tiny {
			c = tiny
		}
		f *= c * d
		if math.Abs(1-c*d) < enough {
			break
		}
	}
	return front * (f - 1)
}

// lowerAbove reports whether the one-sided Clopper-Pearson lower bound of k bad
// trials in n at confidence 1-alpha is above rate: the bound itself would need a
// search, the question is one tail.
func lowerAbove(k, n int64, rate, alpha float64) bool {
	if n <= 0 || float64(k) <= rate*float64(n) {
		return false // the bound is below the share itself
	}
	if rate <= 0 {
		return k > 0
	}
	return tail(k, n, rate) < alpha
}

// upperBound is the one-sided Clopper-Pearson upper bound of k bad trials in n
// at confidence 1-alpha: the rate at which k or fewer have probability alpha.
func upperBound(k, n int64, alpha float64) float64 {
	if k >= n {
		return 1
	}
	lo, hi := 0.0, 1.0
	for range 60 {
		mid := (lo + hi) / 2
		if 1-tail(k+1, n, mid) > alpha {
			lo = mid
		} else {
			hi = mid
		}
	}
	return (lo + hi) / 2
}

// Breaker settings of reference/experiments.md 5.6.
const (
	breakerAlpha   = 1e-3
	breakerHorizon = 1e5 // trials over which alpha holds
	breakerSurety  = 0.01
	breakerLeast   = 5
	breakerMost    = 20
)

// BreakerLimit is how many failures of one variant in a row trip a replica's
// local breaker, given the baseline's bad trials of the last ten minutes: a run
// that a baseline-like variant has with probability 1e-3 in 100,000 trials.
func BreakerLimit(bad, trials int64) int {
	if trials <= 0 || bad < 0 {
		return breakerMost
	}
	p := upperBound(min(bad, trials), trials, breakerSurety)
	k := math.Ceil(math.Log(breakerAlpha/breakerHorizon) / math.Log(p))
	if p >= 1 || k > breakerMost {
		return breakerMost
	}
	return max(int(k), breakerLeast)
}

// Streak counts a variant's failures in a row in one replica: what can roll
// back without a leader and without a store.
type Streak struct {
	Length int    `json:"length"`
	First  uint64 `json:"first"` // unit of the first failure of the run
	Other  bool   `json:"other"` // another unit failed too
}

// Add counts one trial and reports whether the run trips at limit: limit
// failures from two or more units, or twice as many from one.
func (s *Streak) Add(unit uint64, bad bool, limit int) (tripped bool) {
	if !bad {
		*s = Streak{}
		return false
	}
	if s.Length == 0 {
		s.First = unit
	}
	s.Other = s.Other || unit != s.First
	s.Length++
	return s.Length >= 2*limit || s.Other && s.Length >= limit
}
