package rollout

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"sluice/experiment/ramp"
	"sluice/experiment/trial"
)

const (
	lookEvery = 2 * time.Second
	// tellEvery is how often a replica shares, before a rollout begins, which units
	// fail already.
	tellEvery = 10 * time.Second
	// settleFor is how long after the beginning the others' are read again.
	settleFor = 10 * time.Second
)

// look keeps what is known of the other replicas: who lives, which units failed
// before a rollout began, and whether anybody leads.
func (r *Rollouts) look(ctx context.Context) {
	for {
		r.lookAtPeers(ctx)
		for _, s := range r.current() {
			r.lookAtPast(ctx, s)
		}
		if !pause(ctx, lookEvery) {
			return
		}
	}
}

func (r *Rollouts) lookAtPeers(ctx context.Context) {
	list, err := r.o.Sticky.Replicas(ctx)
	if err != nil {
		return
	}
	ids := make([]string, 0, len(list))
	self := false
	for _, p := range list {
		ids = append(ids, p.ID)
		self = self || p.ID == r.o.ReplicaID
	}
	if !self {
		ids = append(ids, r.o.ReplicaID)
	}
	ago, led, err := r.o.Sticky.Supervised(ctx)
	now := r.o.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.peers.count()
	r.peers.ids, r.peers.known = ids, now
	if err == nil && led {
		r.peers.led = now.Add(-ago)
	}
	if r.peers.count() != before {
		r.setWatches()
	}
}

// lookAtPast shares the units that fail before the rollout has begun, and takes
// over what all replicas shared once it has: a unit is a witness on all of them
// or on none.
func (r *Rollouts) lookAtPast(ctx context.Context, s *subject) {
	now := r.o.Now()
	r.mu.Lock()
	p := r.pasts[s.key]
	if p == nil || p.generation != s.generation {
		r.mu.Unlock()
		return
	}
	begun := s.begun()
	tell := now.Sub(p.told) >= tellEvery && !begun || begun && !p.told.After(p.frozen) && !p.frozen.IsZero()
	load := begun && (p.loaded.IsZero() || now.Sub(p.frozen) < settleFor)
	r.mu.Unlock()
	if tell && r.tell(ctx, s) == nil {
		r.mu.Lock()
		p.told = now
		r.mu.Unlock()
	}
	if !load {
		return
	}
	shares, err := r.o.Sticky.Shared(ctx, s.key, topic(s.generation))
	if err != nil {
		return // again at the next look
	}
	all := new(trial.Exclusions)
	for id, raw := range shares {
		var e trial.Exclusions
		if err := json.Unmarshal(raw, &e); err != nil {
			r.log.Warn("what a replica shared of past failures is not readable", "replica", id, "experiment", s.key, "err", err)
			continue
		}
		all.Merge(&e)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pasts[s.key] == p {
		p.excluded, p.loaded = all, now
		r.setWatches()
	}
}

// tell shares what this replica has learnt. One that has just started and learnt
// nothing shares nothing.
func (r *Rollouts) tell(ctx context.Context, s *subject) error {
	e := r.collector.Failing(s.key)
	if e == nil || len(e.Errors)+len(e.Rejected)+len(e.Slow)+len(e.Flawed) == 0 {
		return nil
	}
	body, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("encode past failures: %w", err)
	}
	return r.o.Sticky.Share(ctx, s.key, topic(s.generation), body)
}

// unattended keeps the treatments of canaries away while nobody has led for
// longer than stale_after, where on_unsupervised asks for the baseline.
func (r *Rollouts) unattended(context.Context) {
	now := r.o.Now()
	type change struct {
		tripKey
		name string
		on   bool
	}
	var list []change
	r.mu.Lock()
	if r.peers.led.IsZero() {
		r.peers.led = now // as of the start
	}
	for key, w := range r.watched {
		c := &w.policy
		away := w.ramp != nil && c.StaleAfter > 0 && c.OnUnsupervised == ramp.UnsupervisedBaseline &&
			now.Sub(r.peers.led) > c.StaleAfter && !r.Leads()
		for v, name := range w.variants {
			k := tripKey{key, w.generation, v}
			t := r.trips.on[k]
			switch {
			case v == w.baseline:
			case away && (t == nil || !t.lifted.IsZero()):
				r.trips.on[k] = &trip{name: name, epoch: w.epoch, at: now, unattended: true, text: "nobody leads"}
				list = append(list, change{k, name, true})
			case !away && t != nil && t.unattended && t.lifted.IsZero():
				delete(r.trips.on, k)
				list = append(list, change{k, name, false})
			}
		}
	}
	r.mu.Unlock()
	for _, c := range list {
		if !c.on {
			r.untrip(c.tripKey, c.name)
			continue
		}
		r.log.Warn("nobody leads: the variant's users get the baseline on this replica", "experiment", c.experiment, "variant", c.name)
		if err := r.o.Control.Trip(c.experiment, c.generation, c.name); err != nil {
			r.log.Error("an unsupervised variant cannot be taken out", "experiment", c.experiment, "variant", c.name, "err", err)
		}
	}
}
