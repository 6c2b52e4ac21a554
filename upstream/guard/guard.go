// Package guard keeps requests from servers that fail: a breaker and a cool-down
// for each endpoint, and a budget of retries for each upstream. It hides the
// state machine, its windows and its clocks; who calls it says what a call came
// to, and asks before the next.
package guard

import (
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"
)

// Result is what a call means for the endpoint's breaker.
type Result uint8

// The results. Neutral says nothing about the server: a refused request, a
// cancel, a rate limit, the gateway's own end.
const (
	Neutral Result = iota
	Success
	Failure
)

// The breaker's settings (design.md section 6).
const (
	inARow     = 5                // failures that open it
	leastCalls = 20               // or half of at least so many
	window     = 10 * time.Second // within that time
	bucket     = time.Second
	openTime   = 5 * time.Second // and openJitter more at most
	openJitter = 2500 * time.Millisecond
	probes     = 3 // that must succeed for it to close, and may be under way
)

// MaxCoolDown bounds how long a server can keep requests away by retry-after.
const MaxCoolDown = time.Minute

// The states of a breaker.
const (
	Closed   = "closed"
	Open     = "open"
	HalfOpen = "half_open"
)

// State is a guard as people see it.
type State struct {
	Breaker   string    // closed, open or half_open
	Until     time.Time // when an open breaker lets probes through; zero else
	CoolUntil time.Time // rate limited until then; zero = not
}

// Guard is the breaker and the cool-down of one endpoint. It is safe for
// concurrent use; make it with New.
//
// gobreaker counts a call in the second in which it began, and forgets it with
// that second: a call that hangs for longer than the window would never count.
// Hence a call is told to it only at its end, but for probes, which it must
// count from their beginning; and failures in a row are counted here, since few
// calls a minute may all fail.
type Guard struct {
	cb      *gobreaker.TwoStepCircuitBreaker[any]
	row     atomic.Int32 // failures in a row
	changes atomic.Int64 // of the state
	state   atomic.Int32 // gobreaker.State, as of its last change
	until   atomic.Int64 // Unix nanoseconds: an open breaker's end, with its jitter
	cool    atomic.Int64 // Unix nanoseconds, 0 = not
	changed func(state string)
}

var (
	errNeutral = errors.New("neutral")
	errFailed  = errors.New("failed")
)

// New returns a closed guard. changed, which may be nil, is told the breaker's
// new state; it must be quick and must not call the guard.
func New(changed func(state string)) *Guard {
	g := &Guard{changed: changed}
	g.cb = gobreaker.NewTwoStepCircuitBreaker[any](gobreaker.Settings{
		MaxRequests: probes, Interval: window, BucketPeriod: bucket, Timeout: openTime,
		ReadyToTrip: func(c gobreaker.Counts) bool {
			done := c.TotalSuccesses + c.TotalFailures
			return g.row.Load() >= inARow || done >= leastCalls && 2*c.TotalFailures >= done
		},
		IsExcluded:    func(err error) bool { return err == errNeutral },
		OnStateChange: g.change,
	})
	return g
}

// change runs under gobreaker's lock.
func (g *Guard) change(_ string, _, to gobreaker.State) {
	if to == gobreaker.StateOpen {
		// Replicas and endpoints that failed together must not come back together.
		g.until.Store(time.Now().Add(openTime + rand.N(openJitter)).UnixNano())
	}
	g.row.Store(0)
	g.state.Store(int32(to))
	g.changes.Add(1)
	if g.changed != nil {
		g.changed(nameOf(to))
	}
}

func nameOf(s gobreaker.State) string {
	switch s {
	case gobreaker.StateOpen:
		return Open
	case gobreaker.StateHalfOpen:
		return HalfOpen
	}
	return Closed
}

// Available tells whether a call may begin: the endpoint does not cool down, and
// its breaker is closed or has room for a probe. It is two loads when all is well.
func (g *Guard) Available(now time.Time) bool {
	return !g.Cooling(now) && g.Passes(now)
}

// Cooling tells whether the server asked to be left alone.
func (g *Guard) Cooling(now time.Time) bool {
	c := g.cool.Load()
	return c != 0 && now.UnixNano() < c
}

// Passes is Available without the cool-down.
func (g *Guard) Passes(now time.Time) bool {
	switch gobreaker.State(g.state.Load()) {
	case gobreaker.StateClosed:
		return true
	case gobreaker.StateOpen:
		return now.UnixNano() > g.until.Load()
	}
	c := g.cb.Counts()
	return c.Requests-min(c.Requests, c.TotalExclusions) < probes
}

// CoolDown keeps calls away for d, at most MaxCoolDown, from now on.
func (g *Guard) CoolDown(now time.Time, d time.Duration) {
	until := now.Add(min(d, MaxCoolDown)).UnixNano()
	for old := g.cool.Load(); old < until && !g.cool.CompareAndSwap(old, until); old = g.cool.Load() {
	}
}

// State tells how things stand.
func (g *Guard) State(now time.Time) State {
	s := State{Breaker: nameOf(gobreaker.State(g.state.Load()))}
	if s.Breaker == Open {
		s.Until = time.Unix(0, g.until.Load())
	}
	if c := g.cool.Load(); now.UnixNano() < c {
		s.CoolUntil = time.Unix(0, c)
	}
	return s
}

// Turn is one call's leave to be made. End it exactly once; its zero value is
// none.
type Turn struct {
	g     *Guard
	since int64       // g.changes when it began
	done  func(error) // of a probe that has not been judged
	Probe bool        // the breaker is half-open
}

// Begin asks for a turn; ok is false when the breaker has none to give.
func (g *Guard) Begin(now time.Time) (t Turn, ok bool) {
	t = Turn{g: g, since: g.changes.Load()}
	switch gobreaker.State(g.state.Load()) {
	case gobreaker.StateClosed:
		return t, true
	case gobreaker.StateOpen:
		if now.UnixNano() <= g.until.Load() {
			return Turn{}, false
		}
	}
	done, err := g.cb.Allow()
	if err != nil {
		return Turn{}, false
	}
	t.done, t.Probe = done, true
	return t, true
}

// Answered says that the server has begun to answer. A probe has proved enough
// then: a stream of minutes must not hold the breaker half-open.
func (t *Turn) Answered() {
	if t.done != nil {
		t.done(nil)
		t.done = nil
	}
}

// End tells what the call came to. It may be called again, which does nothing.
func (t *Turn) End(r Result) {
	g := t.g
	if g == nil {
		return
	}
	t.g = nil
	switch {
	case t.done != nil:
		t.done(errorOf(r))
		t.done = nil
	case r == Neutral, t.Probe && r == Success:
	case t.Probe && gobreaker.State(g.state.Load()) != gobreaker.StateClosed:
		// What it proved is in doubt, but others are under way to tell.
	case !t.Probe && t.since != g.changes.Load():
		// It began before the breaker opened, which has been about its like.
	default:
		g.count(r)
	}
}

// count books the end of a call of a closed breaker.
func (g *Guard) count(r Result) {
	if r == Success {
		g.row.Store(0)
	} else {
		g.row.Add(1)
	}
	if done, err := g.cb.Allow(); err == nil {
		done(errorOf(r))
	}
}

func errorOf(r Result) error {
	switch r {
	case Success:
		return nil
	case Failure:
		return errFailed
	}
	return errNeutral
}
