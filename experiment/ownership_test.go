package experiment_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"sluice/experiment"
)

// scenario is one of allocation.json.
type scenario struct {
	Name    string
	Full    []int `json:"initial_full"`
	Covered []int `json:"initial_covered"`
	States  []struct {
		Version int64
		Counts  []int
		Moved   int
		Own     [][3]int
		Since   [][3]int64
		SHA256  string `json:"own_sha256"`
	}
}

func scenarios(t testing.TB) []scenario {
	t.Helper()
	var v struct{ Scenarios []scenario }
	load(t, "allocation.json", &v)
	if len(v.Scenarios) != 9 {
		t.Fatalf("%d scenarios, want 9", len(v.Scenarios))
	}
	return v.Scenarios
}

// play gives the table at each state of s, and what moved into it.
func (s scenario) play(t testing.TB) (tables []*experiment.Ownership, moved []int) {
	t.Helper()
	o, err := experiment.NewOwnership(s.Full, s.Covered, s.States[0].Version)
	if err != nil {
		t.Fatal(err)
	}
	tables, moved = append(tables, o), append(moved, 0)
	for _, st := range s.States[1:] {
		next, n := change(t, o, st.Counts, st.Version)
		tables, moved = append(tables, next), append(moved, n)
		o = next
	}
	return tables, moved
}

// owners is the table as bytes.
func owners(o *experiment.Ownership) []byte {
	own := make([]byte, 0, experiment.Buckets)
	for _, r := range o.Encode().Runs {
		own = append(own, bytes.Repeat([]byte{byte(r[2])}, int(r[1]-r[0]))...)
	}
	return own
}

func TestAllocationVectors(t *testing.T) {
	for _, s := range scenarios(t) {
		t.Run(s.Name, func(t *testing.T) {
			tables, moved := s.play(t)
			for i, want := range s.States {
				o := tables[i]
				sum := sha256.Sum256(owners(o))
				if got := hex.EncodeToString(sum[:]); got != want.SHA256 {
					t.Errorf("version %d: hash %s, want %s", want.Version, got, want.SHA256)
				}
				if moved[i] != want.Moved {
					t.Errorf("version %d: moved %d, want %d", want.Version, moved[i], want.Moved)
				}
				if diff := cmp.Diff(want.Counts, o.Counts(len(want.Counts))); diff != "" {
					t.Errorf("version %d: counts (-want +got):\n%s", want.Version, diff)
				}
				for _, r := range want.Own {
					for b := r[0]; b < r[1]; b++ {
						if owner, _ := o.Owner(b); int(owner) != r[2] {
							t.Fatalf("version %d: bucket %d is owned by %d, want %d", want.Version, b, owner, r[2])
						}
					}
				}
				for _, r := range want.Since {
					for b := r[0]; b < r[1]; b++ {
						if _, since := o.Owner(int(b)); since != r[2] {
							t.Fatalf("version %d: bucket %d since %d, want %d", want.Version, b, since, r[2])
						}
					}
				}
			}
		})
	}
}

func TestMovementVectors(t *testing.T) {
	var v struct {
		Scenarios []struct {
			Name   string
			States []struct {
				Users    map[string]int `json:"users_per_owner"`
				Moved    int            `json:"users_moved"`
				Fraction float64        `json:"bucket_fraction_moved"`
			}
		}
	}
	load(t, "movement.json", &v)
	const users = 100000
	buckets := make([]int, users)
	for i := range buckets {
		buckets[i] = experiment.Hash("exp-a", experiment.Unit{Type: "user", ID: fmt.Sprintf("user-%d", i)}).Bucket
	}
	for k, s := range scenarios(t) {
		want := v.Scenarios[k]
		if want.Name != s.Name {
			t.Fatalf("scenario %d is %q, want %q", k, s.Name, want.Name)
		}
		tables, moved := s.play(t)
		var before []byte
		for i, o := range tables {
			own, movers := owners(o), 0
			var users [256]int
			for _, b := range buckets {
				users[own[b]]++
				if before != nil && own[b] != before[b] {
					movers++
				}
			}
			per := map[string]int{}
			for owner, n := range users {
				if n > 0 {
					per[fmt.Sprint(owner)] = n
				}
			}
			if diff := cmp.Diff(want.States[i].Users, per); diff != "" {
				t.Errorf("%s, state %d: users per owner (-want +got):\n%s", s.Name, i, diff)
			}
			if movers != want.States[i].Moved || float64(moved[i])/experiment.Buckets != want.States[i].Fraction {
				t.Errorf("%s, state %d: %d users and %d buckets moved, want %+v", s.Name, i, movers, moved[i], want.States[i])
			}
			before = own
		}
	}
}

// drawCounts draws bucket counts of n variants that leave nothing outside.
func drawCounts(t *rapid.T, n int, label string) []int {
	weights := rapid.SliceOfN(rapid.IntRange(0, 1000), n, n).Draw(t, label)
	weights[rapid.IntRange(0, n-1).Draw(t, label+" positive")]++
	counts, err := experiment.Round(weights, experiment.Buckets)
	if err != nil {
		t.Fatal(err)
	}
	return counts
}

// mustChange is Change of valid counts.
func mustChange(t *rapid.T, o *experiment.Ownership, counts []int, revision int64) (*experiment.Ownership, int) {
	next, moved, err := o.Change(counts, revision)
	if err != nil {
		t.Fatal(err)
	}
	return next, moved
}

