package preflight

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"sluice/experiment/ramp"
	"sluice/router"
	"sluice/upstream"
	"sluice/upstream/wire"
)

const (
	// maxLong bounds a long prompt, tokens, whatever the models take.
	maxLong = 32_000
	// unknownLong is used where neither the models nor live traffic say more.
	unknownLong = 2000
	// reserve is kept of a model's length for the answer and the template.
	reserve = 256
)

// subjects are the variants to probe, the baseline first.
func (p *Prober) subjects(experiment string) ([]*subject, error) {
	t := p.o.Table()
	if t == nil {
		return nil, ErrUnknown
	}
	e, ok := t.Experiment(experiment)
	if !ok {
		return nil, ErrUnknown
	}
	model := ""
	for _, d := range t.Snapshot.Document.Experiments {
		if d.Key == experiment {
			model = d.Model
		}
	}
	var out []*subject
	for i, v := range e.Variants {
		if v.Killed || v.Target.Upstream == nil {
			continue
		}
		s := newSubject(v)
		s.experiment, s.model, s.generation, s.revision = experiment, model, e.Generation, t.Revision
		if i == e.Baseline {
			out = slices.Insert(out, 0, s)
		} else {
			out = append(out, s)
		}
	}
	if len(out) == 0 {
		return nil, ErrUnknown
	}
	return out, nil
}

// tokenLimits are the members that probes set for themselves, whatever the
// variant's params say: an answer of a few tokens is enough.
var tokenLimits = []string{maxTokens, maxCompletion, "min_tokens"}

// newSubject is v to be probed.
func newSubject(v *router.CompiledVariant) *subject {
	s := &subject{limit: maxTokens, sets: map[string]bool{}}
	probed := *v
	t := &v.Target
	s.maxLen = t.Upstream.MaxModelLen(t.Model)
	if patch := t.Patch; patch != nil {
		own := *patch
		own.Force = slices.DeleteFunc(slices.Clone(patch.Force), func(f wire.Field) bool { return slices.Contains(tokenLimits, f.Name) })
		own.Remove = slices.DeleteFunc(slices.Clone(patch.Remove), func(n string) bool { return slices.Contains(tokenLimits, n) })
		own.Default = slices.DeleteFunc(slices.Clone(patch.Default), func(f wire.Field) bool { return slices.Contains(tokenLimits, f.Name) })
		for _, f := range patch.Force {
			s.sets[f.Name] = true
		}
		for _, n := range patch.Remove {
			s.sets[n] = true
		}
		probed.Target.Patch = &own
	}
	s.variant = &probed
	print, _ := json.Marshal([]any{v.Name, t.Model, v.Version, t.Patch})
	s.print = fmt.Sprintf("%s %p", print, t.Upstream) // which is another one when its settings change
	return s
}

// printOf tells one set of variants from another.
func printOf(list []*subject) string {
	var b strings.Builder
	for _, s := range list {
		fmt.Fprintf(&b, "%d %s\n", s.generation, s.print)
	}
	return b.String()
}

// run asks every subject everything.
func (p *Prober) run(ctx context.Context, f *flight, subjects []*subject) *ramp.Preflight {
	first := subjects[0]
	r := &ramp.Preflight{Experiment: first.experiment, Generation: first.generation, Revision: first.revision, At: time.Now().UTC(), Baseline: first.variant.Name}
	var traffic Traffic
	if p.o.Traffic != nil {
		traffic = p.o.Traffic(first.model)
	}
	r.Requests = traffic.Requests
	long := p.longPrompt(subjects, &traffic)
	results := make([][]ramp.ProbeResult, len(subjects))
	turn := make(chan struct{}, maxParallel)
	var wg sync.WaitGroup
	for i, s := range subjects {
		r.Variants = append(r.Variants, s.variant.Name)
		wg.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			results[i] = p.probe(ctx, f, s, long)
		})
	}
	wg.Wait()
	for i := range all {
		b := ramp.Probe{Name: all[i].name, Asks: all[i].asks, Share: traffic.share(all[i].live)}
		for v := range subjects {
			b.Results = append(b.Results, results[v][i])
		}
		r.Probes = append(r.Probes, b)
	}
	r.Probes = append(r.Probes, lengths(subjects))
	r.Took = ramp.Seconds(time.Since(r.At))
	r.Judge()
	p.o.Log.Info("preflight", "experiment", r.Experiment, "ok", r.OK, "result", r.Text, "took", r.Took.D().Round(time.Millisecond).String())
	return r
}

// share is the part of the live requests that ask for a; nil unknown.
func (t *Traffic) share(a wire.Asks) *float64 {
	if t.Requests <= 0 || a == 0 {
		return nil
	}
	for i, name := range wire.AskNames {
		if a == 1<<i {
			f := min(max(float64(t.Asks[name])/float64(t.Requests), 0), 1)
			return &f
		}
	}
	return nil
}

// longPrompt is how many tokens the long prompt has: those of the longest live
// ones, or nearly what the smaller model takes; never more than the baseline
// takes, or nothing could be learned.
func (p *Prober) longPrompt(subjects []*subject, t *Traffic) int {
	n := int(min(t.PromptP99, int64(p.o.longest)))
	if n <= 0 {
		for _, s := range subjects {
			if most := s.maxLen - reserve; s.maxLen > 0 && (n <= 0 || most < n) {
				n = most
			}
		}
	}
	if n <= 0 {
		n = unknownLong
	}
	if base := subjects[0].maxLen; base > 0 {
		n = min(n, base-reserve)
	}
	return max(min(n, p.o.longest), 1)
}

