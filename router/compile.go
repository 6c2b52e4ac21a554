package router

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"net/textproto"
	"slices"
	"strings"
	"time"

	"sluice/experiment"
	"sluice/experiment/guardrail"
	"sluice/upstream"
	"sluice/upstream/wire"
)

// KillEntry is an entry of the shared kill set, laid over a snapshot: it counts
// as long as the experiment is in that generation.
type KillEntry struct {
	Experiment string
	Generation int
	Variant    string // "*" is a rollback
	CutStreams bool   // its streams in flight end at once
	Code       string // of the decision that made it, "" for a person's
}

const everyVariant = "*"

// CompileOptions are what Compile cannot know from the snapshot.
type CompileOptions struct {
	Secrets   func(name string) bool // does a credential resolve; nil: not checked
	Validated bool                   // the caller has done it, with the same secrets
	Kills     []KillEntry
	// Trips are variants that are out of service on this replica alone, for now:
	// their units get the baseline, are not analysed and keep their pins.
	Trips []KillEntry
	Epoch int64 // of the kill set, becomes Table.Epoch
	// OverrideHeaders are more header names that force a variant, in every experiment.
	OverrideHeaders []string
}

// Compile validates s and builds its Table; ups holds every upstream of the
// document by name. The error is Problems, all of them. s must not be written
// afterwards.
func Compile(s *Snapshot, ups map[string]*upstream.Upstream, o CompileOptions) (*Table, error) {
	c := compiler{
		doc: &s.Document, ups: ups, o: o,
		t: &Table{Revision: s.Document.Revision, Epoch: o.Epoch, Snapshot: s, table: table{
			exact:       map[string]*CompiledModel{},
			experiments: map[string]*CompiledExperiment{},
			keys:        make(map[[sha256.Size]byte]*Key, len(s.Keys)),
			tenants:     make(map[string]keyTenant, len(s.Keys)),
			headerAttrs: map[string]string{},
		}},
	}
	if !o.Validated {
		c.problems = Validate(&s.Document, ValidateOptions{Secrets: o.Secrets})
	}
	for i, u := range c.doc.Upstreams {
		c.t.upstreams = append(c.t.upstreams, ups[u.Name])
		if ups[u.Name] == nil {
			c.add(at("/upstreams", i), "upstream_missing", "the upstream "+clip(u.Name)+" is in the document but was not built")
		}
	}
	c.keys(s.Keys)
	if len(c.problems) > 0 {
		return nil, c.problems // the rest relies on a document that holds together
	}
	for i := range c.doc.Models {
		c.model(&c.doc.Models[i])
	}
	for i := range c.doc.Experiments {
		if e := &c.doc.Experiments[i]; e.State != StateArchived {
			c.experiment(at("/experiments", i), e)
		}
	}
	if len(c.problems) > 0 {
		return nil, c.problems
	}
	// Equal lengths in a fixed order: two compiles are equal.
	slices.SortFunc(c.t.prefixes, func(a, b prefixAlias) int {
		return cmp.Or(cmp.Compare(len(b.prefix), len(a.prefix)), cmp.Compare(a.prefix, b.prefix))
	})
	return c.t, nil
}

type compiler struct {
	doc      *Document
	ups      map[string]*upstream.Upstream
	o        CompileOptions
	t        *Table
	problems Problems
}

func (c *compiler) add(path, code, message string) {
	c.problems = append(c.problems, Problem{path, code, message})
}

func (c *compiler) keys(keys []Key) {
	for i := range keys {
		k := &keys[i]
		sum, err := hex.DecodeString(k.Hash)
		if err != nil || len(sum) != sha256.Size {
			c.add(at("/keys", i, "hash"), "key_invalid", "the hash of the key "+clip(k.ID)+" is not a hex SHA-256; create the key again")
			continue
		}
		c.t.keys[[sha256.Size]byte(sum)] = k
		tenant := unitTenant(k.Tenant)
		own := tenant + "." + k.ID
		if !experiment.ValidUnit(experiment.Unit{Type: "user", Tenant: own, ID: "x"}) {
			own = hashed(tenant + "\x00" + k.ID)
		}
		c.t.tenants[k.ID] = keyTenant{tenant: tenant, own: own}
	}
}

// unitTenant is the tenant's form in a unit; one that does not fit is hashed.
func unitTenant(s string) string {
	if experiment.ValidUnit(experiment.Unit{Type: "user", Tenant: s, ID: "x"}) {
		return s
	}
	return hashed(s)
}

func hashed(s string) string {
	sum := sha256.Sum256([]byte(s))
	return "h." + hex.EncodeToString(sum[:16])
}

