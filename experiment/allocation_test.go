package experiment_test

import (
	"encoding/json"
	"testing"

	"sluice/experiment"
)

func TestDecodeAllocationRefuses(t *testing.T) {
	runs := func(r ...[5]int64) *experiment.Allocation { return &experiment.Allocation{Revision: 1, Runs: r} }
	tests := []struct {
		name string
		a    *experiment.Allocation
		n    int
		err  string
	}{
		{"nil", nil, 2, "no allocation"},
		{"no runs", runs(), 2, "ends at bucket 0"},
		{"whole", runs([5]int64{0, 10000, 1, 0, 1}), 2, ""},
		{"outside", runs([5]int64{0, 10000, 255, 255, 1}), 2, ""},
		{"previous owner is gone", runs([5]int64{0, 10000, 0, 7, 1}), 2, ""},
		{"gap", runs([5]int64{0, 10, 0, 0, 1}, [5]int64{11, 10000, 0, 0, 1}), 2, "want 10"},
		{"overlap", runs([5]int64{0, 10, 0, 0, 1}, [5]int64{9, 10000, 0, 0, 1}), 2, "want 10"},
		{"short", runs([5]int64{0, 9999, 0, 0, 1}), 2, "ends at bucket 9999"},
		{"long", runs([5]int64{0, 10001, 0, 0, 1}), 2, "at most at 10000"},
		{"empty run", runs([5]int64{0, 0, 0, 0, 1}), 2, "must end after 0"},
		{"backwards", runs([5]int64{0, -5, 0, 0, 1}), 2, "must end after 0"},
		{"late start", runs([5]int64{5, 10000, 0, 0, 1}), 2, "want 0"},
		{"unknown owner", runs([5]int64{0, 10000, 2, 0, 1}), 2, "owned by 2"},
		{"owner 256 is not 0", runs([5]int64{0, 10000, 256, 0, 1}), 2, "owned by 256"},
		{"negative owner", runs([5]int64{0, 10000, -1, 0, 1}), 2, "owned by -1"},
		{"negative prev", runs([5]int64{0, 10000, 0, -1, 1}), 2, "owned by -1 before"},
		{"prev 256", runs([5]int64{0, 10000, 0, 256, 1}), 2, "owned by 256 before"},
		{"negative since", runs([5]int64{0, 10000, 0, 0, -1}), 2, "out of range"},
		{"huge since", runs([5]int64{0, 10000, 0, 0, 1 << 53}), 2, "out of range"},
		{"negative revision", &experiment.Allocation{Revision: -1}, 2, "out of range"},
		{"no variants", runs([5]int64{0, 10000, 0, 0, 1}), 0, "0 variants"},
		{"too many variants", runs([5]int64{0, 10000, 0, 0, 1}), 251, "251 variants"},
	}
	for _, tt := range tests {
		_, err := experiment.DecodeAllocation(tt.a, tt.n)
		checkErr(t, tt.name, err, tt.err)
	}
}

// TestAllocationIsSmall: the published form of a ramp is a rule under 1 kB.
func TestAllocationIsSmall(t *testing.T) {
	o := table(t, []int{10000, 0}, 1)
	for i, bp := range []int{100, 500, 2000, 5000} {
		o, _ = change(t, o, []int{10000 - bp, bp}, int64(i+2))
	}
	raw, err := json.Marshal(o.Encode())
	if err != nil {
		t.Fatal(err)
	}
	if len(raw) > 1000 {
		t.Errorf("%d bytes: %s", len(raw), raw)
	}
}

func FuzzDecodeAllocation(f *testing.F) {
	f.Add([]byte(`{"revision":1,"runs":[[0,5000,0,0,1],[5000,10000,1,0,1]]}`), 2)
	f.Add([]byte(`{"revision":9,"runs":[[0,10000,255,255,9]]}`), 3)
	f.Add([]byte(`{"runs":[[0,10000,0,300,-1]]}`), 1)
	f.Add([]byte(`null`), 0)
	f.Fuzz(func(t *testing.T, raw []byte, n int) {
		var a *experiment.Allocation
		if json.Unmarshal(raw, &a) != nil {
			return
		}
		o, err := experiment.DecodeAllocation(a, n)
		if err != nil {
			return
		}
		for b := range experiment.Buckets {
			if owner, _ := o.Owner(b); int(owner) >= n && owner != experiment.Outside {
				t.Fatalf("bucket %d is owned by %d of %d", b, owner, n)
			}
		}
		again, err := experiment.DecodeAllocation(o.Encode(), n)
		if err != nil {
			t.Fatalf("what Encode wrote does not decode: %v", err)
		}
		if *again != *o {
			t.Fatal("encoding and decoding changes the table")
		}
		if _, _, err := o.Change([]int{experiment.Buckets}, 1<<52); err != nil {
			t.Fatal(err)
		}
	})
}
