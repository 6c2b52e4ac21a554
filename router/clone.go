package router

import (
	"maps"
	"slices"

	"sluice/experiment"
)

// Clone is a deep copy.
func (d *Document) Clone() *Document {
	if d == nil {
		return nil
	}
	out := *d
	out.Upstreams = cloneEach(d.Upstreams, cloneUpstream)
	out.Models = cloneEach(d.Models, cloneModel)
	out.Experiments = cloneEach(d.Experiments, cloneExperiment)
	out.Tombstones = slices.Clone(d.Tombstones)
	return &out
}

// Clone is a deep copy.
func (s *Snapshot) Clone() *Snapshot {
	if s == nil {
		return nil
	}
	return &Snapshot{Document: *s.Document.Clone(), Keys: cloneEach(s.Keys, func(k Key) Key {
		k.Tags = maps.Clone(k.Tags)
		k.Models = slices.Clone(k.Models)
		k.Scopes = slices.Clone(k.Scopes)
		return k
	})}
}

// Experiment finds an experiment by key, nil when absent. The pointer is into d.
func (d *Document) Experiment(key string) *Experiment {
	return find(d.Experiments, func(e *Experiment) bool { return e.Key == key })
}

// Upstream finds an upstream by name, nil when absent. The pointer is into d.
func (d *Document) Upstream(name string) *Upstream {
	return find(d.Upstreams, func(u *Upstream) bool { return u.Name == name })
}

// Model finds a model by its public name (no aliases), nil when absent. The pointer is into d.
func (d *Document) Model(name string) *Model {
	return find(d.Models, func(m *Model) bool { return m.Name == name })
}

func find[T any](list []T, is func(*T) bool) *T {
	for i := range list {
		if is(&list[i]) {
			return &list[i]
		}
	}
	return nil
}

func (e *Experiment) variant(name string) int {
	return slices.IndexFunc(e.Variants, func(v Variant) bool { return v.Name == name })
}

// cloneEach keeps nil apart from empty: the two differ in JSON.
func cloneEach[T any](list []T, f func(T) T) []T {
	if list == nil {
		return nil
	}
	out := make([]T, len(list))
	for i := range list {
		out[i] = f(list[i])
	}
	return out
}

// ptr copies what p points to; T must hold no further pointers.
func ptr[T any](p *T) *T {
	if p == nil {
		return nil
	}
	v := *p
	return &v
}

func cloneUpstream(u Upstream) Upstream {
	u.Endpoints = slices.Clone(u.Endpoints)
	if t := ptr(u.Timeouts); t != nil {
		t.Connect, t.FirstByte = ptr(t.Connect), ptr(t.FirstByte)
		t.BetweenBytes, t.Total = ptr(t.BetweenBytes), ptr(t.Total)
		u.Timeouts = t
	}
	if r := ptr(u.Readiness); r != nil {
		r.Interval = ptr(r.Interval)
		u.Readiness = r
	}
	if u.DenyFields != nil {
		fields := slices.Clone(*u.DenyFields)
		u.DenyFields = &fields
	}
	if h := ptr(u.Headers); h != nil {
		h.Request, h.Response = slices.Clone(h.Request), slices.Clone(h.Response)
		u.Headers = h
	}
	u.Price = clonePrice(u.Price)
	u.TLS, u.Warmup, u.GPU = ptr(u.TLS), ptr(u.Warmup), ptr(u.GPU)
	u.ColdStart, u.SlowStart, u.Drained = ptr(u.ColdStart), ptr(u.SlowStart), slices.Clone(u.Drained)
	if h := ptr(u.Hedge); h != nil {
		h.Min = ptr(h.Min)
		u.Hedge = h
	}
	if l := ptr(u.Limits); l != nil {
		l.QueueTimeout = ptr(l.QueueTimeout)
		u.Limits = l
	}
	if s := ptr(u.Stream); s != nil {
		s.KeepAlive, s.KeepAliveBefore = ptr(s.KeepAlive), ptr(s.KeepAliveBefore)
		u.Stream = s
	}
	return u
}

func clonePrice(p *Price) *Price {
	if p == nil {
		return nil
	}
	return &Price{
		Input: ptr(p.Input), CachedInput: ptr(p.CachedInput), CacheWrite: ptr(p.CacheWrite),
		Output: ptr(p.Output), Reasoning: ptr(p.Reasoning), Request: ptr(p.Request),
	}
}

func cloneModel(m Model) Model {
	m.Aliases = slices.Clone(m.Aliases)
	m.ExposeHeaders = ptr(m.ExposeHeaders)
	return m
}

func cloneRules(rules []experiment.Rule) []experiment.Rule {
	return cloneEach(rules, func(r experiment.Rule) experiment.Rule {
		r.Values = slices.Clone(r.Values)
		return r
	})
}

func cloneExperiment(e Experiment) Experiment {
	if e.Unit != nil {
		e.Unit = &Unit{From: slices.Clone(e.Unit.From)}
	}
	e.Variants = cloneEach(e.Variants, func(v Variant) Variant {
		v.Params = maps.Clone(v.Params)
		for k, raw := range v.Params {
			v.Params[k] = slices.Clone(raw)
		}
		v.ParamsDefault = maps.Clone(v.ParamsDefault)
		for k, raw := range v.ParamsDefault {
			v.ParamsDefault[k] = slices.Clone(raw)
		}
		v.ParamsRemove = slices.Clone(v.ParamsRemove)
		v.Prompt = ptr(v.Prompt)
		v.Price = clonePrice(v.Price)
		return v
	})
	e.Targeting = cloneRules(e.Targeting)
	e.Fixed = cloneEach(e.Fixed, func(s experiment.Segment) experiment.Segment {
		s.Rules = cloneRules(s.Rules)
		return s
	})
	e.Slice, e.Holdout = ptr(e.Slice), ptr(e.Holdout)
	e.OverrideNames = slices.Clone(e.OverrideNames)
	if e.Allocation != nil {
		e.Allocation = &experiment.Allocation{Revision: e.Allocation.Revision, Runs: slices.Clone(e.Allocation.Runs)}
	}
	e.RampState = cloneRamp(e.RampState)
	if s := ptr(e.Setup); s != nil {
		s.Thresholds = slices.Clone(s.Thresholds)
		e.Setup = s
	}
	if m := ptr(e.LastRollback); m != nil {
		m.Variants = maps.Clone(m.Variants)
		e.LastRollback = m
	}
	e.Ramp, e.Guardrails = slices.Clone(e.Ramp), slices.Clone(e.Guardrails)
	e.Metrics, e.Shadow = slices.Clone(e.Metrics), slices.Clone(e.Shadow)
	return e
}
