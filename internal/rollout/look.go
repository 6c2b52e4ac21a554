package rollout

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"sluice/experiment/ramp"
	"sluice/experiment/trial"
	"sluice/router"
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
		r.led.Store(now.Add(-ago).UnixMilli())
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

// Unsupervised reports that nobody has led e's ramp for longer than its
// stale_after, and that its on_unsupervised asks for the baseline then: what a
// canary's users get is not watched. It is asked for each request.
func (r *Rollouts) Unsupervised(e *router.CompiledExperiment) bool {
	c := &e.Policy
	if !e.Ramped || c.StaleAfter <= 0 || c.OnUnsupervised != ramp.UnsupervisedBaseline || e.Ramp.Phase == ramp.Done {
		return false
	}
	return r.o.Now().UnixMilli()-r.led.Load() > c.StaleAfter.Milliseconds() && !r.Leads()
}

// unattended logs each change of it.
func (r *Rollouts) unattended() {
	t := r.o.Live.Load()
	if t == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, w := range r.watched {
		e, ok := t.Experiment(key)
		if away := ok && r.Unsupervised(e); away == w.unattended {
			continue
		} else if w.unattended = away; away {
			r.log.Warn("nobody leads: the users of the canary get the baseline on this replica", "experiment", key, "stale_after", w.policy.StaleAfter)
		} else {
			r.log.Info("somebody leads again: the users of the canary get it on this replica", "experiment", key)
		}
	}
}
