package preflight

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"sluice/experiment/ramp"
	"sluice/internal/fakellm"
	"sluice/metrics"
	"sluice/router"
	"sluice/upstream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench is a prober before two servers: the baseline's and the canary's.
type bench struct {
	*Prober
	base, canary *fakellm.Server
	mu           sync.Mutex
	booked       []metrics.Event
	found        []*ramp.Preflight
	table        *router.Table
}

// quickly is a server that takes no time.
var quickly = fakellm.Behaviour{Tokens: 6}

// setup makes the servers as they are told; variant holds more of the canary in
// JSON, from a comma on.
func setup(t *testing.T, base, canary fakellm.Options, variant string, traffic Traffic) *bench {
	t.Helper()
	b := &bench{}
	start := func(o fakellm.Options) *fakellm.Server {
		if o.Dialect == "" {
			o.Dialect = "vllm"
		}
		o.Models = []string{"m"}
		if o.Default.Tokens == 0 {
			o.Default.Tokens = quickly.Tokens
		}
		s, err := fakellm.Start(o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		return s
	}
	b.base, b.canary = start(base), start(canary)
	d, err := router.ParseDocument([]byte(`{
  "upstreams": [{"name": "v1", "dialect": "vllm", "endpoints": ["` + b.base.URL() + `"]}, {"name": "v2", "dialect": "vllm", "endpoints": ["` + b.canary.URL() + `"]}],
  "models": [{"name": "chat", "default": {"upstream": "v1", "model": "m"}}],
  "experiments": [{"key": "exp", "model": "chat", "kind": "canary", "state": "running", "seed": "s", "generation": 1, "baseline": "control", "unit": {"from": ["body:user"]},
    "variants": [{"name": "control", "weight": 10000, "upstream": "v1", "model": "m"}, {"name": "canary", "weight": 0, "upstream": "v2", "model": "m"` + variant + `}]}]
}`))
	if err != nil {
		t.Fatal(err)
	}
	pool := upstream.NewPool(upstream.PoolOptions{Log: slog.New(slog.DiscardHandler)})
	t.Cleanup(pool.Close)
	configs, ps := router.UpstreamConfigs(d, func(string) (string, bool) { return "", false })
	if len(ps) > 0 {
		t.Fatal(ps)
	}
	ups, err := pool.Apply(configs)
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(30 * time.Second); !pool.Ready(t.Context(), 2*time.Second) && time.Now().Before(end); {
	}
	if b.table, err = router.Compile(&router.Snapshot{Document: *d}, ups, router.CompileOptions{}); err != nil {
		t.Fatal(err)
	}
	b.Prober = New(Options{Doer: pool, Table: func() *router.Table { return b.table }, longest: 300, tryPause: 10 * time.Millisecond,
		Traffic: func(model string) Traffic {
			if model != "chat" {
				t.Errorf("traffic of %q", model)
			}
			return traffic
		},
		Found:  func(r *ramp.Preflight) { b.mu.Lock(); b.found = append(b.found, r); b.mu.Unlock() },
		Record: func(e metrics.Event) { b.mu.Lock(); b.booked = append(b.booked, e); b.mu.Unlock() },
	})
	t.Cleanup(b.Close)
	return b
}

func (b *bench) run(t *testing.T) *ramp.Preflight {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	r, err := b.Preflight(ctx, "exp")
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// result is what a variant answered to a probe.
func result(t *testing.T, r *ramp.Preflight, probe, variant string) ramp.ProbeResult {
	t.Helper()
	for _, p := range r.Probes {
		for _, one := range p.Results {
			if p.Name == probe && one.Variant == variant {
				return one
			}
		}
	}
	t.Fatalf("%s did not answer %s", variant, probe)
	return ramp.ProbeResult{}
}

// Two servers that can do all: nothing stands in the way, and what was used is
// booked as probes.
func TestHealthyPair(t *testing.T) {
	b := setup(t, fakellm.Options{}, fakellm.Options{}, "", Traffic{})
	r := b.run(t)
	for _, p := range r.Probes {
		for _, one := range p.Results {
			if one.State == ramp.ProbeFailed && one.Variant == "canary" && result(t, r, p.Name, "control").State != ramp.ProbeFailed {
				t.Errorf("%s: %+v", p.Name, one)
			}
		}
	}
	if !r.OK || !b.Check("exp").OK || b.Last("exp") != r {
		t.Errorf("not OK: %s", r.Text)
	}
	if got := result(t, r, "chat", "canary"); got.State != ramp.ProbePassed || got.Status != 200 {
		t.Errorf("chat: %+v", got)
	}
	if passed, failed, blocking := r.Count("canary"); len(b.found) != 1 || b.found[0] != r || passed < 10 || blocking != 0 || passed+failed > len(r.Probes) {
		t.Errorf("found %v: %d passed, %d failed, %d block", b.found, passed, failed, blocking)
	}
	if len(b.booked) < len(all) {
		t.Errorf("%d calls booked", len(b.booked))
	}
	for _, e := range b.booked {
		if e.Role != metrics.RoleProbe || e.Model != "chat" || e.Experiment != "exp" {
			t.Errorf("booked as %+v", e)
		}
	}
}

// Each feature that only the canary lacks blocks, with the share of the traffic
// that asks for it; one that both lack does not.
func TestWhatTheCanaryLacks(t *testing.T) {
	traffic := Traffic{Requests: 1000, Asks: map[string]int64{"tools": 310, "tool_call": 20, "json": 5, "choices": 0, "logprobs": 70, "image": 120, "stop": 33, "long": 40}}
	for _, c := range []struct {
		feature, probe, want string
	}{
		{"tools", "tools_auto", "31 % of your requests use tools; canary rejects them (400: "},
		{"json", "json_schema", "under 1 % of your requests demand JSON; canary rejects them (400: "},
		{"n", "choices", "none of your requests ask for several choices; canary rejects them (400: "},
		{"logprobs", "logprobs", "7.0 % of your requests ask for logprobs; canary rejects them (400: "},
		{"image", "image", "12 % of your requests have an image; canary rejects them (400: "},
		{"stop", "stop", "3.3 % of your requests have stop sequences; canary rejects them (400: "},
	} {
		t.Run(c.feature, func(t *testing.T) {
			t.Parallel()
			lacks := fakellm.Options{Default: fakellm.Behaviour{Rejects: []string{c.feature}}}
			r := setup(t, fakellm.Options{}, lacks, "", traffic).run(t)
			base, canary := result(t, r, c.probe, "control"), result(t, r, c.probe, "canary")
			if canary.State != ramp.ProbeFailed || canary.Status != 400 {
				t.Errorf("canary: %+v", canary)
			}
			// Whether the baseline passes is the fake's to say: a model without a mind
			// does not write JSON.
			if base.State != ramp.ProbePassed {
				t.Fatalf("the baseline cannot: %+v", base)
			}
			if r.OK || !canary.Blocks {
				t.Errorf("does not block: %s", r.Text)
			}
			found := false
			for _, p := range r.Probes {
				found = found || p.Name == c.probe && strings.HasPrefix(p.Text, c.want)
				if p.Name == c.probe && !found {
					t.Errorf("got  %s\nwant %s…", p.Text, c.want)
				}
			}
			both := setup(t, lacks, lacks, "", traffic)
			if r := both.run(t); result(t, r, c.probe, "canary").Blocks {
				t.Errorf("blocks though the baseline cannot either: %s", r.Text)
			}
		})
	}
}

// A shorter context shows in the long prompt, and in what the engines list.
func TestShorterContext(t *testing.T) {
	b := setup(t, fakellm.Options{MaxModelLen: 4096}, fakellm.Options{MaxModelLen: 128}, "", Traffic{Requests: 100, Asks: map[string]int64{"long": 25}, PromptP99: 300})
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if e, _ := b.table.Experiment("exp"); e.Variants[1].Target.Upstream.MaxModelLen("m") == 128 && e.Variants[0].Target.Upstream.MaxModelLen("m") == 4096 {
			break
		}
	}
	r := b.run(t)
	if got := result(t, r, longProbe, "canary"); !got.Blocks || got.Status != 400 {
		t.Errorf("long: %+v", got)
	}
	if got := result(t, r, "max_model_len", "canary"); !strings.HasPrefix(got.Text, "128 tokens, 3968 fewer than control takes") {
		t.Errorf("max_model_len: %+v", got)
	}
}

// Answers that HTTP calls a success.
func TestUselessAnswers(t *testing.T) {
	for _, c := range []struct {
		name string
		b    fakellm.Behaviour
		want string
	}{
		{"blank", fakellm.Behaviour{Fault: fakellm.Blank}, "the answer is empty"},
		{"garbage", fakellm.Behaviour{Fault: fakellm.Garbage}, "502: "},
		{"truncated", fakellm.Behaviour{Fault: fakellm.Truncate}, "502: "},
		{"500", fakellm.Behaviour{Fault: fakellm.Status, Status: 500}, "500: "},
		{"wrong name", fakellm.Behaviour{Fault: fakellm.Unserved}, "404: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, fakellm.Options{}, fakellm.Options{Default: c.b}, "", Traffic{})
			r := b.run(t)
			got := result(t, r, "chat", "canary")
			if !got.Blocks || !strings.Contains(got.Text, c.want) {
				t.Errorf("%+v, want %q", got, c.want)
			}
			if next := result(t, r, "tools_auto", "canary"); next.State != ramp.ProbeSkipped || next.Text != "not asked: a plain request fails" {
				t.Errorf("and then: %+v", next)
			}
			if check := b.Check("exp"); check.OK || check.Text != r.Text {
				t.Errorf("check: %+v", check)
			}
		})
	}
}

