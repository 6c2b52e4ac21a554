package upstream

import (
	"context"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"sluice/upstream/guard"
	"sluice/upstream/wire"
)

// The states of an endpoint, as people see them.
const (
	stateStarting    = "starting"    // no check has returned yet
	stateReady       = "ready"       // gets traffic
	stateLoading     = "loading"     // answers that it is not ready yet
	stateAsleep      = "asleep"      // a sleeping or paused engine
	stateUnreachable = "unreachable" // its check gets no answer
	stateFailing     = "failing"     // its check answers with an error
	stateWarming     = "warming"     // its check passed, its warm-up completions have not
	stateDrained     = "drained"     // by an operator: no new calls
)

// EndpointStatus is one endpoint as it is now.
type EndpointStatus struct {
	URL         string
	Ready       bool
	State       string // starting ready loading asleep unreachable failing
	Reason      string // in words, "" when ready
	Since       time.Time
	InFlight    int
	LastError   string // of the last failed call, "" none; never an upstream's text
	LastErrorAt time.Time

	Drained      bool
	Weight       float64   // share of what it would get otherwise, below 1 while it starts slowly
	Breaker      string    // closed open half_open
	BreakerUntil time.Time // of an open breaker; zero otherwise
	CoolUntil    time.Time // rate limited until then; zero = not
	Speed        Speed
	Load         *Load // of the engine itself, nil unknown
}

// Speed is what recent calls to an endpoint came to; zero without any.
type Speed struct {
	TTFT50, TTFT95  time.Duration // to the commit point of streams, last minute
	TokensPerSecond float64       // output tokens of all calls that ended in the last minute, per second
}

// Load is what an engine says about itself.
type Load struct {
	Running, Waiting int
	KVUse            float64 // 0..1, negative unknown
	At               time.Time
}

// UpstreamStatus is an upstream's queue on this gateway as it is now.
type UpstreamStatus struct {
	InFlight, Queued      int
	MaxInFlight, MaxQueue int // 0 = no limit
}

// settings is what a configuration change may replace under a living endpoint.
type settings struct {
	dialect   wire.Dialect
	auth      string // value of Authorization, "" none
	readiness Readiness
	warmup    int           // completions before it gets traffic; 0 = none
	slowStart time.Duration // 0 = off
	drained   bool
	pollEvery time.Duration // its engine is asked for its load; 0 = never
	roster    *roster       // whose share of the traffic it gets
	room      *waitingRoom
	waits     bool // requests wait for endpoints to come up
	key       carrierKey
	carrier   carrier
}

// endpoint is one replica: its connections, its health, its load. It outlives
// configuration changes that keep its upstream's name and its URL.
type endpoint struct {
	upstream string
	member   *member  // of the upstream that it is, or that it was resolved from
	base     string   // normalised; of a resolved one with the address for the name
	addr     string   // host:port of a resolved one, which connections are made to; "" = as the URL says
	url      *url.URL // with the configured name, which is what servers are called by
	paths    [4]route // by wire.API
	set      atomic.Pointer[settings]

	guard    *guard.Guard
	inflight atomic.Int64
	calls    calls
	lastOK   atomic.Int64 // Unix nanoseconds of the last sign of life from a call
	alarmAt  atomic.Int64 // Unix nanoseconds of the last credential alarm

	ready atomic.Bool  // its check has passed and it is warm
	panic atomic.Bool  // not ready, but to be tried when no other is
	ramp  atomic.Int64 // Unix nanoseconds when its share began to grow; 0 = it has all of it
	debut atomic.Int64 // Unix nanoseconds when it was ready for the first time; 0 = not yet
	first chan struct{}
	// probes asks the check loop for a check now; it closes what it gets.
	probes chan chan<- struct{}

	limited atomic.Int64           // Unix nanoseconds of the last 429 without retry-after
	id      uint64                 // its place in rendezvous hashing
	polled  atomic.Pointer[polled] // nil = unknown
	wanted  atomic.Int64           // Unix nanoseconds until which somebody reads what its engine says
	speed   speed

	mu        sync.Mutex // guards what follows
	health    health
	left      bool // its name has another address now
	state     string
	reason    string
	since     time.Time
	lastErr   string
	lastErrAt time.Time
	drainedAt time.Time // of the current drain
	vitals    vitals

	models atomic.Pointer[models] // that it lists; nil = unknown

	stop  context.CancelFunc // of its watcher
	ended <-chan struct{}    // its watcher is told to stop
}

