package sticky

import (
	"context"
	"fmt"
	"time"
)

// Observation is one entry of an experiment's stream: what one replica counted.
type Observation struct {
	ID   string // orders the stream; for Observed's after
	At   int64  // Unix ms, by the store's clock
	Body []byte
}

const (
	// observations is about how many entries a stream keeps.
	observations = 20000
	// maxObserved bounds one read.
	maxObserved = 1000
	// rolloutTTL is how long a rollout that nobody writes to is remembered.
	rolloutTTL = 30 * 24 * time.Hour
	// supervision is how long one heartbeat lasts.
	supervision = 30 * time.Second
)

// Observe appends to an experiment's stream, whose oldest entries are trimmed
// beyond about 20,000.
func (s *Store) Observe(ctx context.Context, exp string, body []byte) error {
	return s.shared(ctx, func(ctx context.Context) error { return s.be.observe(ctx, exp, body) })
}

// Observed reads at most most (and 1,000) entries behind after, oldest first;
// "" is the beginning. A stream that was lost and begun again below after is
// read from its beginning.
func (s *Store) Observed(ctx context.Context, exp, after string, most int) (list []Observation, err error) {
	if after == "" {
		after = "0-0"
	}
	err = s.shared(ctx, func(ctx context.Context) error {
		list, err = s.be.observed(ctx, exp, after, min(most, maxObserved))
		return err
	})
	return list, err
}

// Checkpoint stores the leader's state of an experiment, whole. ErrFenced says
// that a leader with a higher fence has written one.
func (s *Store) Checkpoint(ctx context.Context, exp string, fence int64, body []byte) error {
	if fence < 1 || fence > maxRevision {
		return fmt.Errorf("checkpoint: fence %d is outside 1..2^53-1", fence)
	}
	return s.shared(ctx, func(ctx context.Context) error { return s.be.checkpoint(ctx, exp, fence, body) })
}

// LoadCheckpoint reads the last checkpoint; ErrNone when there is none, also
// after the store lost its data.
func (s *Store) LoadCheckpoint(ctx context.Context, exp string) (body []byte, err error) {
	err = s.shared(ctx, func(ctx context.Context) error {
		body, err = s.be.loadCheckpoint(ctx, exp)
		return err
	})
	return body, err
}

// Share leaves what this replica knows of a topic of an experiment for the others.
func (s *Store) Share(ctx context.Context, exp, topic string, body []byte) error {
	return s.shared(ctx, func(ctx context.Context) error { return s.be.share(ctx, exp, topic, s.o.ReplicaID, body) })
}

// Shared reads what the replicas left, by replica; also of those that are gone.
func (s *Store) Shared(ctx context.Context, exp, topic string) (by map[string][]byte, err error) {
	err = s.shared(ctx, func(ctx context.Context) error {
		by, err = s.be.shared(ctx, exp, topic)
		return err
	})
	return by, err
}

// DropRollout forgets an experiment's stream, checkpoint and shares.
func (s *Store) DropRollout(ctx context.Context, exp string) error {
	return s.shared(ctx, func(ctx context.Context) error { return s.be.dropRollout(ctx, exp) })
}

// Supervise is the leader's heartbeat; it lasts for 30 s. seq counts them.
func (s *Store) Supervise(ctx context.Context, fence, seq int64) error {
	return s.shared(ctx, func(ctx context.Context) error { return s.be.supervise(ctx, fence, seq, supervision) })
}

// Supervised is how long ago a leader's last heartbeat was; ok is false when
// that is over 30 s, or there was none.
func (s *Store) Supervised(ctx context.Context) (ago time.Duration, ok bool, err error) {
	err = s.shared(ctx, func(ctx context.Context) error {
		left, err := s.be.supervised(ctx)
		ago, ok = max(supervision-left, 0), left > 0
		return err
	})
	return ago, ok, err
}
