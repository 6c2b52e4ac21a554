package sticky

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
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
	// initial marks the state before the first look, so that a store that is
	// away at start is logged too.
	initial bool
}

// How often the store is looked at, and how long a look may take.
const (
	lookUp      = time.Second
	lookDown    = 100 * time.Millisecond
	lookRefill  = 250 * time.Millisecond
	lookTimeout = 250 * time.Millisecond
	lookFirst   = time.Second // there is no earlier state to keep on a doubt
	reportEvery = 5 * time.Second
)

// watch looks at the store until Close: it finds that the store is away or
// back, refills it, repeats this replica's report and is the fallback for a
// lost notice.
func (s *Store) watch() {
	fails := 0
	var reported time.Time // in life
	var life uint32
	for first, timeout := true, lookFirst; ; first, timeout = false, lookTimeout {
		if s.look(timeout, first || fails > 0) {
			fails = 0
		} else {
			fails++
		}
		if first {
			close(s.looked)
		}
		h := s.health.Load()
		if h.state != Down && (h.life != life || time.Since(reported) >= reportEvery) && s.repeatReport() {
			reported, life = time.Now(), h.life
		}
		wait := lookDown
		switch {
		case h.state == Refilling: // waits for the database or another replica
			wait = lookRefill
		case h.state == Up && fails == 0 && !s.breaker.open():
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

func (s *Store) repeatReport() bool {
	r := s.reported.Load()
	if r == nil {
		return false
	}
	return s.briefly(func(ctx context.Context) error { return s.be.report(ctx, *r) }) == nil
}

// wake asks the watcher to look now; it never blocks.
func (s *Store) wake() {
	select {
	case s.nudge <- struct{}{}:
	default:
	}
}

// look asks the store once and takes the state from the answer. A failure
// changes nothing (a pause of the scheduler is no outage) unless sure.
func (s *Store) look(timeout time.Duration, sure bool) bool {
	ctx, cancel := context.WithTimeout(s.ctx, timeout)
	p, err := s.be.probe(ctx, !s.Up() || s.breaker.open())
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
	if p.epoch == "" && old.state != Refilling {
		s.change(health{state: Refilling, reason: "its pins are being refilled"})
	}
	switch {
	case p.epoch == "":
		if err := s.refill(); err != nil && !s.refillFailed(err) {
			return false
		}
	case old.state != Up || p.epoch != old.epoch:
		s.change(health{state: Up, epoch: p.epoch})
	}
	s.breaker.reset()
	s.published.Store(p.revision)
	s.saw(p.revision)
	_ = s.briefly(s.refreshKills) // the next look asks again
	return true
}

// refillFailed notes why; it reports whether the store itself still answers.
func (s *Store) refillFailed(err error) bool {
	if errors.Is(err, errBackup) || errors.Is(err, errBusy) || !isAway(err) {
		s.change(health{state: Refilling, reason: err.Error()})
		return true
	}
	s.change(health{state: Down, reason: err.Error()})
	return false
}

// change installs a new state, logs it and tells WatchState. Only the watcher
// calls it.
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
	if next.state == old.state && next.life == old.life && !old.initial {
		return
	}
	defer s.states.wake()
	switch next.state {
	case Down:
		s.log.Warn("sticky store is away; serving without it", "error", next.reason, "queued_pins", s.queue.len())
	case Refilling:
		level := slog.LevelWarn
		if old.initial { // as every embedded store begins
			level = slog.LevelInfo
		}
		s.log.Log(s.ctx, level, "sticky store is empty; refilling its pins")
	case Up:
		if next.life != old.life {
			s.offerAgain()
		}
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
