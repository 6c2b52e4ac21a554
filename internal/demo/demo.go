// Package demo is everything that `sluice demo` needs beside the gateway itself:
// built-in upstreams that speak the real wire format, the document that puts
// them behind an experiment, and a few hundred synthetic users who talk through
// the public API with the SDK that applications use.
package demo

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"sort"
	"strings"
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
	mu      sync.Mutex
	servers map[string]*fakellm.Server
	broken  map[string]string
}

// Start starts the built-in upstreams on free loopback ports.
func Start() (*Demo, error) {
	d := &Demo{servers: map[string]*fakellm.Server{}, broken: map[string]string{}}
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
	how := d.broken[p.name]
	d.mu.Unlock()
	switch how {
	case "":
		if rand.Float64() < p.errors {
			b.Fault, b.Status = fakellm.Status, 500
		}
	case "400":
		b.Fault, b.Status = fakellm.Status, 400
	case "500":
		b.Fault, b.Status = fakellm.Status, 500
	case "slow":
		b.TTFT *= 20
	case "empty":
		b.Fault = fakellm.Empty
	case "hang":
		b.Fault = fakellm.Hang
	case "truncate":
		b.Fault, b.After = fakellm.Truncate, 3
	}
	return b
}

// Ways are the ways in which Break can break an upstream.
var Ways = []string{"400", "500", "empty", "hang", "slow", "truncate"}

// Break makes the upstream fail from now on; how "" heals it.
func (d *Demo) Break(name, how string) error {
	if _, ok := d.servers[name]; !ok {
		return fmt.Errorf("there is no built-in upstream %q; they are %s", name, strings.Join(d.Names(), ", "))
	}
	known := how == ""
	for _, w := range Ways {
		known = known || w == how
	}
	if !known {
		return fmt.Errorf("%q is not a way to break an upstream; the ways are %s", how, strings.Join(Ways, ", "))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.broken[name] = how
	return nil
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

// Handler serves POST /demo/break and /demo/heal with {"upstream": NAME, "how": WAY}.
func (d *Demo) Handler() http.Handler {
	mux := http.NewServeMux()
	act := func(heal bool) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			var in struct {
				Upstream string `json:"upstream"`
				How      string `json:"how"`
			}
			if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 4096)).Decode(&in); err != nil {
				http.Error(w, "send {\"upstream\": NAME, \"how\": WAY} as JSON", http.StatusBadRequest)
				return
			}
			if in.How == "" && !heal {
				in.How = "500"
			}
			if heal {
				in.How = ""
			}
			if err := d.Break(in.Upstream, in.How); err != nil {
				http.Error(w, err.Error(), http.StatusNotFound)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(map[string]string{"upstream": in.Upstream, "broken": in.How})
		}
	}
	mux.HandleFunc("POST /demo/break", act(false))
	mux.HandleFunc("POST /demo/heal", act(true))
	return mux
}

// Document puts the upstreams behind one experiment at 90/10.
func (d *Demo) Document() *router.Document {
	doc := &router.Document{
		Models: []router.Model{{Name: "chat", Default: router.Route{Upstream: "small", Model: "small"}}},
	}
	exp := router.Experiment{
		Key: "chat-small-vs-large", Model: "chat", Kind: "canary", State: "running", Baseline: "small",
		Unit: &router.Unit{From: []string{"header:x-user-id", "user", "conversation"}},
	}
	weights := map[string]int{"small": 9000, "large": 1000}
	for _, p := range profiles {
		in, out := p.input, p.output
		doc.Upstreams = append(doc.Upstreams, router.Upstream{
			Name: p.name, Dialect: "vllm", Endpoints: []string{d.servers[p.name].URL()}, Price: &router.Price{Input: &in, Output: &out},
		})
		v := router.Variant{Name: p.name, Weight: weights[p.name], Upstream: p.name, Model: p.name, Version: p.version}
		if p.name != exp.Baseline {
			v.Fallback = exp.Baseline
		}
		exp.Variants = append(exp.Variants, v)
	}
	doc.Experiments = []router.Experiment{exp}
	return doc
}