// A variant whose params change what a probe is about cannot be judged by it.
func TestParamsThatDecide(t *testing.T) {
	b := setup(t, fakellm.Options{}, fakellm.Options{}, `, "params": {"tool_choice": "none", "temperature": 0.2, "max_tokens": 5}`, Traffic{})
	r := b.run(t)
	if got := result(t, r, "tools_auto", "canary"); got.State != ramp.ProbeSkipped || got.Text != "not asked: the variant's params change tool_choice" {
		t.Errorf("%+v", got)
	}
	if got := result(t, r, "max_tokens", "canary"); got.State != ramp.ProbeSkipped {
		t.Errorf("max_tokens: %+v", got)
	}
	if got := result(t, r, "chat", "canary"); got.State != ramp.ProbePassed {
		t.Errorf("chat: %+v", got)
	}
}

// A server that is too busy is not judged.
func TestBusy(t *testing.T) {
	busy := fakellm.Options{Default: fakellm.Behaviour{Fault: fakellm.Status, Status: 429}}
	r := setup(t, fakellm.Options{}, busy, "", Traffic{}).run(t)
	if got := result(t, r, "chat", "canary"); got.State != ramp.ProbeSkipped || !strings.HasPrefix(got.Text, "not judged: it is busy (429") {
		t.Errorf("%+v", got)
	}
	if got := result(t, r, "tools_auto", "canary"); got.State != ramp.ProbeSkipped || !strings.HasPrefix(got.Text, "not asked: there is no room") {
		t.Errorf("and then: %+v", got)
	}
	if !r.OK {
		t.Error(r.Text)
	}
}
