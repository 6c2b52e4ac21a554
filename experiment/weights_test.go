package experiment_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"sluice/experiment"
)

func TestRoundVectors(t *testing.T) {
	var v struct {
		Total int
		Cases []struct {
			Weights []float64
			Buckets []int
		}
	}
	load(t, "rounding.json", &v)
	if len(v.Cases) != 14 {
		t.Fatalf("%d cases, want 14", len(v.Cases))
	}
	for _, c := range v.Cases {
		got, err := experiment.Round(c.Weights, v.Total)
		if err != nil {
			t.Errorf("Round(%v): %v", c.Weights, err)
		}
		if diff := cmp.Diff(c.Buckets, got); diff != "" {
			t.Errorf("Round(%v) (-want +got):\n%s", c.Weights, diff)
		}
	}
}

func TestRoundEdges(t *testing.T) {
	tests := []struct {
		weights []float64
		total   int
		want    []int
		err     string
	}{
		{weights: []float64{0.15, 0.25, 0.6}, total: 10, want: []int{2, 2, 6}}, // a tie on paper
		{weights: []float64{5, 5, 90}, total: 10, want: []int{1, 0 + 1, 8}},    // the largest pays
		{weights: []float64{1, 1, 1}, total: 3, want: []int{1, 1, 1}},
		{weights: []float64{1e-300, 1e300}, total: 10000, want: []int{1, 9999}},
		{weights: []float64{math.MaxFloat64, math.MaxFloat64}, total: 10, want: []int{5, 5}},
		{weights: []float64{math.NaN(), 1}, total: 10, err: "not a finite number"},
		{weights: []float64{math.Inf(1), 1}, total: 10, err: "not a finite number"},
		{weights: []float64{-1, 2}, total: 10, err: "negative"},
		{weights: []float64{0, 0}, total: 10, err: "all zero"},
		{weights: nil, total: 10, err: "0 weights"},
		{weights: []float64{1, 1}, total: 1, err: "cannot each own one"},
		{weights: []float64{1}, total: -1, err: "out of range"},
		{weights: make([]float64, 251), total: 10000, err: "251 weights"},
	}
	for _, tt := range tests {
		got, err := experiment.Round(tt.weights, tt.total)
		checkErr(t, fmt.Sprint(tt.weights), err, tt.err)
		if tt.err == "" && !cmp.Equal(got, tt.want) {
			t.Errorf("Round(%v, %d) = %v, want %v", tt.weights, tt.total, got, tt.want)
		}
	}
}

func checkErr(t *testing.T, name string, err error, want string) {
	t.Helper()
	if want == "" && err != nil {
		t.Errorf("%s: %v", name, err)
	}
	if want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
		t.Errorf("%s: error %v, want one with %q", name, err, want)
	}
}

func TestRoundProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		weights := rapid.SliceOfN(rapid.IntRange(0, 1_000_000), 1, 20).Draw(t, "weights")
		weights[0]++ // not all zero
		got, err := experiment.Round(weights, experiment.Buckets)
		if err != nil {
			t.Fatal(err)
		}
		var sum, weight int
		for i := range weights {
			sum += got[i]
			weight += weights[i]
			if (weights[i] > 0) != (got[i] > 0) {
				t.Fatalf("weight %d owns %d", weights[i], got[i])
			}
		}
		if sum != experiment.Buckets {
			t.Fatalf("sum %d", sum)
		}
		for i := range weights {
			exact := float64(weights[i]) / float64(weight) * experiment.Buckets
			if off := math.Abs(float64(got[i]) - exact); off > float64(len(weights)) {
				t.Fatalf("weight %d of %d owns %d", weights[i], weight, got[i])
			}
		}
	})
}

