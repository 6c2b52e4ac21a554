package metrics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

const (
	ledgerBatch  = 500
	ledgerDelay  = 200 * time.Millisecond
	retryFirst   = 100 * time.Millisecond
	retryLongest = 5 * time.Second
	writeTimeout = 30 * time.Second // one WriteEvents
	// shrinkAfter failures in a row a batch is halved, down to single events, so
	// that one event the store refuses does not hold up all others.
	shrinkAfter = 3
)

// ledger hands batches to the Writer: in order, retried until they are stored.
// While the writer is away events wait in the queue; when that is full the
// newest are dropped and counted.
type ledger struct {
	q        *queue
	w        Writer
	log      *slog.Logger
	failures atomic.Uint64
}

func newLedger(w Writer, log *slog.Logger, limit int) *ledger {
	return &ledger{q: newQueue(limit, ledgerBatch), w: w, log: log}
}

// run writes until ctx ends, then what is left, for at most drain.
func (l *ledger) run(ctx context.Context, drain time.Duration) error {
	for collect(ctx, l.q, ledgerDelay) {
		if left := l.store(ctx, l.q.take()); left != nil {
			return l.drain(ctx, drain, left)
		}
	}
	return l.drain(ctx, drain, nil)
}

// collect waits for the first event, then up to delay for a whole batch. It
// returns false when ctx has ended.
func collect(ctx context.Context, q *queue, delay time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-q.wake:
	}
	t := time.NewTimer(delay)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-q.full:
	case <-t.C:
	}
	return true
}

func (l *ledger) drain(ctx context.Context, d time.Duration, left []Event) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), d)
	defer cancel()
	l.q.close()
	left = l.store(ctx, left)
	if left == nil {
		left = l.store(ctx, l.q.take())
	}
	lost := len(left)
	if rest := l.q.take(); len(rest) > 0 {
		lost += len(rest)
	}
	if lost == 0 {
		return nil
	}
	l.q.finish(lost, lost)
	return fmt.Errorf("the ledger did not take %d events within %v of shutdown; they are lost from the store, not from the access log", lost, d)
}

// store writes evs and returns nil, or what was not yet written when ctx ended.
func (l *ledger) store(ctx context.Context, evs []Event) []Event {
	all := evs
	size, fails := ledgerBatch, 0
	for len(evs) > 0 {
		n := min(size, len(evs))
		err := l.write(ctx, evs[:n])
		if err == nil {
			l.q.finish(n, 0)
			evs = evs[n:]
			size, fails = min(size*2, ledgerBatch), 0
			continue
		}
		if ctx.Err() != nil {
			return evs
		}
		fails++
		l.log.Warn("the ledger write failed, it is tried again", "events", n, "failures", fails, "err", err)
		if fails >= shrinkAfter {
			size = max(1, n/2)
		}
		if n == 1 && fails >= shrinkAfter && len(evs) > 1 && l.write(ctx, evs[1:2]) == nil {
			l.log.Error("the store refuses an event that is not like the others; it is given up", "request_id", evs[0].RequestID, "err", err)
			l.q.finish(2, 1)
			evs, fails = evs[2:], 0
			continue
		}
		if !pause(ctx, backoff(fails)) {
			return evs
		}
		if len(evs) == 1 { // a second opinion needs another event
			evs = append(evs, l.q.take()...)
		}
	}
	l.q.giveBack(all)
	return nil
}

func (l *ledger) write(parent context.Context, evs []Event) error {
	ctx, cancel := context.WithTimeout(parent, writeTimeout)
	defer cancel()
	err := l.w.WriteEvents(ctx, evs)
	if err != nil && !errors.Is(context.Cause(parent), context.Canceled) {
		l.failures.Add(1)
	}
	return err
}

// backoff doubles from retryFirst to retryLongest, with half of it random.
func backoff(fails int) time.Duration {
	d := min(retryFirst<<min(fails-1, 10), retryLongest)
	return d/2 + rand.N(d/2)
}

// pause returns false when ctx ended before d passed.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
