package experiment_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"testing"

	"sluice/experiment"
)

// shapes are the ids that users of gateways send.
var shapes = []struct {
	name string
	id   func(i int) string
}{
	{"sequential", strconv.Itoa},
	{"user-n", func(i int) string { return "user-" + strconv.Itoa(i) }},
	{"email", func(i int) string { return "u" + strconv.Itoa(i) + "@example.com" }},
	{"uuid", func(i int) string { return hexID(uint64(i), rand.NewPCG(uint64(i), 7).Uint64()) }},
	{"time-ordered", func(i int) string { return hexID(0x0193_7f00_0000_7000+uint64(i)<<16, uint64(i)) }},
}

// hexID writes two words like a UUID.
func hexID(a, b uint64) string {
	var w [16]byte
	binary.BigEndian.PutUint64(w[:8], a)
	binary.BigEndian.PutUint64(w[8:], b)
	return fmt.Sprintf("%x-%x-%x-%x-%x", w[0:4], w[4:6], w[6:8], w[8:10], w[10:])
}

func chi2(cells []int, expected float64) (sum float64) {
	for _, n := range cells {
		sum += (float64(n) - expected) * (float64(n) - expected) / expected
	}
	return sum
}

type uniformity struct {
	All struct {
		Chi2     float64
		Max, Min int
		N        int
		Seed     string
	} `json:"all_buckets"`
	Bounds map[string]float64
	Exact  []struct {
		IDs   string `json:"ids"`
		Seed  string
		Chi2  float64
		First int `json:"first_cell"`
		Last  int `json:"last_cell"`
	} `json:"exact_sha256"`
}

// TestUniformityAndIndependence: 12 seeds over 5 shapes of 100,000 ids, 100
// cells each, and every pair of seeds. With the race detector, for which there
// is nothing to find, 4 seeds; with -short 3.
func TestUniformityAndIndependence(t *testing.T) {
	var v uniformity
	load(t, "uniformity.json", &v)
	lo, hi := v.Bounds["chi2_99df_p0.0001"], v.Bounds["chi2_99df_p0.9999"]
	pairHi := v.Bounds["chi2_81df_bonferroni_330pairs_0.001"]
	if lo == 0 || hi == 0 || pairHi == 0 {
		t.Fatal("the vectors lack a bound")
	}
	const n = 100000
	seeds := 12
	switch {
	case testing.Short():
		seeds = 3
	case raceEnabled:
		seeds = 4
	}
	pinned := 0
	for _, shape := range shapes {
		buckets := make([][]uint16, seeds)
		ids := make([]string, n)
		for i := range ids {
			ids[i] = shape.id(i)
		}
		for s := range seeds {
			seed := fmt.Sprint("exp-", s)
			buckets[s] = make([]uint16, n)
			cells := make([]int, 100)
			for i, id := range ids {
				b := experiment.Hash(seed, experiment.Unit{Type: "user", ID: id}).Bucket
				buckets[s][i] = uint16(b)
				cells[b/100]++
			}
			got := chi2(cells, n/100)
			if got < lo || got > hi {
				t.Errorf("%s, %s: chi-square %.3f is not in [%.2f, %.2f]", shape.name, seed, got, lo, hi)
			}
			for _, want := range v.Exact {
				if want.IDs != shape.name || want.Seed != seed || want.IDs == "uuid" {
					continue // the vectors' UUIDs came from a generator of their own
				}
				pinned++
				if math.Abs(got-want.Chi2) > 1e-6 || cells[0] != want.First || cells[99] != want.Last {
					t.Errorf("%s, %s: chi-square %.3f, cells %d and %d; want %+v", shape.name, seed, got, cells[0], cells[99], want)
				}
			}
		}
		for a := range seeds {
			for b := range a {
				checkIndependent(t, fmt.Sprintf("%s, exp-%d and exp-%d", shape.name, b, a), buckets[a], buckets[b], pairHi)
			}
		}
	}
	if pinned != 9 {
		t.Errorf("%d exact values were compared, want 9", pinned)
	}
}

