// Package rollout runs the rollouts: on every replica it tells the collector of
// trials what to count, publishes what was counted once a second, and keeps a
// variant away that its own breaker found broken; on the one replica that leads
// it folds what all of them counted into evidence, decides, and acts. It hides
// the lease, the stream, the checkpoint and their fences: whoever leads next goes
// on with exactly the evidence of the one before, and one that was away cannot
// act on what it remembers. The deciding itself is experiment/ramp, pure.
package rollout

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"sluice/experiment/guardrail"
	"sluice/experiment/ramp"
	"sluice/experiment/trial"
	"sluice/internal/sticky"
	"sluice/metrics"
	"sluice/router"
	"sluice/upstream"
)

// Sticky is what is shared while it lives; *sticky.Store. Errors are
// sticky.ErrDown, ErrNone and ErrFenced.
type Sticky interface {
	Observe(ctx context.Context, exp string, body []byte) error
	Observed(ctx context.Context, exp, after string, most int) ([]sticky.Observation, error)
	Checkpoint(ctx context.Context, exp string, fence int64, body []byte) error
	LoadCheckpoint(ctx context.Context, exp string) ([]byte, error)
	Share(ctx context.Context, exp, topic string, body []byte) error
	Shared(ctx context.Context, exp, topic string) (map[string][]byte, error)
	DropRollout(ctx context.Context, exp string) error
	Supervise(ctx context.Context, fence, seq int64) error
	Supervised(ctx context.Context) (ago time.Duration, ok bool, err error)
	Lease(ctx context.Context, floor int64) (*sticky.Lease, error)
	Replicas(ctx context.Context) ([]sticky.Replica, error)
	Up() bool
}

// Fences are the leaderships that the database has seen; *store.Store. A
// RaiseFence below the highest is router.ErrFenced.
type Fences interface {
	Fence(ctx context.Context) (int64, error)
	RaiseFence(ctx context.Context, fence int64) error
}

// Control changes the document; *control.Controller. Rollback and Kill work with
// either store alone, Trip and Untrip on this replica alone without any.
type Control interface {
	Commit(ctx context.Context, ch router.Change) (router.CommitResult, error)
	Rollback(ctx context.Context, experiment string, ch router.Change) (router.CommitResult, error)
	Kill(ctx context.Context, experiment, variant string, ch router.Change) (router.CommitResult, error)
	Trip(experiment string, generation int, variant string) error
	Untrip(experiment string, generation int, variant string) error
}

// Probes are what was asked of a variant's servers beside its traffic. Both
// answer at once, from what is known; being asked is what has the probes made.
type Probes interface {
	// Check says whether anything stands in the way of a start.
	Check(experiment string) ramp.Check
	// Ready says whether a variant has answered the probes that a step wants.
	Ready(experiment, variant string, want ramp.Ready) ramp.Check
}

// Readings are what engines and Prometheus say, at once.
type Readings interface {
	// Read is a limit's value for a variant; known is false without a fresh one.
	Read(experiment, variant string, g *guardrail.Config) (value float64, known bool)
}

// Notifier tells people outside; it never blocks and drops repeats.
type Notifier interface{ Notify(n ramp.Notice) }

// Metrics is told what the gauges show; *metrics.Recorder.
type Metrics interface {
	SetRollouts(leader bool, list []metrics.RolloutInfo)
	CountDecision(experiment, action string)
	CountTrip(experiment, variant string)
	CountObservations(result string, n int)
}

// Room is one upstream's endpoints as this replica sees them.
type Room struct {
	Endpoints, Ready int
	Capacity         int // calls at once that the ready ones take; 0: no limit is set
	InFlight         int
}