func (c *compiler) model(m *Model) {
	cm := &CompiledModel{Name: m.Name, EchoPublic: m.EchoPublicModel, ExposeHeaders: m.ExposeHeaders == nil || *m.ExposeHeaders}
	up := c.doc.Upstream(m.Default.Upstream)
	cm.Default = c.target(up, or(m.Default.Model, m.Name), "")
	cm.Default.Price, _ = parsePrice(up.Price)
	c.t.models = append(c.t.models, cm)
	c.t.exact[m.Name] = cm
	for _, a := range m.Aliases {
		if prefix, ok := strings.CutSuffix(a, "*"); ok {
			c.t.prefixes = append(c.t.prefixes, prefixAlias{prefix, cm})
		} else {
			c.t.exact[a] = cm
		}
	}
}

// Keep-alive comments of a stream, where the upstream does not say.
const (
	defaultKeepAlive       = 15 * time.Second
	defaultKeepAliveBefore = 45 * time.Second
)

func (c *compiler) target(u *Upstream, served, variant string) *CompiledVariant {
	v := &CompiledVariant{Name: variant, KeepAlive: defaultKeepAlive, KeepAliveBefore: defaultKeepAliveBefore}
	if s := u.Stream; s != nil {
		if s.KeepAlive != nil {
			v.KeepAlive = time.Duration(*s.KeepAlive)
		}
		if s.KeepAliveBefore != nil {
			v.KeepAliveBefore = time.Duration(*s.KeepAliveBefore)
		}
	}
	v.Target = upstream.Target{Upstream: c.ups[u.Name], Variant: variant, Model: served, Tag: v, Priority: defaultPriority}
	return v
}

// checksOf are the checks of answers that the guardrails of e need. Quotes of
// the prompt are looked for only where a guardrail asks: that costs each request
// a pass over its conversation.
func checksOf(e *Experiment) wire.Checks {
	list, err := guardrail.Parse(e.Guardrails, false)
	if err != nil {
		return 0 // what is wrong with them is told where they are validated
	}
	for i := range list {
		if list[i].Metric == guardrail.PromptLeak {
			return wire.CheckPrompt
		}
	}
	return 0
}

func (c *compiler) experiment(path string, e *Experiment) {
	cm := c.t.exact[e.Model]
	ce := &CompiledExperiment{
		Key: e.Key, Baseline: e.variant(e.Baseline), Generation: e.Generation,
		OverrideNames: overrideNames(c.o.OverrideHeaders, e), stickiness: stickinessOf(e),
		Checks: checksOf(e),
		merges: e.Merge, finishes: e.Switch == SwitchConversation,
	}
	for _, n := range ce.OverrideNames {
		ce.overrides = append(ce.overrides, textproto.CanonicalMIMEHeaderKey(n))
	}
	ce.sources, _ = compileSources(e.Unit) // checked by Validate
	ce.slice[0], ce.slice[1] = sliceOf(e)
	def, err := c.definition(e, ce)
	if err != nil {
		c.add(path+"/allocation", "allocation_invalid", err.Error())
		return
	}
	if ce.Exp, err = experiment.New(def); err != nil {
		c.add(path, "experiment_invalid", err.Error())
		return
	}
	ce.Ramp, ce.Ramped = e.RampState, e.Ramping()
	ce.Policy, _ = e.Policy()
	ce.Guardrails, _ = e.Watched() // checked by Validate
	for i := range e.Variants {
		ce.Variants = append(ce.Variants, c.variant(e, &e.Variants[i], def.Variants[i].State))
	}
	for _, v := range e.Variants {
		ce.Prompts = ce.Prompts || v.Prompt != nil && v.Prompt.SystemPrepend+v.Prompt.SystemAppend != ""
	}
	c.fallbacks(e, ce)
	c.attrs(e)
	cm.Experiments = append(cm.Experiments, ce)
	cm.layerSeed = def.LayerSeed
	cm.drawn = cm.drawn || ce.stickiness == experiment.None
	c.t.experiments[e.Key] = ce
}

func overrideNames(more []string, e *Experiment) []string {
	out := []string{"x-sluice-variant"}
	for _, n := range slices.Concat(e.OverrideNames, more) {
		if low := strings.ToLower(n); !slices.Contains(out, low) {
			out = append(out, low)
		}
	}
	return out
}

func stickinessOf(e *Experiment) experiment.Stickiness {
	switch {
	case e.Stickiness == "none":
		return experiment.None
	case e.Stickiness == "user", e.Stickiness == "" && e.Kind == "ab":
		return experiment.ByUser
	}
	return experiment.ByBucket
}

var states = map[string]experiment.State{
	StateDraft: experiment.Draft, StateRunning: experiment.Running, StatePaused: experiment.Paused,
	StatePromoted: experiment.Promoted, StateRolledBack: experiment.RolledBack,
	StateCompleted: experiment.Completed, StateArchived: experiment.Archived,
}

