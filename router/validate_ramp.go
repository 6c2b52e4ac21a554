package router

import (
	"encoding/json"
	"errors"
	"regexp"
	"slices"
	"strings"

	"sluice/experiment/guardrail"
	"sluice/experiment/ramp"
	"sluice/experiment/trial"
)

// ramp checks `ramp`, `guardrails` and what they are to each other. What they
// may say is ramp.Parse's and guardrail.Parse's to know.
func (c *checker) ramp(path string, e *Experiment) {
	c.rampState(path+"/ramp_state", e)
	if e.Setup != nil {
		c.most(path+"/setup/thresholds", len(e.Setup.Thresholds), trial.MaxGuardrails, "thresholds")
	}
	lists := c.guardrails(path+"/guardrails", e)
	if absent(e.Ramp) {
		return
	}
	if kind := shapeOf(e.Ramp); kind != '{' {
		c.add(path+"/ramp", "wrong_type", "want an object, got %s", valueName(e.Ramp))
		return
	}
	policy, err := ramp.Parse(e.Ramp)
	var faults ramp.Error
	if errors.As(err, &faults) {
		for _, f := range faults {
			code := "ramp_invalid"
			if strings.HasPrefix(f.Text, "there is no such member") {
				code = "unknown_member"
			}
			c.add(path+"/ramp"+f.Path, code, "%s", f.Text)
		}
		return
	}
	if i, why := rampVariant(e, &policy); i < 0 {
		c.add(path+"/ramp/variant", "ramp_variant", "%s", why)
	}
	if !lists {
		return
	}
	if _, err := policy.Guardrails(e.Guardrails, e.Kind == "ab"); err != nil {
		where, text, ok := strings.Cut(err.Error(), ": ")
		if at, slo := strings.CutPrefix(where, "ramp/"); ok && slo {
			c.add(path+"/ramp/"+at, "ramp_invalid", "%s", text)
		} else {
			c.add(path+"/ramp", "ramp_invalid", "%v", err)
		}
	}
}

// shapeOf is the first byte of a JSON value.
func shapeOf(raw json.RawMessage) byte {
	if s := strings.TrimSpace(string(raw)); s != "" {
		return s[0]
	}
	return 0
}

// unknownField is encoding/json's way to name it.
var unknownField = regexp.MustCompile(`json: unknown field "(.*)"`)

// guardrails checks each entry of the list by itself, so that a fault has its
// place, and then what they are to each other. It reports a sound list.
func (c *checker) guardrails(path string, e *Experiment) bool {
	before := len(c.problems)
	if absent(e.Guardrails) {
		return true
	}
	var items []json.RawMessage
	if err := json.Unmarshal(e.Guardrails, &items); err != nil {
		c.add(path, "wrong_type", "want a list of objects")
		return false
	}
	if !c.most(path, len(items), maxRules, "entries") {
		return false
	}
	kill := e.Kind == "ab"
	for i, item := range items {
		p := at(path, i)
		if shapeOf(item) != '{' {
			c.add(p, "wrong_type", "want an object, got %s", valueName(item))
			continue
		}
		_, err := guardrail.Parse(json.RawMessage("["+string(item)+"]"), kill)
		if err == nil {
			continue
		}
		text := err.Error()
		if m := unknownField.FindStringSubmatch(text); m != nil {
			c.add(at(p, m[1]), "unknown_member", "unknown member %q; a guardrail has metric, name, action, require, threshold, tolerate_ratio, pass_ratio, max_rate, ok_rate, min_effect_rate, max_lift, source, url, query, max and on_breach", clip(m[1]))
			continue
		}
		for line := range strings.SplitSeq(text, "\n") {
			c.add(p, "guardrail_invalid", "%s", line)
		}
	}
	if len(c.problems) > before {
		return false
	}
	if _, err := guardrail.Parse(e.Guardrails, kill); err != nil {
		c.add(path, "guardrail_invalid", "%s", strings.ReplaceAll(err.Error(), "\n", "; "))
		return false
	}
	return true
}

const (
	maxRampSteps = 1000 // a run's: those of the policy and those that people added
	maxHeavy     = 1000
)

var pinFieldRE = regexp.MustCompile(`^[0-9a-f]{16}$`)

// rampState checks a ramp's standing, which a document of elsewhere may bring.
func (c *checker) rampState(path string, e *Experiment) {
	s := e.RampState
	if s == nil {
		return
	}
	c.oneOf(path+"/phase", string(s.Phase), string(ramp.ReadyWait), string(ramp.Ramping), string(ramp.Holding), string(ramp.Baking), string(ramp.Done))
	if i := e.variant(s.Variant); i < 0 || s.Variant == e.Baseline {
		if s.Phase != ramp.Done {
			c.add(path+"/variant", "variant_unknown", "%q is no treatment of this experiment; leave ramp_state out, the server keeps it", clip(s.Variant))
		}
	}
	if !c.most(path+"/steps", len(s.Steps), maxRampSteps, "steps") || !c.most(path+"/heavy", len(s.Heavy), maxHeavy, "units") {
		return
	}
	if s.Step < -1 || s.Step >= max(len(s.Steps), 1) || s.Step >= 0 && len(s.Steps) == 0 {
		c.add(path+"/step", "out_of_range", "step %d of %d steps; leave ramp_state out, the server keeps it", s.Step, len(s.Steps))
	}
	last := 0
	for i, step := range s.Steps {
		if step.Weight <= last || step.Weight > ramp.Full {
			c.add(at(path, "steps", i), "out_of_range", "steps rise from 1 to 10000 basis points")
			break
		}
		last = step.Weight
	}
	if slices.ContainsFunc(s.Heavy, func(f string) bool { return !pinFieldRE.MatchString(f) }) {
		c.add(path+"/heavy", "invalid_value", "a pin field is 16 hex digits")
	}
	if s.Approved < 0 || s.Approved > maxRampSteps || len(s.Reason) > maxLabel || hasControl(s.Reason) {
		c.add(path, "out_of_range", "approved or reason is not what a server writes; leave ramp_state out")
	}
	c.most(path+"/setup/thresholds", len(s.Setup.Thresholds), trial.MaxGuardrails, "thresholds")
}
