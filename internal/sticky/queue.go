package sticky

import (
	"context"
	"slices"
	"sync"
	"time"

	"sluice/experiment"
)

// queue holds pins that wait to be written, first in, first out, bounded.
type queue struct {
	mu    sync.Mutex
	ops   []putOp // ops[head:] wait
	head  int
	limit int
	ready chan struct{} // capacity 1
}

func newQueue(limit int) *queue { return &queue{limit: limit, ready: make(chan struct{}, 1)} }

// push appends op; when the queue is full it returns the oldest, which it dropped.
func (q *queue) push(op putOp) (lost putOp, dropped bool) {
	q.mu.Lock()
	if len(q.ops)-q.head >= q.limit {
		lost, dropped = q.ops[q.head], true
		q.head++
	}
	if q.head > len(q.ops)/2 && q.head >= 1024 { // reuse the consumed front
		n := copy(q.ops, q.ops[q.head:])
		clear(q.ops[n:])
		q.ops, q.head = q.ops[:n], 0
	}
	q.ops = append(q.ops, op)
	q.mu.Unlock()
	q.wake()
	return lost, dropped
}

// take removes up to n of the oldest.
func (q *queue) take(n int) []putOp {
	q.mu.Lock()
	defer q.mu.Unlock()
	n = min(n, len(q.ops)-q.head)
	batch := slices.Clone(q.ops[q.head : q.head+n])
	clear(q.ops[q.head : q.head+n])
	if q.head += n; q.head == len(q.ops) {
		q.ops, q.head = q.ops[:0], 0
	}
	return batch
}

func (q *queue) drop(exp string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ops = slices.DeleteFunc(q.ops[q.head:], func(op putOp) bool { return op.exp == exp })
	q.head = 0
}

func (q *queue) len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.ops) - q.head
}

func (q *queue) wake() {
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

const flushBatch = 500

// flushQueue writes queued pins in batches while the store is up; what cannot
// be written waits. It ends when Close has it drained, or the store is away then.
func (s *Store) flushQueue() {
	defer close(s.queueDone)
	var batch []putOp
	for {
		if h := s.health.Load(); h.state == Up {
			if len(batch) == 0 {
				batch = s.queue.take(flushBatch)
			}
			if len(batch) > 0 && s.flush(batch, h) {
				batch = nil
				continue
			}
		}
		if s.closed() && (len(batch) == 0 || !s.Up()) || s.ctx.Err() != nil {
			s.counters.add(CountPinDropped, int64(len(batch)))
			return
		}
		retry, closing := time.NewTimer(lookDown), s.closing
		if s.closed() {
			closing = nil // known: only time helps
		}
		select {
		case <-s.queue.ready:
		case <-retry.C:
		case <-closing:
		case <-s.ctx.Done():
		}
		retry.Stop()
	}
}

// flush writes one batch and reports whether it is done with.
func (s *Store) flush(batch []putOp, h *health) bool {
	ctx, cancel := context.WithTimeout(s.ctx, sharedTimeout)
	defer cancel()
	res, err := s.be.putPins(ctx, batch, h.epoch)
	if err != nil {
		s.wake()
		return false
	}
	for i, r := range res {
		op := batch[i]
		s.stored(op.unit, op.shard, op.pin, r, h.life)
		if !r.written && r.stored.Gen == op.pin.Gen && r.stored.Variant != op.pin.Variant {
			s.conflict(op, r.stored)
		}
	}
	return true
}

// conflict takes a unit out of the analysis that was shown one variant here and
// is pinned to another: the pin stays, and says so from now on.
func (s *Store) conflict(op putOp, stored experiment.Pin) {
	s.counters.add(CountPinConflict, 1)
	if s.o.OnConflict != nil {
		s.o.OnConflict(op.exp, op.field, op.pin, stored)
	}
	if flagged := stored; flagged.Flags&experiment.PinExcluded == 0 {
		flagged.Flags |= experiment.PinExcluded
		s.push(putOp{unit: op.unit, shard: op.shard, pin: flagged, expect: &stored})
	}
}