// lengths compares what the engines list of their models.
func lengths(subjects []*subject) ramp.Probe {
	b := ramp.Probe{Name: "max_model_len", Asks: "need as many tokens as the baseline takes"}
	base := subjects[0].maxLen
	for _, s := range subjects {
		r := ramp.ProbeResult{Variant: s.variant.Name, State: ramp.ProbeSkipped}
		switch {
		case s.maxLen == 0:
			r.Text = "the engine does not list it"
		case base > s.maxLen:
			// Whether it matters is the long prompt's to say.
			r.Text = fmt.Sprintf("%d tokens, %d fewer than %s takes", s.maxLen, base-s.maxLen, subjects[0].variant.Name)
		default:
			r.State, r.Text = ramp.ProbePassed, fmt.Sprintf("%d tokens", s.maxLen)
		}
		b.Results = append(b.Results, r)
	}
	return b
}

// probe asks one subject everything, one after the other.
func (p *Prober) probe(ctx context.Context, f *flight, s *subject, long int) []ramp.ProbeResult {
	out := make([]ramp.ProbeResult, len(all))
	given := "" // why nothing more is asked
	faults := 0
	for i := range all {
		b := &all[i]
		r := &out[i]
		*r = ramp.ProbeResult{Variant: s.variant.Name, State: ramp.ProbeSkipped, Text: given}
		f.asked.Add(1)
		if given != "" {
			continue
		}
		if member := s.changes(b); member != "" {
			r.Text = fmt.Sprintf("not asked: the variant's params change %s", member)
			continue
		}
		from := time.Now()
		p.ask(ctx, s, b, long, r)
		r.Took = ramp.Seconds(time.Since(from))
		switch {
		case ctx.Err() != nil:
			*r = ramp.ProbeResult{Variant: s.variant.Name, State: ramp.ProbeSkipped, Text: "there was no time left"}
			given = r.Text
		case i == 0 && r.State == ramp.ProbeFailed:
			given = "not asked: a plain request fails"
		case i == 0 && r.State == ramp.ProbeSkipped:
			given = "not asked: there is no room for a plain request"
		case r.State == ramp.ProbeFailed && (r.Status == 0 || r.Status >= 500):
			faults++
			given = p.recovered(ctx, s, b, faults)
		}
	}
	return out
}

// maxFaults is how many probes may end with a server's fault: the breaker of an
// endpoint that serves others must not open for them.
const maxFaults = 5

// recovered makes a plain request after one that ended with a server's fault: it
// keeps faults from being in a row, and shows whether the server lives. It tells
// why nothing more is asked.
func (p *Prober) recovered(ctx context.Context, s *subject, after *probe, faults int) string {
	var r ramp.ProbeResult
	p.ask(ctx, s, &all[0], 0, &r)
	switch {
	case r.State == ramp.ProbeFailed:
		return fmt.Sprintf("not asked: since the probe %s even a plain request fails", after.name)
	case faults >= maxFaults:
		return fmt.Sprintf("not asked: %d probes ended with faults of the server", faults)
	}
	return ""
}

// changes names a member of the probe that the variant's params change.
func (s *subject) changes(b *probe) string {
	for _, m := range b.sets {
		if s.sets[m] {
			return m
		}
	}
	return ""
}

// ask makes one probe, again if it finds no room or no server.
func (p *Prober) ask(ctx context.Context, s *subject, b *probe, long int, out *ramp.ProbeResult) {
	limit := probeTimeout
	if b.name == longProbe {
		limit = longTimeout
	}
	var r *reply
	for try := range tries {
		cctx, cancel := context.WithTimeout(ctx, limit)
		if b.name == cancelProbe {
			p.cancelled(cctx, s, b, out)
			cancel()
			return
		}
		r = p.call(cctx, s, wire.Chat, b.encode(s.model, s.limit, long), nil)
		slow := cctx.Err() != nil && ctx.Err() == nil
		cancel()
		if slow && r.outcome == upstream.Canceled {
			r.outcome, r.status, r.said = upstream.Timeout, 0, fmt.Sprintf("no answer within %s", limit)
		}
		if s.limit == maxTokens && r.status == 400 && strings.Contains(r.said, maxCompletion) {
			// Some models take the newer name only; the probe of that is max_tokens.
			if b.name != "max_tokens" {
				s.limit = maxCompletion
				continue
			}
		}
		if !r.transient() || !pause(ctx, p.o.tryPause<<try) {
			break
		}
	}
	out.Status = r.status
	switch why := r.failure(); {
	case why == "":
		out.Text = b.check(r)
		if b.name == longProbe && out.Text == "" {
			out.Text = remembers(r, long)
		}
		out.State = ramp.ProbePassed
		if out.Text != "" {
			out.State = ramp.ProbeFailed
		}
	case r.busy():
		out.Text = "not judged: it is busy (" + why + ")"
	default:
		out.State, out.Text = ramp.ProbeFailed, why
	}
}

// pause waits; false when ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// unserved tells why a variant gets no requests now; "" when it does. A breaker
// that is open says what its endpoint did before, perhaps as another model: it
// is waited for, not judged.
func unserved(variant string, u *upstream.Upstream, now time.Time) string {
	if !u.Ready() {
		return notReady(variant, u)
	}
	open := ""
	for _, e := range u.Status() {
		if !e.Ready || e.Drained {
			continue
		}
		if e.Breaker != "open" || !now.Before(e.BreakerUntil) {
			return ""
		}
		open = e.URL
	}
	return fmt.Sprintf("no endpoint of %s takes requests: %s has failed too often and rests for some seconds", variant, open)
}

func notReady(variant string, u *upstream.Upstream) string {
	for _, e := range u.Status() {
		if e.Reason != "" {
			return fmt.Sprintf("no endpoint of %s is ready: %s is %s (%s)", variant, e.URL, e.State, e.Reason)
		}
	}
	return fmt.Sprintf("no endpoint of %s is ready", variant)
}
