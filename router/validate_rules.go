package router

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"sluice/experiment"
	"sluice/upstream"
)

const maxRules = 100

func (c *checker) rules(path string, rules []experiment.Rule) {
	if !c.most(path, len(rules), maxRules, "rules") {
		return
	}
	for i, r := range rules {
		p := at(path, i)
		c.ruleAttr(p+"/attr", r.Attr, r.Op)
		c.oneOf(p+"/op", r.Op, ruleOps...)
		if len(r.Values) == 0 {
			c.add(p+"/values", "required", "a rule needs at least one value")
			continue
		}
		if !c.most(p+"/values", len(r.Values), MaxObjects, "values") {
			continue
		}
		for j, v := range r.Values {
			if len(v) > 512 {
				c.add(at(p, "values", j), "too_large", "a value has at most 512 bytes")
			}
		}
		if err := experiment.CheckRule(r); err != nil && slices.Contains(ruleOps, r.Op) {
			c.add(p, "rule_invalid", "%v", err)
		}
	}
}

var ruleOps = []string{"in", "not_in", "prefix", "semver_gte", "percent"}

func (c *checker) ruleAttr(path, attr, op string) {
	kind, name, named := strings.Cut(attr, ":")
	switch {
	case !named && slices.Contains([]string{"tenant", "key", "model", "api"}, attr):
	case (attr == "" || attr == experiment.UnitAttr) && op == "percent": // of the units themselves
	case named && kind == "tag" && name != "" && len(name) <= maxLabel:
	case named && kind == "header" && upstream.Private(name):
		c.add(path, "attr_forbidden", "the header %q carries a credential or belongs to the connection; nobody is targeted by it", clip(name))
	case named && kind == "header" && isToken(name):
	default:
		c.add(path, "attr_invalid", "%q is not an attribute; use tenant, key, model, api, tag:NAME or header:NAME (percent also takes unit)", clip(attr))
	}
}

func (c *checker) segments(path string, e *Experiment) {
	if !c.most(path, len(e.Fixed), maxRules, "segments") {
		return
	}
	for i, s := range e.Fixed {
		p := at(path, i)
		if len(s.Name) > maxLabel || hasControl(s.Name) {
			c.add(p+"/name", "name_invalid", "a segment's name has at most %d bytes and no control characters", maxLabel)
		}
		if e.variant(s.Variant) < 0 {
			c.add(p+"/variant", "variant_unknown", "%q is none of the variants", clip(s.Variant))
		}
		if len(s.Rules) == 0 {
			c.add(p+"/rules", "required", "a fixed segment needs at least one rule; without one it would be everybody")
		}
		c.rules(p+"/rules", s.Rules)
	}
}

// Members of the parts that a later controller acts on: enough to catch a typo.
var (
	metricKeys = words(`name type direction role primary secondary numerator denominator window attribution_window
		min_units unit description source metric`)
	shadowKeys = words(`variant upstream percent sample max_per_minute budget_usd_per_day max_in_flight mode compare`)
)

func words(s string) map[string]bool {
	out := map[string]bool{}
	for _, w := range strings.Fields(s) {
		out[w] = true
	}
	return out
}

func (c *checker) raws(path string, e *Experiment) {
	c.ramp(path, e)
	c.rawObject(path+"/shadow", e.Shadow, shadowKeys)
	if raw := bytes.TrimSpace(e.Metrics); len(raw) > 0 && raw[0] == '{' {
		// {"thumbs": {...}} is the same as [{"name": "thumbs", ...}].
		var byName map[string]json.RawMessage
		if json.Unmarshal(raw, &byName) != nil {
			c.add(path+"/metrics", "invalid_json", "not valid JSON")
			return
		}
		for _, name := range sortedKeys(byName) {
			c.rawObject(at(path, "metrics", name), byName[name], metricKeys)
		}
		return
	}
	c.rawList(path+"/metrics", e.Metrics, metricKeys)
}

func absent(raw json.RawMessage) bool {
	raw = bytes.TrimSpace(raw)
	return len(raw) == 0 || string(raw) == "null"
}

func (c *checker) rawList(path string, raw json.RawMessage, keys map[string]bool) {
	if absent(raw) {
		return
	}
	var items []json.RawMessage
	if err := json.Unmarshal(raw, &items); err != nil {
		c.add(path, "wrong_type", "want a list of objects")
		return
	}
	if !c.most(path, len(items), maxRules, "entries") {
		return
	}
	for i, item := range items {
		if absent(item) {
			c.add(at(path, i), "wrong_type", "want an object, got null")
			continue
		}
		c.rawObject(at(path, i), item, keys)
	}
}

func (c *checker) rawObject(path string, raw json.RawMessage, keys map[string]bool) {
	if absent(raw) {
		return
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(raw, &members); err != nil {
		c.add(path, "wrong_type", "want an object")
		return
	}
	for _, name := range sortedKeys(members) {
		if !keys[name] {
			c.add(at(path, name), "unknown_member", "unknown member %q; one of %s is meant", clip(name), strings.Join(sortedKeys(keys), ", "))
		}
	}
}
