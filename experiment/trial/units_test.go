package trial

import "testing"

func TestUnits(t *testing.T) {
	u := newUnits(100, 600_000)
	x := u.at(7)
	for j := 1; j <= 5; j++ {
		if got := x.next(1000, u.window); got != j {
			t.Errorf("request %d is the %d-th", j, got)
		}
	}
	if got := x.next(601_000, u.window); got != 1 {
		t.Errorf("a new window begins with %d", got)
	}
	for i, want := range []bool{false, false, true, false, true} {
		variant := []int{0, 0, 1, 1, 0}[i]
		if got := x.served(variant); got != want {
			t.Errorf("request %d to %d: moved %t", i, variant, got)
		}
	}
	for id := range uint64(1000) {
		u.at(id + 1000)
		if u.at(7) != x {
			t.Fatalf("a unit that was seen just now is forgotten after %d others", id+1)
		}
	}
	if n := u.Len(); n > 200 {
		t.Errorf("%d units are kept, want 200 at most", n)
	}
	if x.named(1, 0) || !x.named(1, 0) || x.named(1, 1) || x.named(2, 0) || !x.named(2, 0) {
		t.Error("a unit is to be named once by each variant in an epoch")
	}
}

// A conversation's turn has in the cache what the turn before had sent there.
func TestUncached(t *testing.T) {
	x := new(unit)
	for i, turn := range []struct {
		id     uint64
		at     int64
		prompt int
		moved  bool
		want   int
	}{
		{1, 0, 2000, false, 2000},
		{1, 1000, 2500, false, 500},
		{1, 2000, 2600, true, 2600},           // the other variant's servers have read nothing of it
		{1, 3000, 2700, false, 100},           //
		{2, 4000, 3000, false, 3000},          // another conversation
		{1, 5000, 2800, false, 2800},          // one at a time is remembered
		{1, 5000 + talkFor, 2900, false, 100}, //
		{1, 6001 + 2*talkFor, 3000, false, 3000},
		{1, 7000 + 2*talkFor, 2000, false, 2000}, // shortened: its beginning is another
		{0, 8000 + 2*talkFor, 2500, false, 2500}, // not known whose turn it is
		{1, 9000 + 2*talkFor, -1, false, -1},
		{1, 9000 + 2*talkFor, 2100, false, 100},
	} {
		if got := x.uncached(turn.id, turn.at, turn.prompt, turn.moved); got != turn.want {
			t.Errorf("turn %d: %d uncached of %d, want %d", i, got, turn.prompt, turn.want)
		}
	}
}
