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

// byPrefix keeps a conversation on the endpoint whose prefix cache has it, as
// long as that is not loaded more than the others.
func byPrefix(key uint64, c []choice) *endpoint {
	var room [maxChoices]affinity.Node
	nodes := room[:]
	if len(c) > maxChoices {
		nodes = make([]affinity.Node, len(c))
	}
	nodes = nodes[:len(c)]
	for i := range c {
		nodes[i] = affinity.Node{ID: c[i].e.id, InFlight: int(c[i].e.inflight.Load()), Weight: c[i].weight}
	}
	return c[affinity.Pick(key, nodes)].e
}

// polled is what an engine said at the last poll, and what this gateway had in
// flight there then.
type polled struct {
	Load
	inflight int64
}

// pollsOld is how many intervals a poll may be old to be believed.
const pollsOld = 3

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

// busy is how much the endpoint has to do. A request that waits delays a new one
// by more than one that runs, and a full cache makes everything wait.
func (e *endpoint) busy(now time.Time) (float64, bool) {
	p := e.polled.Load()
	if p == nil || now.Sub(p.At) > pollsOld*e.set.Load().readiness.Interval {
		return 0, false
	}
	n := float64(p.Running) + 2*float64(p.Waiting) + float64(max(0, e.inflight.Load()-p.inflight))
	return n * (1 + max(0, p.KVUse)), true
}

// poll asks the engine for its load, beside a check that it passed.
func (e *endpoint) poll(ctx context.Context, set *settings) {
	ctx, cancel := context.WithTimeout(ctx, sideTimeout)
	defer cancel()
	inflight := e.inflight.Load()
	a, err := e.fetch(ctx, set, http.MethodGet, join(serverRoot(e.url), "/metrics"), nil, maxCheckBody)
	if err != nil || a.status != http.StatusOK {
		return // the last one grows old
	}
	if l, ok := engine.ParseLoad(string(set.dialect), a.body); ok {
		e.polled.Store(&polled{Load: Load{Running: l.Running, Waiting: l.Waiting, KVUse: l.KVUse, At: time.Now()}, inflight: inflight})
	}
}
