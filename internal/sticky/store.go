package sticky

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"sluice/experiment"
)

// Store is the sticky state as one replica sees it. All methods are safe for
// concurrent use.
type Store struct {
	o       Options
	be      backend
	log     *slog.Logger
	cache   *cache // of units
	turns   *cache // of conversations
	queue   *queue
	backup  *backup // waits for Options.Backup; nil without
	breaker breaker

	health atomic.Pointer[health]
	nudge  chan struct{} // wakes the watcher; capacity 1
	// closed when the flusher of the queue, then that of the backup, has ended
	queueDone, backupDone chan struct{}

	seen      atomic.Int64 // highest revision seen published
	published atomic.Int64 // revision that the store held when last asked
	revisions topic
	states    topic
	killed    topic
	killMu    sync.Mutex // serialises reads of the kill set
	killSet   atomic.Pointer[killSet]
	reported  atomic.Pointer[Replica]
	counters  counters
	ctx       context.Context // of the background work; ends in Close
	cancel    context.CancelFunc
	wg        sync.WaitGroup
	leases    sync.WaitGroup
	looked    chan struct{} // closed after the watcher's first look
	closing   chan struct{}
	closeOnce sync.Once
	closeErr  error
}

// openWait bounds how long Open waits for the store and the refill of its pins.
const openWait = 2 * time.Second

// Open returns a working store. It fails only on wrong options: a Redis that
// does not answer leaves the store Down, and it connects in the background.
// Pins that take longer to refill leave it Refilling. The background work
// lasts until Close, not until ctx ends.
func Open(ctx context.Context, o Options) (*Store, error) {
	if o.ReplicaID == "" {
		return nil, errors.New("sticky: Options.ReplicaID is empty")
	}
	o.setDefaults()
	be, err := newBackend(o)
	if err != nil {
		return nil, err
	}
	return openOn(ctx, o, be), nil
}

func openOn(ctx context.Context, o Options, be backend) *Store {
	s := &Store{
		o: o, be: be, log: o.Log, cache: newCache(o.PinCache), turns: newCache(o.PinCache), queue: newQueue(o.PinQueue),
		nudge: make(chan struct{}, 1), closing: make(chan struct{}), looked: make(chan struct{}),
		queueDone: make(chan struct{}), backupDone: make(chan struct{}),
	}
	s.counters.hook = o.Count
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if o.Backup != nil {
		s.backup = newBackup()
	}
	s.killSet.Store(&killSet{})
	s.health.Store(&health{initial: true, state: Down, since: o.Now(), reason: "not connected yet"})
	for _, f := range []func(){s.watch, s.follow, s.flushQueue, s.flushBackup} {
		s.wg.Go(f)
	}
	// So that a store that is there is Up after Open.
	first := time.NewTimer(openWait)
	defer first.Stop()
	select {
	case <-s.looked:
	case <-first.C:
	case <-ctx.Done():
	}
	return s
}

func newBackend(o Options) (backend, error) {
	if o.URL == "" {
		return newEmbedded(), nil
	}
	return newRedis(o)
}