// Options of New. ReplicaID, Live, Sticky, Fences and Control are required.
type Options struct {
	ReplicaID string
	Live      *router.Live
	Sticky    Sticky
	Fences    Fences
	Control   Control
	Rooms     func(u *upstream.Upstream) Room // nil: from the upstream's own status
	Probes    Probes                          // nil: nothing is probed, and nothing waits for it
	Readings  Readings                        // nil: no limit has a reading
	Notifier  Notifier                        // nil: nobody is told
	Metrics   Metrics                         // nil: nothing is counted
	// FixAfter is how long the baseline of an experiment without a ramp is watched
	// before it is fixed what is slow; 0 is 5 min.
	FixAfter time.Duration
	TripFor  time.Duration    // how long a tripped variant stays away before it is tried again; 0 is 30 s
	Log      *slog.Logger     // nil discards
	Now      func() time.Time // nil is time.Now; the clock of this replica may be wrong
}

// Rollouts is one replica's part in all rollouts. It is safe for concurrent use.
type Rollouts struct {
	o         Options
	log       *slog.Logger
	collector *trial.Collector
	swaps     chan struct{}   // capacity 1: another table serves
	tripped   chan trial.Trip // of the collector

	mu      sync.Mutex // guards what follows; never held across I/O
	watched map[string]*watched
	feed    feed
	trips   trips
	peers   peers
	pasts   map[string]*past // by experiment
	leading atomic.Pointer[sticky.Lease]
	led     atomic.Int64 // Unix ms of this replica's clock: when somebody led last, at first the start
}

// New answers Rollouts that watch nothing yet; Run makes them work.
func New(o Options) (*Rollouts, error) {
	if o.ReplicaID == "" || o.Live == nil || o.Sticky == nil || o.Fences == nil || o.Control == nil {
		return nil, errors.New("rollout: ReplicaID, Live, Sticky, Fences and Control are required")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.FixAfter <= 0 {
		o.FixAfter = 5 * time.Minute
	}
	if o.TripFor <= 0 {
		o.TripFor = 30 * time.Second
	}
	if o.Rooms == nil {
		o.Rooms = roomOf
	}
	r := &Rollouts{
		o: o, log: o.Log, swaps: make(chan struct{}, 1), tripped: make(chan trial.Trip, 64),
		watched: map[string]*watched{}, pasts: map[string]*past{},
		feed: feed{queues: map[string][]queued{}}, trips: trips{on: map[tripKey]*trip{}},
	}
	r.led.Store(o.Now().UnixMilli())
	r.collector = trial.NewCollector(func(t trial.Trip) {
		select {
		case r.tripped <- t:
		default: // more trip at once than there are experiments: the streaks go on
			r.collector.Rearm(t.Experiment, t.Variant)
		}
	})
	return r, nil
}

// Collector is what the data plane tells of its requests.
func (r *Rollouts) Collector() *trial.Collector { return r.collector }

// Swapped is to be called when another table serves; it does not block.
func (r *Rollouts) Swapped() {
	select {
	case r.swaps <- struct{}{}:
	default:
	}
}

// Leads reports whether this replica decides at present.
func (r *Rollouts) Leads() bool {
	l := r.leading.Load()
	return l != nil && l.Valid()
}

// second is how often everything happens.
const second = time.Second

// Run works until ctx ends, then returns when its background work has ended.
// Call it once.
func (r *Rollouts) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { r.count(ctx) })
	wg.Go(func() { r.publish(ctx) })
	wg.Go(func() { r.guard(ctx) })
	wg.Go(func() { r.look(ctx) })
	wg.Go(func() { r.campaign(ctx) })
	<-ctx.Done()
	return nil
}

// pause waits for d; it reports false when ctx ends first.
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

func roomOf(u *upstream.Upstream) Room {
	q := u.QueueStatus()
	room := Room{InFlight: q.InFlight}
	for _, e := range u.Status() {
		room.Endpoints++
		if e.Ready && !e.Drained {
			room.Ready++
		}
	}
	if room.Endpoints > 0 {
		room.Capacity = q.MaxInFlight * room.Ready / room.Endpoints
	}
	return room
}
