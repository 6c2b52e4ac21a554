package router

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Differs labels what differs between the variants of e, in the order model,
// params, prompt, upstream, and says in words what may spoil the comparison.
// Neither list is nil.
func Differs(e *Experiment) (differs, warnings []string) {
	differs, warnings = []string{}, []string{}
	aspects := []struct {
		name string
		of   func(*Variant) string
	}{
		{"model", func(v *Variant) string { return or(v.Model, e.Model) }},
		{"params", paramsOf},
		{"prompt", promptOf},
		{"upstream", func(v *Variant) string { return v.Upstream }},
	}
	for _, a := range aspects {
		if len(e.Variants) > 1 && slices.ContainsFunc(e.Variants[1:], func(v Variant) bool { return a.of(&v) != a.of(&e.Variants[0]) }) {
			differs = append(differs, a.name)
		}
	}
	switch {
	case len(differs) > 1:
		warnings = append(warnings, fmt.Sprintf("The variants differ in %s: a difference in the results cannot be put down to one of them.", enumerate(differs)))
	case len(differs) == 0 && len(e.Variants) > 1:
		warnings = append(warnings, "The variants do not differ: this compares a variant with itself (an A/A test).")
	}
	return differs, warnings
}

// paramsOf is the canonical text of all that changes a request's parameters;
// order of members and spelling of numbers do not count.
func paramsOf(v *Variant) string {
	canonical := func(m map[string]json.RawMessage) map[string]any {
		out := map[string]any{}
		for k, raw := range m {
			var x any
			if json.Unmarshal(raw, &x) != nil {
				x = string(raw)
			}
			out[k] = x
		}
		return out
	}
	remove := slices.Clone(v.ParamsRemove)
	slices.Sort(remove)
	// Maps are written in the order of their names.
	raw, _ := json.Marshal([]any{canonical(v.Params), canonical(v.ParamsDefault), strings.Join(slices.Compact(remove), "\x00")})
	return string(raw)
}

func promptOf(v *Variant) string {
	if v.Prompt == nil {
		return "\x00" // the same as an empty one
	}
	return v.Prompt.SystemPrepend + "\x00" + v.Prompt.SystemAppend
}

func enumerate(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " and " + words[len(words)-1]
}
