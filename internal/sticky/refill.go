package sticky

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"
)

var (
	errBusy   = errors.New("another replica refills the pins, or they were lost again meanwhile")
	errBackup = errors.New("read the copy of the pins")
)

// refill loads the backup into an empty store and then marks it filled; until
// then a missing pin counts as unknown, not as absent.
func (s *Store) refill() error {
	token, epoch := s.o.ReplicaID+" "+rand.Text(), rand.Text()
	var ok bool
	err := s.briefly(func(ctx context.Context) (err error) { ok, err = s.be.lockFill(ctx, token); return err })
	if err != nil {
		return err
	}
	if !ok {
		return errBusy
	}
	// Another replica may have the database, or the store, when we have not.
	defer func() {
		_ = s.briefly(func(ctx context.Context) error { return s.be.unlockFill(ctx, token) })
	}()
	start, n := time.Now(), 0
	if err := s.briefly(s.refreshKills); err != nil { // offers again what we know
		return err
	}
	if s.o.Backup != nil {
		if n, err = s.fill(token); err != nil {
			return err
		}
	}
	if err := s.briefly(func(ctx context.Context) error { return s.be.markFilled(ctx, token, epoch) }); err != nil {
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
func (s *Store) fill(token string) (n int, err error) {
	var fillErr error // the store's
	yield := func(pins []PinRecord) error {
		n += len(pins)
		fillErr = s.briefly(func(ctx context.Context) error { return s.be.fillPins(ctx, token, pins) })
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

// offerAgain queues the pins that may be in no copy: another replica that has
// refilled the store did not know them.
func (s *Store) offerAgain() {
	if s.backup == nil {
		return
	}
	for _, r := range s.backup.pending() {
		s.push(putOp{unit: unit{r.Experiment, r.Field}, shard: r.Shard, pin: r.Pin})
	}
}

// briefly bounds one operation of the background work.
func (s *Store) briefly(f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(s.ctx, sharedTimeout)
	defer cancel()
	return f(ctx)
}
