package metrics

import (
	"encoding/binary"
	"math"
	"math/bits"
)

// hll counts distinct units in 2 KiB with about 2 % error (HyperLogLog with
// linear counting for small sets, where it is nearly exact).
type hll struct{ reg [hllSize]uint8 }

const (
	hllBits = 11
	hllSize = 1 << hllBits
)

func (h *hll) add(unit [8]byte) {
	x := mix(binary.LittleEndian.Uint64(unit[:]))
	i := x >> (64 - hllBits)
	rank := uint8(bits.LeadingZeros64(x<<hllBits|1<<(hllBits-1))) + 1
	if rank > h.reg[i] {
		h.reg[i] = rank
	}
}

func (h *hll) merge(o *hll) {
	for i, r := range o.reg {
		h.reg[i] = max(h.reg[i], r)
	}
}

func (h *hll) estimate() int64 {
	var sum float64
	zero := 0
	for _, r := range h.reg {
		sum += math.Ldexp(1, -int(r))
		if r == 0 {
			zero++
		}
	}
	const m = float64(hllSize)
	est := 0.7213 / (1 + 1.079/m) * m * m / sum
	if est <= 2.5*m && zero > 0 {
		est = m * math.Log(m/float64(zero))
	}
	return int64(math.Round(est))
}

// mix spreads a field's bits (the finaliser of splitmix64).
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}
