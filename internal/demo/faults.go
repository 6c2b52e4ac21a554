package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"

	"sluice/internal/fakellm"
)

// way is one way to break an upstream: what happens to an answer, or to the
// process as a whole.
type way struct {
	name, about string
	answer      func(b *fakellm.Behaviour)
	crash       bool
}

func fault(f fakellm.Fault) func(*fakellm.Behaviour) {
	return func(b *fakellm.Behaviour) { b.Fault = f }
}

func status(code int) func(*fakellm.Behaviour) {
	return func(b *fakellm.Behaviour) { b.Fault, b.Status = fakellm.Status, code }
}

// ways are failures that LLM servers really have; most of them are an HTTP 200.
var ways = []way{
	{name: "400", about: "rejects every request", answer: status(400)},
	{name: "404", about: "serves the model under another name", answer: fault(fakellm.Unserved)},
	{name: "500", about: "fails every request", answer: status(500)},
	{name: "flaky", about: "fails one request in five", answer: func(b *fakellm.Behaviour) { b.Fault, b.Status, b.Odds = fakellm.Status, 500, 0.2 }},
	{name: "slow", about: "takes 20 times as long to the first token", answer: func(b *fakellm.Behaviour) { b.TTFT *= 20 }},
	{name: "empty", about: "answers 200 with nothing in it", answer: fault(fakellm.Blank)},
	{name: "hang", about: "accepts requests and never answers", answer: fault(fakellm.Hang)},
	{name: "truncate", about: "drops the connection in mid-answer", answer: func(b *fakellm.Behaviour) { b.Fault, b.After = fakellm.Truncate, 3 }},
	{name: "garbage", about: "answers 200 with bytes that are no JSON", answer: fault(fakellm.Garbage)},
	{name: "json", about: "answers in prose where JSON was demanded", answer: fault(fakellm.BadJSON)},
	{name: "tools", about: "cuts the arguments of tool calls short", answer: fault(fakellm.BadArguments)},
	{name: "think", about: "puts its reasoning into the answer", answer: fault(fakellm.Think)},
	{name: "leak", about: "recites the system prompt", answer: fault(fakellm.Echo)},
	{name: "expensive", about: "answers at six times the length", answer: func(b *fakellm.Behaviour) { b.Tokens, b.Gap = 6*b.Tokens, b.Gap/3 }},
	{name: "restart", about: "crashes every few seconds and comes back", crash: true},
}

// The crash loop: how long the process is away, and how long it lasts then.
const (
	crashDown = 3 * time.Second
	crashUp   = 5 * time.Second
)

// Ways are the names of the ways in which Break can break an upstream.
func Ways() []string {
	var names []string
	for _, w := range ways {
		names = append(names, w.name)
	}
	return names
}

// About tells what each way does, a line each.
func About() string {
	var b strings.Builder
	for _, w := range ways {
		fmt.Fprintf(&b, "  %-10s %s\n", w.name, w.about)
	}
	return b.String()
}

// Break makes the upstream fail from now on; how "" heals it. An unknown name or
// way is an error that lists the known ones.
func (d *Demo) Break(name, how string) error {
	s, ok := d.servers[name]
	if !ok {
		return fmt.Errorf("there is no built-in upstream %q; they are %s", name, strings.Join(d.Names(), ", "))
	}
	i := slices.IndexFunc(ways, func(w way) bool { return w.name == how })
	if i < 0 && how != "" {
		return fmt.Errorf("%q is not a way to break an upstream; the ways are %s", how, strings.Join(Ways(), ", "))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.heal(name)
	if how == "" {
		return nil
	}
	b := &broken{way: ways[i]}
	d.broken[name] = b
	if b.way.crash {
		ctx, stop := context.WithCancel(context.Background())
		b.stop = stop
		d.crashing.Go(func() { crashLoop(ctx, s) })
	}
	return nil
}

// BreakAll breaks every upstream in the same way: an outage that the variants
// share.
func (d *Demo) BreakAll(how string) error {
	for _, n := range d.Names() {
		if err := d.Break(n, how); err != nil {
			return err
		}
	}
	return nil
}

// broken is how one upstream fails now.
type broken struct {
	way  way
	stop func() // of a crash loop
}

// heal takes the fault away; d.mu is held.
func (d *Demo) heal(name string) {
	if b := d.broken[name]; b != nil && b.stop != nil {
		b.stop()
	}
	delete(d.broken, name)
}

func crashLoop(ctx context.Context, s *fakellm.Server) {
	for {
		s.Restart(crashDown)
		t := time.NewTimer(crashDown + crashUp + time.Duration(rand.Int64N(int64(time.Second))))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
	}
}

// Broken are the upstreams that fail now, and how.
func (d *Demo) Broken() map[string]string {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := map[string]string{}
	for n, b := range d.broken {
		out[n] = b.way.name
	}
	return out
}

// order is the body of POST /demo/break and /demo/heal.
type order struct {
	Upstream string `json:"upstream"`
	All      bool   `json:"all"`
	How      string `json:"how"`
}

// Handler serves the demo's own routes: POST /demo/break and /demo/heal with
// {"upstream": NAME or "all": true, "how": WAY}, and GET /demo, which tells what
// there is and what is broken.
func (d *Demo) Handler() http.Handler {
	mux := http.NewServeMux()
	act := func(heal bool) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			var in order
			if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 4096)).Decode(&in); err != nil {
				http.Error(w, `send {"upstream": NAME, "how": WAY} as JSON, or "all": true for every upstream`, http.StatusBadRequest)
				return
			}
			switch {
			case heal:
				in.How = ""
			case in.How == "":
				in.How = "500"
			}
			do := d.Break
			if in.All {
				do = func(_, how string) error { return d.BreakAll(how) }
			}
			if err := do(in.Upstream, in.How); err != nil {
				http.Error(w, err.Error(), http.StatusNotFound)
				return
			}
			reply(w, map[string]string{"upstream": in.Upstream, "broken": in.How})
		}
	}
	mux.HandleFunc("POST /demo/break", act(false))
	mux.HandleFunc("POST /demo/heal", act(true))
	mux.HandleFunc("GET /demo/{$}", func(w http.ResponseWriter, _ *http.Request) {
		type one struct {
			Name  string `json:"name"`
			About string `json:"about"`
		}
		var list []one
		for _, x := range ways {
			list = append(list, one{x.name, x.about})
		}
		reply(w, map[string]any{"upstreams": d.Names(), "broken": d.Broken(), "ways": list})
	})
	return mux
}

func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}
