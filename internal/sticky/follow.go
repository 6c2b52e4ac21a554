package sticky

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// topic wakes those who watch one thing.
type topic struct {
	mu  sync.Mutex
	set map[chan struct{}]struct{}
}

func (t *topic) wake() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for c := range t.set {
		select {
		case c <- struct{}{}:
		default: // woken already
		}
	}
}

// watch calls look at once and after each wake, until ctx or closing ends.
func (t *topic) watch(ctx context.Context, closing <-chan struct{}, look func()) error {
	c := make(chan struct{}, 1)
	t.mu.Lock()
	if t.set == nil {
		t.set = map[chan struct{}]struct{}{}
	}
	t.set[c] = struct{}{}
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		delete(t.set, c)
		t.mu.Unlock()
	}()
	for {
		look()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-closing:
			return ErrClosed
		case <-c:
		}
	}
}

// Follow calls notice for published revisions above after, in rising order,
// until ctx ends (it returns ctx's error) or the store closes (ErrClosed).
// Revisions published in quick succession may be told as the last of them; a
// notice lost with a connection arrives within 1.2 s of its return.
func (s *Store) Follow(ctx context.Context, after int64, notice func(revision int64)) error {
	return s.revisions.watch(ctx, s.closing, func() {
		if r := s.seen.Load(); r > after {
			after = r
			notice(r)
		}
	})
}

// saw raises the highest revision seen and wakes who follows.
func (s *Store) saw(revision int64) {
	for {
		old := s.seen.Load()
		if revision <= old {
			return
		}
		if s.seen.CompareAndSwap(old, revision) {
			s.revisions.wake()
			return
		}
	}
}

// follow reads the change log on a connection of its own until Close.
func (s *Store) follow() {
	c := cursor{}
	for s.ctx.Err() == nil {
		c.revision = max(c.revision, s.seen.Load())
		ctx, cancel := context.WithTimeout(s.ctx, tailBlock+sharedTimeout)
		next, err := s.be.tail(ctx, c)
		cancel()
		if err != nil {
			select {
			case <-s.ctx.Done():
			case <-time.After(lookDown):
			}
			continue
		}
		s.saw(next.revision)
		if next.kills != c.kills {
			if s.briefly(s.refreshKills) != nil {
				next.kills = c.kills // read them again
			}
		}
		c = next
	}
}

// tailBlock is how long one read of the change log waits for news.
const tailBlock = time.Second

// killKey names an entry. One that also cuts streams is another than one that
// does not: the first to come must not keep the second from doing more.
type killKey struct {
	exp     string
	gen     int
	variant string
	cut     bool
}

// killSet is one immutable reading of the kill set.
type killSet struct{ set map[killKey]KillEntry }

func (k *killSet) list() []KillEntry {
	list := slices.Collect(maps.Values(k.set))
	sortKills(list)
	return list
}

func (k KillEntry) key() killKey { return killKey{k.Experiment, k.Generation, k.Variant, k.CutStreams} }

// Kill adds an entry to the kill set and notifies every replica. An entry that
// is there already keeps its first actor, time and reason.
func (s *Store) Kill(ctx context.Context, k KillEntry) error {
	if k.Time.IsZero() {
		k.Time = s.o.Now()
	}
	err := s.shared(ctx, func(ctx context.Context) error { return s.be.addKills(ctx, []KillEntry{k}) })
	if err == nil {
		err = s.shared(ctx, s.refreshKills)
	}
	return err
}

// DropKills removes the entries of an experiment below a generation, whose
// generations have ended.
func (s *Store) DropKills(ctx context.Context, exp string, before int) error {
	err := s.shared(ctx, func(ctx context.Context) error { return s.be.dropKills(ctx, exp, before) })
	if err == nil {
		err = s.shared(ctx, s.refreshKills)
	}
	return err
}

// Kills returns the kill set, ordered by experiment, generation and variant.
// With the store away it returns the set last seen and ErrDown.
func (s *Store) Kills(ctx context.Context) ([]KillEntry, error) {
	err := s.shared(ctx, s.refreshKills)
	return s.killSet.Load().list(), err
}

// WatchKills calls f with the kill set as Kills orders it, at once and after
// each change, until ctx ends (it returns ctx's error) or the store closes
// (ErrClosed). An entry leaves the set by DropKills only, never because the
// store lost its data.
func (s *Store) WatchKills(ctx context.Context, f func([]KillEntry)) error {
	var told *killSet
	return s.killed.watch(ctx, s.closing, func() {
		if k := s.killSet.Load(); k != told {
			told = k
			f(k.list())
		}
	})
}

func sortKills(list []KillEntry) {
	slices.SortFunc(list, func(a, b KillEntry) int {
		if c := strings.Compare(a.Experiment, b.Experiment); c != 0 {
			return c
		}
		if a.Generation != b.Generation {
			return a.Generation - b.Generation
		}
		if c := strings.Compare(a.Variant, b.Variant); c != 0 || a.CutStreams == b.CutStreams {
			return c
		}
		if b.CutStreams {
			return -1
		}
		return 1
	})
}

// refreshKills reads the kill set and wakes who watches it when it changed. What
// this replica knows and the store neither has nor was told to drop, the store
// has lost: it was emptied, or comes from an older copy. It is given it again.
func (s *Store) refreshKills(ctx context.Context) error {
	s.killMu.Lock()
	defer s.killMu.Unlock()
	list, dropped, err := s.be.kills(ctx)
	if err != nil {
		return err
	}
	old := s.killSet.Load()
	next := &killSet{set: make(map[killKey]KillEntry, len(list))}
	for _, k := range list {
		next.set[k.key()] = k
	}
	ended := make(map[killKey]time.Time, len(dropped))
	for _, k := range dropped {
		ended[k.key()] = k.Time
	}
	var lacking []KillEntry
	for key, k := range old.set {
		if _, ok := next.set[key]; ok {
			continue
		}
		// A later one of that name is of a new experiment.
		if at, ok := ended[key]; !ok || k.Time.After(at) {
			next.set[key] = k
			lacking = append(lacking, k)
		}
	}
	if len(lacking) > 0 {
		err = s.be.addKills(ctx, lacking) // else the next reading offers them
	}
	if maps.EqualFunc(next.set, old.set, func(a, b KillEntry) bool { return a.key() == b.key() }) {
		return err
	}
	s.killSet.Store(next)
	s.killed.wake()
	return err
}
