package upstream

import (
	"context"
	"net/http"
	"time"

	"sluice/upstream/engine"
	"sluice/upstream/guard"
	"sluice/upstream/wire"
)

const (
	restartWindow    = time.Hour
	preemptionWindow = time.Minute
	// wantedFor is how long an engine is asked at every check after somebody has
	// read what it says.
	wantedFor = 30 * time.Second
	// engineOld is when what an engine said is not believed any more, if it is
	// asked often enough: one that nobody read lately is asked every 10 s.
	engineOld = 15 * time.Second
	// skew is how far the clocks of this machine and of a server may be apart
	// without a restart being missed.
	skew = time.Minute
	// maxMarks bounds what is remembered of one endpoint.
	maxMarks = 128
)

// mark is so many events at one time.
type mark struct {
	at time.Time
	n  float64
}

// marks are the events of a window, oldest first.
type marks []mark

func (m *marks) add(at time.Time, n float64) {
	if len(*m) == maxMarks {
		*m = append((*m)[:0], (*m)[1:]...)
	}
	*m = append(*m, mark{at, n})
}

// since sums what is not older than from.
func (m marks) since(from time.Time) (sum float64) {
	for _, e := range m {
		if !e.at.Before(from) {
			sum += e.n
		}
	}
	return sum
}

// vitals are what is known of the life of an endpoint's process, beyond the
// checks: they stay while it is away.
type vitals struct {
	engine.Vitals           // of the last page
	read          time.Time // when that was; zero = never
	fell          bool      // nobody listened there since it was last up

	restarts, preemptions marks
}

// refused notes that nobody listens at e: the process is gone. e.mu is held.
func (v *vitals) refused(r result, d wire.Dialect) {
	// llama.cpp opens its port before it loads.
	if r.refused || d == wire.LlamaCPP && r.state == stateLoading {
		v.fell = true
	}
}

// back notes that e answers again. Where its page tells when it started, the
// page decides whether it is another process. e.mu is held.
func (v *vitals) back(now time.Time) {
	if v.fell && v.Started == 0 {
		v.fell = false
		v.restarts.add(now, 1)
	}
}

// page takes what a page of metrics told. A server that has begun after the last
// page was read has been started again; one that began earlier is another one
// behind the same address. e.mu is held.
func (v *vitals) page(p engine.Vitals, now time.Time) {
	began := time.Unix(0, int64(min(p.Started, 1<<33)*1e9))
	switch {
	case v.read.IsZero():
	case p.Started == 0:
		if v.fell {
			v.restarts.add(now, 1)
		}
	case v.Started > 0 && p.Started > v.Started+1 && (v.fell || began.After(v.read.Add(-skew))):
		v.restarts.add(now, 1)
	}
	if !v.read.IsZero() && p.Preempted >= 0 && v.Preempted >= 0 {
		n := p.Preempted - v.Preempted
		if n < 0 {
			n = p.Preempted // it began anew
		}
		if n > 0 {
			v.preemptions.add(now, n)
		}
	}
	v.Vitals, v.read, v.fell = p, now, false
}

// EngineStatus is what an upstream's engines say of themselves, over the
// endpoints that get traffic.
type EngineStatus struct {
	Endpoints int // that get traffic
	// Told are those of them whose load is known and fresh.
	Told       int
	MaxWaiting int     // of one endpoint, requests
	MaxKVUse   float64 // of one endpoint, 0..1; negative: none tells
	// Preempted are those of the last minute, over all; negative: none tells.
	Preempted float64
	// Restarts of the last hour, over all endpoints, also those that are away.
	Restarts int
}

// Engine reads what the endpoints' engines say, and has them asked at every
// check for a while, so that who goes on reading has fresh figures.
func (u *Upstream) Engine() EngineStatus {
	now := time.Now()
	s := EngineStatus{MaxKVUse: -1, Preempted: -1}
	for _, e := range u.endpoints() {
		e.wanted.Store(now.Add(wantedFor).UnixNano())
		set := e.set.Load()
		e.mu.Lock()
		v := &e.vitals
		s.Restarts += int(v.restarts.since(now.Add(-restartWindow)))
		preempted, told := v.preemptions.since(now.Add(-preemptionWindow)), v.Preempted >= 0 && !v.read.IsZero()
		e.mu.Unlock()
		if !e.serving(set) {
			continue
		}
		s.Endpoints++
		l := e.polled.Load()
		if l == nil || now.Sub(l.At) > max(engineOld, pollsOld*e.pollPause(set, now)) {
			continue
		}
		s.Told++
		s.MaxWaiting, s.MaxKVUse = max(s.MaxWaiting, l.Waiting), max(s.MaxKVUse, l.KVUse)
		if told {
			s.Preempted = max(s.Preempted, 0) + preempted
		}
	}
	return s
}

// pollPause is how long to wait between two polls of e's load; 0 = it is not
// polled.
func (e *endpoint) pollPause(set *settings, now time.Time) time.Duration {
	if e.wanted.Load() > now.UnixNano() && engine.Known(string(set.dialect)) {
		return set.readiness.Interval
	}
	return set.pollEvery
}

// Room is how much of an upstream's capacity is in use, as this gateway sees it.
type Room struct {
	Endpoints int // configured, or resolved
	Ready     int // of them that get traffic
	// Capacity is how many calls at once this gateway may have at the ready ones
	// whose breaker is not open: their part of max_in_flight; 0: no limit is set.
	Capacity int
	Limited  bool // max_in_flight is set
	InFlight int
}

// Room reads it.
func (u *Upstream) Room() Room {
	now := time.Now()
	list := u.endpoints()
	r := Room{Endpoints: len(list), Limited: u.cfg.Limits.MaxInFlight > 0}
	able := 0
	for _, e := range list {
		r.InFlight += int(e.inflight.Load())
		if !e.serving(e.set.Load()) {
			continue
		}
		r.Ready++
		if e.guard.State(now).Breaker != guard.Open {
			able++
		}
	}
	if r.Limited && len(list) > 0 {
		r.Capacity = u.cfg.Limits.MaxInFlight * able / len(list)
	}
	return r
}

// Aborts asks the engine at an endpoint how many of its requests were given up
// because their client went. ok is false where it does not tell.
func (u *Upstream) Aborts(ctx context.Context, base string) (n float64, ok bool) {
	for _, e := range u.endpoints() {
		if e.base != base {
			continue
		}
		set := e.set.Load()
		ctx, cancel := context.WithTimeout(ctx, sideTimeout)
		defer cancel()
		if !engine.Known(string(set.dialect)) || set.dialect == wire.LlamaCPP {
			return 0, false
		}
		a, err := e.fetch(ctx, set, http.MethodGet, join(serverRoot(e.url), "/metrics"), nil, maxCheckBody)
		if err != nil || a.status != http.StatusOK {
			return 0, false
		}
		v := engine.ParseVitals(string(set.dialect), a.body)
		return max(v.Aborted, 0), v.Aborted >= 0
	}
	return 0, false
}
