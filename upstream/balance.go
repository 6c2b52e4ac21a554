package upstream

import (
	"math/rand/v2"
	"slices"
	"time"
)

// pick chooses the endpoint for the next call: among the ready ones those not
// tried in this request, else among the ready ones; with none ready, in panic,
// among those that were ready once and have stopped answering their check. nil
// means that no endpoint may get traffic.
// An endpoint whose breaker is open, or that cools down, is never one of them.
func (u *Upstream) pick(tried []*endpoint) *endpoint {
	var room [16]*endpoint
	c := u.candidates(room[:0], tried)
	if len(c) == 0 && len(tried) > 0 {
		c = u.candidates(room[:0], nil)
	}
	switch {
	case len(c) == 0:
		return nil
	case len(c) == 1:
		return c[0]
	case u.cfg.Balance == balanceRound:
		return c[(u.turn.Add(1)-1)%uint64(len(c))]
	}
	// The power of two choices: nearly as even as the least loaded of all, and
	// no herd runs to the one endpoint that has just become idle.
	i := rand.IntN(len(c))
	j := rand.IntN(len(c) - 1)
	if j >= i {
		j++
	}
	if c[j].inflight.Load() < c[i].inflight.Load() {
		return c[j]
	}
	return c[i]
}

// has tells whether e is one of u's.
func (u *Upstream) has(e *endpoint) bool { return slices.Contains(u.endpoints, e) }

// another tells whether an endpoint that was not tried may get traffic.
func (u *Upstream) another(tried []*endpoint) bool {
	var room [16]*endpoint
	return len(u.candidates(room[:0], tried)) > 0
}

// candidates appends the endpoints that may get traffic, those in skip excepted.
func (u *Upstream) candidates(dst []*endpoint, skip []*endpoint) []*endpoint {
	ready, now := false, time.Now()
	for _, e := range u.endpoints {
		if !e.ready.Load() {
			continue
		}
		ready = true
		if e.guard.Available(now) && !slices.Contains(skip, e) {
			dst = append(dst, e)
		}
	}
	if ready {
		return dst
	}
	for _, e := range u.endpoints {
		if e.panic.Load() && e.guard.Available(now) && !slices.Contains(skip, e) {
			dst = append(dst, e)
		}
	}
	return dst
}
