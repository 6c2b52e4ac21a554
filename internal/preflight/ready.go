package preflight

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"sluice/experiment"
	"sluice/experiment/ramp"
	"sluice/router"
	"sluice/upstream"
	"sluice/upstream/wire"
)

const (
	// idle is when the probes stop that nobody asks about.
	idle = 15 * time.Second
	// steady is the pause between probes once enough have passed.
	steady = 30 * time.Second
	// answerTime is what an answer may take beyond its first token.
	answerTime = 30 * time.Second
)

type gateKey struct{ experiment, variant string }

// gate is what is known of one variant's readiness. Guarded by Prober.mu.
type gate struct {
	of     string // the variant as it was when the probes began
	want   ramp.Ready
	asked  time.Time
	passed int    // in a row
	why    string // the last failure
}

// Ready answers at once whether a variant may take a step: an endpoint gets
// traffic, and want.Probes streaming completions in a row had their first token
// in time and were not empty. Being asked is what has the probes made: they go on
// in the background while somebody asks, and stop 15 s after.
func (p *Prober) Ready(experiment, variant string, want ramp.Ready) ramp.Check {
	subjects, err := p.subjects(experiment)
	if err != nil {
		return ramp.Check{Text: err.Error()}
	}
	var s *subject
	for _, one := range subjects {
		if one.variant.Name == variant {
			s = one
		}
	}
	if s == nil {
		return ramp.Check{Text: fmt.Sprintf("%s has no variant %s that may serve", experiment, variant)}
	}
	if u := s.variant.Target.Upstream; !u.Ready() {
		return ramp.Check{Text: notReady(variant, u)}
	}
	if want.Probes <= 0 {
		return ramp.Check{OK: true}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return ramp.Check{Text: "the gateway is shutting down"}
	}
	k := gateKey{experiment, variant}
	of := fmt.Sprint(s.generation, s.print)
	g := p.gates[k]
	if g == nil || g.of != of {
		g = &gate{of: of}
		p.gates[k] = g
		p.wg.Go(func() { p.watch(k, g, s) })
	}
	g.want, g.asked = want, time.Now()
	switch {
	case g.passed >= want.Probes:
		return ramp.Check{OK: true}
	case g.why != "":
		return ramp.Check{Text: fmt.Sprintf("%s fails its probes: %s", variant, g.why)}
	}
	return ramp.Check{Text: fmt.Sprintf("%d of %d probes of %s in a row have passed", g.passed, want.Probes, variant)}
}

// watch probes until nobody asks, or another gate has taken the place of g.
func (p *Prober) watch(k gateKey, g *gate, s *subject) {
	kind := 0 // of knocks, that worked
	for {
		p.mu.Lock()
		want := g.want
		if p.gates[k] != g || p.closed {
			p.mu.Unlock()
			return
		}
		if !g.asked.IsZero() && time.Since(g.asked) > idle {
			delete(p.gates, k)
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
		if !p.mayServe(k) {
			p.mu.Lock()
			if p.gates[k] == g {
				delete(p.gates, k)
			}
			p.mu.Unlock()
			return
		}
		why := p.knockAny(s, want, &kind)
		p.mu.Lock()
		rest := max(want.Interval, 100*time.Millisecond)
		if g.why = why; why == "" {
			g.passed++
		} else {
			g.passed = 0
		}
		if g.passed >= want.Probes {
			rest = max(rest, steady)
		}
		p.mu.Unlock()
		if !pause(p.ctx, rest) {
			return
		}
	}
}

// mayServe tells that the variant is not taken away: one that is gets no call.
func (p *Prober) mayServe(k gateKey) bool {
	t := p.o.Table()
	if t == nil {
		return false
	}
	e, ok := t.Experiment(k.experiment)
	return ok && (e.State == experiment.Running || e.State == experiment.Paused) && slices.ContainsFunc(e.Variants, func(v *router.CompiledVariant) bool { return v.Name == k.variant && !v.Killed })
}

// knocks are the kinds of requests, by what models are for.
var knocks = []wire.API{wire.Chat, wire.Completions, wire.Embeddings}

// knockAny makes one readiness probe, of the kind that this server answers.
func (p *Prober) knockAny(s *subject, want ramp.Ready, kind *int) string {
	first := ""
	for i := *kind; i < len(knocks); i++ {
		why, wrongAPI := p.knock(s, knocks[i], want)
		if !wrongAPI {
			if why == "" {
				*kind = i
			}
			return why
		}
		if first == "" {
			first = why
		}
	}
	*kind = 0
	return first
}

// knock makes one readiness probe; why is what was wrong, wrongAPI that the
// server does not answer requests of that kind.
func (p *Prober) knock(s *subject, api wire.API, want ramp.Ready) (why string, wrongAPI bool) {
	most := want.MaxTTFT
	if most <= 0 {
		most = ramp.Default().Ready.MaxTTFT
	}
	ctx, cancel := context.WithTimeout(p.ctx, most+answerTime)
	defer cancel()
	ctx, late := context.WithCancel(ctx)
	defer late()
	timer := time.AfterFunc(most, late)
	defer timer.Stop()
	r := p.call(ctx, s, api, knockBody(s.model, s.limit, api), func(body []byte) {
		if len(body) > 0 {
			timer.Stop() // it answers
		}
	})
	switch {
	case p.ctx.Err() != nil:
		return "the gateway is shutting down", false
	case r.outcome == upstream.Canceled:
		if r.first == 0 {
			return fmt.Sprintf("no first token within %s", most), false
		}
		return fmt.Sprintf("an answer of a few tokens was not complete after %s", most+answerTime), false
	case r.outcome != upstream.Success:
		if r.status == 400 && strings.Contains(r.said, maxCompletion) {
			s.limit = maxCompletion
		}
		return r.failure(), r.otherKind()
	case api == wire.Embeddings:
		if r.took > most {
			return fmt.Sprintf("the answer took %s, over %s", r.took.Round(time.Millisecond), most), false
		}
		return "", false
	case r.first > most:
		return fmt.Sprintf("the first token took %s, over %s", r.first.Round(time.Millisecond), most), false
	}
	return says(r), false
}

// otherKind tells that the server has no such requests: its model is for others.
func (r *reply) otherKind() bool {
	switch r.status {
	case 404, 405, 501:
		return true
	case 400, 422:
		return strings.Contains(strings.ToLower(r.said), "chat")
	}
	return false
}

// knockBody is the request of a readiness probe.
func knockBody(model, limit string, api wire.API) []byte {
	switch api {
	case wire.Completions:
		return encode(map[string]any{"model": model, "prompt": "Say hello.", "stream": true, maxTokens: fewTokens})
	case wire.Embeddings:
		return encode(map[string]any{"model": model, "input": "hello"})
	}
	return encode(map[string]any{"model": model, "stream": true, limit: fewTokens,
		"messages": []any{map[string]any{"role": "user", "content": "Say hello."}}})
}
