package experiment

// GrowthBookHash is GrowthBook's hash of value under seed as a fraction in
// [0,1); ok is false for a version other than 1 and 2. It works on UTF-8
// bytes, like the Go SDK: the JavaScript SDK hashes UTF-16 units and so
// disagrees for ids outside ASCII.
func GrowthBookHash(seed, value string, version int) (n float64, ok bool) {
	switch version {
	case 1:
		return float64(growthBook1(seed, value)) / 1000, true
	case 2:
		return float64(growthBook2(seed, value)) / 10000, true
	}
	return 0, false
}

// GrowthBookRanges gives the half-open range of each of n variations.
// Coverage is clamped to [0,1]; weights of the wrong number, or whose sum is
// not within 0.01 of 1, are replaced by equal ones, as GrowthBook does.
func GrowthBookRanges(n int, coverage float64, weights []float64) [][2]float64 {
	if n <= 0 {
		return nil
	}
	coverage = min(max(coverage, 0), 1)
	if coverage != coverage { // NaN
		coverage = 0
	}
	var sum float64
	for _, w := range weights {
		sum += w
	}
	equal := len(weights) != n || !(sum >= 0.99 && sum <= 1.01)
	ranges := make([][2]float64, n)
	var start float64
	for i := range ranges {
		w := 1 / float64(n)
		if !equal {
			w = weights[i]
		}
		ranges[i] = [2]float64{start, start + coverage*w}
		start += w
	}
	return ranges
}

// GrowthBookChoose gives the index of the range that holds n, or -1.
func GrowthBookChoose(n float64, ranges [][2]float64) int {
	for i, r := range ranges {
		if n >= r[0] && n < r[1] {
			return i
		}
	}
	return -1
}
