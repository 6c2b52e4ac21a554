package router

import (
	"encoding/json"
	"math"
	"regexp"
	"slices"
	"strings"

	"sluice/experiment"
	"sluice/upstream"
)

// The states of an experiment as the document writes them.
const (
	StateDraft      = "draft"
	StateRunning    = "running"
	StatePaused     = "paused"
	StatePromoted   = "promoted"
	StateRolledBack = "rolled_back"
	StateCompleted  = "completed"
	StateArchived   = "archived"
)

// When a unit that moved to another variant is served by it (switch): at its
// next request, or after the conversation that runs.
const (
	SwitchRequest      = "request"
	SwitchConversation = "conversation"
)

// VariantKilled is the state of a variant that was taken out of its generation.
const VariantKilled = "killed"

func (c *checker) experiment(path string, e *Experiment) {
	if !nameRE.MatchString(e.Key) {
		c.add(path+"/key", "name_invalid", "%q is not a key of an experiment; %s", clip(e.Key), nameRule)
	}
	if !c.models[e.Model] {
		c.add(path+"/model", "model_unknown", "there is no model %q%s", clip(e.Model), hint(e.Model, c.models))
	}
	c.oneOf(path+"/kind", e.Kind, "canary", "ab")
	c.oneOf(path+"/state", e.State, StateDraft, StateRunning, StatePaused, StatePromoted, StateRolledBack, StateCompleted, StateArchived)
	c.oneOf(path+"/stickiness", e.Stickiness, "", "bucket", "user", "none")
	if e.Stickiness == "none" && e.Kind != "canary" {
		c.add(path+"/stickiness", "stickiness_none", "stickiness: none draws per request and is for kind: canary only; an A/B test keeps its users: write user or bucket")
	}
	c.oneOf(path+"/switch", e.Switch, "", SwitchRequest, SwitchConversation)
	if e.Switch == SwitchConversation && e.Stickiness == "none" {
		c.add(path+"/switch", "switch_without_units", "stickiness: none draws every request anew, so no conversation stays anywhere; write unit: {from: [conversation]} to draw once for each")
	}
	c.pins(path, e)
	c.oneOf(path+"/hash", e.Hash, "", "sha256", "growthbook1", "growthbook2")
	c.seed(path+"/seed", e)
	if e.Generation < 0 || e.Generation > math.MaxUint16 {
		c.add(path+"/generation", "out_of_range", "a generation is 0 to 65535")
	}
	c.unit(path+"/unit", e.Unit)
	c.variants(path, e)
	c.roles(path, e)
	c.fallbacks(path, e)
	c.rules(path+"/targeting", e.Targeting)
	c.segments(path+"/fixed", e)
	if s := e.Slice; s != nil && (s[0] < 0 || s[0] >= s[1] || s[1] > experiment.Buckets) {
		c.add(path+"/slice", "slice_invalid", "a slice is [from, to] with 0 <= from < to <= 10000; got [%d, %d]", s[0], s[1])
	}
	c.overrideNames(path+"/override_headers", e.OverrideNames)
	if e.Allocation != nil {
		if err := e.Allocation.Check(len(e.Variants)); err != nil {
			c.add(path+"/allocation", "allocation_invalid", "%v; leave allocation out, the server keeps it", err)
		}
	}
	c.raws(path, e)
}

// pins checks what is remembered of units, and who is held out.
func (c *checker) pins(path string, e *Experiment) {
	byUser := stickinessOf(e) == experiment.ByUser
	if e.Merge && !byUser {
		c.add(path+"/merge", "needs_pins", "merge lets a user take over the pin of a session; pins exist with stickiness: user only")
	}
	switch {
	case e.BlockBelow == 0:
	case !byUser:
		c.add(path+"/block_below", "needs_pins", "block_below shuts out units by their pins; pins exist with stickiness: user only")
	case e.BlockBelow < 0 || e.BlockBelow > max(1, e.Generation):
		c.add(path+"/block_below", "out_of_range", "block_below is 0 to the generation (%d); got %d", max(1, e.Generation), e.BlockBelow)
	}
	if h := e.Holdout; h != nil {
		if !nameRE.MatchString(h.Name) {
			c.add(path+"/holdout/name", "name_invalid", "%q is not a name of a holdout; %s", clip(h.Name), nameRule)
		}
		if h.Share < 1 || h.Share >= experiment.Buckets {
			c.add(path+"/holdout/share", "out_of_range", "a holdout's share is 1 to 9999 basis points; got %d", h.Share)
		}
	}
}

var seedRE = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)

