package sticky

import (
	"context"
	"errors"
	"fmt"
	"time"
)

var (
	errBusy   = errors.New("another replica is refilling the pins")
	errBackup = errors.New("read the copy of the pins")
)

// refill loads the backup into an empty store and then marks it filled; until
// then a missing pin counts as unknown, not as absent.
func (s *Store) refill() error {
	op := func(f func(context.Context) error) error {
		octx, cancel := context.WithTimeout(s.ctx, sharedTimeout)
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
	// Another replica may have the database, or the store, when we have not.
	defer func() { _ = op(func(ctx context.Context) error { return s.be.unlockFill(ctx, s.o.ReplicaID) }) }()
	start, n := time.Now(), 0
	if s.o.Backup != nil {
		if n, err = s.fill(op); err != nil {
			return err
		}
	}
	var epoch string
	err = op(func(ctx context.Context) (err error) { epoch, err = s.be.markFilled(ctx); return err })
	if err != nil {
		return err
	}
	if n > 0 {
		s.log.Info("pins refilled from the database", "pins", n, "took", time.Since(start).Round(time.Millisecond).String())
	}
	s.change(health{state: Up, epoch: epoch})
	return nil
}

// fill copies the backup, and the pins that have not reached it yet, into the
// store. An error of the backup is an errBackup.
func (s *Store) fill(op func(func(context.Context) error) error) (n int, err error) {
	var fillErr error // the store's
	yield := func(pins []PinRecord) error {
		n += len(pins)
		fillErr = op(func(ctx context.Context) error { return s.be.fillPins(ctx, s.o.ReplicaID, pins) })
		return fillErr
	}
	if err := s.o.Backup.LoadPins(s.ctx, yield); err != nil && fillErr == nil {
		return n, fmt.Errorf("%w: %w", errBackup, err)
	}
	if fillErr == nil {
		fillErr = yield(s.backup.pending())
	}
	return n, fillErr
}
