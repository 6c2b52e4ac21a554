package rollout

import (
	"context"
	"fmt"
	"time"

	"sluice/experiment/guardrail"
	"sluice/experiment/ramp"
	"sluice/experiment/trial"
)

const (
	// againWithin is how soon after its return a variant trips again to count as
	// one that is broken still.
	againWithin = 2 * time.Minute
	// peersFor is how long the list of replicas is taken for true.
	peersFor = 15 * time.Second
)

// trips are the variants that this replica keeps away; guarded by Rollouts.mu.
type trips struct {
	on map[tripKey]*trip
}

type tripKey struct {
	experiment string
	generation int
	variant    int
}

// trip is one of them, or a recent one that is over.
type trip struct {
	name      string // of the variant
	epoch     int64
	guardrail int
	text      string
	at        time.Time // it began
	lifted    time.Time // zero: it lasts
	again     bool      // it followed soon on another one
	acting    bool      // its action is under way
}

// open reports that the breaker of a variant is open here; Rollouts.mu is held.
func (ts *trips) open(s *subject, variant int) bool {
	t := ts.on[tripKey{s.key, s.generation, variant}]
	return t != nil && t.lifted.IsZero() && t.epoch == s.epoch
}

// guard keeps tripped variants away at once, acts on what it may act on alone,
// and gives them back after a while.
func (r *Rollouts) guard(ctx context.Context) {
	tick := time.NewTicker(second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case t := <-r.tripped:
			r.trip(t)
		case <-tick.C:
			r.lift()
			r.unattended()
		}
		r.actAlone(ctx)
	}
}

// trip takes a variant out here.
func (r *Rollouts) trip(t trial.Trip) {
	r.mu.Lock()
	w := r.watched[t.Experiment]
	if w == nil || w.generation != t.Generation || w.epoch != t.Epoch || t.Guardrail >= len(w.guardrails) || t.Variant >= len(w.variants) {
		r.mu.Unlock()
		return
	}
	g, key, now := &w.guardrails[t.Guardrail], tripKey{t.Experiment, t.Generation, t.Variant}, r.o.Now()
	if g.Action == guardrail.ActionWarn || g.Action == guardrail.ActionHold {
		r.mu.Unlock()
		r.collector.Rearm(t.Experiment, t.Variant)
		return
	}
	old := r.trips.on[key]
	if old != nil && old.lifted.IsZero() {
		r.mu.Unlock()
		return
	}
	next := &trip{name: w.variants[t.Variant], epoch: t.Epoch, guardrail: t.Guardrail, at: now,
		again: old != nil && old.epoch == t.Epoch && !old.lifted.IsZero() && now.Sub(old.lifted) < againWithin,
		text: fmt.Sprintf("%s: %d requests of %s in a row failed on %s, %d are too many beside a baseline with %d of %d in the last 10 min",
			g.Name, t.Failures, w.variants[t.Variant], r.o.ReplicaID, t.Limit, t.BaselineBad, t.BaselineTrials)}
	r.trips.on[key] = next
	r.mu.Unlock()
	if err := r.o.Control.Trip(t.Experiment, t.Generation, next.name); err != nil {
		r.log.Error("a tripped variant cannot be taken out", "experiment", t.Experiment, "variant", next.name, "err", err)
	}
	if m := r.o.Metrics; m != nil {
		m.CountTrip(t.Experiment, next.name)
	}
	r.log.Warn("breaker tripped: the variant's users get the baseline on this replica", "experiment", t.Experiment, "variant", next.name, "why", next.text)
}

// lift gives variants back whose time is over, and forgets what is over for long.
func (r *Rollouts) lift() {
	now := r.o.Now()
	type back struct {
		tripKey
		name string
	}
	var list []back
	r.mu.Lock()
	for key, t := range r.trips.on {
		w := r.watched[key.experiment]
		gone := w == nil || w.generation != key.generation
		switch {
		case t.lifted.IsZero() && (gone || now.Sub(t.at) >= r.o.TripFor):
			t.lifted = now
			list = append(list, back{key, t.name})
		case !t.lifted.IsZero() && (gone || now.Sub(t.lifted) > againWithin):
			delete(r.trips.on, key)
		}
	}
	r.mu.Unlock()
	for _, b := range list {
		r.untrip(b.tripKey, b.name)
	}
}

func (r *Rollouts) untrip(key tripKey, name string) {
	r.collector.Rearm(key.experiment, key.variant)
	if err := r.o.Control.Untrip(key.experiment, key.generation, name); err != nil {
		r.log.Error("a variant cannot be given back", "experiment", key.experiment, "variant", name, "err", err)
		return
	}
	r.log.Info("the variant is tried again on this replica", "experiment", key.experiment, "variant", name)
}

// actAlone does what the guardrail of an open breaker says where nobody else can
// be asked: this is the only replica, or the store is away and the variant has
// failed again after its return. Else the leader sees the trip in what this
// replica publishes.
func (r *Rollouts) actAlone(ctx context.Context) {
	type alone struct {
		s *subject
		t *trip
	}
	var list []alone
	now := r.o.Now()
	r.mu.Lock()
	known := !r.peers.known.IsZero() && len(r.peers.ids) > 0
	fresh := known && now.Sub(r.peers.known) < peersFor
	only := known && len(r.peers.ids) == 1 && r.peers.ids[0] == r.o.ReplicaID
	for key, t := range r.trips.on {
		w := r.watched[key.experiment]
		if w == nil || !r.trips.open(w.subject, key.variant) || t.acting {
			continue
		}
		if only || t.again && !fresh {
			t.acting = true
			list = append(list, alone{w.subject, t})
		}
	}
	r.mu.Unlock()
	for _, a := range list {
		r.hardFail(ctx, a.s, a.t)
		r.mu.Lock()
		a.t.acting = false // if it could not be done it is tried again in a second
		r.mu.Unlock()
	}
}

// hardFail decides on one replica's breaker alone.
func (r *Rollouts) hardFail(ctx context.Context, s *subject, t *trip) {
	in := &ramp.Input{State: s.state, Config: &s.policy, Step: -1, HardFail: []ramp.Trip{s.tripOf(t.name, t.guardrail, t.text)}}
	if s.ramp != nil {
		in.Phase, in.Step, in.Steps, in.Approved = s.ramp.Phase, s.ramp.Step, s.ramp.Steps, s.ramp.Approved
	}
	d := ramp.Decide(in)
	if !d.Action.Reduces() {
		return
	}
	if err := r.act(ctx, s, d, details(&inputs{Replica: r.o.ReplicaID, Input: in, Decision: d}), 0, nil); err != nil && ctx.Err() == nil {
		r.log.Error("the variant is kept away on this replica, but could not be stopped everywhere", "experiment", s.key, "decision", d.Text, "err", err)
	}
}

func (s *subject) tripOf(variant string, g int, text string) ramp.Trip {
	c := &s.guardrails[g]
	return ramp.Trip{Variant: variant, Guardrail: c.Name, Action: c.Action, Text: text}
}
