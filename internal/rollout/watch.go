package rollout

import (
	"context"
	"sort"
	"strconv"
	"time"

	"sluice/experiment"
	"sluice/experiment/guardrail"
	"sluice/experiment/ramp"
	"sluice/experiment/trial"
	"sluice/router"
	"sluice/upstream"
)

// subject is one experiment with guardrails as a table has it: what is counted,
// judged and decided of it. Equal on every replica that has the revision.
type subject struct {
	key, model string
	state      string // of the experiment: running, paused, promoted
	generation int
	epoch      int64
	variants   []string
	upstreams  []*upstream.Upstream
	weights    []int
	killed     []bool
	baseline   int
	ramping    int         // -1 without a ramp
	ramp       *ramp.State // nil without one
	given      trial.Setup // without one: what is slow, as the leader has fixed it
	policy     ramp.Config
	guardrails []guardrail.Config
	pinned     bool // stickiness user: without the store some are answered provisionally
}

// subjects are the experiments of a table that are watched: those that run, or
// bake, and have guardrails. A kill set laid over the table counts.
func subjects(t *router.Table) map[string]*subject {
	out := map[string]*subject{}
	if t == nil {
		return out
	}
	for i := range t.Snapshot.Document.Experiments {
		e := &t.Snapshot.Document.Experiments[i]
		ce, ok := t.Experiment(e.Key)
		if !ok || len(ce.Guardrails) == 0 || ce.State == experiment.RolledBack || len(ce.Variants) < 2 {
			continue
		}
		if e.State != router.StateRunning && e.State != router.StatePaused && (e.State != router.StatePromoted || !ce.Ramped) {
			continue
		}
		out[e.Key] = subjectOf(e, ce)
	}
	return out
}

func subjectOf(e *router.Experiment, ce *router.CompiledExperiment) *subject {
	s := &subject{
		key: e.Key, model: e.Model, state: e.State, generation: e.Generation, epoch: e.UpdatedRevision,
		baseline: ce.Baseline, ramping: -1, policy: ce.Policy, guardrails: ce.Guardrails, pinned: e.Stickiness == "user" || e.Stickiness == "" && e.Kind == "ab",
	}
	for i, v := range ce.Variants {
		s.variants, s.upstreams = append(s.variants, v.Name), append(s.upstreams, v.Target.Upstream)
		s.weights, s.killed = append(s.weights, e.Variants[i].Weight), append(s.killed, v.Killed)
		if ce.Ramped && v.Name == ce.Ramp.Variant {
			s.ramping = i
		}
	}
	switch {
	case ce.Ramped:
		s.ramp, s.epoch = ce.Ramp, ce.Ramp.Epoch
	case e.Setup != nil:
		s.given = *e.Setup
	}
	return s
}

// setup is what the epoch counts as slow: what the leader has fixed, or as long
// as it has not, what is written.
func (s *subject) setup() trial.Setup {
	if given := s.lead(); len(given.Thresholds) == len(s.guardrails) {
		return given
	}
	var out trial.Setup
	out.Thresholds, out.Settled = trial.Fix(s.guardrails, new(trial.Profile))
	return out
}

// lead is what the leader has fixed, nothing before it has.
func (s *subject) lead() trial.Setup {
	if s.ramp != nil {
		return s.ramp.Setup
	}
	return s.given
}

// fixed reports whether the leader has, or has nothing to fix: without a ramp
// nothing else than a threshold that nobody has written waits for it.
func (s *subject) fixed() bool {
	return len(s.lead().Thresholds) == len(s.guardrails) || s.ramp == nil && new(trial.Profile).Lacks(s.guardrails) == 0
}

// begun reports that users may be in a treatment: pasts are no longer learnt.
func (s *subject) begun() bool { return s.ramp == nil || s.ramp.Step >= 0 }

// watched is a subject that this replica counts.
type watched struct {
	*subject
	plan       *trial.Plan
	unattended bool // logged
}

// past is what is known of units that failed before the rollout began.
type past struct {
	generation int
	frozen     time.Time // when this replica saw the rollout begin
	told       time.Time // what this replica knows was shared
	loaded     time.Time
	excluded   *trial.Exclusions
}

// count drains the collector once a second and at every swap, and tells it what
// to count.
func (r *Rollouts) count(ctx context.Context) {
	tick := time.NewTicker(second)
	defer tick.Stop()
	var last *router.Table
	for {
		t := r.o.Live.Load()
		r.drain()
		if t != last {
			r.watch(t)
			last = t
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-r.swaps:
		}
	}
}

// watch counts what t says. A plan is kept as long as its epoch lasts: another
// one begins to count anew. What is older than the swap is in no trial; since is
// of this replica's clock, for that of the leader may be another time.
func (r *Rollouts) watch(t *router.Table) {
	r.mu.Lock()
	defer r.mu.Unlock()
	next := map[string]*watched{}
	for key, s := range subjects(t) {
		old := r.watched[key]
		if old != nil && old.generation == s.generation && old.epoch == s.epoch && len(old.guardrails) == len(s.guardrails) {
			next[key] = &watched{s, old.plan, old.unattended}
			continue
		}
		setup := s.setup()
		setup.Since = r.o.Now().UnixMilli()
		plan, err := trial.NewPlan(s.guardrails, setup)
		if err != nil {
			r.log.Error("an experiment is not watched", "experiment", key, "err", err)
			continue
		}
		next[key] = &watched{subject: s, plan: plan}
	}
	r.watched = next
	for key, p := range r.pasts {
		if w := next[key]; w == nil || w.generation != p.generation {
			delete(r.pasts, key)
		}
	}
	for key, w := range next {
		p := r.pasts[key]
		if p == nil {
			p = &past{generation: w.generation}
			r.pasts[key] = p
		}
		if w.begun() && p.frozen.IsZero() {
			p.frozen = r.o.Now()
		}
	}
	r.setWatches()
}

// setWatches hands the collector what is watched; r.mu is held.
func (r *Rollouts) setWatches() {
	out := make(map[string]*trial.Watch, len(r.watched))
	for key, w := range r.watched {
		out[key] = &trial.Watch{
			Experiment: key, Generation: w.generation, Epoch: w.epoch, Variants: len(w.variants), Baseline: w.baseline,
			Configs: w.guardrails, Plan: w.plan, Replicas: r.peers.count(), Frozen: w.begun(), Excluded: r.pasts[key].excluded, Breaker: true,
		}
	}
	r.collector.Set(out)
}

// current are the subjects that are watched, by key in order.
func (r *Rollouts) current() []*subject {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]*subject, 0, len(r.watched))
	for _, w := range r.watched {
		out = append(out, w.subject)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].key < out[j].key })
	return out
}

func topic(generation int) string { return "past-" + strconv.Itoa(generation) }
