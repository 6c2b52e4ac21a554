package upstream

import (
	"math"
	"math/bits"
	"sync"
	"time"
)

const (
	speedSpan   = 60 // seconds that Speed looks back
	speedSlice  = 10 // seconds that one histogram covers
	speedSlices = speedSpan / speedSlice
	// Times to first token are counted in classes that are 2^(1/4) apart, from
	// 1 ms to 18 minutes: a quantile is within a tenth of the truth.
	speedClasses = 80
	speedLeast   = time.Millisecond
)

// speed measures what recent calls to an endpoint came to. It is fed once a
// call, at its end.
type speed struct {
	mu     sync.Mutex
	second int64 // Unix, of the newest bucket
	tokens [speedSpan]int64
	ttft   [speedSlices][speedClasses]uint32
}

// observe takes a call's end; ttft 0 is none.
func (s *speed) observe(now time.Time, ttft time.Duration, tokens int64) {
	if ttft <= 0 && tokens <= 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turn(now)
	s.tokens[s.second%speedSpan] += max(tokens, 0)
	if ttft > 0 {
		s.ttft[s.second/speedSlice%speedSlices][classOf(ttft)]++
	}
}

// turn empties the buckets of the time that has passed.
func (s *speed) turn(now time.Time) {
	sec := now.Unix()
	if sec-s.second >= speedSpan {
		s.second, s.tokens, s.ttft = sec, [speedSpan]int64{}, [speedSlices][speedClasses]uint32{}
	}
	for s.second < sec {
		s.second++
		s.tokens[s.second%speedSpan] = 0
		if s.second%speedSlice == 0 {
			s.ttft[s.second/speedSlice%speedSlices] = [speedClasses]uint32{}
		}
	}
}

// read sums up the last minute.
func (s *speed) read(now time.Time) Speed {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turn(now)
	var total int64
	for _, n := range s.tokens {
		total += n
	}
	return Speed{TokensPerSecond: float64(total) / speedSpan, TTFT50: first(s.quantile(0.5)), TTFT95: first(s.quantile(0.95))}
}

func first(d time.Duration, _ uint64) time.Duration { return d }

// leastSamples is how many times to first token usual needs.
const leastSamples = 20

// usual is a quantile of the times to first token of late; ok is false while
// there are too few.
func (s *speed) usual(q float64, now time.Time) (d time.Duration, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turn(now)
	d, n := s.quantile(q)
	return d, n >= leastSamples
}

// quantile is that of the times to first token, 0 without any, and how many
// there are. mu is held.
func (s *speed) quantile(q float64) (d time.Duration, n uint64) {
	var sums [speedClasses]uint64
	for i := range s.ttft {
		for c, k := range s.ttft[i] {
			sums[c] += uint64(k)
			n += uint64(k)
		}
	}
	rank := uint64(math.Ceil(q * float64(n)))
	for c, k := range sums {
		if k > 0 && rank <= k {
			return middleOf(c), n
		}
		rank -= min(rank, k)
	}
	return 0, n
}

// classOf finds the class of a time: the whole powers of two, and quarters in
// between.
func classOf(d time.Duration) int {
	x := max(d/speedLeast, 1)
	whole := bits.Len64(uint64(x)) - 1
	part := 0
	for part < 3 && float64(d)/float64(speedLeast) >= math.Exp2(float64(whole)+float64(part+1)/4) {
		part++
	}
	return min(4*whole+part, speedClasses-1)
}

// middleOf is the middle of a class, as its times are spread.
func middleOf(class int) time.Duration {
	return time.Duration(float64(speedLeast) * math.Exp2((float64(class)+0.5)/4))
}

// speedOf feeds the endpoint's speed with the attempt that has just ended.
func (c *call) speedOf(now time.Time) {
	var ttft time.Duration
	if x := c.x; c.stream != nil && x.w.answered {
		ttft = x.res.TTFT - c.att.Start.Sub(x.start) // a hedge's own, not the first call's
	}
	var tokens int64
	if c.att.HasUsage {
		tokens = c.att.Usage.Output
	}
	c.ep.speed.observe(now, ttft, tokens)
}
