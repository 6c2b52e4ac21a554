package server

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/experiment/guardrail"
	"sluice/experiment/trial"
	"sluice/internal/fakellm"
	"sluice/router"
	"sluice/upstream/wire"
)

// slowAfter is what the tests' latency guardrail takes as slow.
const slowAfter = 300 * time.Millisecond

// bench is a plane with an experiment whose trials are counted. The canary has
// everybody, the baseline stands by.
type bench struct {
	*plane
	trials       *trial.Collector
	base, canary *fakellm.Server
	metrics      []string
}

// counts are a variant's by metric since they were asked for last.
func (b *bench) counts(variant int) map[string]guardrail.Counts {
	b.t.Helper()
	out := map[string]guardrail.Counts{}
	tick := b.trials.Drain(time.Now())["exp"]
	if tick == nil {
		b.t.Fatal("the experiment is not watched")
	}
	for i, c := range tick.Variants[variant].Counts {
		if c != (guardrail.Counts{}) {
			out[b.metrics[i]] = c
		}
	}
	return out
}

func (b *bench) tick() *trial.Tick { return b.trials.Drain(time.Now())["exp"] }

func newBench(t *testing.T, guardrails string, change func(*router.Document)) *bench {
	t.Helper()
	b := &bench{trials: trial.NewCollector(nil), base: fake(t, fakellm.Options{}), canary: fake(t, fakellm.Options{})}
	doc := twoVariants(b.base.URL(), b.canary.URL(), 0, 10000)
	in, out := "1", "2"
	for i := range doc.Upstreams {
		doc.Upstreams[i].Price = &router.Price{Input: &in, Output: &out}
	}
	if change != nil {
		change(doc)
	}
	b.plane = newPlane(t, doc, func(c *Config) { c.Trials = b.trials })
	b.watch(guardrails)
	return b
}

func (b *bench) watch(guardrails string) {
	b.t.Helper()
	configs, err := guardrail.Parse(json.RawMessage(guardrails), false)
	if err != nil {
		b.t.Fatal(err)
	}
	thresholds, _ := trial.Fix(configs, new(trial.Profile))
	plan, err := trial.NewPlan(configs, trial.Setup{Thresholds: thresholds})
	if err != nil {
		b.t.Fatal(err)
	}
	b.metrics = nil
	for _, c := range configs {
		b.metrics = append(b.metrics, c.Metric)
	}
	e, _ := b.live.Load().Experiment("exp")
	b.trials.Set(map[string]*trial.Watch{"exp": {Experiment: "exp", Generation: e.Generation, Epoch: 1, Variants: 2, Configs: configs, Plan: plan}})
}

const allGuardrails = `[{"metric":"error"},{"metric":"rejected"},{"metric":"slow_ttfa","threshold":"300ms"},{"metric":"empty"},
	{"metric":"truncated"},{"metric":"invalid_json"},{"metric":"finish_length"}]`

func of(n, k, started int64) guardrail.Counts { return guardrail.Counts{N: n, K: k, Started: started} }

