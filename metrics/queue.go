package metrics

import (
	"context"
	"sync"
)

// queue is a bounded buffer of events between many recorders and one consumer.
// Two slices swap places, so that a push is a copy under a short lock and no
// event is allocated on its own.
type queue struct {
	limit int
	batch int
	wake  chan struct{} // something was pushed into an empty buffer
	full  chan struct{} // a batch is there, or somebody flushes: do not wait longer

	mu      sync.Mutex
	buf     []Event
	spare   []Event
	held    int // taken, not yet done
	closed  bool
	pushed  uint64
	done    uint64
	dropped uint64
	waiters []waiter
}

type waiter struct {
	target uint64
	ch     chan struct{}
}

// keepCap bounds the memory an idle queue holds on to after a burst.
const keepCap = 4096

func newQueue(limit, batch int) *queue {
	return &queue{limit: limit, batch: batch, wake: make(chan struct{}, 1), full: make(chan struct{}, 1)}
}

// push copies ev into the buffer, or counts it as dropped.
func (q *queue) push(ev *Event) {
	q.mu.Lock()
	if q.closed || len(q.buf)+q.held >= q.limit {
		q.dropped++
		q.mu.Unlock()
		return
	}
	q.buf = append(q.buf, *ev)
	q.pushed++
	n := len(q.buf)
	q.mu.Unlock()
	if n == 1 {
		signal(q.wake)
	}
	if n == q.batch {
		signal(q.full)
	}
}

// take returns everything that waits; finish must be called for each event of it.
func (q *queue) take() []Event {
	q.mu.Lock()
	defer q.mu.Unlock()
	out := q.buf
	q.buf, q.spare = q.spare[:0], nil
	q.held += len(out)
	return out
}

// finish reports n taken events as settled, lost of them as dropped.
func (q *queue) finish(n, lost int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.held -= n
	q.done += uint64(n)
	q.dropped += uint64(lost)
	keep := q.waiters[:0]
	for _, w := range q.waiters {
		if w.target <= q.done {
			close(w.ch)
		} else {
			keep = append(keep, w)
		}
	}
	q.waiters = keep
}

// giveBack returns a settled slice from take for reuse.
func (q *queue) giveBack(evs []Event) {
	if cap(evs) > keepCap {
		return
	}
	clear(evs)
	q.mu.Lock()
	q.spare = evs[:0]
	q.mu.Unlock()
}

// close makes every later push a drop.
func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
}

// flush waits until all that was pushed before is settled.
func (q *queue) flush(ctx context.Context) error {
	q.mu.Lock()
	if q.done >= q.pushed {
		q.mu.Unlock()
		return nil
	}
	w := waiter{q.pushed, make(chan struct{})}
	q.waiters = append(q.waiters, w)
	q.mu.Unlock()
	signal(q.wake)
	signal(q.full)
	select {
	case <-w.ch:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// length is how many events wait or are being written; drops counts the lost.
func (q *queue) length() (length int, drops uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.buf) + q.held, q.dropped
}

func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
