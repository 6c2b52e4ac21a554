package sticky

import (
	"context"
	"errors"
	"time"

	"sluice/experiment"
)

// Get reads the pin of a unit within Options.PinBudget and ctx, whichever is
// shorter. While the store is away or refilling, pins that this replica has
// read or written are answered from memory and others with ErrDown, at once.
func (s *Store) Get(ctx context.Context, exp string, field [8]byte, shard uint16) (experiment.Pin, bool, error) {
	h, u := s.health.Load(), unit{exp, field}
	if h.state != Up || s.breaker.open() || s.closed() {
		return s.remembered(u, ErrDown)
	}
	bctx, cancel := context.WithTimeout(ctx, s.o.PinBudget)
	defer cancel()
	pin, found, err := s.be.getPin(bctx, u, shard, h.epoch)
	if err != nil {
		s.missed(ctx, err)
		return s.remembered(u, err)
	}
	s.breaker.success()
	if found {
		s.cacheOf(u).put(u, cached{pin: pin, life: h.life})
		return pin, true, nil
	}
	// Served once, but not stored in this life of the store: it is in the
	// queue, or was lost with the store before it reached the backup.
	if c, ok := s.cacheOf(u).get(u); ok && c.life != h.life {
		if !c.queued {
			s.enqueue(u, shard, c.pin)
		}
		return c.pin, true, nil
	}
	return experiment.Pin{}, false, nil
}

// Put writes a pin first-come and returns what is stored afterwards: pin when
// the unit had none, one of an older generation, or exactly *expect. Bounds
// and ErrDown are as for Get; after an error the pin may or may not be stored.
func (s *Store) Put(ctx context.Context, exp string, field [8]byte, shard uint16, pin experiment.Pin, expect *experiment.Pin) (experiment.Pin, error) {
	h, u := s.health.Load(), unit{exp, field}
	if h.state != Up || s.breaker.open() || s.closed() {
		s.counters.add(CountPinMissed, 1)
		return experiment.Pin{}, ErrDown
	}
	bctx, cancel := context.WithTimeout(ctx, s.o.PinBudget)
	defer cancel()
	res, err := s.be.putPins(bctx, []putOp{{unit: u, shard: shard, pin: pin, expect: expect}}, h.epoch)
	if err != nil {
		s.missed(ctx, err)
		s.counters.add(CountPinMissed, 1)
		if !errors.Is(err, ErrDown) {
			err = errors.Join(ErrDown, err)
		}
		return experiment.Pin{}, err
	}
	s.breaker.success()
	s.stored(u, shard, pin, res[0], h.life)
	return res[0].stored, nil
}

// PutLater writes a pin first-come in the background; it never blocks. A full
// queue drops its oldest pin.
func (s *Store) PutLater(exp string, field [8]byte, shard uint16, pin experiment.Pin) {
	u := unit{exp, field}
	if c, ok := s.cache.get(u); ok && c.pin.Gen >= pin.Gen && c.pin.Variant == pin.Variant &&
		(c.queued || c.life == s.health.Load().life) {
		return // stored, or on its way: a unit's second request writes nothing
	}
	s.enqueue(u, shard, pin)
}

func (s *Store) enqueue(u unit, shard uint16, pin experiment.Pin) {
	if s.closed() {
		s.counters.add(CountPinDropped, 1)
		return
	}
	op := putOp{unit: u, shard: shard, pin: pin, last: ofConversation(u)}
	if c, ok := s.cacheOf(u).get(u); !ok || op.last || wins(op, c.pin) || c.pin == pin {
		s.cacheOf(u).put(u, cached{pin: pin, queued: true})
	}
	s.push(op)
}

func (s *Store) push(op putOp) {
	if lost, ok := s.queue.push(op); ok {
		s.counters.add(CountPinDropped, 1)
		s.cacheOf(lost.unit).unqueue(lost.unit) // so that its unit's next request offers it again
	}
}

// DropPins removes all pins of an experiment here, in the store and in the
// backup. Other replicas may remember some; a new generation voids those.
func (s *Store) DropPins(ctx context.Context, exp string) error {
	for _, name := range []string{exp, s.conversationName(exp, 0), s.conversationName(exp, 1)} {
		if err := s.shared(ctx, func(ctx context.Context) error { return s.be.dropPins(ctx, name) }); err != nil {
			return err
		}
		s.queue.drop(name)
		s.cacheOf(unit{exp: name}).drop(name)
	}
	if s.backup == nil {
		return nil
	}
	select { // after a batch that may hold some of them
	case s.backup.turn <- struct{}{}:
		defer func() { <-s.backup.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	s.backup.drop(exp)
	return s.o.Backup.DropPins(ctx, exp)
}

// ExpirePins lets the store forget the pins of an ended experiment after a
// while; the backup's copies are the caller's to drop.
func (s *Store) ExpirePins(ctx context.Context, exp string, after time.Duration) error {
	return s.shared(ctx, func(ctx context.Context) error { return s.be.expirePins(ctx, exp, after) })
}

// remembered answers from memory in place of err.
func (s *Store) remembered(u unit, err error) (experiment.Pin, bool, error) {
	if c, ok := s.cacheOf(u).get(u); ok {
		s.counters.add(CountPinCached, 1)
		return c.pin, true, nil
	}
	s.counters.add(CountPinMissed, 1)
	if !errors.Is(err, ErrDown) {
		err = errors.Join(ErrDown, err)
	}
	return experiment.Pin{}, false, err
}

// missed notes why a pin operation failed; a caller that went away is no
// failure of the store.
func (s *Store) missed(ctx context.Context, err error) {
	switch {
	case errors.Is(err, errEpoch):
		s.wake()
	case errors.Is(ctx.Err(), context.Canceled):
	default:
		s.failed()
	}
}

// stored remembers the outcome of writing pin and copies it to the backup. An
// equal pin that was there may be from our own first try, whose answer was late.
func (s *Store) stored(u unit, shard uint16, pin experiment.Pin, r putResult, life uint32) {
	s.cacheOf(u).put(u, cached{pin: r.stored, life: life})
	if (r.written || r.stored == pin) && s.backup != nil && !ofConversation(u) {
		if !s.backup.add(PinRecord{u.exp, u.field, shard, r.stored}) {
			s.counters.add(CountBackupDropped, 1)
		}
	}
}