// seed checks the salt of the hash; an imported experiment brings its own form.
func (c *checker) seed(path string, e *Experiment) {
	switch {
	case e.Seed == "":
		// Given at creation by Normalize.
	case (e.Hash == "" || e.Hash == "sha256") && !seedRE.MatchString(e.Seed):
		c.add(path, "seed_invalid", "a seed is 1 to 64 lower-case letters, digits and '-'; leave it out to get a random one")
	case len(e.Seed) > 256 || hasControl(e.Seed):
		c.add(path, "seed_invalid", "the seed of an imported experiment has at most 256 bytes and no control characters")
	}
}

func (c *checker) unit(path string, u *Unit) {
	if u == nil {
		return
	}
	if len(u.From) == 0 {
		c.add(path+"/from", "required", "unit.from lists at least one source; leave unit out for the default chain")
	}
	if !c.most(path+"/from", len(u.From), 32, "sources") {
		return
	}
	seen := map[unitSource]bool{}
	for i, s := range u.From {
		src, err := parseUnitSource(s)
		switch {
		case err != nil:
			c.add(at(path, "from", i), "unit_source_invalid", "%v", err)
		case seen[src]:
			c.add(at(path, "from", i), "duplicate_name", "the source %q is listed twice", s)
		}
		seen[src] = true
	}
}

func (c *checker) variants(path string, e *Experiment) {
	p := path + "/variants"
	switch n := len(e.Variants); {
	case n == 0:
		c.add(p, "variants_count", "an experiment needs at least one variant")
		return
	case n > MaxVariants:
		c.add(p, "variants_count", "%d variants, at most %d are possible", n, MaxVariants)
		return
	}
	names, sum, sane := map[string]bool{}, 0, true
	for i := range e.Variants {
		v, vp := &e.Variants[i], at(p, i)
		if !nameRE.MatchString(v.Name) {
			c.add(vp+"/name", "name_invalid", "%q is not a name of a variant; %s", clip(v.Name), nameRule)
		}
		if names[v.Name] {
			c.add(vp+"/name", "duplicate_name", "the variant %q is written twice; names are unique within an experiment", clip(v.Name))
		}
		names[v.Name] = true
		if v.Weight < 0 || v.Weight > experiment.Buckets {
			sane = false
			code := "weight_range"
			if v.Weight < 0 {
				code = "weight_negative"
			}
			c.add(vp+"/weight", code, "weight %d: a weight is a whole number of basis points from 0 to 10000", v.Weight)
		} else {
			sum += v.Weight
		}
		c.variant(vp, v)
	}
	if sane && sum != experiment.Buckets {
		c.add(p, "weights_sum", "weights sum to %d, want 10000", sum)
	}
}

func (c *checker) variant(path string, v *Variant) {
	c.oneOf(path+"/state", v.State, "", "live", VariantKilled)
	c.upstreamRef(path+"/upstream", v.Upstream)
	c.served(path+"/model", v.Model)
	// The label goes into a response header.
	if v.Version != "" && (publicName(strings.ReplaceAll(v.Version, " ", "_")) != "") {
		c.add(path+"/version", "invalid_value", "a version label is 1 to 128 printable ASCII characters")
	}
	c.params(path+"/params", v.Params)
	c.params(path+"/params_default", v.ParamsDefault)
	if c.most(path+"/params_remove", len(v.ParamsRemove), MaxObjects, "parameters") {
		for i, name := range v.ParamsRemove {
			c.paramName(at(path, "params_remove", i), name)
			if _, both := v.Params[name]; both {
				c.add(at(path, "params_remove", i), "params_conflict", "%q is set by params and removed by params_remove; keep one", clip(name))
			}
		}
	}
	if v.Prompt != nil {
		if len(v.Prompt.SystemPrepend) > maxPrompt {
			c.add(path+"/prompt/system_prepend", "too_large", "%d bytes, at most %d are allowed", len(v.Prompt.SystemPrepend), maxPrompt)
		}
		if len(v.Prompt.SystemAppend) > maxPrompt {
			c.add(path+"/prompt/system_append", "too_large", "%d bytes, at most %d are allowed", len(v.Prompt.SystemAppend), maxPrompt)
		}
	}
	c.price(path+"/price", v.Price)
}

// forbiddenParams are not a variant's to change: the gateway sets them itself
// or they are what the user said.
var forbiddenParams = map[string]string{
	"model":          "write the variant's own model",
	"stream":         "streaming is the client's choice",
	"stream_options": "usage is injected by the gateway",
	"messages":       "use prompt to add system text",
	"prompt":         "use prompt to add system text",
	"input":          "it is what the client sent",
}

func (c *checker) params(path string, params map[string]json.RawMessage) {
	if !c.most(path, len(params), MaxObjects, "parameters") {
		return
	}
	for _, name := range sortedKeys(params) {
		p := at(path, name)
		c.paramName(p, name)
		if !json.Valid(params[name]) {
			c.add(p, "params_invalid", "the value of %q is not valid JSON", clip(name))
		}
	}
}

