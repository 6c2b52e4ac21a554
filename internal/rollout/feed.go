package rollout

import (
	"context"
	"encoding/json"
	"time"

	"sluice/experiment/trial"
)

// feed is what was counted and not published yet.
type feed struct {
	queues map[string][]queued // by experiment, oldest first
	seq    map[string]count    // by experiment
}

// count is how many ticks of an epoch there were; it starts at 1, so that the
// reader knows whether it has them all.
type count struct{ epoch, n int64 }

type queued struct {
	generation int
	epoch      int64
	body       []byte
}

// maxQueued is how many seconds of one experiment wait for Redis; then the
// oldest are dropped and counted.
const maxQueued = 120

// drain takes what was counted in the last second, adds how the servers are, and
// queues it.
func (r *Rollouts) drain() {
	ticks := r.collector.Drain(r.o.Now())
	up := r.o.Sticky.Up()
	r.mu.Lock()
	defer r.mu.Unlock()
	dropped := 0
	for key, t := range ticks {
		w := r.watched[key]
		if w == nil || w.generation != t.Generation || w.epoch != t.Epoch || len(t.Variants) != len(w.variants) {
			continue // counted before the first Set of this table
		}
		r.complete(t, w.subject, up)
		body, err := json.Marshal(t)
		if err != nil {
			r.log.Error("a count is not JSON", "experiment", key, "err", err)
			continue
		}
		q := append(r.feed.queues[key], queued{t.Generation, t.Epoch, body})
		if n := len(q) - maxQueued; n > 0 {
			q, dropped = q[n:], dropped+n
		}
		r.feed.queues[key] = q
	}
	for key := range r.feed.queues {
		if r.watched[key] == nil {
			delete(r.feed.queues, key) // but its count goes on, should it come back
		}
	}
	if m := r.o.Metrics; m != nil && dropped > 0 {
		m.CountObservations("dropped", dropped)
	}
}

// complete fills in what the collector does not know; r.mu is held.
func (r *Rollouts) complete(t *trial.Tick, s *subject, up bool) {
	if r.feed.seq == nil {
		r.feed.seq = map[string]count{}
	}
	c := r.feed.seq[s.key]
	if c.epoch != s.epoch {
		c = count{epoch: s.epoch}
	}
	c.n++
	r.feed.seq[s.key] = c
	t.Replica, t.Seq = r.o.ReplicaID, c.n
	for v := range t.Variants {
		room := r.o.Rooms(s.upstreams[v])
		a := &t.Variants[v]
		a.Endpoints, a.Ready, a.Capacity, a.InFlight = room.Endpoints, room.Ready, room.Capacity, room.InFlight
		a.NotReady = room.Endpoints > 0 && room.Ready == 0
		a.Provisional = s.pinned && !up
		a.Tripped = r.trips.open(s, v)
	}
}

// publish sends what is queued, oldest first, until the store is away; then it
// tries again once a second.
func (r *Rollouts) publish(ctx context.Context) {
	for pause(ctx, second/4) {
		for _, key := range r.queuedKeys() {
			for ctx.Err() == nil {
				body, ok := r.first(key)
				if !ok {
					break
				}
				if err := r.o.Sticky.Observe(ctx, key, body); err != nil {
					if !pause(ctx, second) {
						return
					}
					break
				}
				r.sent(key, body)
			}
		}
	}
}

func (r *Rollouts) queuedKeys() (keys []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, q := range r.feed.queues {
		if len(q) > 0 {
			keys = append(keys, key)
		}
	}
	return keys
}

// first is the oldest that is still of use.
func (r *Rollouts) first(key string) ([]byte, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	q, w := r.feed.queues[key], r.watched[key]
	for len(q) > 8 && w != nil && (q[0].generation != w.generation || q[0].epoch != w.epoch) {
		q = q[1:] // of an epoch that is over for long: nobody folds it any more
	}
	r.feed.queues[key] = q
	if len(q) == 0 {
		return nil, false
	}
	return q[0].body, true
}

// sent removes it, unless it was dropped meanwhile.
func (r *Rollouts) sent(key string, body []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if q := r.feed.queues[key]; len(q) > 0 && &q[0].body[0] == &body[0] {
		r.feed.queues[key] = q[1:]
	}
}

// peers are the replicas that live.
type peers struct {
	ids   []string
	known time.Time // of this replica's clock: when they were read; zero: never
}

// count is at least this replica.
func (p *peers) count() int { return max(len(p.ids), 1) }
