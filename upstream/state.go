package upstream

import "time"

// health is what an endpoint's checks and warm-ups have come to.
type health struct {
	checked bool
	ok, bad int    // checks in a row
	up      bool   // its checks pass, by hysteresis
	warm    bool   // its warm-up has passed since it last came up, or needs not
	warming bool   // its warm-up runs
	cold    string // why the last warm-up failed, in words
}

// result is what one check found.
type result struct {
	state   string // stateReady, or why not
	reason  string
	refused bool // nobody listens there
}

// apply feeds one check's result into the state machine: the first decides
// alone, then `down` in a row evict and `up` in a row admit. An engine that
// says it sleeps is believed at once: requests to it would hang. It reports
// whether readiness changed.
func (e *endpoint) apply(r result, set *settings, started, now time.Time) (changed bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	h := &e.health
	recent := max(set.readiness.Interval, now.Sub(started)) + aliveEvery
	if e.debut.Load() != 0 {
		e.vitals.refused(r, set.dialect)
	}
	switch {
	case r.state == stateReady:
		h.ok, h.bad = h.ok+1, 0
		e.vitals.back(now)
	case r.state == stateUnreachable && (h.warming || now.Sub(time.Unix(0, e.lastOK.Load())) <= recent):
		// Busy servers answer their check late or never; one that is answering
		// requests stays. A warm-up has its own limit.
		return false
	default:
		h.ok, h.bad = 0, h.bad+1
	}
	switch {
	case !h.checked:
		h.up = r.state == stateReady
	case r.state == stateReady:
		h.up = h.up || h.ok >= set.readiness.Up
	default:
		h.up = h.up && h.bad < set.readiness.Down && r.state != stateAsleep
	}
	if !h.up && (r.state == stateUnreachable || r.state == stateLoading) {
		h.warm, h.cold = false, "" // it may have been started again
	}
	changed = e.settle(r, set, now)
	if !h.checked {
		h.checked = true
		close(e.first)
	}
	return changed
}

// warmed ends a warm-up; failure is in words, "" when it passed. It reports
// whether readiness changed.
func (e *endpoint) warmed(failure string, set *settings, now time.Time) (changed bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	h := &e.health
	h.warming, h.cold = false, failure
	if !h.up {
		return false // whatever runs there now was not warmed
	}
	h.warm = failure == ""
	return e.settle(result{state: stateReady}, set, now)
}

// beginWarmup tells whether a warm-up is due, and notes that it runs.
func (e *endpoint) beginWarmup() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	h := &e.health
	if !h.up || h.warm || h.warming {
		return false
	}
	h.warming = true
	return true
}

// settle derives state and readiness after r; mu is held.
func (e *endpoint) settle(r result, set *settings, now time.Time) (changed bool) {
	h := &e.health
	if e.left {
		return false
	}
	h.warm = h.warm || h.up && set.warmup == 0
	ready, was := h.up && h.warm, e.ready.Load()
	state, reason := r.state, r.reason
	switch {
	case ready:
		state, reason = stateReady, ""
	case h.up:
		state, reason = stateWarming, "its check passes; its warm-up completions have not yet"
		if h.cold != "" {
			reason = "the warm-up failed: " + h.cold
		}
	case r.state == stateReady: // not often enough yet
		state, reason = e.state, "the check passes again; waiting for one more"
	}
	if state != e.state || ready != was || !h.checked {
		e.since = now
	}
	if ready && !was {
		e.enter(now)
	}
	e.state, e.reason = state, reason
	e.ready.Store(ready)
	// Where requests may wait for servers to come up, one that refuses
	// connections has been shut down.
	e.panic.Store(!ready && e.debut.Load() != 0 && state == stateUnreachable && !(r.refused && set.waits))
	if ready != was || e.panic.Load() {
		set.room.stir(ready)
	}
	return ready != was
}
