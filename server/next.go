package server

import (
	"time"

	"sluice/experiment"
	"sluice/router"
	"sluice/upstream"
)

// next is asked before every attempt (upstream.Request.Next). It reads the kill
// flags of the table that is current now, not of the one the request began with.
func (x *exchange) next(n int, _ *upstream.Attempt, same bool) (upstream.Target, string, bool) {
	x.sent()
	if n > 0 && !x.giveUp.IsZero() && time.Now().After(x.giveUp) {
		return upstream.Target{}, "", false // nobody would wait for the answer
	}
	v, reason := x.choose(x.enter(), n, same)
	if v == nil {
		x.sent()
		return upstream.Target{}, "", false
	}
	x.onto(v)
	x.testify(n)
	return v.Target, reason, true
}

// choose is the variant of the attempt to come and why it is not simply the
// assigned one's first; nil when none is left. What stands for an assigned
// variant that was killed or masked comes before a declared fallback.
func (x *exchange) choose(now *router.Table, n int, same bool) (v *router.CompiledVariant, reason string) {
	standing, why, again := router.Recheck(now, &x.plan)
	fallback := standing.Fallback
	if why == "" {
		standing = x.plan.Variant
	}
	onFallback := x.fellBack && fallback != nil && fallback.Name == x.cur.Name
	switch {
	case why != "" && standing.Name != x.cur.Name && !onFallback:
		if x.refused = x.denied(standing); x.refused != nil {
			return nil, ""
		}
		x.decided(now, n, standing, why, again)
		return standing, why
	case n == 0:
		return standing, ""
	case !same && (x.fellBack || fallback == nil || x.denied(fallback) != nil):
		return nil, ""
	case !same:
		x.fellBack = true
		return fallback, "fallback"
	case onFallback:
		return fallback, "retry"
	case x.fellBack && standing.Name != x.cur.Name:
		return nil, "" // the fallback was killed too
	}
	return standing, "retry"
}

// decided notes that the table now has another variant for the request. While
// nothing was sent it is a request that came after the change; later the
// variant that was assigned stays so.
func (x *exchange) decided(now *router.Table, n int, v *router.CompiledVariant, why string, d *experiment.Decision) {
	x.table, x.reason = now, why
	if d == nil {
		return
	}
	x.reason = string(d.Reason)
	if n == 0 {
		x.plan.Variant, x.plan.Decision = v, *d
	}
}

// beside is asked before a second call is sent beside the one under way
// (upstream.Request.Beside): whether the table that is current now still has the
// variant that it is for. What next decided stays as it is.
func (x *exchange) beside(upstream.Target) (left func(), ok bool) {
	if !x.giveUp.IsZero() && time.Now().After(x.giveUp) {
		return nil, false
	}
	now, e := x.s.enter()
	standing, why, _ := router.Recheck(now, &x.plan)
	fallback := standing.Fallback
	if why == "" {
		standing = x.plan.Variant
	}
	onFallback := x.fellBack && fallback != nil && fallback.Name == x.cur.Name
	if !onFallback && standing.Name != x.cur.Name {
		e.leave()
		return nil, false
	}
	return e.leave, true
}

// enter counts the attempt to come under the revision that is current, and
// returns its table.
func (x *exchange) enter() *router.Table {
	now, e := x.s.enter()
	x.epoch.Store(e)
	return now
}

// enter counts an attempt under the revision that is current. The second look
// makes sure that whoever waits for older attempts after a swap has seen it.
func (s *Server) enter() (*router.Table, *epoch) {
	for {
		now := s.cfg.Live.Load()
		e := s.epochs.enter(now.Revision)
		if s.cfg.Live.Load() == now {
			return now, e
		}
		e.leave()
	}
}

// sent ends the time in which the attempt may still be decided again.
func (x *exchange) sent() {
	if e := x.epoch.Swap(nil); e != nil {
		e.leave()
	}
}
