package router

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"sluice/experiment"
)

// pinBudget bounds one read or write of a pin: later, the table answers.
const pinBudget = 5 * time.Millisecond

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
	p.Decision = e.Exp.Decide(&eq)
	if p.Decision.NeedPin || p.Decision.WritePin != experiment.WriteNone {
		p.Decision = pinned(ctx, e, eq, p.Decision, pins)
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

// pinned completes a decision that reads or writes a pin. A store that is away
// or slow never fails a request: the table answers, provisionally.
func pinned(ctx context.Context, e *CompiledExperiment, eq experiment.Query, d experiment.Decision, pins Pins) experiment.Decision {
	if d.NeedPin {
		eq.Store = experiment.Down
		if pins != nil {
			if pin, found, err := getPin(ctx, pins, e.Key, &d.Digest); err == nil {
				eq.Store, eq.Pin, eq.HasPin = experiment.Up, pin, found
			}
		}
		d = e.Exp.Decide(&eq)
	}
	// Twice: what the store answers to a write may itself ask for one (a pin of
	// a variant that was killed meanwhile).
	for range 2 {
		switch d.WritePin {
		case experiment.WriteAsync:
			if pins != nil {
				pins.PutLater(e.Key, d.Digest.Field, d.Digest.Shard, d.Pin)
			}
			return d
		case experiment.WriteSync, experiment.WriteReplace:
		default:
			return d
		}
		if pins == nil {
			return d // only after a read, so there are pins; never write into nothing
		}
		var expect *experiment.Pin
		if d.WritePin == experiment.WriteReplace && eq.HasPin {
			old := eq.Pin
			expect = &old
		}
		stored, err := putPin(ctx, pins, e.Key, &d, expect)
		switch {
		case err != nil && d.Reason == experiment.ReasonEvicted:
			return d // the baseline is right whatever the store knows
		case err != nil:
			eq.Store, eq.HasPin = experiment.Down, false
			return e.Exp.Decide(&eq)
		case stored == d.Pin:
			return d
		}
		// Somebody was first: theirs is served.
		eq.Store, eq.HasPin, eq.Pin = experiment.Up, true, stored
		d = e.Exp.Decide(&eq)
	}
	return d
}

func getPin(ctx context.Context, pins Pins, key string, d *experiment.Digest) (experiment.Pin, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, pinBudget)
	defer cancel()
	return pins.Get(ctx, key, d.Field, d.Shard)
}

func putPin(ctx context.Context, pins Pins, key string, d *experiment.Decision, expect *experiment.Pin) (experiment.Pin, error) {
	ctx, cancel := context.WithTimeout(ctx, pinBudget)
	defer cancel()
	return pins.Put(ctx, key, d.Digest.Field, d.Digest.Shard, d.Pin, expect)
}
