package sticky

import (
	"sync"
	"sync/atomic"
	"time"
)

// breaker makes the request path stop asking a store that does not answer. It
// opens after failures in a row and is closed by the watcher's
// successful look, later each time that this turns out to have been too early.
type breaker struct {
	isOpen   atomic.Bool
	failures atomic.Int32 // in a row

	mu    sync.Mutex // guards the rest and serialises changes of isOpen
	first time.Time  // failure in a row
	hold  time.Duration
	until time.Time
}

// Both must be reached: many requests that meet one stall of the scheduler
// together are one failure.
const (
	breakAfter = 3
	breakSpan  = 20 * time.Millisecond
	maxHold    = time.Second
)

func (b *breaker) open() bool { return b.isOpen.Load() }

// failure reports whether this one opened the breaker.
func (b *breaker) failure() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if b.failures.Add(1) == 1 {
		b.first = now
	}
	if b.isOpen.Load() || b.failures.Load() < breakAfter || now.Sub(b.first) < breakSpan {
		return false
	}
	b.until = now.Add(b.hold)
	b.hold = min(max(2*b.hold, lookDown), maxHold)
	b.isOpen.Store(true)
	return true
}

// success is on the path of every read, hence no lock when all is well.
func (b *breaker) success() {
	if b.failures.Load() == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.isOpen.Load() {
		b.failures.Store(0)
		b.hold = 0
	}
}

// reset closes the breaker when its hold is over. It leaves one failure on
// record, so that the next success is seen and shortens the hold again.
func (b *breaker) reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.isOpen.Load() && !time.Now().Before(b.until) {
		b.failures.Store(1)
		b.first = time.Now()
		b.isOpen.Store(false)
	}
}
