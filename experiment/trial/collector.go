package trial

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"
)

// Collector follows the requests of one replica and counts their trials. It is
// safe for concurrent use, holds no lock for longer than it counts, and is
// bounded: by MaxUnits, unitsKept and the requests that run.
type Collector struct {
	desks  atomic.Pointer[map[string]*desk]
	mu     sync.Mutex // serialises Set and Drain
	onTrip func(Trip)
}

// Trip is a local breaker that opened: a treatment failed so often in a row on
// this replica that no healthy one would.
type Trip struct {
	Experiment string
	Generation int
	Epoch      int64
	Variant    int
	Guardrail  int // index in Watch.Configs
	Failures   int // in a row
	Limit      int // that they reached, or twice as many of one unit
	// The baseline in the last ten minutes, on this replica.
	BaselineBad, BaselineTrials int64
}

// shards of an experiment's units, so that requests rarely wait for each other.
const shards = 16

// unitsKept is about how many units of an experiment are remembered.
const unitsKept = 100_000

// window is how far a unit's requests are counted for Admitted.
const window = 10 * time.Minute

// NewCollector watches nothing until Set. onTrip, when not nil, is called for
// each local breaker that opens, from the goroutine of a request and without a
// lock; it must not block.
func NewCollector(onTrip func(Trip)) *Collector {
	c := &Collector{onTrip: onTrip}
	c.desks.Store(&map[string]*desk{})
	return c
}

// desk is one experiment.
type desk struct {
	watch  atomic.Pointer[Watch]
	shards [shards]shard

	mu      sync.Mutex // guards what follows; taken after a shard's
	breaker breaker
	profile *Profile
	heavy   heavy
	from    int64
}

// shard is a part of an experiment's units, with their requests.
type shard struct {
	mu    sync.Mutex
	watch *Watch
	units *Units
	open  Request // head of a ring
	arms  []arm
}

// arm is what a shard counted of one variant.
type arm struct {
	tick ArmTick
	seen map[uint64]struct{} // units of the epoch
	bad  []map[uint64]struct{}
	sums []map[uint8]*Sum // by guardrail
	asks [len(askNames)]int64
}

// Set replaces what is watched, by the experiment's key. What was counted under
// a Watch that is gone is forgotten: Drain before.
func (c *Collector) Set(watches map[string]*Watch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := *c.desks.Load()
	desks := make(map[string]*desk, len(watches))
	for key, w := range watches {
		d := old[key]
		if d == nil {
			d = newDesk()
		}
		d.set(w)
		desks[key] = d
	}
	c.desks.Store(&desks)
	for key, d := range old {
		if desks[key] == nil {
			d.set(nil)
		}
	}
}

// Watched are the keys of what is watched.
func (c *Collector) Watched() map[string]*Watch {
	out := map[string]*Watch{}
	for key, d := range *c.desks.Load() {
		out[key] = d.watch.Load()
	}
	return out
}

func newDesk() *desk {
	d := &desk{profile: new(Profile), from: time.Now().UnixMilli()}
	for i := range d.shards {
		s := &d.shards[i]
		s.units = NewUnits(unitsKept/2/shards, window.Milliseconds())
		s.open.prev, s.open.next = &s.open, &s.open
	}
	return d
}

func (d *desk) set(w *Watch) {
	before := d.watch.Load()
	d.watch.Store(w)
	anew := before == nil || w == nil || !before.same(w)
	for i := range d.shards {
		s := &d.shards[i]
		s.mu.Lock()
		s.watch = w
		if anew {
			s.restart(w)
		}
		if w != nil && w.Frozen {
			s.units.Freeze()
		} else {
			s.units.Thaw()
		}
		s.mu.Unlock()
	}
	if anew {
		d.mu.Lock()
		d.profile = new(Profile)
		if w != nil {
			d.breaker.restart(w, before == nil || before.Generation != w.Generation)
		}
		d.mu.Unlock()
	}
}

// restart lets go of the requests that run: they belong to another step.
func (s *shard) restart(w *Watch) {
	for r := s.open.next; r != &s.open; {
		next := r.next
		r.prev, r.next, r.open = nil, nil, 0
		r = next
	}
	s.open.prev, s.open.next = &s.open, &s.open
	s.arms = nil
	if w == nil {
		return
	}
	s.arms = make([]arm, w.Variants)
	for v := range s.arms {
		s.arms[v] = newArm(len(w.Configs))
	}
}

// Failing are the units whose past on the baseline fails, as this replica knows
// it; nil for what is not watched.
func (c *Collector) Failing(experiment string) *Exclusions {
	d := (*c.desks.Load())[experiment]
	if d == nil {
		return nil
	}
	e := new(Exclusions)
	for i := range d.shards {
		s := &d.shards[i]
		s.mu.Lock()
		for id, u := range s.units.all() {
			e.add(id, u.past)
		}
		s.mu.Unlock()
	}
	e.Merge(new(Exclusions))
	return e
}

// Drain settles the requests that are slow by now and returns what was counted
// since the last call, by experiment; it is to be called about once a second.
// An experiment without a request has a Tick too: that nothing came is news.
func (c *Collector) Drain(now time.Time) map[string]*Tick {
	c.mu.Lock()
	desks := maps.Clone(*c.desks.Load())
	var trips []Trip
	out := make(map[string]*Tick, len(desks))
	for key, d := range desks {
		if w := d.watch.Load(); w != nil {
			out[key] = d.drain(w, now, &trips)
		}
	}
	c.mu.Unlock()
	c.tell(trips)
	return out
}

func (c *Collector) tell(trips []Trip) {
	if c.onTrip != nil {
		for _, t := range trips {
			c.onTrip(t)
		}
	}
}

func (d *desk) drain(w *Watch, now time.Time, trips *[]Trip) *Tick {
	t := &Tick{Generation: w.Generation, Epoch: w.Epoch, From: d.from, To: now.UnixMilli(), Variants: make([]ArmTick, w.Variants)}
	d.from = t.To
	sums := make([]armSums, w.Variants)
	for i := range d.shards {
		s := &d.shards[i]
		s.mu.Lock()
		for r := s.open.next; r != &s.open; {
			next := r.next
			if age := now.Sub(r.begun); r.due > 0 && age >= r.due {
				r.look(age, trips)
			}
			r = next
		}
		for v := range s.arms {
			sums[v].take(&s.arms[v], &t.Variants[v])
			s.arms[v].clear()
		}
		s.mu.Unlock()
	}
	for v := range sums {
		sums[v].put(&t.Variants[v])
	}
	d.mu.Lock()
	if d.profile.used {
		t.Variants[w.Baseline].Profile, d.profile = d.profile, new(Profile)
	}
	t.Heavy = d.heavy.over(now)
	d.mu.Unlock()
	return t
}
