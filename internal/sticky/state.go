package sticky

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// health is one immutable state; life counts the epochs seen, so that the
// cache can tell pins stored in this life of the store from older ones.
type health struct {
	state  State
	since  time.Time
	reason string
	epoch  string
	life   uint32
}

// How often the store is looked at, and how long a look may take.
const (
	lookUp      = time.Second
	lookDown    = 100 * time.Millisecond
	lookTimeout = 250 * time.Millisecond
	reportEvery = 5 * time.Second
)

// watch looks at the store until Close: it finds that the store is away or
// back, refills it, repeats this replica's report and is the fallback for a
// lost notice.
func (s *Store) watch() {
	var reported time.Time
	fails := 0
	for {
		if s.look(s.ctx, fails > 0) {
			fails = 0
		} else {
			fails++
		}
		if r := s.reported.Load(); r != nil && s.reachable() && time.Since(reported) >= reportEvery {
			ctx, cancel := context.WithTimeout(s.ctx, sharedTimeout)
			if s.be.report(ctx, *r) == nil {
				reported = time.Now()
			}
			cancel()
		}
		wait := lookDown
		if s.Up() && fails == 0 && !s.breaker.open() {
			wait = lookUp*4/5 + rand.N(lookUp*2/5) // replicas should not look in step
		}
		timer := time.NewTimer(wait)
		select {
		case <-s.ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		case <-s.nudge:
			timer.Stop()
		}
	}
}

// wake asks the watcher to look now; it never blocks.
func (s *Store) wake() {
	select {
	case s.nudge <- struct{}{}:
	default:
	}
}

// look asks the store once and takes the state from the answer. A first
// failure changes nothing (a pause of the scheduler is no outage) unless sure.
func (s *Store) look(ctx context.Context, sure bool) bool {
	lctx, cancel := context.WithTimeout(ctx, lookTimeout)
	p, err := s.be.probe(lctx)
	cancel()
	if s.ctx.Err() != nil {
		return false
	}
	if err != nil {
		if sure {
			s.change(health{state: Down, reason: err.Error()})
		}
		return false
	}
	old := s.health.Load()
	switch {
	case p.epoch == "":
		s.change(health{state: Refilling, reason: "the store is empty, its pins are being refilled"})
		s.reofferKills(ctx)
		if err := s.refill(ctx); err != nil {
			s.change(health{state: Refilling, reason: err.Error()})
			if isAway(err) && !errors.Is(err, errBackup) && !errors.Is(err, errBusy) {
				s.change(health{state: Down, reason: err.Error()})
				return false
			}
		}
	case old.state != Up || p.epoch != old.epoch:
		if p.epoch != old.epoch {
			s.reofferKills(ctx)
		}
		s.change(health{state: Up, epoch: p.epoch})
	}
	s.breaker.reset()
	s.saw(p.revision)
	kctx, cancel := context.WithTimeout(ctx, sharedTimeout)
	defer cancel()
	_ = s.refreshKills(kctx) // the next look asks again
	return true
}

// change installs a new state, logs it and tells WatchState. Only the watcher
// calls it (and Open, before the watcher runs).
func (s *Store) change(next health) {
	old := s.health.Load()
	next.since = s.o.Now()
	next.life = old.life
	if next.epoch == "" {
		next.epoch = old.epoch
	}
	if next.state == Up && next.epoch != old.epoch {
		next.life++
	}
	if next.state == old.state {
		next.since = old.since
	}
	s.health.Store(&next)
	if next.state == old.state && next.life == old.life {
		return
	}
	defer s.states.wake()
	switch next.state {
	case Down:
		s.log.Warn("sticky store is away; serving without it", "error", next.reason, "queued_pins", s.queue.len())
	case Refilling:
		s.log.Warn("sticky store is empty; refilling its pins")
	case Up:
		s.log.Info("sticky store is up", "after", next.since.Sub(old.since).Round(time.Millisecond).String(), "queued_pins", s.queue.len())
		s.queue.wake()
	}
}

// WatchState calls f with the present state and after each change of it, until
// ctx ends (it returns ctx's error) or the store closes (ErrClosed). Up comes
// again, without a Down between, when the store lost its data: whoever sees Up
// or Refilling publishes its snapshot again.
func (s *Store) WatchState(ctx context.Context, f func(State)) error {
	var told *health
	return s.states.watch(ctx, s.closing, func() {
		h := s.health.Load()
		if told == nil || h.state != told.state || h.life != told.life {
			told = h
			f(h.state)
		}
	})
}

// failed notes an operation of the request path that the store did not answer.
func (s *Store) failed() {
	s.counters.add(CountPinTimeout, 1)
	if s.breaker.failure() {
		s.wake()
	}
}

// breaker makes the request path stop asking a store that does not answer. It
// opens after breakAfter failures in a row and is closed by the watcher's
// successful look, later each time that this turns out to have been too early.
type breaker struct {
	mu       sync.Mutex
	failures int
	isOpen   bool
	hold     time.Duration
	until    time.Time
}

const (
	breakAfter = 3
	maxHold    = 2 * time.Second
)

func (b *breaker) open() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.isOpen
}

// failure reports whether this one opened the breaker.
func (b *breaker) failure() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failures++; b.failures < breakAfter || b.isOpen {
		return false
	}
	b.isOpen, b.until = true, time.Now().Add(b.hold)
	b.hold = min(max(2*b.hold, lookDown), maxHold)
	return true
}

func (b *breaker) success() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.isOpen {
		b.failures, b.hold = 0, 0
	}
}

// reset closes the breaker when its hold is over.
func (b *breaker) reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.isOpen && !time.Now().Before(b.until) {
		b.isOpen, b.failures = false, 0
	}
}

// Refill

var (
	errBusy   = errors.New("another replica is refilling the pins")
	errBackup = errors.New("read the copy of the pins")
)

// refill loads the backup into an empty store and then marks it filled; until
// then a missing pin counts as unknown, not as absent.
func (s *Store) refill(ctx context.Context) error {
	op := func(f func(context.Context) error) error {
		octx, cancel := context.WithTimeout(ctx, sharedTimeout)
		defer cancel()
		return f(octx)
	}
	var ok bool
	err := op(func(ctx context.Context) (err error) { ok, err = s.be.lockFill(ctx, s.o.ReplicaID); return err })
	if err != nil {
		return err
	}
	if !ok {
		return errBusy
	}
	start, n := time.Now(), 0
	if s.o.Backup != nil {
		var fillErr error // the store's, told apart from the backup's
		yield := func(pins []PinRecord) error {
			n += len(pins)
			fillErr = op(func(ctx context.Context) error { return s.be.fillPins(ctx, s.o.ReplicaID, pins) })
			return fillErr
		}
		if err = s.o.Backup.LoadPins(ctx, yield); err != nil && fillErr == nil {
			return fmt.Errorf("%w: %w", errBackup, err)
		}
		if fillErr == nil { // pins that had not reached the backup yet
			fillErr = yield(s.backup.pending())
		}
		if fillErr != nil {
			return fillErr
		}
	}
	var epoch string
	err = op(func(ctx context.Context) (err error) { epoch, err = s.be.markFilled(ctx, s.o.ReplicaID); return err })
	if err != nil {
		return err
	}
	if n > 0 {
		s.log.Info("pins refilled from the database", "pins", n, "took", time.Since(start).Round(time.Millisecond).String())
	}
	s.change(health{state: Up, epoch: epoch})
	return nil
}