// TestTrials is what one request of the canary's user comes to.
func TestTrials(t *testing.T) {
	good := of(1, 0, 1)
	bad, open := of(1, 1, 1), of(0, 0, 1)
	answered := map[string]guardrail.Counts{"error": good, "rejected": good, "slow_ttfa": good, "empty": good, "truncated": good, "finish_length": good}
	failed := map[string]guardrail.Counts{"error": bad, "rejected": open, "slow_ttfa": open, "empty": open, "truncated": open, "finish_length": open}
	refused := map[string]guardrail.Counts{"error": open, "rejected": bad, "slow_ttfa": open, "empty": open, "truncated": open, "finish_length": open}
	with := func(m map[string]guardrail.Counts, more map[string]guardrail.Counts) map[string]guardrail.Counts {
		out := map[string]guardrail.Counts{}
		for _, from := range []map[string]guardrail.Counts{m, more} {
			for k, v := range from {
				out[k] = v
			}
		}
		return out
	}
	status := func(code int) fakellm.Behaviour { return fakellm.Behaviour{Fault: fakellm.Status, Status: code} }
	for _, tt := range []struct {
		name   string
		canary fakellm.Behaviour
		stream bool
		body   string // of the request; "" asks for nothing
		header []string
		status int
		served string
		want   map[string]guardrail.Counts
		why    trial.Why // of the tick's outside
	}{
		{name: "answered", status: 200, served: "canary", want: answered},
		{name: "streamed", stream: true, status: 200, served: "canary", want: answered},
		{name: "a 503 that the fallback hides", canary: status(503), status: 200, served: "control", want: failed},
		{name: "a 429 of its server", canary: status(429), status: 200, served: "control", want: failed},
		{name: "a refused credential", canary: status(401), status: 200, served: "control", want: failed},
		{name: "forbidden", canary: status(403), status: 200, served: "control", want: failed},
		{name: "another name is served there", canary: fakellm.Behaviour{Fault: fakellm.Unserved}, status: 200, served: "control", want: failed},
		{name: "a 400", canary: status(400), status: 400, served: "canary", want: refused},
		{name: "a 413", canary: status(413), status: 413, served: "canary", want: refused},
		{name: "a 422", canary: status(422), status: 422, served: "canary", want: refused},
		{name: "an error inside a 200", canary: fakellm.Behaviour{Fault: fakellm.ErrorEvent}, stream: true, status: 200, served: "control", want: failed},
		{name: "no stream, only its end", canary: fakellm.Behaviour{Fault: fakellm.DoneOnly}, stream: true, status: 200, served: "control",
			want: with(failed, nil)},
		{name: "garbage", canary: fakellm.Behaviour{Fault: fakellm.Garbage}, status: 200, served: "control", want: failed},
		{name: "slow", canary: fakellm.Behaviour{TTFT: 2 * slowAfter}, stream: true, status: 200, served: "canary", want: with(answered, map[string]guardrail.Counts{"slow_ttfa": bad})},
		{name: "a whole answer is there when it is complete", canary: fakellm.Behaviour{TTFT: 2 * slowAfter}, status: 200, served: "canary",
			want: with(answered, map[string]guardrail.Counts{"slow_ttfa": bad})},
		{name: "nothing in it", canary: fakellm.Behaviour{Fault: fakellm.Blank}, stream: true, status: 200, served: "canary",
			want: with(answered, map[string]guardrail.Counts{"error": bad, "empty": bad, "slow_ttfa": open})},
		{name: "nothing in it, whole", canary: fakellm.Behaviour{Fault: fakellm.Blank}, status: 200, served: "canary",
			want: with(answered, map[string]guardrail.Counts{"error": bad, "empty": bad})},
		{name: "no JSON where it was demanded", canary: fakellm.Behaviour{Text: "well, no"}, status: 200, served: "canary",
			body: `"response_format":{"type":"json_object"},`, want: with(answered, map[string]guardrail.Counts{"error": bad, "invalid_json": bad})},
		{name: "JSON", canary: fakellm.Behaviour{Text: `{"a":1}`}, status: 200, served: "canary", body: `"response_format":{"type":"json_object"},`,
			want: with(answered, map[string]guardrail.Counts{"invalid_json": good})},
		{name: "the SDK's second try", canary: status(503), header: []string{"X-Stainless-Retry-Count", "1"}, status: 200, served: "control",
			want: map[string]guardrail.Counts{}, why: trial.SDKRetry},
		{name: "the SDK's first try", header: []string{"X-Stainless-Retry-Count", "0"}, status: 200, served: "canary", want: answered},
		{name: "an override", header: []string{"X-Sluice-Variant", "canary"}, status: 200, served: "canary", want: map[string]guardrail.Counts{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, allGuardrails, nil)
			b.canary.Set(tt.canary)
			header := append([]string{"X-User-Id", "u1"}, tt.header...)
			body := strings.Replace(ask("hi", tt.stream), "{", "{"+tt.body, 1)
			resp, text := b.post("/v1/chat/completions", body, header...)
			if resp.StatusCode != tt.status || resp.Header.Get("X-Sluice-Variant") != tt.served {
				t.Errorf("%d by %q, want %d by %s: %s", resp.StatusCode, resp.Header.Get("X-Sluice-Variant"), tt.status, tt.served, text)
			}
			b.rec.wait(t, 1)
			tick := b.tick()
			got := map[string]guardrail.Counts{}
			for i, c := range tick.Variants[1].Counts {
				if c != (guardrail.Counts{}) {
					got[b.metrics[i]] = c
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
			if tt.why != "" && tick.Variants[1].Outside[tt.why] != 1 {
				t.Errorf("outside: %v, want one %s", tick.Variants[1].Outside, tt.why)
			}
			for i, c := range tick.Variants[0].Counts {
				if c != (guardrail.Counts{}) {
					t.Errorf("the baseline has %+v of %s: the fallback is no trial of its own", c, b.metrics[i])
				}
			}
		})
	}
}

// TestTrialsOfAnswers is what a server's own words come to.
func TestTrialsOfAnswers(t *testing.T) {
	for _, tt := range []struct {
		name   string
		status int // of the server; its fallback answers 200
		body   string
		want   map[string]guardrail.Counts
	}{
		{"a 404 of something else", 404, `{"error":{"message":"there is no such file","type":"invalid_request_error","param":"messages","code":"file_not_found"}}`,
			map[string]guardrail.Counts{"error": of(0, 0, 1), "rejected": of(1, 1, 1), "finish_length": of(0, 0, 1)}},
		{"a 404 for the model", 404, `{"error":{"message":"The model m2 does not exist.","type":"NotFoundError","param":"model","code":404}}`,
			map[string]guardrail.Counts{"error": of(1, 1, 1), "rejected": of(0, 0, 1), "finish_length": of(0, 0, 1)}},
		{"a prompt that is too long", 400, `{"error":{"message":"This model's maximum context length is 10 tokens","type":"BadRequestError","param":null,"code":400}}`,
			map[string]guardrail.Counts{"error": of(0, 0, 1), "rejected": of(1, 1, 1), "finish_length": of(0, 0, 1)}},
		{"cut at its limit", 200, `{"id":"c","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"and then"},"finish_reason":"length"}],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}`,
			map[string]guardrail.Counts{"error": of(1, 0, 1), "rejected": of(1, 0, 1), "finish_length": of(1, 1, 1)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			canary := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				if r.Method == http.MethodPost {
					w.WriteHeader(tt.status)
					io.WriteString(w, tt.body)
				}
			}))
			defer canary.Close()
			b := newBench(t, `[{"metric":"error"},{"metric":"finish_length"}]`, func(d *router.Document) { d.Upstreams[1].Endpoints = []string{canary.URL + "/v1"} })
			if resp, text := b.post("/v1/chat/completions", ask("hi", false), "X-User-Id", "u1"); resp.StatusCode != tt.status && resp.StatusCode != 200 {
				t.Errorf("%d %s", resp.StatusCode, text)
			}
			b.rec.wait(t, 1)
			if diff := cmp.Diff(tt.want, b.counts(1)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestTrialsWithoutAUnit: who cannot be told apart is no sample of anybody.
func TestTrialsWithoutAUnit(t *testing.T) {
	b := newBench(t, `[{"metric":"error"}]`, func(d *router.Document) { d.Experiments[0].Unit = &router.Unit{From: []string{"header:x-user-id"}} })
	b.post("/v1/chat/completions", ask("hi", false))
	b.rec.wait(t, 1)
	for v, a := range b.tick().Variants {
		if a.Started != 0 || a.Counts[0] != (guardrail.Counts{}) {
			t.Errorf("variant %d: %+v", v, a)
		}
	}
}

// TestTrialsTellLoad: what a request asks for, who it is, and what it cost.
func TestTrialsTellLoad(t *testing.T) {
	if diff := cmp.Diff(wire.AskNames[:], trial.AskNames()); diff != "" {
		t.Errorf("the names of what requests ask for differ: %s", diff)
	}
	b := newBench(t, `[{"metric":"cost_per_request"},{"metric":"output_tokens"},{"metric":"output_chars"}]`, nil)
	b.canary.Set(fakellm.Behaviour{Tokens: 10})
	b.post("/v1/chat/completions", strings.Replace(ask("hi", false), "{", `{"stop":["x"],`, 1), "X-User-Id", "u1")
	ev := b.rec.wait(t, 1)[0]
	tick := b.tick().Variants[1]
	if len(tick.Units) != 1 || tick.Started != 1 || tick.Asks["stop"] != 1 || tick.Asks["stream"] != 0 {
		t.Errorf("%+v", tick)
	}
	if len(tick.Means) < 3 || len(tick.Means[0]) != 1 {
		t.Fatalf("means %+v", tick.Means)
	}
	if c := tick.Means[0][0]; c.N != 1 || c.X != float64(ev.Attempts[0].CostNano) || c.X == 0 {
		t.Errorf("it cost %v, want %d nano-USD", c, ev.Attempts[0].CostNano)
	}
	if c := tick.Means[1][0]; c.X != 10 {
		t.Errorf("%v output tokens, want 10", c.X)
	}
	if c := tick.Means[2][0]; c.X <= 10 {
		t.Errorf("%v characters", c.X)
	}
}

// TestTrialsOfTheBaseline: the profile from which the next step's thresholds are
// made is the baseline's alone.
func TestTrialsOfTheBaseline(t *testing.T) {
	b := newBench(t, `[{"metric":"error"}]`, func(d *router.Document) {
		d.Experiments[0].Variants[0].Weight, d.Experiments[0].Variants[1].Weight = 5000, 5000
	})
	for i := range 40 {
		b.post("/v1/chat/completions", ask("hi", i%2 == 0), "X-User-Id", fmt.Sprint("u", i))
	}
	b.rec.wait(t, 40)
	tick := b.tick()
	base, canary := tick.Variants[0], tick.Variants[1]
	if base.Started+canary.Started != 40 || base.Started == 0 || canary.Started == 0 {
		t.Fatalf("%d and %d started", base.Started, canary.Started)
	}
	if canary.Profile != nil || base.Profile == nil || base.Profile.TTFA[0].Count() != base.Started || base.Profile.Total[0].Count() != base.Started {
		t.Errorf("profiles: %+v, %+v of %d requests", base.Profile, canary.Profile, base.Started)
	}
}
