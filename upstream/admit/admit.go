// Package admit is the queue in front of an upstream: at most so many requests
// are in flight, at most so many wait, none waits longer than it may. It hides
// the order in which the waiting are let in: higher priority first, then a turn
// for each key, then first come, first served. It does no I/O and writes no log.
package admit

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// Limits of a Gate; the zero value has none.
type Limits struct {
	MaxInFlight int           // 0 = no limit
	MaxQueue    int           // 0 = nobody waits
	Timeout     time.Duration // of the wait; 0 = as long as the context lives
}

// Ticket is who asks.
type Ticket struct {
	Key      string // whose request it is: within a priority every key has its turn
	Priority int    // higher goes first
}

// Stats is a gate as it is now.
type Stats struct{ InFlight, Queued int }

// The refusals of Acquire.
var (
	ErrFull    = errors.New("the queue is full")
	ErrTimeout = errors.New("the wait in the queue was too long")
)

// Gate admits requests. Its zero value admits all and counts them. It is safe
// for concurrent use.
type Gate struct {
	limit    atomic.Int64 // Limits.MaxInFlight
	inFlight atomic.Int64
	waiting  atomic.Int64 // also under mu; read without it by Release
	released atomic.Int64 // ever

	mu     sync.Mutex
	limits Limits
	queue  queue
	rate   rate
}

// Set changes the limits. Nobody is cut off: a lower limit is reached as places
// come back, a shorter queue as those in it leave. A higher one lets in at once.
func (g *Gate) Set(l Limits) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.limits = l
	g.limit.Store(int64(max(l.MaxInFlight, 0)))
	g.admit()
}

// Acquire waits for a place. With a nil error the caller has one, and must give
// it back by Release, once; waited tells that it was not there at once. Else the
// error is ErrFull, ErrTimeout or the cause that ended ctx.
//
// When the queue is full, a newcomer of a higher priority than the lowest that
// waits takes the place of one of those, and so does a newcomer whose key has
// at least two fewer waiting than the key with most: who floods the queue must
// not keep the others out of it. The one that loses its place is the newest of
// the key with most; its Acquire returns ErrFull.
func (g *Gate) Acquire(ctx context.Context, t Ticket) (waited bool, err error) {
	if g.TryAcquire() {
		return false, nil
	}
	g.mu.Lock()
	w, err := g.wait(t)
	timeout := g.limits.Timeout
	g.mu.Unlock()
	if w == nil {
		return false, err
	}
	var late <-chan time.Time
	if timeout > 0 {
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-w.done:
		return true, w.err
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-late:
		err = ErrTimeout
	}
	if g.leave(w) {
		return true, err
	}
	// A place, or a refusal, came at the same moment.
	if w.err == nil && err != ErrTimeout {
		g.Release()
		return true, err
	}
	return true, w.err
}

// TryAcquire takes a place if one is free and nobody waits for it.
func (g *Gate) TryAcquire() bool {
	for g.waiting.Load() == 0 {
		n, limit := g.inFlight.Load(), g.limit.Load()
		if limit > 0 && n >= limit {
			return false
		}
		if g.inFlight.CompareAndSwap(n, n+1) {
			return true
		}
	}
	return false
}

// wait queues t; without a waiter the answer is there at once: a place, or
// ErrFull. mu is held.
func (g *Gate) wait(t Ticket) (*waiter, error) {
	if g.TryAcquire() { // it came back in the meantime
		return nil, nil
	}
	if g.queue.n >= g.limits.MaxQueue {
		loser := g.queue.loserTo(t)
		if loser == nil {
			return nil, ErrFull
		}
		g.queue.remove(loser)
		loser.end(ErrFull)
	}
	w := g.queue.push(t)
	g.waiting.Store(int64(g.queue.n))
	g.admit() // a place that came back before the line above went to nobody
	return w, nil
}

// leave takes w out of the queue; false if it is not in there any more.
func (g *Gate) leave(w *waiter) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if w.key == nil {
		return false
	}
	g.queue.remove(w)
	g.waiting.Store(int64(g.queue.n))
	return true
}

// Release gives a place back.
func (g *Gate) Release() {
	g.released.Add(1)
	g.inFlight.Add(-1)
	if g.waiting.Load() == 0 {
		return
	}
	g.mu.Lock()
	g.admit()
	g.mu.Unlock()
}

// admit hands out the places that are free. mu is held.
func (g *Gate) admit() {
	for g.queue.n > 0 {
		limit := g.limit.Load()
		if limit > 0 && g.inFlight.Load() >= limit {
			break
		}
		w := g.queue.first()
		g.queue.remove(w)
		g.inFlight.Add(1)
		w.end(nil)
	}
	g.waiting.Store(int64(g.queue.n))
}

// Stats tells how many are in and how many wait.
func (g *Gate) Stats() Stats {
	return Stats{InFlight: int(g.inFlight.Load()), Queued: int(g.waiting.Load())}
}

// Bounds of RetryAfter, and the span over which it measures.
const (
	minRetryAfter = time.Second
	maxRetryAfter = time.Minute
	rateSpan      = time.Second
)

// rate measures how fast places come back.
type rate struct {
	since     time.Time
	from      int64
	perSecond float64
}

// RetryAfter estimates when a refused request would find room: when those that
// wait have been let in, at the pace of late; 1 s to 1 min.
func (g *Gate) RetryAfter(now time.Time) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	r, n := &g.rate, g.released.Load()
	if span := now.Sub(r.since); r.since.IsZero() || span >= rateSpan {
		if !r.since.IsZero() {
			r.perSecond = float64(n-r.from) / span.Seconds()
		}
		r.since, r.from = now, n
	}
	if r.perSecond <= 0 {
		return minRetryAfter
	}
	d := time.Duration(float64(g.queue.n+1) / r.perSecond * float64(time.Second))
	return min(max(d, minRetryAfter), maxRetryAfter)
}
