package router

import "sluice/experiment"

// Reasons of Recheck, for a variant that is not the assigned one any more.
const (
	RecheckKilled     = "killed"      // killed, rolled back or gone: the baseline serves
	RecheckEvicted    = "evicted"     // weight 0: decided again
	RecheckNotRunning = "not_running" // finished or back in draft: the baseline serves
)

// Recheck says which variant a request planned under an older table must use
// now, on the current one: the same while it is alive (reason ""), the baseline
// when it was killed or rolled back, a new decision when its weight fell to 0.
// It is cheap while the table is the same, and is asked before every attempt.
func Recheck(t *Table, p *Plan) (v *CompiledVariant, reason string) {
	if t == nil || t == p.table {
		return p.Variant, ""
	}
	m := t.exact[p.Model.Name]
	if p.Experiment == nil {
		if m == nil {
			return p.Variant, "" // the model was deleted while the request ran
		}
		return m.Default, ""
	}
	e := t.experiments[p.Experiment.Key]
	if e == nil {
		if m == nil {
			return p.Experiment.Variants[p.Experiment.Baseline], RecheckKilled
		}
		return m.Default, RecheckKilled
	}
	baseline := e.Variants[e.Baseline]
	i := e.index(p.Variant.Name)
	switch {
	case i == e.Baseline:
		return baseline, ""
	case i < 0, e.State == experiment.RolledBack, e.Variants[i].Killed:
		return baseline, RecheckKilled
	case !e.assigns():
		return baseline, RecheckNotRunning
	case e.Variants[i].Masked:
		return t.again(e, i, p), RecheckEvicted
	}
	return e.Variants[i], ""
}

// again decides a request anew whose variant (number i of e) has weight 0 now.
func (t *Table) again(e *CompiledExperiment, i int, p *Plan) *CompiledVariant {
	q := *p.query // the table's own header list goes into a copy: q may be read elsewhere
	q.headerAttrs = t.headerAttrs
	eq := experiment.Query{
		Unit: p.Decision.Unit, HasUnit: p.Decision.HasUnit, Attrs: &q, Override: -1,
		Revision: t.Revision, Store: experiment.Down,
	}
	if !eq.HasUnit {
		eq.Unit, eq.HasUnit = t.unit(e, &q)
	}
	if e.stickiness == experiment.ByUser {
		// The unit has, or is about to have, a pin to what it was given; a pinned
		// unit gets the baseline, not the new owner of its bucket.
		switch p.Decision.Reason {
		case experiment.ReasonBucket, experiment.ReasonPin, experiment.ReasonMerged:
			return e.Variants[e.Baseline]
		}
	}
	if e.stickiness == experiment.None {
		return e.Variants[e.Baseline] // the draw is gone
	}
	d := e.Exp.Decide(&eq)
	if v := e.Variants[d.Variant]; d.Variant != i {
		return v
	}
	return e.Variants[e.Baseline]
}

// Fallback is the declared fallback of the variant that serves p on the current
// table, nil without one that may serve.
func Fallback(t *Table, p *Plan) *CompiledVariant {
	v, _ := Recheck(t, p)
	return v.Fallback
}
