package guardrail

import "math"

// The grids of alternatives, reference/experiments.md 5.4: a FAIL process looks
// for a rate of psi times the boundary, a PASS process for phi times.
var (
	psi = [...]float64{1.25, 1.5, 2, 3, 5, 10, 20, 50}
	phi = [...]float64{.9, .8, .65, .5, .35, .2, .1}

	lnPsi = logs(psi[:])
	lnPhi = logs(phi[:])
)

func logs(grid []float64) []float64 {
	out := make([]float64, len(grid))
	for i, g := range grid {
		out[i] = math.Log(g)
	}
	return out
}

// relative adds one tick to the log-likelihood ratios l of a process at the
// boundary "the canary's rate is m times the baseline's". Given that a bad trial
// happened, it is the canary's with probability t0 = m nc/(m nc + nb) at the
// boundary, and with t = g m nc/(g m nc + nb) under alternative g:
//
//	l[g] += kc ln(t/t0) + kb ln((1-t)/(1-t0))
//	      = kc ln g + (kc+kb) ln((m nc + nb)/(g m nc + nb))
//
// (Lindon and Malek, "Anytime-Valid Inference for Multinomial Count Data",
// 2022, for two arms.) Each exp(l[g]) is a non-negative supermartingale under
// the null, so their mean exceeds 1/alpha at any look with probability at most
// alpha (Ville). A tick without trials in one arm compares nothing.
//
// The conversions keep the compiler from fusing a product and a sum, which some
// processors round differently: a replay must give the same bits.
func relative(l, grid, lnGrid []float64, m, nc, kc, nb, kb float64) {
	if nc <= 0 || nb <= 0 || kc+kb == 0 {
		return
	}
	at := float64(m*nc) + nb
	for i, g := range grid {
		shift := math.Log(at / (float64(g*m*nc) + nb))
		l[i] += float64(kc*lnGrid[i]) + float64((kc+kb)*shift)
	}
}

// absolute is the log of the mean likelihood ratio of a process at the boundary
// "the rate is a", after n trials of which k were bad; alternative g has the
// odds p/(1-p) = g a/(1-a). The ticks of such a process add up to the totals:
//
//	l[g] = k ln(p/a) + (n-k) ln((1-p)/(1-a)) = k ln g - n ln(1 + a (g-1))
//
// The second logarithms are lnRest(grid, a); without them the process is off: it
// knows nothing, log 1.
func absolute(lnGrid, lnRest []float64, n, k float64) float64 {
	if len(lnRest) == 0 || n <= 0 {
		return 0
	}
	var l [len(psi)]float64
	for i, ln := range lnRest {
		l[i] = float64(k*lnGrid[i]) - float64(n*ln)
	}
	return logMean(l[:len(lnRest)])
}

// lnRest is ln(1 + a (g-1)) for each alternative; nil for a = 0.
func lnRest(grid []float64, a float64) []float64 {
	if a <= 0 {
		return nil
	}
	out := make([]float64, len(grid))
	for i, g := range grid {
		out[i] = math.Log1p(a * (g - 1))
	}
	return out
}

// logMean is ln(mean(exp(l))) without overflow.
func logMean(l []float64) float64 {
	most := l[0]
	for _, x := range l[1:] {
		most = max(most, x)
	}
	sum := 0.0
	for _, x := range l {
		if x -= most; x > -40 { // less is lost beside the 1 of the greatest
			sum += math.Exp(x)
		}
	}
	return most + math.Log(sum/float64(len(l)))
}
