package upstream

import "time"

// leastWeight is the share of its normal traffic that a recovered endpoint
// starts with.
const leastWeight = 0.1

// rampUp starts the slow growth of e's share: it has come back, and its caches
// are cold.
func (e *endpoint) rampUp(now time.Time) { e.ramp.Store(now.UnixNano()) }

// limitedShare is what an endpoint gets, of what it would, in the limitedTime
// after it answered 429 without saying for how long: it is no failure, but the
// others are the better choice.
const (
	limitedShare = 0.1
	limitedTime  = time.Second
)

// weight is e's share of what it would get otherwise, up to 1.
func (e *endpoint) weight(set *settings, now time.Time) float64 {
	w := e.grown(set, now)
	if at := e.limited.Load(); at != 0 && now.UnixNano()-at < int64(limitedTime) {
		w *= limitedShare
	}
	return w
}

// grown is the part of its share that slow start gives e, from 0.1 to 1.
func (e *endpoint) grown(set *settings, now time.Time) float64 {
	from := e.ramp.Load()
	if from == 0 || set.slowStart <= 0 {
		return 1
	}
	w := leastWeight + (1-leastWeight)*float64(now.UnixNano()-from)/float64(set.slowStart)
	if w >= 1 {
		e.ramp.CompareAndSwap(from, 0) // full-grown: from now on this is one load
		return 1
	}
	return max(w, leastWeight)
}

// enter is called when e becomes ready. Its share grows slowly when others can
// carry the rest, but not while all of them are as new as e itself.
func (e *endpoint) enter(now time.Time) {
	set := e.set.Load()
	again := e.debut.Load() != 0
	switch {
	case set.slowStart <= 0:
	case again && set.roster.others(e), !again && set.roster.settled(e, now.Add(-set.slowStart)):
		e.rampUp(now)
	default:
		e.ramp.Store(0)
	}
	if !again {
		e.debut.Store(now.UnixNano())
	}
}