// crossTab counts pairs of thousands, and pairs of equal parity. The race
// detector would make the 33 million steps take most of the package's time.
//
//go:norace
func crossTab(a, b []uint16) (cells [10][10]int, even int) {
	for i := range a {
		cells[a[i]/1000][b[i]/1000]++
		even += int((a[i]^b[i])&1 ^ 1)
	}
	return cells, even
}

// checkIndependent tests the 10x10 table and the parity of two seeds' buckets.
func checkIndependent(t *testing.T, name string, a, b []uint16, bound float64) {
	t.Helper()
	cells, even := crossTab(a, b)
	n := float64(len(a))
	var rows, cols [10]float64
	for i := range cells {
		for j := range cells[i] {
			rows[i] += float64(cells[i][j])
			cols[j] += float64(cells[i][j])
		}
	}
	var sum float64
	for i := range cells {
		for j := range cells[i] {
			e := rows[i] * cols[j] / n
			sum += (float64(cells[i][j]) - e) * (float64(cells[i][j]) - e) / e
		}
	}
	if sum > bound {
		t.Errorf("%s: chi-square %.1f of the 10x10 table is above %.1f", name, sum, bound)
	}
	if z := (float64(even) - n/2) / math.Sqrt(n/4); math.Abs(z) > 5 {
		t.Errorf("%s: parity z = %.1f", name, z)
	}
}

func TestAllBucketsAreUniform(t *testing.T) {
	if testing.Short() {
		t.Skip("a million hashes")
	}
	var v uniformity
	load(t, "uniformity.json", &v)
	cells := make([]int, experiment.Buckets)
	for i := range v.All.N {
		cells[experiment.Hash(v.All.Seed, experiment.Unit{Type: "user", ID: strconv.Itoa(i)}).Bucket]++
	}
	least, most := cells[0], cells[0]
	for _, n := range cells {
		least, most = min(least, n), max(most, n)
	}
	if got := chi2(cells, float64(v.All.N)/experiment.Buckets); math.Abs(got-v.All.Chi2) > 1e-6 || least != v.All.Min || most != v.All.Max {
		t.Errorf("chi-square %.3f, least %d, most %d; want %+v", got, least, most, v.All)
	}
}

// TestGateIsIndependentOfVariant: inside a 10 % gate, whether by targeting or
// by coverage, two even variants stay even, and a larger gate keeps who was in.
func TestGateIsIndependentOfVariant(t *testing.T) {
	const n = 50000
	gate := func(percent string) experiment.Definition {
		return experiment.Definition{
			Key: "gate", Seed: "gate-1", State: experiment.Running, Winner: -1,
			Variants: variants("a", "b"), Allocation: table(t, []int{5000, 5000}, 1),
			Targeting: []experiment.Rule{{Attr: "unit", Op: "percent", Values: []string{percent}}},
		}
	}
	ten, twenty := compile(t, gate("10")), compile(t, gate("20"))
	covered := gate("100")
	var err error
	covered.Allocation, err = experiment.NewOwnership([]int{5000, 5000}, []int{500, 500}, 1)
	if err != nil {
		t.Fatal(err)
	}
	coverage := compile(t, covered)
	var byGate, byCoverage [2]int
	for i := range n {
		q := user(strconv.Itoa(i))
		d := ten.Decide(q)
		if d.Reason == experiment.ReasonBucket {
			byGate[d.Variant]++
			if wide := twenty.Decide(q); wide.Reason != d.Reason || wide.Variant != d.Variant {
				t.Fatalf("unit %d is in the 10 %% gate on %d, and in the 20 %% gate %s on %d", i, d.Variant, wide.Reason, wide.Variant)
			}
		}
		if d := coverage.Decide(q); d.Reason == experiment.ReasonBucket {
			byCoverage[d.Variant]++
		}
	}
	for name, c := range map[string][2]int{"targeting": byGate, "coverage": byCoverage} {
		in := c[0] + c[1]
		if z := (float64(in) - n*0.1) / math.Sqrt(n*0.1*0.9); math.Abs(z) > 4 {
			t.Errorf("%s: %d of %d units, z = %.1f", name, in, n, z)
		}
		if z := float64(c[0]-c[1]) / math.Sqrt(float64(in)); math.Abs(z) > 4 {
			t.Errorf("%s: %v, z = %.1f", name, c, z)
		}
	}
}
