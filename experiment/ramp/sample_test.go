package ramp_test

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"sluice/experiment/ramp"
)

// Exact while small, near when large, whatever the order and the repeats, and
// the same after JSON and after a merge in any split.
func TestSampleCounts(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 50, 4096, 5000, 200_000} {
		r := rand.New(rand.NewPCG(1, uint64(n)))
		var all, even, odd ramp.Sample
		for i := range n {
			u := r.Uint64()
			all.Add(u)
			all.Add(u)
			if i%2 == 0 {
				even.Add(u)
			} else {
				odd.Add(u)
			}
		}
		if got := all.Count(); n <= 4096 && got != n || math.Abs(float64(got-n)) > 0.08*float64(n) {
			t.Errorf("%d units counted as %d", n, got)
		}
		even.Merge(&odd)
		if even.Count() != all.Count() {
			t.Errorf("%d units in one %d, merged %d", n, all.Count(), even.Count())
		}
		data, err := json.Marshal(all)
		if err != nil || len(data) > 24_000 {
			t.Fatalf("%d bytes, %v", len(data), err)
		}
		var back ramp.Sample
		if err := json.Unmarshal(data, &back); err != nil {
			t.Fatal(err)
		}
		again, _ := json.Marshal(back)
		if diff := cmp.Diff(string(data), string(again)); diff != "" {
			t.Error(diff)
		}
	}
}

func TestSampleOrderDoesNotMatter(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		units := rapid.SliceOfN(rapid.Uint64(), 0, 200).Draw(t, "units")
		var a, b ramp.Sample
		for i := range units {
			a.Add(units[i])
			b.Add(units[len(units)-1-i])
		}
		ja, _ := json.Marshal(a)
		jb, _ := json.Marshal(b)
		if string(ja) != string(jb) {
			t.Fatalf("%s and %s", ja, jb)
		}
	})
}

func FuzzSample(f *testing.F) {
	f.Add([]byte(`"AAEC"`))
	f.Add([]byte(`"H///////"`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var s ramp.Sample
		if json.Unmarshal(data, &s) != nil {
			return
		}
		s.Add(1 << 33)
		out, err := json.Marshal(s)
		var again ramp.Sample
		if err != nil || json.Unmarshal(out, &again) != nil || again.Count() != s.Count() {
			t.Fatalf("%s came back as %s", data, out)
		}
	})
}