// definition is e for the experiment package, with the kill set laid over it.
func (c *compiler) definition(e *Experiment, ce *CompiledExperiment) (experiment.Definition, error) {
	def := experiment.Definition{
		Key: e.Key, Seed: or(e.Seed, "unseeded-"+e.Key), Hash: e.Hash, Canary: e.Kind == "canary",
		State: states[e.State], Stickiness: ce.stickiness,
		Generation: uint16(e.Generation), GenRevision: e.GenRevision,
		Baseline: ce.Baseline, Winner: e.variant(e.Winner),
		Targeting: e.Targeting, Fixed: e.Fixed, Slice: ce.slice,
		LayerSeed: c.layerSeed(e),
		Merge:     e.Merge, BlockBelow: uint16(e.BlockBelow), RunsFrom: e.RunsFrom,
	}
	if h := e.Holdout; h != nil {
		def.HoldoutSeed, def.Holdout = hashedSeed("holdout", h.Name), h.Share
	}
	if e.State == StatePromoted && e.Ramping() {
		def.State = experiment.Running // it bakes: the table decides still
	}
	def.Heavy, def.Ramping = heavyUnits(e)
	var err error
	if def.Allocation, err = ownership(e); err != nil {
		return def, err
	}
	for _, v := range e.Variants {
		s := experiment.Active
		switch {
		case v.State == VariantKilled:
			s = experiment.Killed
		case v.Weight == 0:
			s = experiment.Masked
		}
		def.Variants = append(def.Variants, experiment.VariantDef{Name: v.Name, State: s})
	}
	for _, k := range c.o.Kills {
		if k.Experiment != e.Key || k.Generation != e.Generation {
			continue
		}
		i := e.variant(k.Variant)
		switch {
		case k.Variant == everyVariant && (def.State == experiment.Running || def.State == experiment.Paused || def.State == experiment.Promoted):
			def.State = experiment.RolledBack
		case i >= 0 && i != def.Baseline:
			def.Variants[i].State = experiment.Killed
		}
	}
	notReady(e, &def)
	for _, k := range c.o.Trips {
		if i := e.variant(k.Variant); k.Experiment == e.Key && k.Generation == e.Generation &&
			i >= 0 && i != def.Baseline && def.Variants[i].State == experiment.Active {
			def.Variants[i].State = experiment.NotReady
		}
	}
	ce.State = def.State
	ce.cut = c.cuts(e, &def)
	return def, nil
}

// cuts are the variants whose streams in flight end: who cut them said so in the
// document or in the kill set. nil where there are none.
func (c *compiler) cuts(e *Experiment, def *experiment.Definition) (cut []bool) {
	note := func(i int) {
		if cut == nil {
			cut = make([]bool, len(e.Variants))
		}
		cut[i] = true
	}
	for i, v := range e.Variants {
		if i == def.Baseline || def.State != experiment.RolledBack && def.Variants[i].State != experiment.Killed {
			continue
		}
		if v.CutStreams {
			note(i)
		}
		for _, k := range c.o.Kills {
			if k.CutStreams && k.Experiment == e.Key && k.Generation == e.Generation && (k.Variant == v.Name || k.Variant == everyVariant) {
				note(i)
			}
		}
	}
	if cut != nil {
		c.t.cuts = true
	}
	return cut
}

// layerSeed salts the slices of a model's experiments, "" where one experiment
// has it all. It depends on the model's name alone, so that slices stay
// disjoint whatever comes and goes.
func (c *compiler) layerSeed(e *Experiment) string {
	if lo, hi := sliceOf(e); lo == 0 && hi == experiment.Buckets {
		return ""
	}
	return hashedSeed("layer", e.Model)
}

// hashedSeed salts what has a name and no seed of its own.
func hashedSeed(kind, name string) string {
	sum := sha256.Sum256([]byte(kind + "\x00" + name))
	return kind + "-" + hex.EncodeToString(sum[:8])
}

// assigns says whether variants other than the baseline may serve at all.
func (e *CompiledExperiment) assigns() bool {
	return e.State == experiment.Running || e.State == experiment.Paused || e.State == experiment.Promoted
}

// attrs notes the headers that rules may look at: no others are ever read.
func (c *compiler) attrs(e *Experiment) {
	note := func(rules []experiment.Rule) {
		for _, r := range rules {
			if name, ok := strings.CutPrefix(r.Attr, "header:"); ok && !upstream.Private(name) {
				c.t.headerAttrs[r.Attr] = textproto.CanonicalMIMEHeaderKey(name)
			}
		}
	}
	note(e.Targeting)
	for _, s := range e.Fixed {
		note(s.Rules)
	}
}
