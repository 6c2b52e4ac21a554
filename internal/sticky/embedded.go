package sticky

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"sluice/experiment"
)

// embedded is the backend of a single process. It is empty at every start, so
// its pins are refilled from the backup like those of an emptied Redis; the
// kill set is in memory only, since a single node has the database for it.
type embedded struct {
	now func() time.Time

	mu       sync.Mutex
	epoch    string
	pins     map[string]*embeddedPins
	revision int64
	doc      []byte
	killSet  map[killKey]KillEntry
	dropped  map[killKey]KillEntry
	killSeq  int
	reps     map[string]embeddedReplica
	fence    int64
	leader   string
	leaseEnd time.Time
	supEnd   time.Time
	rollouts map[string]*embeddedRollout
	news     chan struct{} // closed and replaced at each publish or kill
}

// embeddedPins is one experiment's: 16 bytes a pin beside the map's overhead.
type embeddedPins struct {
	m       map[[8]byte][8]byte
	expires time.Time // zero: never
}

type embeddedReplica struct {
	Replica
	until time.Time
}

func newEmbedded() *embedded {
	return &embedded{
		now: time.Now, pins: map[string]*embeddedPins{}, killSet: map[killKey]KillEntry{}, dropped: map[killKey]KillEntry{},
		reps: map[string]embeddedReplica{}, rollouts: map[string]*embeddedRollout{}, news: make(chan struct{}),
	}
}

func (e *embedded) probe(context.Context, bool) (probe, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return probe{epoch: e.epoch, revision: e.revision}, nil
}

func (e *embedded) close() error { return nil }

// of returns the live pins of an experiment, nil when there are none. It runs
// under the lock.
func (e *embedded) of(exp string) *embeddedPins {
	p := e.pins[exp]
	if p != nil && !p.expires.IsZero() && !e.now().Before(p.expires) {
		delete(e.pins, exp)
		return nil
	}
	return p
}

func (e *embedded) getPin(_ context.Context, u unit, _ uint16, epoch string) (experiment.Pin, bool, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.epoch != epoch {
		return experiment.Pin{}, false, errEpoch
	}
	p := e.of(u.exp)
	if p == nil {
		return experiment.Pin{}, false, nil
	}
	b, ok := p.m[u.field]
	pin, _ := decodePin(string(b[:]))
	return pin, ok, nil
}

func (e *embedded) putPins(_ context.Context, ops []putOp, epoch string) ([]putResult, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.epoch != epoch {
		return nil, errEpoch
	}
	out := make([]putResult, len(ops))
	for i, op := range ops {
		out[i] = e.put(op)
	}
	return out, nil
}

func (e *embedded) put(op putOp) putResult {
	p := e.of(op.exp)
	if p == nil {
		p = &embeddedPins{m: map[[8]byte][8]byte{}}
		if op.last {
			p.expires = e.now().Add(2 * conversationPeriod)
			for name := range e.pins {
				e.of(name) // nobody asks for a period that has passed
			}
		}
		e.pins[op.exp] = p
	}
	if b, ok := p.m[op.field]; ok {
		if cur, _ := decodePin(string(b[:])); !wins(op, cur) {
			return putResult{stored: cur}
		}
	}
	p.m[op.field] = encodePin(op.pin)
	return putResult{written: true, stored: op.pin}
}

func (e *embedded) dropPins(_ context.Context, exp string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.pins, exp)
	return nil
}

func (e *embedded) expirePins(_ context.Context, exp string, after time.Duration) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if p := e.of(exp); p != nil {
		p.expires = e.now().Add(after)
	}
	return nil
}

func (e *embedded) lockFill(context.Context, string) (bool, error) { return true, nil }

func (e *embedded) fillPins(_ context.Context, _ string, pins []PinRecord) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, r := range pins {
		e.put(putOp{unit: unit{r.Experiment, r.Field}, pin: r.Pin})
	}
	return nil
}

func (e *embedded) unlockFill(context.Context, string) error { return nil }

func (e *embedded) markFilled(_ context.Context, _, epoch string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.epoch = epoch
	return nil
}

// tell wakes the followers; it runs under the lock.
func (e *embedded) tell() {
	close(e.news)
	e.news = make(chan struct{})
}

func (e *embedded) publish(_ context.Context, revision int64, doc []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if revision <= e.revision {
		return &StaleError{Revision: revision, Current: e.revision,
			Differs: revision == e.revision && string(doc) != string(e.doc)}
	}
	e.revision, e.doc = revision, slices.Clone(doc)
	e.tell()
	return nil
}

func (e *embedded) latest(context.Context) (int64, []byte, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.revision == 0 {
		return 0, nil, ErrNone
	}
	return e.revision, slices.Clone(e.doc), nil
}

func (e *embedded) tail(ctx context.Context, c cursor) (cursor, error) {
	timeout := time.NewTimer(tailBlock)
	defer timeout.Stop()
	for {
		e.mu.Lock()
		next, news := cursor{revision: max(c.revision, e.revision), kills: strconv.Itoa(e.killSeq)}, e.news
		e.mu.Unlock()
		if next != c {
			return next, nil
		}
		select {
		case <-news:
		case <-timeout.C:
			return c, nil
		case <-ctx.Done():
			return c, ctx.Err()
		}
	}
}

func (e *embedded) addKills(_ context.Context, kills []KillEntry) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, k := range kills {
		if _, ok := e.killSet[k.key()]; !ok {
			e.killSet[k.key()] = k
			e.killSeq++
		}
	}
	e.tell()
	return nil
}

func (e *embedded) dropKills(_ context.Context, exp string, before int) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for key, k := range e.killSet {
		if key.exp == exp && key.gen < before {
			delete(e.killSet, key)
			e.dropped[key] = k
		}
	}
	e.killSeq++
	e.tell()
	return nil
}

func (e *embedded) kills(context.Context) (set, dropped []KillEntry, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Collect(maps.Values(e.killSet)), slices.Collect(maps.Values(e.dropped)), nil
}

func (e *embedded) report(_ context.Context, r Replica) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reps[r.ID] = embeddedReplica{r, e.now().Add(ReplicaTTL)}
	return nil
}

func (e *embedded) forget(_ context.Context, id string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.reps, id)
	return nil
}

func (e *embedded) replicas(context.Context) ([]Replica, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now, list := e.now(), []Replica{}
	for id, r := range e.reps {
		if !now.Before(r.until) {
			delete(e.reps, id)
			continue
		}
		list = append(list, r.Replica)
	}
	slices.SortFunc(list, func(a, b Replica) int { return cmp.Compare(a.ID, b.ID) })
	return list, nil
}

func (e *embedded) acquire(_ context.Context, id string, floor int64, ttl time.Duration) (int64, bool, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.leader != "" && e.now().Before(e.leaseEnd) {
		return 0, false, nil
	}
	e.fence = max(e.fence, floor) + 1
	e.leader, e.leaseEnd = id, e.now().Add(ttl)
	return e.fence, true, nil
}

func (e *embedded) holds(id string, fence int64) bool {
	return e.leader == id && e.fence == fence && e.now().Before(e.leaseEnd)
}

func (e *embedded) renew(_ context.Context, id string, fence int64, ttl time.Duration) (bool, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.holds(id, fence) {
		return false, nil
	}
	e.leaseEnd = e.now().Add(ttl)
	return true, nil
}

func (e *embedded) release(_ context.Context, id string, fence int64) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.holds(id, fence) {
		e.leader = ""
	}
	return nil
}
