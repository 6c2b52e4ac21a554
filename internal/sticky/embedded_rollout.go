package sticky

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"
)

// embeddedRollout is one experiment's stream, checkpoint and shares.
type embeddedRollout struct {
	stream []embeddedObservation
	last   streamID
	fence  int64
	state  []byte // nil: none
	shares map[string]map[string][]byte
}

type embeddedObservation struct {
	id   streamID
	body []byte
}

// streamID is an id as Redis makes them: the time, and a counter within it.
type streamID struct{ ms, seq int64 }

func (a streamID) less(b streamID) bool { return a.ms < b.ms || a.ms == b.ms && a.seq < b.seq }

func (a streamID) String() string { return fmt.Sprintf("%d-%d", a.ms, a.seq) }

func parseStreamID(s string) (id streamID, err error) {
	if _, err = fmt.Sscanf(s, "%d-%d", &id.ms, &id.seq); err != nil {
		return id, fmt.Errorf("position %q is no id of a stream", s)
	}
	return id, nil
}

// rollout runs under the lock.
func (e *embedded) rollout(exp string) *embeddedRollout {
	r := e.rollouts[exp]
	if r == nil {
		r = &embeddedRollout{shares: map[string]map[string][]byte{}}
		e.rollouts[exp] = r
	}
	return r
}

func (e *embedded) observe(_ context.Context, exp string, body []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.rollout(exp)
	id := streamID{ms: e.now().UnixMilli()}
	if !r.last.less(id) {
		id = streamID{r.last.ms, r.last.seq + 1}
	}
	r.last = id
	r.stream = append(r.stream, embeddedObservation{id, slices.Clone(body)})
	if n := len(r.stream) - observations; n > observations/10 { // seldom, for it copies
		r.stream = slices.Clone(r.stream[n:])
	}
	return nil
}

func (e *embedded) observed(_ context.Context, exp, after string, most int) ([]Observation, error) {
	from, err := parseStreamID(after)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.rollouts[exp]
	if r == nil {
		return nil, nil
	}
	if r.last.less(from) {
		from = streamID{}
	}
	i, _ := slices.BinarySearchFunc(r.stream, from, func(o embeddedObservation, id streamID) int {
		if id.less(o.id) {
			return 1
		}
		return -1 // also the equal one: it was read
	})
	var out []Observation
	for _, o := range r.stream[i:min(i+most, len(r.stream))] {
		out = append(out, Observation{ID: o.id.String(), At: o.id.ms, Body: slices.Clone(o.body)})
	}
	return out, nil
}

func (e *embedded) checkpoint(_ context.Context, exp string, fence int64, body []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.rollout(exp)
	if fence < r.fence {
		return ErrFenced
	}
	r.fence, r.state = fence, append([]byte{}, body...)
	return nil
}

func (e *embedded) loadCheckpoint(_ context.Context, exp string) ([]byte, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.rollouts[exp]
	if r == nil || r.state == nil {
		return nil, ErrNone
	}
	return slices.Clone(r.state), nil
}

func (e *embedded) share(_ context.Context, exp, topic, id string, body []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.rollout(exp)
	if r.shares[topic] == nil {
		r.shares[topic] = map[string][]byte{}
	}
	r.shares[topic][id] = slices.Clone(body)
	return nil
}

func (e *embedded) shared(_ context.Context, exp, topic string) (map[string][]byte, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := map[string][]byte{}
	if r := e.rollouts[exp]; r != nil {
		maps.Copy(out, r.shares[topic]) // the bodies are never written
	}
	return out, nil
}

func (e *embedded) dropRollout(_ context.Context, exp string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.rollouts, exp)
	return nil
}

func (e *embedded) supervise(_ context.Context, _, _ int64, ttl time.Duration) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.supEnd = e.now().Add(ttl)
	return nil
}

func (e *embedded) supervised(context.Context) (time.Duration, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.supEnd.Sub(e.now()), nil
}
