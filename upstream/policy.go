package upstream

import (
	"context"
	"encoding/binary"
	"hash/fnv"
	"net/http"
	"time"

	"sluice/upstream/affinity"
	"sluice/upstream/engine"
	"sluice/upstream/wire"
)

// idOf makes an endpoint's place in rendezvous hashing; every replica and every
// start must find the same.
func idOf(base string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(base))
	return h.Sum64()
}

// conversationKey hashes what the turns of the request's conversation share; ok
// is false for requests that have no such thing.
func conversationKey(h *wire.Head, body []byte) (key uint64, ok bool) {
	id, ok := h.Conversation(body)
	return binary.LittleEndian.Uint64(id[:8]), ok
}

// maxNodes is how many endpoints keep conversations by their prefix; of more, a
// stretch that depends on the conversation is looked at.
const maxNodes = 256

// byPrefix keeps a conversation on the endpoint whose prefix cache has it, as
// long as that is not loaded much more than the others; then the next in the
// conversation's own order has it.
func (u *Upstream) byPrefix(q ask, now time.Time) *endpoint {
	var room [maxNodes]choice
	start := 0
	if n := len(u.endpoints()); n > maxNodes {
		start = int(q.key % uint64(n))
	}
	c := u.candidates(room[:0], q, now, start)
	if len(c) == 0 {
		return nil
	}
	var nodes [maxNodes]affinity.Node
	for i := range c {
		nodes[i] = affinity.Node{ID: c[i].e.id, InFlight: int(c[i].e.inflight.Load()), Weight: c[i].weight}
	}
	return c[affinity.Pick(q.key, nodes[:len(c)])].e
}

// polled is what an engine said at the last poll, and what this gateway had in
// flight there then.
type polled struct {
	Load
	inflight int64
}

const (
	// pollsOld is how many polls may be missed before the last is not believed.
	pollsOld = 3
	// pollSlowly is how often an engine is asked whose load only people look at.
	pollSlowly = 10 * time.Second
	// fullCache is the use of the KV cache from which on new requests begin to
	// push others out; a full one counts as fullCost times the work.
	fullCache = 0.8
	fullCost  = 5
)

// pollEvery is how often endpoints of c are asked for their load, 0 = never.
// llama.cpp is asked only if it matters: each look at its metrics restarts what
// they measure, and spoils them for others.
func pollEvery(c *Config) time.Duration {
	switch {
	case !engine.Known(string(c.Dialect)):
		return 0
	case c.Balance == balanceLoad:
		return c.Readiness.Interval
	case c.Dialect == wire.LlamaCPP:
		return 0
	}
	return max(pollSlowly, c.Readiness.Interval)
}

// byLoad takes the less busy of two, by what the engines say and what was sent
// since; while one of them is silent the calls in flight must do.
func byLoad(c []choice, now time.Time) *endpoint {
	a, b := two(c)
	x, okX := a.e.busy(now)
	y, okY := b.e.busy(now)
	if !okX || !okY {
		x, y = float64(a.e.inflight.Load()), float64(b.e.inflight.Load())
	}
	if y*a.weight < x*b.weight {
		return b.e
	}
	return a.e
}

// busy is how much the endpoint has to do with one request more. What this
// gateway sent or got back since the poll is added; a request that waits delays
// a new one by more than one that runs, and a full cache makes everything wait.
func (e *endpoint) busy(now time.Time) (float64, bool) {
	p := e.polled.Load()
	if p == nil || now.Sub(p.At) > pollsOld*e.pollPause(e.set.Load(), now) {
		return 0, false
	}
	own := e.inflight.Load()
	n := float64(p.Running) + 2*float64(p.Waiting) + float64(own-p.inflight)
	full := max(0, p.KVUse-fullCache) / (1 - fullCache)
	return (max(n, float64(own), 0) + 1) * (1 + (fullCost-1)*full), true
}

// poll asks the engine for its load when that is due, beside a check that it
// passed.
func (w *watcher) poll(ctx context.Context, set *settings) {
	now := time.Now()
	page := w.page
	every := w.e.pollPause(set, now)
	if at := w.polledAt.Add(every * 8 / 10); every == 0 || page == nil && now.Before(at) { // checks come with jitter
		return
	}
	w.polledAt = now
	inflight := w.e.inflight.Load()
	if page == nil {
		ctx, cancel := context.WithTimeout(ctx, sideTimeout)
		defer cancel()
		a, err := w.e.fetch(ctx, set, http.MethodGet, join(serverRoot(w.e.url), "/metrics"), nil, maxCheckBody)
		if err != nil || a.status != http.StatusOK {
			return // the last one grows old
		}
		page = a.body
	}
	v := engine.ParseVitals(string(set.dialect), page)
	w.e.mu.Lock()
	w.e.vitals.page(v, time.Now())
	w.e.mu.Unlock()
	if l, ok := engine.ParseLoad(string(set.dialect), page); ok {
		w.e.polled.Store(&polled{Load: Load{Running: l.Running, Waiting: l.Waiting, KVUse: l.KVUse, At: time.Now()}, inflight: inflight})
	}
}