func TestCheckWeightsFixture(t *testing.T) {
	var v struct {
		Weights []struct {
			BP      map[string]int `json:"weights_bp"`
			JSON    string
			Missing string
			Bucket  int
			Variant string
			Never   []string
			Error   string
		}
	}
	load(t, "weights.json", &v)
	if len(v.Weights) != 7 {
		t.Fatalf("%d cases, want 7", len(v.Weights))
	}
	for _, c := range v.Weights {
		var names []string
		for _, n := range []string{"a", "b", "c", "d"} {
			if _, ok := c.BP[n]; ok || n == c.Missing || n == "a" {
				names = append(names, n)
			}
		}
		if c.JSON != "" {
			c.BP = map[string]int{"a": 10000} // as in c.JSON
		}
		weights, err := experiment.WeightsOf(names, c.BP)
		// The fixture's remark in brackets is not part of the message.
		want, _, _ := strings.Cut(c.Error, " (")
		want = strings.Replace(want, "sum ", "sum to ", 1)
		checkErr(t, fmt.Sprint(c.BP), err, want)
		if c.Error != "" {
			continue
		}
		o := table(t, weights, 1)
		if owner, _ := o.Owner(c.Bucket); names[owner] != c.Variant {
			t.Errorf("%v: bucket %d is owned by %s, want %s", c.BP, c.Bucket, names[owner], c.Variant)
		}
		for b := range experiment.Buckets {
			for _, n := range c.Never {
				if owner, _ := o.Owner(b); names[owner] == n {
					t.Fatalf("%v: bucket %d is owned by %s of weight 0", c.BP, b, n)
				}
			}
		}
	}
}

func TestCheckWeights(t *testing.T) {
	names := []string{"a", "b"}
	tests := []struct {
		weights []int
		err     string
	}{
		{[]int{10000, 0}, ""},
		{[]int{0, 10000}, ""},
		{[]int{5000, 4999}, "sum to 9999 basis points, want exactly 10000 (+1)"},
		{[]int{10000}, "every variant needs an explicit weight"},
		{[]int{-1, 10001}, "weight of a is negative"},
		{[]int{math.MaxInt, math.MaxInt}, "0 to 10000"},
		{[]int{0, 0}, "all zero"},
	}
	for _, tt := range tests {
		checkErr(t, fmt.Sprint(tt.weights), experiment.CheckWeights(names, tt.weights), tt.err)
	}
	if err := experiment.CheckWeights(nil, nil); err == nil {
		t.Error("no variants: no error")
	}
	_, err := experiment.WeightsOf(names, map[string]int{"a": 5000, "b": 5000, "zz": 0})
	checkErr(t, "unknown variant", err, `no variant is named "zz"`)
}

func TestPutWinsVectors(t *testing.T) {
	type pin struct {
		Variant uint8
		Gen     uint16
	}
	var v struct {
		Sequence []struct {
			Op struct {
				pin
				Expect *pin
			}
			Want struct {
				pin
				Written bool
			}
		} `json:"one_unit_sequence"`
	}
	load(t, "pins.json", &v)
	if len(v.Sequence) != 7 {
		t.Fatalf("%d operations, want 7", len(v.Sequence))
	}
	var stored *experiment.Pin
	for i, s := range v.Sequence {
		put := experiment.Pin{Variant: s.Op.Variant, Gen: s.Op.Gen}
		var expect *experiment.Pin
		if s.Op.Expect != nil {
			expect = &experiment.Pin{Variant: s.Op.Expect.Variant, Gen: s.Op.Expect.Gen}
		}
		won := experiment.PutWins(stored, put, expect)
		if won {
			stored = &put
		}
		if got := (pin{stored.Variant, stored.Gen}); won != s.Want.Written || got != s.Want.pin {
			t.Errorf("operation %d: written %v, stored %v; want %+v", i, won, got, s.Want)
		}
	}
}

func TestPinBytes(t *testing.T) {
	p := experiment.Pin{Variant: 3, Gen: 0x0102, Revision: 0x03040506, Flags: experiment.PinMerged}
	if got, want := p.Bytes(), [8]byte{3, 1, 2, 3, 4, 5, 6, 2}; got != want {
		t.Errorf("Bytes = %v, want %v", got, want)
	}
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOfN(rapid.Byte(), 8, 8).Draw(t, "bytes")
		p, err := experiment.ParsePin(b)
		if err != nil {
			t.Fatal(err)
		}
		if p.Bytes() != [8]byte(b) {
			t.Fatalf("%v became %v", b, p.Bytes())
		}
	})
	for _, n := range []int{0, 7, 9} {
		if _, err := experiment.ParsePin(make([]byte, n)); err == nil {
			t.Errorf("ParsePin of %d bytes did not fail", n)
		}
	}
}
