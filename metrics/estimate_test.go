package metrics

import (
	"encoding/binary"
	"testing"
	"time"
)

func TestHyperLogLog(t *testing.T) {
	for _, n := range []int{0, 1, 10, 1000, 5000, 200_000} {
		var a, b hll
		for i := range n {
			var u [8]byte
			binary.BigEndian.PutUint64(u[:], uint64(i)) // poorly spread on purpose
			a.add(u)
			a.add(u)
			if i%2 == 0 {
				b.add(u)
			}
		}
		b.merge(&a)
		got := b.estimate()
		if off := float64(got-int64(n)) / float64(max(n, 1)); off < -.06 || off > .06 {
			t.Errorf("estimate %d for %d units", got, n)
		}
	}
}

func TestSpreadCells(t *testing.T) {
	for _, d := range []time.Duration{-1, 0, 1, 8 * time.Microsecond, 64 * time.Microsecond, time.Millisecond, time.Second, 38 * time.Minute, 1 << 62} {
		i := cellOf(d)
		if i < 0 || i >= spreadCells {
			t.Fatalf("cell %d for %v", i, d)
		}
		s := max(d, 0).Seconds()
		if lo, hi := cellStart(i), cellStart(i+1); s < lo*(1-1e-9) || s > hi && i < spreadCells-1 || hi > lo*1.13+8e-6 {
			t.Errorf("%v is in cell %d, %v to %v s", d, i, lo, hi)
		}
	}
}