// route is where requests of one kind go.
type route struct {
	url    *url.URL
	target string // path and query as sent
}

func newEndpoint(m *member, base, addr string, now time.Time) *endpoint {
	e := &endpoint{upstream: m.key.upstream, member: m, base: base, addr: addr, url: m.url, first: make(chan struct{}),
		probes: make(chan chan<- struct{}), state: stateStarting, since: now}
	e.id = idOf(base)
	e.guard = guard.New(e.breaker)
	for api := range e.paths {
		p := join(m.url, wire.API(api).Path())
		e.paths[api] = route{p, p.RequestURI()}
	}
	return e
}

// status returns the endpoint as people see it.
func (e *endpoint) status() EndpointStatus {
	set := e.set.Load()
	now := time.Now()
	g := e.guard.State(now)
	e.mu.Lock()
	defer e.mu.Unlock()
	s := EndpointStatus{
		Breaker: g.Breaker, BreakerUntil: g.Until, CoolUntil: g.CoolUntil,
		URL: e.base, Ready: e.ready.Load(), State: e.state, Reason: e.reason, Since: e.since,
		InFlight: int(e.inflight.Load()), LastError: e.lastErr, LastErrorAt: e.lastErrAt,
		Drained: set.drained, Weight: e.weight(set, now),
	}
	s.Speed = e.speed.read(now)
	if l := e.polled.Load(); l != nil && now.Sub(l.At) <= pollsOld*e.pollPause(set, now) {
		s.Load = &l.Load
	}
	if set.drained {
		s.Ready, s.State, s.Since = false, stateDrained, e.drainedAt
		s.Reason = "drained by an operator; it gets no new calls until it is enabled"
		if e.state != stateReady {
			s.Reason += " (it is " + e.state + ")"
		}
	}
	return s
}

// adopt takes over new settings and returns the old ones, nil at first.
func (e *endpoint) adopt(set *settings, now time.Time) *settings {
	old := e.set.Swap(set)
	was := old != nil && old.drained
	if set.drained && !was {
		e.mu.Lock()
		e.drainedAt = now
		e.mu.Unlock()
	}
	if was && !set.drained && e.ready.Load() && set.roster.others(e) {
		e.rampUp(now)
	}
	return old
}

// serving tells whether it gets new calls in normal times; its breaker and its
// cool-down have their own say.
func (e *endpoint) serving(set *settings) bool { return e.ready.Load() && !set.drained }

// open tells whether it may get calls at all, in panic or not.
func (e *endpoint) open() bool {
	return (e.ready.Load() || e.panic.Load()) && !e.set.Load().drained
}

// breaker is told the breaker's new state: what has failed and works again gets
// its share back slowly.
func (e *endpoint) breaker(state string) {
	if state == guard.Closed && e.set.Load().roster.others(e) {
		e.rampUp(time.Now())
	}
}

// aliveEvery bounds how often a sign of life is noted: many streams share it.
const aliveEvery = 100 * time.Millisecond

// alive notes a sign of life.
func (e *endpoint) alive(now time.Time) {
	n := now.UnixNano()
	if old := e.lastOK.Load(); n-old > int64(aliveEvery) {
		e.lastOK.CompareAndSwap(old, n)
	}
}

// leave ends e, whose address its name has no longer: no new calls, also of
// requests that began before. Those under way end normally.
func (e *endpoint) leave() {
	e.mu.Lock()
	e.left = true
	e.ready.Store(false)
	e.panic.Store(false)
	e.mu.Unlock()
	e.stop()
	e.set.Load().carrier.Close()
}

// report takes the end of one call and keeps the last failure.
func (e *endpoint) report(o Outcome, now time.Time) {
	switch o {
	case Success, ClientError, Canceled, ShuttingDown:
		return
	case Unreachable:
		e.member.lookAgain()
	}
	e.mu.Lock()
	e.lastErr, e.lastErrAt = string(o), now
	e.mu.Unlock()
}
