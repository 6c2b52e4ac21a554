package sticky

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// The lease's times: it ends leaseTTL after its last renewal, and its holder
// stops acting leaseSafe after the start of it, by its own monotonic clock.
const (
	leaseTTL   = 5 * time.Second
	leaseSafe  = 4 * time.Second
	leaseRenew = 1500 * time.Millisecond
)

// Lease is leadership that this replica holds until Done.
type Lease struct {
	fence   int64
	s       *Store
	start   time.Time
	renewed atomic.Int64 // since start, ns
	lost    chan struct{}
	end     sync.Once
	stopped chan struct{} // the renewing goroutine has ended
}

// Lease asks for leadership once: nil, nil means that another replica has it.
// The fence of the new lease is above floor, the highest fence that the
// database has seen, and above any before it. The lease is renewed in the
// background until Release, Close, or the loss of it.
func (s *Store) Lease(ctx context.Context, floor int64) (*Lease, error) {
	start := time.Now()
	var fence int64
	var ok bool
	err := s.shared(ctx, func(ctx context.Context) (err error) {
		fence, ok, err = s.be.acquire(ctx, s.o.ReplicaID, floor, leaseTTL)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("lease: %w", err)
	}
	if !ok {
		return nil, nil
	}
	l := &Lease{fence: fence, s: s, start: start, lost: make(chan struct{}), stopped: make(chan struct{})}
	s.leases.Go(l.keep)
	return l, nil
}

// Fence orders leaderships: a write with a lower one comes from an old leader.
func (l *Lease) Fence() int64 { return l.fence }

// Valid must be asked before each act of a leader.
func (l *Lease) Valid() bool {
	select {
	case <-l.lost:
		return false
	default:
		return time.Since(l.start)-time.Duration(l.renewed.Load()) < leaseSafe
	}
}

// Done is closed when the lease is lost or released.
func (l *Lease) Done() <-chan struct{} { return l.lost }

// Release gives the lease up, so that another replica can have it at once.
func (l *Lease) Release(ctx context.Context) error {
	l.end.Do(func() { close(l.lost) })
	<-l.stopped
	return l.s.shared(ctx, func(ctx context.Context) error {
		return l.s.be.release(ctx, l.s.o.ReplicaID, l.fence)
	})
}

func (l *Lease) keep() {
	defer close(l.stopped)
	defer l.end.Do(func() { close(l.lost) })
	tick := time.NewTicker(leaseRenew)
	defer tick.Stop()
	for {
		select {
		case <-l.lost:
			return
		case <-l.s.closing:
			ctx, cancel := context.WithTimeout(context.WithoutCancel(l.s.ctx), time.Second)
			_ = l.s.be.release(ctx, l.s.o.ReplicaID, l.fence) // else it expires
			cancel()
			return
		case <-tick.C:
		}
		sent := time.Since(l.start) // the store's clock starts later than this
		ctx, cancel := context.WithTimeout(l.s.ctx, leaseRenew)
		ok, err := l.s.be.renew(ctx, l.s.o.ReplicaID, l.fence, leaseTTL)
		cancel()
		if err == nil && ok {
			l.renewed.Store(int64(sent))
		}
		if err == nil && !ok || !l.Valid() {
			return
		}
	}
}
