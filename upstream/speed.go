package upstream

import (
	"slices"
	"sync"
	"time"
)

const (
	speedSpan    = 60  // seconds that Speed looks back
	speedSamples = 256 // latest times to first token that are kept
)

// speed measures what recent calls to an endpoint came to. It is fed once a
// call, at its end.
type speed struct {
	mu     sync.Mutex
	second int64 // Unix, of the newest bucket
	tokens [speedSpan]int64
	ttft   [speedSamples]sampleTTFT
	next   int
}

type sampleTTFT struct {
	at   int64 // Unix seconds
	took time.Duration
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
		s.ttft[s.next] = sampleTTFT{now.Unix(), ttft}
		s.next = (s.next + 1) % speedSamples
	}
}

// turn empties the buckets of the seconds that have passed.
func (s *speed) turn(now time.Time) {
	sec := now.Unix()
	for n := 0; s.second < sec && n < speedSpan; n++ {
		s.second = max(s.second+1, sec-speedSpan+1)
		s.tokens[s.second%speedSpan] = 0
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
	var list []time.Duration
	for _, x := range s.ttft {
		if x.took > 0 && now.Unix()-x.at < speedSpan {
			list = append(list, x.took)
		}
	}
	out := Speed{TokensPerSecond: float64(total) / speedSpan}
	if n := len(list); n > 0 {
		slices.Sort(list)
		out.TTFT50, out.TTFT95 = list[(n-1)/2], list[(n-1)*95/100]
	}
	return out
}

// speedOf feeds the endpoint's speed with the attempt that has just ended.
func (c *call) speedOf(now time.Time) {
	var ttft time.Duration
	if x := c.x; c.stream != nil && x.w.answered {
		ttft = x.res.TTFT - x.w.begun
	}
	var tokens int64
	if c.att.HasUsage {
		tokens = c.att.Usage.Output
	}
	c.ep.speed.observe(now, ttft, tokens)
}
