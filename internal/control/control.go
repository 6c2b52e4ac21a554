// Package control keeps a replica's routing table equal to the newest committed
// document, and commits changes to it. It hides where the document comes from
// (database, Redis, the last good copy on disk), how news travels between
// replicas, and what still works while a store is away: a kill or a rollback
// takes effect with either store alone.
package control

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"sluice/internal/sticky"
	"sluice/router"
	"sluice/upstream"
)

// ErrReadOnly reports that nothing can be committed now: the database is away.
// The data plane goes on serving.
var ErrReadOnly = router.ErrReadOnly

// Store is what the controller needs of internal/store. Errors with a method
// Unavailable() bool mean that the database is away.
type Store interface {
	Latest(ctx context.Context) (*router.Snapshot, error)
	LatestRevision(ctx context.Context) (int64, error)
	CommitAbove(ctx context.Context, floor int64, ch router.Change) (*router.Snapshot, *router.Audit, error)
	Listen(ctx context.Context, notice func())
	// AppendAudit writes a row that comes with no change, once for each ID.
	AppendAudit(ctx context.Context, a router.Audit) (*router.Audit, error)
	ReportReplica(ctx context.Context, id string, revision int64, since time.Time) (others []string, err error)
}

// Sticky is what the controller needs of internal/sticky.
type Sticky interface {
	Publish(ctx context.Context, revision int64, doc []byte) error
	Latest(ctx context.Context) (revision int64, doc []byte, err error)
	Follow(ctx context.Context, after int64, notice func(revision int64)) error
	Report(ctx context.Context, r sticky.Replica) error
	Replicas(ctx context.Context) ([]sticky.Replica, error)
	Kill(ctx context.Context, k sticky.KillEntry) error
	DropKills(ctx context.Context, exp string, before int) error
	Kills(ctx context.Context) ([]sticky.KillEntry, error)
	WatchKills(ctx context.Context, f func([]sticky.KillEntry)) error
	WatchState(ctx context.Context, f func(sticky.State)) error
	Stats() sticky.Stats
}

// Pool applies upstream settings; *upstream.Pool.
type Pool interface {
	Apply(cfgs []upstream.Config) (map[string]*upstream.Upstream, error)
}

// Hooks are told what metrics want to know; nil members are skipped. They must not block.
type Hooks struct {
	Revision      func(revision int64)                // a table was swapped in
	CompileFailed func(revision int64, err error)     // once for each revision
	Degraded      func(code string, on bool)          // each change of a degraded reason
	Committed     func(revision int64, action string) // a commit of this replica
	Deferred      func(k sticky.KillEntry)            // a kill that only Redis has
}

// Options of New. Store, Sticky, Pool, Live and ReplicaID are required.
type Options struct {
	Store  Store
	Sticky Sticky
	Pool   Pool
	Live   *router.Live
	// Shared says that Sticky is Redis, not embedded in this process.
	Shared bool
	// Secrets resolves a credential's name; nil resolves none.
	Secrets func(name string) (secret string, ok bool)
	// Seed is the `resources:` section, added where objects do not exist; nil adds nothing.
	Seed *router.Document
	// SnapshotPath is the file of the last good snapshot, "" keeps none.
	SnapshotPath string
	ReplicaID    string
	// OverrideHeaders are more header names that force a variant (server.override_headers).
	OverrideHeaders []string
	// Timeouts are those of upstreams that have none (upstream_defaults.timeouts); 0 is upstream's default, negative is off.
	Timeouts upstream.Timeouts
	Addr     string // shown beside the replica
	// Quiesced returns when no attempt decided under a revision older than
	// this one is still before its first byte upstream; nil is at once. The
	// controller waits at most 1 s for it.
	Quiesced func(ctx context.Context, revision int64)
	Hooks    Hooks
	Log      *slog.Logger  // nil discards
	Poll     time.Duration // the safety net, ±20 %; 0 is 1 s
	// StartTimeout is how long Start waits for a first document; 0 is 30 s.
	StartTimeout time.Duration
	Now          func() time.Time // nil is time.Now
}

