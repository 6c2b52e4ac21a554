package trial

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"
)

// Collector follows the requests of one replica and counts their trials. It is
// safe for concurrent use, holds no lock for longer than it counts, and is
// bounded: by MaxUnits, unitsKept, waitingKept and the requests that run.
type Collector struct {
	desks  atomic.Pointer[map[string]*desk]
	mu     sync.Mutex // serialises Set and Drain
	onTrip func(Trip)
}

// shards of an experiment's units, so that requests rarely wait for each other.
const shards = 16

// unitsKept is about how many units of an experiment are remembered.
const unitsKept = 100_000

// waitingKept is how many requests of a shard wait, complete, for the age from
// which means count; of more than that the means are left out, in both arms
// alike, for a shard is a part of the units.
const waitingKept = 4096

// window is how far a unit's requests are counted for Admitted.
const window = 10 * time.Minute

// profileEvery is how often a Tick has the baseline's profile: it is needed when
// a step begins, and is the largest part of a Tick.
const profileEvery = 10 * time.Second

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
	epochs uint32 // how often it began to count anew
	lists  uint32 // how many Exclusions it has had
	shards [shards]shard

	mu      sync.Mutex // guards breaker; taken after a shard's
	breaker breaker

	teacher  teacher
	profile  Profile // drained of the shards and not told yet
	profiled time.Time
	weighed  time.Time // when the windows of heavy units began
	from     int64
}

// shard is a part of an experiment's units, with their requests.
type shard struct {
	mu      sync.Mutex
	watch   *Watch
	epoch   uint32 // desk.epochs
	lists   uint32 // of watch.Excluded
	units   *units
	open    Request        // head of a ring
	waiting int            // of them: complete
	named   []atomic.Int32 // by variant: units named in the epoch, by all shards
	arms    []arm
	profile Profile
	heavy   heavy
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

// Watched is what is watched, by key.
func (c *Collector) Watched() map[string]*Watch {
	out := map[string]*Watch{}
	for key, d := range *c.desks.Load() {
		out[key] = d.watch.Load()
	}
	return out
}

// Watch is what is watched of an experiment, nil if nothing is.
func (c *Collector) Watch(experiment string) *Watch {
	if c == nil {
		return nil
	}
	if d := (*c.desks.Load())[experiment]; d != nil {
		return d.watch.Load()
	}
	return nil
}

func newDesk() *desk {
	d := &desk{from: time.Now().UnixMilli()}
	for i := range d.shards {
		s := &d.shards[i]
		s.units = newUnits(unitsKept/2/shards, window.Milliseconds())
		s.open.prev, s.open.next = &s.open, &s.open
	}
	return d
}

// set changes the watch; Collector.mu is held.
func (d *desk) set(w *Watch) {
	before := d.watch.Load()
	if before == w {
		return
	}
	d.watch.Store(w)
	anew := before == nil || w == nil || !before.same(w)
	if anew {
		d.epochs++
		d.profile.reset()
		d.teacher.forget()
	}
	if w != nil && w.Excluded != nil && (before == nil || before.Excluded != w.Excluded) {
		d.lists++
	}
	var named []atomic.Int32
	if anew && w != nil {
		named = make([]atomic.Int32, w.Variants)
		d.mu.Lock()
		d.breaker.restart(w, before == nil || before.Generation != w.Generation)
		d.mu.Unlock()
	}
	for i := range d.shards {
		d.shards[i].set(d, w, anew, named)
	}
}

func (s *shard) set(d *desk, w *Watch, anew bool, named []atomic.Int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watch = w
	if anew {
		s.restart(w)
		s.named = named
	}
	s.epoch, s.lists = d.epochs, 0
	if w == nil {
		return
	}
	if w.Frozen && w.Excluded != nil {
		s.lists = d.lists
	}
	s.units.frozen = w.Frozen
}

// restart lets go of the requests that run: they belong to another step.
func (s *shard) restart(w *Watch) {
	for r := s.open.next; r != &s.open; {
		next := r.next
		r.prev, r.next, r.open = nil, nil, 0
		r = next
	}
	s.open.prev, s.open.next = &s.open, &s.open
	s.waiting = 0
	s.profile.reset()
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
		s.units.each(func(id uint64, x *unit) { e.add(id, &x.past) })
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
	turn := now.Sub(d.weighed) >= heavyWindow
	if turn {
		d.weighed = now
	}
	sums := make([]armSums, w.Variants)
	var weights weights
	var seen Profile
	for i := range d.shards {
		s := &d.shards[i]
		s.mu.Lock()
		s.settle(now, trips)
		for v := range s.arms {
			sums[v].take(&s.arms[v], &t.Variants[v])
			s.arms[v].clear()
		}
		if s.profile.used {
			seen.Merge(&s.profile)
			s.profile.reset()
		}
		weights.take(&s.heavy)
		if turn {
			s.heavy.turn()
		}
		s.mu.Unlock()
	}
	for v := range sums {
		sums[v].put(&t.Variants[v])
	}
	t.Heavy = weights.over()
	d.profile.Merge(&seen)
	if !w.Frozen {
		d.teacher.add(w.Configs, &seen, now)
	}
	if d.profile.used && now.Sub(d.profiled) >= profileEvery {
		d.profiled = now
		p := d.profile
		t.Variants[w.Baseline].Profile, d.profile = &p, Profile{}
	}
	return t
}

// settle looks at the requests that something is due of; s.mu is held.
func (s *shard) settle(now time.Time, trips *[]Trip) {
	for r := s.open.next; r != &s.open; {
		next := r.next
		if age := now.Sub(r.begun); r.due > 0 && age >= r.due {
			r.look(age, trips)
		}
		r = next
	}
}