func (c *checker) paramName(path, name string) {
	if why, bad := forbiddenParams[name]; bad {
		c.add(path, "params_forbidden", "%q cannot be changed by a variant: %s", name, why)
	} else if name == "" || len(name) > maxLabel || hasControl(name) {
		c.add(path, "params_invalid", "a parameter is the name of a member of the request body, 1 to 128 bytes")
	}
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// roles checks the variants that have a part: baseline and winner.
func (c *checker) roles(path string, e *Experiment) {
	switch i := e.variant(e.Baseline); {
	case e.Baseline == "":
		c.add(path+"/baseline", "required", "name the variant that the others are compared with, and that a rollback returns to")
	case i < 0:
		c.add(path+"/baseline", "variant_unknown", "the baseline %q is none of the variants", clip(e.Baseline))
	case e.Variants[i].State == VariantKilled:
		c.add(at(path, "variants", i, "state"), "baseline_killed", "the baseline cannot be killed: it is what killed variants fall back to; roll back or finish the experiment instead")
	}
	switch {
	case e.State == StatePromoted && e.Winner == "":
		c.add(path+"/winner", "required", "a promoted experiment names its winner")
	case e.Winner == "":
	case e.variant(e.Winner) < 0:
		c.add(path+"/winner", "variant_unknown", "the winner %q is none of the variants", clip(e.Winner))
	case e.State == StatePromoted && e.Winner != e.Baseline && e.Variants[e.variant(e.Winner)].Weight == 0:
		c.add(path+"/winner", "winner_masked", "the winner %q has weight 0; give it weight first", clip(e.Winner))
	}
}

func (c *checker) fallbacks(path string, e *Experiment) {
	if len(e.Variants) > MaxVariants {
		return
	}
	index := map[string]int{}
	for i, v := range e.Variants {
		index[v.Name] = i
	}
	for i, v := range e.Variants {
		p := at(path, "variants", i, "fallback")
		if v.Fallback == "" {
			continue
		}
		if v.Fallback == v.Name {
			c.add(p, "fallback_self", "%q falls back to itself; name another variant or leave fallback out", clip(v.Name))
			continue
		}
		next, ok := index[v.Fallback]
		if !ok {
			c.add(p, "variant_unknown", "the fallback %q is none of the variants", clip(v.Fallback))
			continue
		}
		// Follow the chain; it is a cycle when it comes back to i.
		for range e.Variants {
			if next == i {
				c.add(p, "fallback_cycle", "the fallbacks of %q come back to it; break the cycle", clip(v.Name))
				break
			}
			if next, ok = index[e.Variants[next].Fallback]; !ok {
				break
			}
		}
	}
}

func (c *checker) overrideNames(path string, names []string) {
	if !c.most(path, len(names), 32, "headers") {
		return
	}
	for i, n := range names {
		switch low := strings.ToLower(n); {
		case !isToken(n):
			c.add(at(path, i), "header_invalid", "%q is not the name of a header", clip(n))
		case upstream.Private(n) || addressHeaders[low] || strings.HasPrefix(low, "content-") || low == "accept" || low == "user-agent" || low == "x-request-id":
			c.add(at(path, i), "header_forbidden", "the header %q cannot name a variant; use one such as x-llm-variant", low)
		}
	}
}

// slices checks that the experiments on one model own disjoint slices.
func (c *checker) slices() {
	byModel := map[string][]int{}
	for i, e := range c.d.Experiments {
		if e.State == StateArchived {
			continue
		}
		lo, hi := sliceOf(&e)
		for _, j := range byModel[e.Model] {
			other := &c.d.Experiments[j]
			if l, h := sliceOf(other); lo < h && l < hi {
				c.add(at("/experiments", i, "slice"), "slice_overlap", "the experiment %q on the model %q already owns [%d, %d); give both disjoint slices, like [0, 5000] and [5000, 10000], or archive one", clip(other.Key), clip(e.Model), l, h)
				break
			}
		}
		byModel[e.Model] = append(byModel[e.Model], i)
	}
}

// holdouts checks that a holdout is the same set of units in every experiment.
func (c *checker) holdouts() {
	share := map[string]*Experiment{}
	for i := range c.d.Experiments {
		e := &c.d.Experiments[i]
		if e.Holdout == nil || e.State == StateArchived {
			continue
		}
		first := share[e.Holdout.Name]
		switch {
		case first == nil:
			share[e.Holdout.Name] = e
		case first.Holdout.Share != e.Holdout.Share:
			c.add(at("/experiments", i, "holdout", "share"), "holdout_differs", "the experiment %q holds out %d basis points under the name %q; write the same share, or another name", clip(first.Key), first.Holdout.Share, clip(e.Holdout.Name))
		}
	}
}

func sliceOf(e *Experiment) (lo, hi int) {
	if e.Slice == nil {
		return 0, experiment.Buckets
	}
	return e.Slice[0], e.Slice[1]
}
