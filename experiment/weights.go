package experiment

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"
)

// MaxVariants bounds the variants of an experiment: an owner is one byte and
// the values from 250 on are reserved.
const MaxVariants = 250

// Number is what a weight may be given as.
type Number interface {
	~int | ~int32 | ~int64 | ~float64
}

// Round splits total into shares in proportion to weights: largest remainder,
// ties in declared order; a positive weight gets at least 1, taken from the
// largest holder (the first of equals). It computes exactly, on the decimal
// value of each weight, so a tie on paper is a tie here. It fails on no
// weights, a negative or not finite one, all zero, or more positive weights
// than total.
func Round[T Number](weights []T, total int) ([]int, error) {
	rats, sum, err := ratWeights(weights, total)
	if err != nil {
		return nil, err
	}
	shares := make([]int, len(rats))
	rest := make([]*big.Rat, len(rats))
	left := total
	scale := new(big.Rat).Quo(new(big.Rat).SetInt64(int64(total)), sum)
	for i, w := range rats {
		quota := new(big.Rat).Mul(w, scale)
		floor := new(big.Int).Quo(quota.Num(), quota.Denom())
		shares[i] = int(floor.Int64()) // at most total
		rest[i] = quota.Sub(quota, new(big.Rat).SetInt(floor))
		left -= shares[i]
	}
	order := make([]int, len(rats))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return rest[b].Cmp(rest[a]) })
	for _, i := range order[:left] { // the remainders add up to left, so left < len
		shares[i]++
	}
	for i, w := range rats {
		if w.Sign() > 0 && shares[i] == 0 {
			shares[largest(shares)]--
			shares[i] = 1
		}
	}
	return shares, nil
}

// ratWeights gives each weight as an exact decimal, and their sum (positive).
func ratWeights[T Number](weights []T, total int) ([]*big.Rat, *big.Rat, error) {
	if len(weights) == 0 || len(weights) > MaxVariants {
		return nil, nil, fmt.Errorf("%d weights; give 1 to %d", len(weights), MaxVariants)
	}
	if total < 0 || total > math.MaxInt32 {
		return nil, nil, fmt.Errorf("total %d is out of range", total)
	}
	rats, sum, positive := make([]*big.Rat, len(weights)), new(big.Rat), 0
	for i, w := range weights {
		f := float64(w)
		if math.IsNaN(f) || math.IsInf(f, 0) {
			return nil, nil, fmt.Errorf("weight %d is not a finite number", i)
		}
		if f < 0 {
			return nil, nil, fmt.Errorf("weight %d is negative (%v); weights are at least 0", i, w)
		}
		if f > 0 {
			positive++
		}
		text := strconv.FormatFloat(f, 'g', -1, 64)
		r, ok := new(big.Rat).SetString(text)
		if !ok {
			return nil, nil, fmt.Errorf("weight %d (%s) is not a number", i, text)
		}
		rats[i] = r
		sum.Add(sum, r)
	}
	if positive == 0 {
		return nil, nil, errAllZero
	}
	if positive > total {
		return nil, nil, fmt.Errorf("%d positive weights cannot each own one of %d", positive, total)
	}
	return rats, sum, nil
}

func largest(shares []int) int {
	best := 0
	for i, s := range shares {
		if s > shares[best] {
			best = i
		}
	}
	return best
}

var errAllZero = errors.New("the weights are all zero; give at least one variant a positive weight")

// CheckWeights reports what is wrong with basis-point weights, given in the
// order of names: each 0..10000, not all zero, together exactly 10000.
func CheckWeights(names []string, weights []int) error {
	if len(names) != len(weights) {
		return fmt.Errorf("%d weights for %d variants; every variant needs an explicit weight", len(weights), len(names))
	}
	if len(weights) == 0 || len(weights) > MaxVariants {
		return fmt.Errorf("%d variants; give 1 to %d", len(weights), MaxVariants)
	}
	sum := 0
	for i, w := range weights {
		if w < 0 {
			return fmt.Errorf("the weight of %s is negative (%d); weights are 0 to %d basis points", names[i], w, Buckets)
		}
		if w > math.MaxInt32 {
			return fmt.Errorf("the weight of %s is %d; weights are 0 to %d basis points", names[i], w, Buckets)
		}
		sum += w
	}
	switch {
	case sum == 0:
		return errAllZero
	case sum != Buckets:
		return fmt.Errorf("the weights sum to %d basis points, want exactly %d (%+d)", sum, Buckets, Buckets-sum)
	}
	return nil
}

// WeightsOf puts weights given by variant name into the order of names, and
// checks them. A variant that is left out is an error: an absent weight and an
// explicit 0 are different wishes.
func WeightsOf(names []string, weights map[string]int) ([]int, error) {
	out := make([]int, len(names))
	for i, name := range names {
		w, ok := weights[name]
		if !ok {
			return nil, fmt.Errorf("no weight for %s; every variant needs an explicit weight, 0 included", name)
		}
		out[i] = w
	}
	if len(weights) > len(names) {
		var unknown []string
		for name := range weights {
			if !slices.Contains(names, name) {
				unknown = append(unknown, strconv.Quote(name))
			}
		}
		slices.Sort(unknown)
		return nil, fmt.Errorf("no variant is named %s; the variants are %q", unknown[0], names)
	}
	return out, CheckWeights(names, out)
}
