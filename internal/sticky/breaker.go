package sticky

import (
	"sync"
	"sync/atomic"
	"time"
)

// breaker makes the request path stop asking a store that does not answer. It
// opens after breakAfter failures in a row and is closed by the watcher's
// successful look, later each time that this turns out to have been too early.
type breaker struct {
	isOpen   atomic.Bool
	failures atomic.Int32 // in a row

	mu    sync.Mutex // guards the rest and serialises changes of isOpen
	hold  time.Duration
	until time.Time
}

const (
	breakAfter = 3
	maxHold    = 2 * time.Second
)

func (b *breaker) open() bool { return b.isOpen.Load() }

// failure reports whether this one opened the breaker.
func (b *breaker) failure() bool {
	if b.failures.Add(1) < breakAfter {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.isOpen.Load() {
		return false
	}
	b.until = time.Now().Add(b.hold)
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

// reset closes the breaker when its hold is over.
func (b *breaker) reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.isOpen.Load() && !time.Now().Before(b.until) {
		b.failures.Store(0)
		b.isOpen.Store(false)
	}
}
