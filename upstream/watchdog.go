package upstream

import (
	"sync"
	"sync/atomic"
	"time"

	"sluice/upstream/wire"
)

// comment is the keep-alive: a comment line without the blank line that would
// make some SDKs dispatch an empty event. It goes only between events.
var comment = []byte(": ping\n")

// timeoutError is a deadline of ours that passed.
type timeoutError struct{ what string }

func (e *timeoutError) Error() string { return "the upstream was silent for too long: " + e.what }

var (
	errFirstByte = &timeoutError{"first byte"}
	errBetween   = &timeoutError{"between bytes"}
	errTotal     = &timeoutError{"total"}
	errHung      = &timeoutError{"its check had no answer either, or said that it sleeps"}
)

// watchdog is the one timer of a request. It enforces the attempt's time-outs
// by cancelling it with a cause, and writes keep-alive comments. The relay only
// stores a stamp per read; the timer finds out when it fires whether that is
// late enough, and re-arms itself for what is due next.
//
// mu also guards the client's side: whoever writes to the sink holds it, so a
// comment never lands inside an event.
type watchdog struct {
	start time.Time
	last  atomic.Int64 // nanoseconds since start of the last byte read

	mu       sync.Mutex
	timer    *time.Timer
	armed    time.Duration // since start; when the timer fires
	closed   bool
	cancel   func(cause error) // ends the attempt; nil between attempts
	limits   Timeouts
	begun    time.Duration // since start; of the attempt
	waiting  bool          // no event or header yet: FirstByte applies
	answered bool          // past the commit point
	written  time.Duration // since start; of the last write to the client
	before   time.Duration // keep-alive intervals, 0 = off
	after    time.Duration
	stream   *wire.Stream // nil: nothing of an answer was seen

	ping func() // writes the comment; holds mu
}

func (w *watchdog) now() time.Duration { return time.Since(w.start) }

// touch notes that the upstream sent something.
func (w *watchdog) touch() { w.last.Store(int64(w.now())) }

// begin starts the clock of an attempt.
func (w *watchdog) begin(t Timeouts, cancel func(cause error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cancel, w.limits, w.waiting, w.stream = cancel, t, true, nil
	w.begun = w.now()
	w.last.Store(int64(w.begun))
	w.arm()
}

// end stops the clock of the attempt.
func (w *watchdog) end() {
	w.mu.Lock()
	w.cancel, w.stream = nil, nil
	w.mu.Unlock()
}

// arrived ends the wait for the first byte. The caller holds mu.
func (w *watchdog) arrived() {
	if w.waiting {
		w.waiting = false
		w.arm()
	}
}

// close stops everything; after it nothing is written.
func (w *watchdog) close() {
	w.mu.Lock()
	w.closed = true
	if w.timer != nil {
		w.timer.Stop()
	}
	w.mu.Unlock()
}

// due is when the next thing must happen, since start; ok false: nothing.
func (w *watchdog) due() (at time.Duration, ok bool) {
	earlier := func(d time.Duration) {
		if !ok || d < at {
			at, ok = d, true
		}
	}
	if w.cancel != nil {
		if w.limits.Total > 0 {
			earlier(w.begun + w.limits.Total)
		}
		switch {
		case w.waiting && w.limits.FirstByte > 0:
			earlier(w.begun + w.limits.FirstByte)
		case !w.waiting && w.limits.BetweenBytes > 0:
			earlier(time.Duration(w.last.Load()) + w.limits.BetweenBytes)
		}
	}
	if d := w.interval(); d > 0 {
		earlier(w.written + d)
	}
	return at, ok
}

func (w *watchdog) interval() time.Duration {
	if w.answered {
		return w.after
	}
	return w.before
}

// arm makes the timer fire in time for what is due. The caller holds mu.
func (w *watchdog) arm() {
	at, ok := w.due()
	if !ok || w.closed || (w.timer != nil && w.armed != 0 && w.armed <= at) {
		return
	}
	w.armed = at
	d := max(at-w.now(), time.Millisecond)
	if w.timer == nil {
		w.timer = time.AfterFunc(d, w.fire)
	} else {
		w.timer.Reset(d)
	}
}

// busyRetry is when the watchdog looks again after it met a write to a slow
// client: as long as that lasts, nothing is due.
const busyRetry = 100 * time.Millisecond

func (w *watchdog) fire() {
	if !w.mu.TryLock() {
		time.AfterFunc(busyRetry, w.fire)
		return
	}
	defer w.mu.Unlock()
	if w.closed {
		return
	}
	w.armed = 0
	now := w.now()
	if w.cancel != nil {
		switch last := time.Duration(w.last.Load()); {
		case w.limits.Total > 0 && now >= w.begun+w.limits.Total:
			w.kill(errTotal)
		case w.waiting && w.limits.FirstByte > 0 && now >= w.begun+w.limits.FirstByte:
			w.kill(errFirstByte)
		case !w.waiting && w.limits.BetweenBytes > 0 && now >= last+w.limits.BetweenBytes:
			w.kill(errBetween)
		}
	}
	if d := w.interval(); d > 0 && now >= w.written+d {
		w.written = now // also when it is skipped: the next try is an interval later
		if w.stream == nil || !w.answered || (w.stream.Boundary() && !w.stream.Done()) {
			w.ping()
		}
	}
	w.arm()
}

// kill ends the attempt once.
func (w *watchdog) kill(cause error) {
	w.cancel(cause)
	w.cancel = nil
}
