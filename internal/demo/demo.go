// Package demo is everything that `sluice demo` needs beside the gateway itself:
// built-in upstreams that speak the real wire format and fail on demand, the
// document that puts them behind experiments, and a few hundred synthetic users
// who talk through the public API with the SDK that applications use.
package demo

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"sort"
	"sync"
	"time"

	"sluice/internal/fakellm"
	"sluice/router"
)

// profile is how one built-in upstream behaves while nothing is broken.
type profile struct {
	name, version, input, output string
	ttft, gap                    time.Duration // medians; TTFT is log-normal
	tokens                       int           // mean output length
	errors                       float64
}

var profiles = []profile{
	{name: "small", version: "8b-1", input: "0.20", output: "0.80", ttft: 90 * time.Millisecond, gap: 8 * time.Millisecond, tokens: 24, errors: 0.002},
	{name: "large", version: "32b-1", input: "0.60", output: "2.40", ttft: 160 * time.Millisecond, gap: 12 * time.Millisecond, tokens: 32, errors: 0.002},
}

// Demo holds the running upstreams.
type Demo struct {
	servers  map[string]*fakellm.Server
	crashing sync.WaitGroup

	mu     sync.Mutex // guards broken
	broken map[string]*broken
}

// Start starts the built-in upstreams on free loopback ports.
func Start() (*Demo, error) {
	d := &Demo{servers: map[string]*fakellm.Server{}, broken: map[string]*broken{}}
	for _, p := range profiles {
		s, err := fakellm.Start(fakellm.Options{Dialect: "vllm", Models: []string{p.name}, Choose: func(fakellm.Call) fakellm.Behaviour { return d.behave(p) }})
		if err != nil {
			d.Close()
			return nil, err
		}
		d.servers[p.name] = s
	}
	return d, nil
}

// Close stops the upstreams.
func (d *Demo) Close() {
	d.mu.Lock()
	for name := range d.broken {
		d.heal(name)
	}
	d.mu.Unlock()
	d.crashing.Wait()
	for _, s := range d.servers {
		s.Close()
	}
}

// behave draws one answer.
func (d *Demo) behave(p profile) fakellm.Behaviour {
	b := fakellm.Behaviour{
		TTFT:   time.Duration(float64(p.ttft) * math.Exp(rand.NormFloat64()*0.35)),
		Gap:    p.gap,
		Tokens: 1 + int(rand.ExpFloat64()*float64(p.tokens)),
	}
	b.Tokens = min(b.Tokens, 160)
	d.mu.Lock()
	broken := d.broken[p.name]
	d.mu.Unlock()
	switch {
	case broken == nil || broken.way.answer == nil:
		if rand.Float64() < p.errors {
			b.Fault, b.Status = fakellm.Status, 500
		}
	default:
		broken.way.answer(&b)
	}
	return b
}

// Names are the built-in upstreams.
func (d *Demo) Names() []string {
	var names []string
	for n := range d.servers {
		names = append(names, n)
	}
	sort.Strings(names)
	return names
}

// The demo's experiments, and the models that users ask for: twice as many ask
// for that of the ramp, so that its steps take seconds.
const (
	Split = "chat-small-vs-large" // 90/10, without a ramp: its weights are for playing
	Ramp  = "assist-large"        // a ramp with guardrails
)

// Models are what each request asks for one of.
var Models = []string{"chat", "assist", "assist"}

// Document puts the upstreams behind two experiments: one at 90/10, and one
// with a ramp whose steps take seconds where real ones take minutes.
func (d *Demo) Document() *router.Document {
	doc := &router.Document{}
	for _, p := range profiles {
		in, out := p.input, p.output
		doc.Upstreams = append(doc.Upstreams, router.Upstream{
			Name: p.name, Dialect: "vllm", Endpoints: []string{d.servers[p.name].URL()}, Price: &router.Price{Input: &in, Output: &out},
		})
	}
	for _, model := range []string{"chat", "assist"} {
		doc.Models = append(doc.Models, router.Model{Name: model, Default: router.Route{Upstream: "small", Model: "small"}})
	}
	split := experiment(Split, "chat", "running")
	split.Variants[0].Weight, split.Variants[1].Weight = 9000, 1000
	grow := experiment(Ramp, "assist", "running")
	grow.Variants[0].Weight = 10000
	grow.Ramp, grow.Guardrails = json.RawMessage(rampPolicy), json.RawMessage(rampGuardrails)
	doc.Experiments = []router.Experiment{split, grow}
	return doc
}

// experiment compares the upstreams; the first is the baseline.
func experiment(key, model, state string) router.Experiment {
	exp := router.Experiment{
		Key: key, Model: model, Kind: "canary", State: state, Baseline: profiles[0].name,
		Unit: &router.Unit{From: []string{"header:x-user-id", "user", "conversation"}},
	}
	for _, p := range profiles {
		v := router.Variant{Name: p.name, Upstream: p.name, Model: p.name, Version: p.version}
		if p.name != exp.Baseline {
			v.Fallback = exp.Baseline
		}
		exp.Variants = append(exp.Variants, v)
	}
	return exp
}

// The demo's policy is that of production with other numbers: a few hundred
// users and a few requests a second prove less, so less is asked.
const (
	rampPolicy = `{"steps": [1000, 2500, 5000, 10000], "min_duration": "10s", "max_duration": "15m", "min_units": 20, "bake": "10m",
		"no_data_after": "20s", "cooldown": "5s", "ready": {"probes": 2, "interval": "1s", "max_ttft": "3s", "not_ready_limit": "1m"}}`
	rampGuardrails = `[
		{"metric": "error", "ok_rate": 0.08, "max_rate": 0.15, "min_effect_rate": 0.05},
		{"metric": "rejected", "ok_rate": 0.08, "min_effect_rate": 0.05},
		{"metric": "slow_ttfa", "threshold": "1s", "ok_rate": 0.08, "min_effect_rate": 0.05},
		{"metric": "truncated"}, {"metric": "empty"}, {"metric": "invalid_json"}, {"metric": "invalid_tool_call"},
		{"metric": "reasoning_leak"}, {"metric": "prompt_leak"},
		{"metric": "output_tokens", "max_lift": 1}]`
)