func (o *Options) setDefaults() {
	if o.Prefix == "" {
		o.Prefix = "sluice"
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.PinBudget <= 0 {
		o.PinBudget = 5 * time.Millisecond
	}
	if o.PinCache <= 0 {
		o.PinCache = 100_000
	}
	if o.PinQueue <= 0 {
		o.PinQueue = 100_000
	}
}

// Close flushes queued pins and their copies, takes this replica off the list
// and stops all background work. What is not flushed when ctx ends is counted
// as dropped. Further calls return the same error.
func (s *Store) Close(ctx context.Context) error {
	s.closeOnce.Do(func() {
		close(s.closing) // the flushers drain, then end
		select {
		case <-s.backupDone:
		case <-ctx.Done():
		}
		if s.reachable() && s.reported.Load() != nil {
			fctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			_ = s.be.forget(fctx, s.o.ReplicaID) // else it expires by itself
			cancel()
		}
		s.leases.Wait() // given up by themselves when closing; bounded
		s.cancel()
		s.closeErr = s.be.close() // a blocking read of the log ends by this only
		s.wg.Wait()
		if n := s.queue.len(); n > 0 {
			s.counters.add(CountPinDropped, int64(n))
			s.closeErr = errors.Join(s.closeErr, fmt.Errorf("sticky: closed with %d queued pins unwritten", n))
		}
		if n := s.backup.len(); n > 0 {
			s.counters.add(CountBackupDropped, int64(n))
			s.closeErr = errors.Join(s.closeErr, fmt.Errorf("sticky: closed with %d pins not copied to the database", n))
		}
	})
	return s.closeErr
}

// Up reports whether everything works, pins included.
func (s *Store) Up() bool { return s.health.Load().state == Up }

// Stats is cheap enough for every scrape.
func (s *Store) Stats() Stats {
	h := s.health.Load()
	return Stats{
		State: h.state, Since: h.since, Reason: h.reason, Queue: s.queue.len(), Backup: s.backup.len(),
		Cached: s.cache.len(), Revision: s.seen.Load(), Published: s.published.Load(), Counters: s.counters.snapshot(),
	}
}

// Publish stores doc (JSON) as the snapshot of revision and notifies all
// replicas, unless an equal or higher revision is there: then it changes
// nothing and returns a *StaleError. With Redis away it returns ErrDown at once.
func (s *Store) Publish(ctx context.Context, revision int64, doc []byte) error {
	if revision < 1 || revision > maxRevision {
		return fmt.Errorf("publish: revision %d is outside 1..2^53-1", revision)
	}
	err := s.shared(ctx, func(ctx context.Context) error { return s.be.publish(ctx, revision, doc) })
	var stale *StaleError
	switch {
	case err == nil:
		s.published.Store(revision)
		s.saw(revision)
	case errors.As(err, &stale):
		s.published.Store(stale.Current)
	}
	return err
}

// Latest returns the published snapshot, ErrNone before the first.
func (s *Store) Latest(ctx context.Context) (revision int64, doc []byte, err error) {
	err = s.shared(ctx, func(ctx context.Context) error {
		revision, doc, err = s.be.latest(ctx)
		return err
	})
	return revision, doc, err
}

// Report tells the other replicas what this one has applied. The store repeats
// it until Close; a silent replica is forgotten after ReplicaTTL. With Redis
// away it is told when Redis is back.
func (s *Store) Report(ctx context.Context, r Replica) error {
	if r.ID != s.o.ReplicaID {
		return fmt.Errorf("report: id %q is not this replica's, %q", r.ID, s.o.ReplicaID)
	}
	s.reported.Store(&r)
	return s.shared(ctx, func(ctx context.Context) error { return s.be.report(ctx, r) })
}

// Replicas lists the live replicas, ordered by id.
func (s *Store) Replicas(ctx context.Context) (list []Replica, err error) {
	err = s.shared(ctx, func(ctx context.Context) error {
		list, err = s.be.replicas(ctx)
		return err
	})
	return list, err
}

// sharedTimeout bounds every operation but pins.
const sharedTimeout = 2 * time.Second

// shared runs one operation on the store, failing at once while it is away.
func (s *Store) shared(ctx context.Context, f func(context.Context) error) error {
	if s.closed() {
		return ErrClosed
	}
	if !s.reachable() {
		return fmt.Errorf("%w: %s", ErrDown, s.health.Load().reason)
	}
	ctx, cancel := context.WithTimeout(ctx, sharedTimeout)
	defer cancel()
	err := f(ctx)
	if isAway(err) {
		s.wake()
		return fmt.Errorf("%w: %w", ErrDown, err)
	}
	return err
}

func (s *Store) reachable() bool { return s.health.Load().state != Down }

func (s *Store) closed() bool {
	select {
	case <-s.closing:
		return true
	default:
		return false
	}
}

// isAway tells a store that did not answer from an answer that is an error.
func isAway(err error) bool {
	return err != nil && !errors.Is(err, ErrStale) && !errors.Is(err, ErrNone) && !errors.Is(err, ErrFenced) && !isReply(err)
}

// counters are the Stats' counters and the metrics hook.
type counters struct {
	hook func(Counter, int64)
	m    sync.Map // Counter → *atomic.Int64
}

func (c *counters) add(name Counter, n int64) {
	if n == 0 {
		return
	}
	v, ok := c.m.Load(name)
	if !ok {
		v, _ = c.m.LoadOrStore(name, new(atomic.Int64))
	}
	v.(*atomic.Int64).Add(n)
	if c.hook != nil {
		c.hook(name, n)
	}
}

func (c *counters) snapshot() map[Counter]int64 {
	out := map[Counter]int64{}
	c.m.Range(func(k, v any) bool {
		out[k.(Counter)] = v.(*atomic.Int64).Load()
		return true
	})
	return out
}

// Pins is the method set that router.Pins asks for, held here at compile time.
type pinMethods interface {
	Get(ctx context.Context, exp string, field [8]byte, shard uint16) (experiment.Pin, bool, error)
	Put(ctx context.Context, exp string, field [8]byte, shard uint16, pin experiment.Pin, expect *experiment.Pin) (experiment.Pin, error)
	PutLater(exp string, field [8]byte, shard uint16, pin experiment.Pin)
	GetConversation(ctx context.Context, exp string, field [8]byte, shard uint16) (experiment.Pin, bool, error)
	PutConversation(exp string, field [8]byte, shard uint16, pin experiment.Pin)
}

var _ pinMethods = (*Store)(nil)
