package router

import (
	"encoding/json"

	"sluice/experiment"
	"sluice/upstream/wire"
)

func (c *compiler) variant(e *Experiment, v *Variant, state experiment.VariantState) *CompiledVariant {
	up := c.doc.Upstream(v.Upstream)
	out := c.target(up, or(v.Model, e.Model), v.Name)
	out.Version = v.Version
	out.Target.Priority = priorityOf(e, v)
	out.Masked, out.Killed, out.Tripped = state == experiment.Masked, state == experiment.Killed, state == experiment.NotReady
	price := v.Price
	if price == nil {
		price = up.Price
	}
	out.Price, _ = parsePrice(price) // checked by Validate
	out.Target.Patch = patchOf(v)
	return out
}

// Priorities in an upstream's queue, where a variant does not say.
const (
	defaultPriority = 10
	canaryPriority  = 5
)

// priorityOf lets the users of a canary wait for those of the baseline when both
// queue for the same servers; an A/B test must not favour an arm.
func priorityOf(e *Experiment, v *Variant) int {
	switch {
	case v.Priority != nil:
		return *v.Priority
	case e.Kind == "canary" && v.Name != e.Baseline:
		return canaryPriority
	}
	return defaultPriority
}

func patchOf(v *Variant) *wire.Patch {
	p := &wire.Patch{Force: fieldsOf(v.Params), Default: fieldsOf(v.ParamsDefault), Remove: v.ParamsRemove}
	if v.Prompt != nil {
		p.SystemPrepend, p.SystemAppend = v.Prompt.SystemPrepend, v.Prompt.SystemAppend
	}
	if len(p.Force)+len(p.Default)+len(p.Remove) == 0 && p.SystemPrepend == "" && p.SystemAppend == "" {
		return nil
	}
	return p
}

func fieldsOf(params map[string]json.RawMessage) []wire.Field {
	var out []wire.Field
	for _, name := range sortedKeys(params) {
		out = append(out, wire.Field{Name: name, Value: params[name]})
	}
	return out
}

// fallbacks joins variants with their fallbacks, as far as those may serve.
func (c *compiler) fallbacks(e *Experiment, ce *CompiledExperiment) {
	for i, v := range e.Variants {
		j := e.variant(v.Fallback)
		if j < 0 {
			continue
		}
		to := ce.Variants[j]
		if j == ce.Baseline || ce.assigns() && !to.Killed && !to.Masked && !to.Tripped {
			ce.Variants[i].Fallback = to
		}
	}
}
