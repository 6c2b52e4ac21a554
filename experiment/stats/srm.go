// Package stats holds the statistics of experiments that may be looked at all
// day. It hides the formulas; counts in, evidence out: no clock, no I/O.
package stats

import (
	"fmt"
	"math"
)

// SRMAlarm is the e-value from which a sample ratio does not match: p < 0.0005.
const SRMAlarm = 2000

// kappas are the concentrations of the Dirichlet alternatives: a small one is
// quick to see a gross mismatch, a great one to see a slight one.
var kappas = [...]float64{100, 1000, 10000}

// Epoch is a stretch with unchanged weights: how many units were assigned for
// the first time to each variant, and the weights they were assigned by, in any
// scale.
type Epoch struct {
	Counts  []int64
	Weights []float64
}

// SRM is the log of the e-value of a sample ratio mismatch over epochs, whose
// logarithms add: the Dirichlet-multinomial Bayes factor of "the shares are
// others" to "the shares are the weights", as a mean over concentrations. It
// may be looked at after every unit: with the right shares it ever reaches
// SRMAlarm with probability 1/SRMAlarm at most (Lindon and Malek, 2022). Variants
// of weight 0 that have a unit are a mismatch for certain: +Inf.
func SRM(epochs ...Epoch) (logE float64, err error) {
	for i := range epochs {
		e, err := epochs[i].logE()
		if err != nil {
			return 0, fmt.Errorf("epoch %d: %w", i, err)
		}
		logE += e
	}
	return logE, nil
}

func (e *Epoch) logE() (float64, error) {
	theta, err := e.shares()
	if err != nil {
		return 0, err
	}
	var bf [len(kappas)]float64
	prior := make([]float64, len(theta))
	for i, kappa := range kappas {
		for j := range theta {
			prior[j] = kappa * theta[j]
		}
		if bf[i] = logBF(e.Counts, theta, prior); math.IsInf(bf[i], 1) {
			return bf[i], nil
		}
	}
	most := math.Max(bf[0], math.Max(bf[1], bf[2]))
	sum := 0.0
	for _, b := range bf {
		sum += math.Exp(b - most)
	}
	return most + math.Log(sum/float64(len(bf))), nil
}

// shares are the weights as parts of 1.
func (e *Epoch) shares() ([]float64, error) {
	if len(e.Counts) != len(e.Weights) {
		return nil, fmt.Errorf("%d counts for %d weights", len(e.Counts), len(e.Weights))
	}
	total := 0.0
	for i, w := range e.Weights {
		if !(w >= 0) || math.IsInf(w, 1) || e.Counts[i] < 0 {
			return nil, fmt.Errorf("count %d with weight %v: both must be 0 or more, and finite", e.Counts[i], w)
		}
		total += w
	}
	if !(total > 0) || math.IsInf(total, 1) {
		return nil, fmt.Errorf("the weights add up to %v", total)
	}
	theta := make([]float64, len(e.Weights))
	for i, w := range e.Weights {
		theta[i] = w / total
	}
	return theta, nil
}

// logBF is the log Bayes factor of counts under a Dirichlet prior a against the
// shares theta, with A the sum of a and n that of the counts:
//
//	ln G(A) - ln G(A+n) + sum of ln G(a_i+n_i) - ln G(a_i) - n_i ln theta_i
func logBF(counts []int64, theta, prior []float64) float64 {
	n, all, sum := 0.0, 0.0, 0.0
	for i, k := range counts {
		all += prior[i]
		switch {
		case k == 0:
			continue
		case theta[i] == 0:
			return math.Inf(1)
		}
		c := float64(k)
		sum += rise(prior[i], c) - float64(c*math.Log(theta[i]))
		n += c
	}
	return sum - rise(all, n)
}

// rise is ln G(a+n) - ln G(a).
func rise(a, n float64) float64 {
	after, _ := math.Lgamma(a + n)
	before, _ := math.Lgamma(a)
	return after - before
}

// ChiSquare is Pearson's statistic of the same counts, to be shown beside the
// e-value: its p-value is good for one look only.
func ChiSquare(e Epoch) (x float64, df int, err error) {
	theta, err := e.shares()
	if err != nil {
		return 0, 0, err
	}
	n := 0.0
	for _, k := range e.Counts {
		n += float64(k)
	}
	for i, k := range e.Counts {
		switch want := n * theta[i]; {
		case want > 0:
			x += (float64(k) - want) * (float64(k) - want) / want
			df++
		case k > 0:
			return math.Inf(1), len(e.Counts) - 1, nil
		}
	}
	return x, max(df-1, 0), nil
}
