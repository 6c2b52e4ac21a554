package router

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"

	"sluice/experiment"
)

// Notes of a Plan, for x-sluice-note.
const (
	NoteOverrideDenied  = "override_denied"
	NoteOverrideUnknown = "override_unknown_variant"
	NoteOverrideMasked  = "override_masked" // masked, killed or rolled back
)

// Route answers where a request goes and why. pins may be nil. The error is a
// *RouteError. q must stay unchanged as long as the Plan is used.
func (t *Table) Route(ctx context.Context, q *Query, pins Pins) (Plan, error) {
	m, err := t.modelFor(q)
	if err != nil {
		return Plan{}, err
	}
	q.headerAttrs = t.headerAttrs
	p := Plan{
		Model: m, Variant: m.Default, Revision: t.Revision, table: t, query: q,
		Decision: experiment.Decision{Variant: -1, Reason: experiment.ReasonDefault, Bucket: -1},
	}
	if len(m.Experiments) == 0 {
		return p, nil
	}
	eq := experiment.Query{Override: -1, Attrs: q, Revision: t.Revision}
	if m.drawn {
		eq.Draw = rand.Uint64()
	}
	e := t.choose(m, q, &eq)
	e, eq.Override, p.Note = t.override(m, e, q, &eq)
	if e == nil {
		return p, nil
	}
	p.Experiment = e
	if e.merges {
		eq.Session, eq.HasSession = t.session(q)
	}
	eq.Unsupervised = q.Unsupervised != nil && q.Unsupervised(e)
	p.Decision = e.Exp.Decide(&eq)
	if p.Decision.NeedPin || p.Decision.WritePin != experiment.WriteNone {
		p.Decision = pinned(ctx, e, &eq, p.Decision, pins)
	}
	if e.finishes {
		p.Decision = finished(ctx, e, &eq, p.Decision, q, pins)
	}
	if p.Note == "" && p.Decision.Note != "" {
		p.Note = p.Decision.Note
		if p.Note == "override_killed" {
			p.Note = NoteOverrideMasked
		}
	}
	p.Variant = e.Variants[p.Decision.Variant]
	return p, nil
}

func (t *Table) modelFor(q *Query) (*CompiledModel, error) {
	if q.Model == "" {
		return nil, &RouteError{CodeInvalidRequest, "model", "you must provide a model parameter"}
	}
	m, ok := t.Model(q.Model)
	if !ok {
		return nil, &RouteError{CodeModelNotFound, "model", fmt.Sprintf("The model `%s` does not exist; GET /v1/models lists those that do", clip(q.Model))}
	}
	if !q.Key.mayUse(m) {
		return nil, &RouteError{CodePermissionDenied, "model", fmt.Sprintf("this API key may not use the model `%s`", clip(q.Model))}
	}
	return m, nil
}

// choose picks the experiment whose slice of the model's layer the unit is in,
// nil for none, and puts the unit into eq. An experiment that is alone answers
// for everybody: what is outside its slice is its to say.
func (t *Table) choose(m *CompiledModel, q *Query, eq *experiment.Query) *CompiledExperiment {
	if len(m.Experiments) == 1 {
		e := m.Experiments[0]
		eq.Unit, eq.HasUnit = t.unit(e, q)
		return e
	}
	for _, e := range m.Experiments {
		unit, ok := t.unit(e, q)
		slot := 0
		switch {
		case ok:
			slot = experiment.Hash(m.layerSeed, unit).Bucket
		case e.stickiness == experiment.None:
			slot = experiment.Bucket(uint32(eq.Draw)) // as in Decide
		default:
			continue
		}
		if slot >= e.slice[0] && slot < e.slice[1] {
			eq.Unit, eq.HasUnit = unit, ok
			return e
		}
	}
	return nil
}

// override finds the experiment and variant that the request asks for and may
// ask for; without such, e as it was chosen and -1. The note says what was ignored.
func (t *Table) override(m *CompiledModel, e *CompiledExperiment, q *Query, eq *experiment.Query) (*CompiledExperiment, int, string) {
	asked, value := m.askedOverride(q)
	if asked == nil {
		return e, -1, ""
	}
	if !q.Key.HasScope(ScopeOverride) && !(q.AuthNone && q.Loopback) {
		return e, -1, NoteOverrideDenied
	}
	for value != "" {
		var item string
		item, value, _ = strings.Cut(value, ",")
		key, name, named := strings.Cut(strings.TrimSpace(item), "=")
		if !named {
			key, name = "", key
		}
		target, i := m.overrideTarget(e, strings.TrimSpace(key), strings.TrimSpace(name))
		if target == nil {
			continue
		}
		if target != e {
			eq.Unit, eq.HasUnit = t.unit(target, q)
		}
		return target, i, ""
	}
	return e, -1, NoteOverrideUnknown
}

// askedOverride is the first override header of the request.
func (m *CompiledModel) askedOverride(q *Query) (*CompiledExperiment, string) {
	for _, e := range m.Experiments {
		for _, name := range e.overrides {
			if values := q.Header[name]; len(values) > 0 {
				return e, header(q.Header, name)
			}
		}
	}
	return nil, ""
}

// overrideTarget finds variant name in the experiment key; without key, in the
// chosen experiment first, then in the others of the model.
func (m *CompiledModel) overrideTarget(chosen *CompiledExperiment, key, name string) (*CompiledExperiment, int) {
	if key == "" && chosen != nil {
		if i := chosen.index(name); i >= 0 {
			return chosen, i
		}
	}
	for _, e := range m.Experiments {
		if key != "" && e.Key != key {
			continue
		}
		if i := e.index(name); i >= 0 {
			return e, i
		}
	}
	return nil, -1
}

func (e *CompiledExperiment) index(name string) int {
	for i, v := range e.Variants {
		if v.Name == name {
			return i
		}
	}
	return -1
}