// Controller is one replica's follower and committer. It is safe for concurrent use.
type Controller struct {
	o       Options
	log     *slog.Logger
	started time.Time
	wake    chan struct{} // capacity 1: look for news
	unsaved chan struct{} // capacity 1: the file on disk is behind
	untold  chan struct{} // capacity 1: the others do not know what serves here

	applyMu  sync.Mutex // serialises compile and swap
	configs  []upstream.Config
	failed   int64 // revision that last failed to compile
	compiled struct {
		revision int64
		kills    string
		epoch    int64 // counts tables, so that a kill set orders those of one revision
	}

	mu       sync.Mutex // guards what follows; never held across I/O
	doc      *router.Snapshot
	source   string
	kills    []sticky.KillEntry
	trips    []router.KillEntry // of this replica alone; replaced, never written
	degraded map[string]Degraded
	compile  *CompileError
	replicas []sticky.Replica // last seen
	reported int64
	offer    bool               // the document to Redis
	unseeded bool               // started without the database
	reissued int64              // revision of the banner, 0 without
	recent   []sticky.KillEntry // by this replica, within recentFor
	audited  map[string]bool    // IDs of deferred kills that have their row; of refresh alone
}

// New answers a controller that has not started.
func New(o Options) (*Controller, error) {
	switch {
	case o.Store == nil || o.Sticky == nil || o.Pool == nil || o.Live == nil:
		return nil, errors.New("control: Store, Sticky, Pool and Live are required")
	case o.ReplicaID == "":
		return nil, errors.New("control: ReplicaID is empty")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Poll <= 0 {
		o.Poll = time.Second
	}
	if o.StartTimeout <= 0 {
		o.StartTimeout = 30 * time.Second
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Secrets == nil {
		o.Secrets = func(string) (string, bool) { return "", false }
	}
	return &Controller{
		o: o, log: o.Log, started: o.Now(), degraded: map[string]Degraded{}, audited: map[string]bool{},
		wake: make(chan struct{}, 1), unsaved: make(chan struct{}, 1), untold: make(chan struct{}, 1),
	}, nil
}

func poke(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// Run follows the document until ctx ends, then returns when its background
// work has ended. Call it once, after Start.
func (c *Controller) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wg.Go(func() {
		c.watch(ctx, func() error {
			return c.o.Sticky.Follow(ctx, c.documentRevision(), func(int64) { poke(c.wake) })
		})
	})
	wg.Go(func() {
		c.watch(ctx, func() error { return c.o.Sticky.WatchKills(ctx, func([]sticky.KillEntry) { poke(c.wake) }) })
	})
	wg.Go(func() {
		c.watch(ctx, func() error { return c.o.Sticky.WatchState(ctx, func(sticky.State) { c.stickyChanged() }) })
	})
	wg.Go(func() { c.o.Store.Listen(ctx, func() { poke(c.wake) }) })
	wg.Go(func() { c.keepTelling(ctx) })
	wg.Go(func() { c.keepSaving(ctx) })
	if !c.o.Shared {
		wg.Go(func() { c.watchNeighbours(ctx) })
	}
	for {
		timer := time.NewTimer(c.o.Poll*4/5 + rand.N(c.o.Poll*2/5)) // replicas should not poll in step
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-c.wake:
			timer.Stop()
		case <-timer.C:
		}
		c.refresh(ctx)
	}
}

// watch runs one subscription until ctx ends; one that ends early (a store
// that is closed before us) leaves the poll.
func (c *Controller) watch(ctx context.Context, subscribe func() error) {
	for ctx.Err() == nil {
		if err := subscribe(); err != nil && ctx.Err() == nil {
			c.log.Debug("subscription ended; polling goes on", "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(c.o.Poll):
		}
	}
}

// stickyChanged offers the document again: a store that came back may be empty
// or hold an older one.
func (c *Controller) stickyChanged() {
	c.mu.Lock()
	c.offer = true
	c.mu.Unlock()
	poke(c.wake)
}

func (c *Controller) documentRevision() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.doc == nil {
		return 0
	}
	return c.doc.Document.Revision
}

func (c *Controller) current() (doc *router.Snapshot, kills []sticky.KillEntry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.doc, c.kills
}
