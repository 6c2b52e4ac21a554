package server

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/experiment/guardrail"
	"sluice/experiment/trial"
	"sluice/internal/fakellm"
)

// watched is a data plane of two variants, all users on the canary, whose trials
// are counted: error, slow_ttfa (300 ms), rejected, empty, invalid_json.
func watched(t *testing.T, fallback string, b fakellm.Behaviour) (*plane, *trial.Collector, *fakellm.Server, *fakellm.Server) {
	t.Helper()
	control, canary := fake(t, fakellm.Options{}), fake(t, fakellm.Options{Default: b})
	doc := twoVariants(control.URL(), canary.URL(), 0, 10000)
	doc.Experiments[0].Variants[1].Fallback = fallback
	c := trial.NewCollector(nil)
	p := newPlane(t, doc, func(cfg *Config) { cfg.Trials = c })
	configs, err := guardrail.Parse(json.RawMessage(`[{"metric":"error"},{"metric":"slow_ttfa","threshold":"300ms"},{"metric":"rejected"},{"metric":"empty"},{"metric":"invalid_json"},{"metric":"cost_per_request"}]`), false)
	if err != nil {
		t.Fatal(err)
	}
	thresholds, _ := trial.Fix(configs, new(trial.Profile))
	plan, err := trial.NewPlan(configs, trial.Setup{Thresholds: thresholds})
	if err != nil {
		t.Fatal(err)
	}
	e, _ := p.live.Load().Experiment("exp")
	c.Set(map[string]*trial.Watch{"exp": {Experiment: "exp", Generation: e.Generation, Variants: 2, Configs: configs, Plan: plan}})
	return p, c, control, canary
}

// tally are the first five guardrails' counts of the canary.
func tally(c *trial.Collector) (got [5]guardrail.Counts) {
	copy(got[:], c.Drain(time.Now())["exp"].Variants[1].Counts)
	return got
}

func count(n, k, started int64) guardrail.Counts {
	return guardrail.Counts{N: n, K: k, Started: started}
}

// What real servers do, as it is counted for the assigned variant.
func TestTrials(t *testing.T) {
	good, bad, untold := count(1, 0, 1), count(1, 1, 1), count(0, 0, 1)
	none := guardrail.Counts{}
	jsonAsk := `{"model":"chat","response_format":{"type":"json_object"},"messages":[{"role":"user","content":"hi"}]}`
	tests := []struct {
		name     string
		b        fakellm.Behaviour
		fallback string
		body     string
		header   []string
		want     [5]guardrail.Counts // error, slow_ttfa, rejected, empty, invalid_json
	}{
		{"whole answer", fakellm.Behaviour{}, "", ask("hi", false), nil, [5]guardrail.Counts{good, good, good, good, none}},
		{"stream", fakellm.Behaviour{}, "", ask("hi", true), nil, [5]guardrail.Counts{good, good, good, good, none}},
		{"slow whole answer", fakellm.Behaviour{TTFT: 350 * time.Millisecond}, "", ask("hi", false), nil, [5]guardrail.Counts{good, bad, good, good, none}},
		{"slow stream", fakellm.Behaviour{TTFT: 350 * time.Millisecond}, "", ask("hi", true), nil, [5]guardrail.Counts{good, bad, good, good, none}},
		{"5xx that a fallback hides", fakellm.Behaviour{Fault: fakellm.Status, Status: 500}, "control", ask("hi", false), nil, [5]guardrail.Counts{bad, untold, untold, untold, none}},
		{"5xx", fakellm.Behaviour{Fault: fakellm.Status, Status: 503}, "", ask("hi", true), nil, [5]guardrail.Counts{bad, untold, untold, untold, none}},
		{"429", fakellm.Behaviour{Fault: fakellm.Status, Status: 429}, "", ask("hi", true), nil, [5]guardrail.Counts{bad, untold, untold, untold, none}},
		{"401", fakellm.Behaviour{Fault: fakellm.Status, Status: 401}, "", ask("hi", false), nil, [5]guardrail.Counts{bad, untold, untold, untold, none}},
		{"wrong served name", fakellm.Behaviour{Fault: fakellm.Status, Status: 404}, "", ask("hi", false), nil, [5]guardrail.Counts{bad, untold, untold, untold, none}},
		{"400", fakellm.Behaviour{Fault: fakellm.Status, Status: 400}, "control", ask("hi", false), nil, [5]guardrail.Counts{untold, untold, bad, untold, none}},
		{"422", fakellm.Behaviour{Fault: fakellm.Status, Status: 422}, "", ask("hi", true), nil, [5]guardrail.Counts{untold, untold, bad, untold, none}},
		{"no content", fakellm.Behaviour{Fault: fakellm.Blank}, "", ask("hi", false), nil, [5]guardrail.Counts{bad, good, good, bad, none}},
		{"streamed, no content", fakellm.Behaviour{Fault: fakellm.Blank}, "", ask("hi", true), nil, [5]guardrail.Counts{bad, untold, good, bad, none}},
		{"broke off", fakellm.Behaviour{Fault: fakellm.Truncate, After: 3}, "", ask("hi", true), nil, [5]guardrail.Counts{bad, good, good, untold, none}},
		{"prose for JSON", fakellm.Behaviour{Fault: fakellm.BadJSON}, "", jsonAsk, nil, [5]guardrail.Counts{bad, good, good, good, bad}},
		{"JSON for JSON", fakellm.Behaviour{}, "", jsonAsk, nil, [5]guardrail.Counts{good, good, good, good, good}},
		{"an SDK's retry", fakellm.Behaviour{Fault: fakellm.Status, Status: 500}, "", ask("hi", false), []string{"X-Stainless-Retry-Count", "1"}, [5]guardrail.Counts{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, c, _, _ := watched(t, tt.fallback, tt.b)
			resp, err := http.DefaultClient.Do(userRequest(t, context.Background(), p, tt.body, tt.header...))
			if err != nil {
				t.Fatal(err)
			}
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			p.rec.wait(t, 1)
			if diff := cmp.Diff(tt.want, tally(c)); diff != "" {
				t.Errorf("status %d: %s", resp.StatusCode, diff)
			}
		})
	}
}

