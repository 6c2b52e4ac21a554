package router

import (
	"math/rand/v2"

	"sluice/experiment"
)

// Reasons of Recheck: why it is not the assigned variant any more.
const (
	RecheckKilled     = "killed"      // killed, rolled back or gone: the baseline serves
	RecheckEvicted    = "evicted"     // weight 0: decided again
	RecheckNotReady   = "not_ready"   // out of service on this replica: the baseline serves
	RecheckNotRunning = "not_running" // finished or back in draft: the baseline serves
)

// Recheck says which variant a request planned under an older table must use
// now, on the current one: the same while it is alive (reason ""), the baseline
// when it was killed or rolled back, a new decision when its weight fell to 0.
// d is then what the current table decides in place of the Plan's; nil when
// nothing changed or the experiment is gone.
// It is cheap while the table is the same, and is asked before every attempt.
func Recheck(t *Table, p *Plan) (v *CompiledVariant, reason string, d *experiment.Decision) {
	if t == nil || t == p.table {
		return p.Variant, "", nil
	}
	m := t.exact[p.Model.Name]
	if p.Experiment == nil {
		if m == nil {
			return p.Variant, "", nil // the model was deleted while the request ran
		}
		return m.Default, "", nil
	}
	e := t.experiments[p.Experiment.Key]
	if e == nil {
		if m == nil {
			return p.Experiment.Variants[p.Experiment.Baseline], RecheckKilled, nil
		}
		return m.Default, RecheckKilled, nil
	}
	baseline := e.Variants[e.Baseline]
	i := e.index(p.Variant.Name)
	switch {
	case i == e.Baseline:
		return baseline, "", nil
	case i < 0, e.State == experiment.RolledBack, e.Variants[i].Killed:
		return baseline, RecheckKilled, p.instead(e.Baseline, experiment.ReasonKilled)
	case !e.assigns():
		return baseline, RecheckNotRunning, p.instead(e.Baseline, experiment.ReasonNotRunning)
	case e.Variants[i].Tripped && p.Decision.Reason != experiment.ReasonOverride:
		return baseline, RecheckNotReady, p.instead(e.Baseline, experiment.ReasonNotReady)
	case e.Variants[i].Masked:
		d := t.again(e, p)
		return e.Variants[d.Variant], RecheckEvicted, d
	}
	return e.Variants[i], "", nil
}

// instead is the decision of p with another variant, which is outside the
// analysis.
func (p *Plan) instead(variant int, reason experiment.Reason) *experiment.Decision {
	d := p.Decision
	d.Variant, d.Reason, d.Exposure, d.Analysed = variant, reason, false, false
	return &d
}

// again decides a request anew whose variant has weight 0 now.
func (t *Table) again(e *CompiledExperiment, p *Plan) *experiment.Decision {
	if e.stickiness == experiment.ByUser {
		// The unit has, or is about to have, a pin to what it was given; a pinned
		// unit gets the baseline, not the new owner of its bucket.
		switch p.Decision.Reason {
		case experiment.ReasonBucket, experiment.ReasonPin, experiment.ReasonMerged:
			return p.instead(e.Baseline, experiment.ReasonEvicted)
		}
	}
	q := *p.query // the table's own header list goes into a copy: q may be read elsewhere
	q.headerAttrs = t.headerAttrs
	eq := experiment.Query{
		Unit: p.Decision.Unit, HasUnit: p.Decision.HasUnit, Attrs: &q, Override: -1,
		Revision: t.Revision, Store: experiment.Down,
	}
	if !eq.HasUnit {
		eq.Unit, eq.HasUnit = t.unit(e, &q)
	}
	if e.stickiness == experiment.None {
		eq.Draw = redraw(p.Decision.Bucket, e.slice[0])
	}
	d := e.Exp.Decide(&eq)
	d.WritePin = experiment.WriteNone // the next request writes it
	return &d
}

// redraw is a draw that gives this bucket once more, and this slot of the layer.
func redraw(bucket, slot int) uint64 {
	if bucket < 0 { // fixed, or an override: there was none
		bucket = rand.IntN(experiment.Buckets)
	}
	at := func(b int) uint64 { return (uint64(b)<<32 + experiment.Buckets - 1) / experiment.Buckets }
	return at(bucket)<<32 | at(slot)
}
