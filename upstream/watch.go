package upstream

import (
	"context"
	"math/rand/v2"
	"time"

	"sluice/upstream/wire"
)

const (
	// checkTimeout is generous: a saturated engine answers late.
	checkTimeout = 5 * time.Second
	// slowCheckTimeout is SGLang's: its /health generates a token and takes at
	// least a second.
	slowCheckTimeout = 10 * time.Second
	// sideTimeout bounds what is asked beside the check.
	sideTimeout = 2 * time.Second
)

// watcher checks one endpoint until its context ends, and warms it up. One
// goroutine runs it; nothing in it is shared.
type watcher struct {
	pool *Pool
	e    *endpoint

	asleep   sleepProbe
	listAt   time.Time // when the models are to be listed next
	noList   bool      // the server has no list of models
	polledAt time.Time // when the engine was asked for its load
	page     []byte    // of metrics, that this check has read already; nil = none
	warmup   chan string
	stop     context.CancelFunc // of the warm-up; nil while none runs
	warmAt   time.Time          // not earlier than that
	failures int                // of warm-ups in a row
}

// watch checks e until ctx ends.
func (p *Pool) watch(ctx context.Context, e *endpoint) {
	w := &watcher{pool: p, e: e, warmup: make(chan string, 1)}
	defer w.stopWarmup()
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case failure := <-w.warmup:
			w.warmed(failure)
		case <-t.C:
			t.Reset(w.check(ctx))
		case asked := <-e.probes:
			t.Reset(w.check(ctx))
			close(asked)
		}
	}
}

// check makes one check, and returns how long to wait for the next.
func (w *watcher) check(ctx context.Context) time.Duration {
	e := w.e
	set := e.set.Load()
	limit := checkTimeout
	if set.dialect == wire.SGLang {
		limit = slowCheckTimeout
	}
	started := time.Now()
	w.page = nil
	cctx, cancel := context.WithTimeout(ctx, limit)
	r := w.probe(cctx, set)
	cancel()
	if ctx.Err() != nil {
		return 0 // it is over: nothing was learned
	}
	if r.state == stateReady {
		if !e.ready.Load() {
			w.pool.forget(e.upstream) // what comes up may be another version
		}
		w.list(ctx, set)
	}
	if r.state == stateUnreachable {
		e.member.lookAgain()
	}
	if e.apply(r, set, started, time.Now()) {
		w.tell()
		if hangs := r.state == stateUnreachable || r.state == stateAsleep; hangs && set.roster.others(e) {
			e.free()
		}
	}
	if !e.ready.Load() && r.state != stateReady {
		w.forget()
	}
	if r.state == stateAsleep {
		w.stopWarmup() // it would hang
	}
	w.warm(ctx, set)
	if r.state == stateReady {
		w.poll(ctx, set) // last: nobody waits for it
	}
	// Jitter keeps the checks of many endpoints and replicas apart. A check that
	// took its time is followed by the next at once, so that a server that hangs
	// is found within a bound.
	d := time.Duration(float64(set.readiness.Interval) * (0.9 + 0.2*rand.Float64()))
	return max(0, d-time.Since(started))
}

// forget drops what is known of a server that is not ready: it may come back as
// another.
func (w *watcher) forget() {
	w.asleep, w.noList, w.listAt = sleepUnknown, false, time.Time{}
	w.e.lists(nil)
	w.e.polled.Store(nil)
	w.polledAt = time.Time{}
}

// tell logs that readiness has changed.
func (w *watcher) tell() {
	s := w.e.status()
	if w.e.ready.Load() {
		w.pool.log.Info("endpoint is ready", "upstream", w.e.upstream, "endpoint", w.e.base)
		return
	}
	w.pool.log.Warn("endpoint is not ready", "upstream", w.e.upstream, "endpoint", w.e.base, "state", s.State, "reason", s.Reason)
}