func userRequest(t *testing.T, ctx context.Context, p *plane, body string, header ...string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, "POST", p.url+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-User-Id", "u1")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return req
}

// A client that leaves before the threshold says nothing, one that leaves after
// it left a slow answer; one that still waits then is a slow trial already.
func TestTrialsOfHangs(t *testing.T) {
	for name, tt := range map[string]struct {
		after time.Duration
		want  guardrail.Counts
	}{"before": {100 * time.Millisecond, count(0, 0, 1)}, "after": {500 * time.Millisecond, count(1, 1, 1)}} {
		t.Run(name, func(t *testing.T) {
			p, c, _, _ := watched(t, "", fakellm.Behaviour{Fault: fakellm.Hang})
			ctx, cancel := context.WithTimeout(context.Background(), tt.after)
			defer cancel()
			if resp, err := http.DefaultClient.Do(userRequest(t, ctx, p, ask("hi", true))); err == nil {
				resp.Body.Close()
				t.Fatal("it answered")
			}
			p.rec.wait(t, 1)
			got := tally(c)
			if got[1] != tt.want || got[0] != count(0, 0, 1) {
				t.Errorf("slow %+v, error %+v", got[1], got[0])
			}
		})
	}
	t.Run("still waiting", func(t *testing.T) {
		p, c, _, canary := watched(t, "", fakellm.Behaviour{Fault: fakellm.Hang})
		called := make(chan struct{}, 1)
		canary.OnCall(func(fakellm.Call, http.Header) { called <- struct{}{} })
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			if resp, err := http.DefaultClient.Do(userRequest(t, ctx, p, ask("hi", true))); err == nil {
				resp.Body.Close()
			}
		}()
		<-called
		if got := c.Drain(time.Now().Add(time.Second))["exp"].Variants[1].Counts[1]; got != count(1, 1, 1) {
			t.Errorf("a second later: %+v", got)
		}
		cancel()
		<-done
	})
}

// A client's own deadline is a client that leaves, not a fault of the variant.
func TestTrialOfADeadline(t *testing.T) {
	p, c, _, _ := watched(t, "", fakellm.Behaviour{Fault: fakellm.Hang})
	resp, _ := p.post("/v1/chat/completions", ask("hi", false), "X-User-Id", "u1", "X-Sluice-Timeout", "0.2")
	p.rec.wait(t, 1)
	if got := tally(c); got[0] != count(0, 0, 1) || got[1] != count(0, 0, 1) {
		t.Errorf("status %d: error %+v, slow %+v", resp.StatusCode, got[0], got[1])
	}
}

// What the baseline answers for a canary that was killed meanwhile is no trial
// of the canary.
func TestTrialOfAKill(t *testing.T) {
	p, c, _, canary := watched(t, "", fakellm.Behaviour{})
	var once sync.Once
	canary.OnCall(func(fakellm.Call, http.Header) { once.Do(func() { p.edit(killCanary) }) })
	canary.Set(fakellm.Behaviour{Fault: fakellm.Status, Status: 503})
	for range 3 {
		if resp, body := p.post("/v1/chat/completions", ask("hi", false), "X-User-Id", "u1"); resp.StatusCode != 200 {
			t.Errorf("%d %s", resp.StatusCode, body)
		}
	}
	p.rec.wait(t, 3)
	tick := c.Drain(time.Now())["exp"]
	if got := tick.Variants[1].Counts[0]; got != count(1, 1, 1) {
		t.Errorf("canary: %+v", got)
	}
	if got := tick.Variants[0].Counts[0]; got != (guardrail.Counts{}) {
		t.Errorf("baseline: %+v", got)
	}
}

// Costs are those of all attempts, by assigned variant.
func TestTrialOfCost(t *testing.T) {
	p, c, _, _ := watched(t, "control", fakellm.Behaviour{Fault: fakellm.Status, Status: 500})
	p.post("/v1/chat/completions", ask("hi", false), "X-User-Id", "u1")
	ev := p.rec.wait(t, 1)[0]
	sums := c.Drain(time.Now())["exp"].Variants[1].Means
	total := ev.Totals()
	if total.CostNano == 0 || len(sums) < 6 || len(sums[5]) != 1 || sums[5][0].X != float64(total.CostNano) {
		t.Errorf("%+v, want the cost %d", sums, total.CostNano)
	}
}
