package guard

import (
	"sync"
	"time"
)

// The retry budget (design.md section 6): of the requests of the last seconds
// this share may be tried again, and always a few.
const (
	retryShare = 0.2
	retryFloor = 10
	seconds    = 10
)

// Budget bounds how much retries add to the load of an upstream that fails. Its
// zero value is ready; it is safe for concurrent use.
type Budget struct {
	mu       sync.Mutex
	second   int64 // Unix, of the newest bucket
	requests [seconds]int
	retries  [seconds]int
	hedges   [seconds]int
}

// Request counts a request.
func (b *Budget) Request(now time.Time) {
	b.mu.Lock()
	b.requests[b.turn(now)]++
	b.mu.Unlock()
}

// Retry takes one retry out of the budget; false: it is spent.
func (b *Budget) Retry(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := b.turn(now)
	var requests, retries int
	for j := range seconds {
		requests += b.requests[j]
		retries += b.retries[j]
	}
	if retries >= retryFloor && float64(retries+1) > retryShare*float64(requests) {
		return false
	}
	b.retries[i]++
	return true
}

// Hedge takes one call beside another, of at most that share of the requests.
func (b *Budget) Hedge(now time.Time, share float64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := b.turn(now)
	var requests, hedges int
	for j := range seconds {
		requests += b.requests[j]
		hedges += b.hedges[j]
	}
	if float64(hedges+1) > share*float64(requests) {
		return false
	}
	b.hedges[i]++
	return true
}

// turn empties the buckets of the seconds that have passed and returns now's.
func (b *Budget) turn(now time.Time) int {
	s := now.Unix()
	for n := 0; b.second < s && n < seconds; n++ {
		b.second = max(b.second+1, s-seconds+1)
		i := b.second % seconds
		b.requests[i], b.retries[i], b.hedges[i] = 0, 0, 0
	}
	return int(b.second % seconds)
}