func mustNew(t *rapid.T, full, covered []int) *experiment.Ownership {
	o, err := experiment.NewOwnership(full, covered, 1)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// TestChangeMovesTheDistance: whatever the history, a change moves half the
// sum of the differences (outside included), an undone change restores the
// table, the old table is not touched, and encoding loses nothing.
func TestChangeMovesTheDistance(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 6).Draw(t, "variants")
		full := drawCounts(t, n, "full")
		cover := rapid.IntRange(0, 100).Draw(t, "coverage")
		scale := func(counts []int) []int {
			out := make([]int, len(counts))
			for i, c := range counts {
				out[i] = c * cover / 100
			}
			return out
		}
		o := mustNew(t, full, scale(full))
		for revision := int64(2); revision < 6; revision += 2 {
			if rapid.Bool().Draw(t, "add a variant") {
				n++
			}
			cover = rapid.IntRange(0, 100).Draw(t, "coverage")
			before, old := owners(o), o.Counts(n)
			counts := scale(drawCounts(t, n, "counts"))
			next, moved := mustChange(t, o, counts, revision)

			distance, outside := 0, 0
			for i := range counts {
				distance += abs(counts[i] - old[i])
				outside += counts[i] - old[i]
			}
			distance = (distance + abs(outside)) / 2
			differ := 0
			for _, m := range experiment.Moves(o, next) {
				differ += m[2]
			}
			if moved != distance || differ != distance {
				t.Fatalf("%v to %v: reported %d, moved %d, distance %d", old, counts, moved, differ, distance)
			}
			if got := next.Counts(n); !cmp.Equal(got, counts) {
				t.Fatalf("counts %v, want %v", got, counts)
			}
			back, _ := mustChange(t, next, old, revision+1)
			if !bytes.Equal(owners(back), before) {
				t.Fatal("undoing the change does not restore the table")
			}
			if !bytes.Equal(owners(o), before) {
				t.Fatal("Change wrote to its receiver")
			}
			decoded, err := experiment.DecodeAllocation(next.Encode(), n)
			if err != nil {
				t.Fatal(err)
			}
			if *decoded != *next {
				t.Fatal("encoding and decoding changes the table")
			}
			o = next
			if rapid.Bool().Draw(t, "keep the undone table") {
				o = back
			}
		}
	})
}

func abs(n int) int { return max(n, -n) }

// TestRampsAreNested: a variant that only grows keeps its buckets, one that
// only shrinks gains none, and no bucket moves between two treatments.
func TestRampsAreNested(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 5).Draw(t, "variants")
		o := mustNew(t, []int{experiment.Buckets}, []int{experiment.Buckets})
		counts := make([]int, n)
		for revision := int64(2); revision < 6; revision++ {
			// The baseline (0) gives to, or takes from, one treatment.
			next := append([]int(nil), counts...)
			next[0] = 0
			treatment := rapid.IntRange(1, n-1).Draw(t, "treatment")
			others := 0
			for i, c := range next {
				if i != treatment {
					others += c
				}
			}
			next[treatment] = rapid.IntRange(0, experiment.Buckets-others).Draw(t, "count")
			next[0] = experiment.Buckets - others - next[treatment]
			table, moved := mustChange(t, o, next, revision)
			for _, m := range experiment.Moves(o, table) {
				if m[0] != 0 && m[1] != 0 {
					t.Fatalf("%d buckets move from treatment %d to %d", m[2], m[0], m[1])
				}
				grew := next[treatment] > counts[treatment]
				if grew != (m[1] == treatment) || m[2] != moved {
					t.Fatalf("%v to %v: move %v of %d", counts, next, m, moved)
				}
			}
			o, counts = table, next
		}
	})
}

func TestMoves(t *testing.T) {
	a := table(t, []int{4000, 4000, 2000}, 1)
	b, _ := change(t, a, []int{2000, 4000, 4000}, 2)
	if got, want := experiment.Moves(a, b), [][3]int{{0, 2, 2000}}; !cmp.Equal(got, want) {
		t.Errorf("Moves = %v, want %v", got, want)
	}
	if got := experiment.Moves(a, a); len(got) != 0 {
		t.Errorf("Moves of no change = %v", got)
	}
	if got, want := experiment.Moves(nil, a), [][3]int{{255, 0, 4000}, {255, 1, 4000}, {255, 2, 2000}}; !cmp.Equal(got, want) {
		t.Errorf("Moves from nil = %v, want %v", got, want)
	}
}

func TestOwnershipRefusesBadCounts(t *testing.T) {
	o := table(t, []int{5000, 5000}, 1)
	tests := []struct {
		counts []int
		err    string
	}{
		{nil, "0 counts"},
		{make([]int, 251), "251 counts"},
		{[]int{-1, 5}, "-1 buckets"},
		{[]int{10001}, "10001 buckets"},
		{[]int{9000, 1001}, "10001 buckets together"},
		{[]int{1 << 62, 1 << 62, 1 << 62, 1 << 62}, "buckets"},
	}
	for _, tt := range tests {
		_, _, err := o.Change(tt.counts, 2)
		checkErr(t, fmt.Sprint("Change ", tt.counts), err, tt.err)
		_, err = experiment.NewOwnership(tt.counts, tt.counts, 1)
		checkErr(t, fmt.Sprint("NewOwnership ", tt.counts), err, tt.err)
	}
	_, _, err := o.Change([]int{5000, 5000}, -1)
	checkErr(t, "revision", err, "negative")
	_, err = experiment.NewOwnership([]int{5, 5}, []int{5}, 1)
	checkErr(t, "lengths", err, "one of each")
	_, err = experiment.NewOwnership([]int{5}, []int{6}, 1)
	checkErr(t, "covered", err, "covers 6 of its 5")
	if owner, since := o.Owner(-1); owner != experiment.Outside || since != 0 {
		t.Errorf("Owner(-1) = %d, %d", owner, since)
	}
	if owner, _ := o.Owner(experiment.Buckets); owner != experiment.Outside {
		t.Errorf("Owner(%d) = %d", experiment.Buckets, owner)
	}
}
