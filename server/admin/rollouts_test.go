package admin_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/experiment/guardrail"
	"sluice/experiment/ramp"
	"sluice/router"
	"sluice/server/admin"
)

// rollouts answers what a test says, for the step that the document is in.
type rollouts struct {
	mu     sync.Mutex
	live   *router.Live
	report func(r *ramp.Report)
}

func (f *rollouts) set(report func(r *ramp.Report)) { f.mu.Lock(); f.report = report; f.mu.Unlock() }

func (f *rollouts) Report(_ context.Context, key string) (ramp.Report, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.live.Load().Snapshot.Document.Experiment(key)
	if f.report == nil || e == nil || e.RampState == nil {
		return ramp.Report{}, errors.New("not watched")
	}
	s := e.RampState
	r := ramp.Report{Experiment: key, Generation: e.Generation, State: e.State, Phase: s.Phase, Variant: s.Variant, Step: s.Step, Steps: s.Steps, Epoch: s.Epoch,
		Weights: router.WeightsView(e), Baseline: e.Baseline, Arms: []ramp.Arm{}, Treatments: []ramp.Treatment{}, Supervised: true}
	f.report(&r)
	return r, nil
}

// stands is a report with one verdict and a decision.
func stands(d guardrail.Decision, action ramp.Action, code string) func(*ramp.Report) {
	return func(r *ramp.Report) {
		v := guardrail.Verdict{Name: "error", Metric: "error", Kind: guardrail.Rate, Decision: d, Code: guardrail.Inconclusive, Action: guardrail.ActionRollback, Require: guardrail.RequirePass,
			Canary: guardrail.Counts{N: 40, K: 1}, Baseline: guardrail.Counts{N: 400, K: 4}, Bound: guardrail.Bound{TolerateRatio: 1.5, PassRatio: 2}}
		r.Treatments = []ramp.Treatment{{Name: "canary", Ramping: true, Weight: r.Weights["canary"], Verdicts: []guardrail.Verdict{v}}}
		r.Decision = ramp.Decision{Action: action, Code: code, Text: "as the test says"}
		r.WhyNot = []string{"error is not decided"}
	}
}

type preflights struct{ last *ramp.Preflight }

func (p *preflights) Preflight(_ context.Context, key string) (*ramp.Preflight, error) {
	p.last = &ramp.Preflight{Experiment: key, Variants: []string{"control", "canary"}, Probes: []ramp.Probe{}, Text: "31 % of your requests: a tool is offered; canary fails"}
	return p.last, nil
}
func (p *preflights) Last(string) *ramp.Preflight { return p.last }

// rolling is a gateway with an experiment "roll" that has a ramp, as a draft.
func rolling(t *testing.T) (*gateway, *rollouts) {
	t.Helper()
	f := &rollouts{}
	g := newGateway(t, func(c *admin.Config) {
		f.live = c.Live
		c.Rollouts, c.Preflights = f, &preflights{}
	})
	g.v1("POST", "/experiments", `{"key": "roll", "model": "spare", "baseline": "control", "ramp": {"steps": [100, {"weight": 2000, "approve": true}, 10000]}, "guardrails": [{"metric": "error"}],
		"variants": [{"name": "control", "weight": 9000, "upstream": "v1"}, {"name": "canary", "weight": 1000, "upstream": "v2", "version": "2"}]}`).
		want(201).has("state", "draft", "forecast.steps.0.weight", 100, "forecast.steps.2.weight", 9900)
	return g, f
}

const roll = "/experiments/roll"

func TestRampByVerbs(t *testing.T) {
	t.Parallel()
	g, f := rolling(t)
	g.write("POST", roll, ":start?dry_run=true", "").want(200).has("state", "running", "forecast.steps.0.weight", 100)
	g.v1("GET", roll, "").has("state", "draft")
	g.write("POST", roll, ":start", "").want(200).has("state", "running", "ramp_state.phase", "ready_wait", "variants.1.weight", 0)

	// What is not proved needs force and a reason; a proved failure stops everybody.
	g.write("POST", roll, ":advance", "").refused(409, "evidence_open")
	g.write("POST", roll, ":advance", `{"force": true}`).refused(422, "reason_required")
	g.write("POST", roll, ":advance", `{"force": true, "reason": "it is the demo"}`).want(200).has("ramp_state.phase", "ramping", "ramp_state.step", 0, "variants.1.weight", 100)
	f.set(stands(guardrail.Fail, ramp.Continue, ramp.CodeOpen))
	g.write("POST", roll, ":advance", `{"force": true, "reason": "never mind"}`).refused(409, "guardrail_failed")
	g.write("POST", roll, ":promote", `{"variant": "canary", "force": true, "reason": "never mind"}`).refused(409, "guardrail_failed")
	f.set(stands(guardrail.Open, ramp.Continue, ramp.CodeOpen))
	if r := g.write("POST", roll, ":advance", "").refused(409, "evidence_open"); !strings.Contains(string(r.body), "canary 1 of 40") {
		t.Errorf("without the numbers: %s", r.body)
	}
	f.set(stands(guardrail.Pass, ramp.Hold, ramp.CodeApproval))
	g.write("POST", roll, ":approve", "").want(200).has("ramp_state.approved", 1, "write.changed", true)
	g.write("POST", roll, ":approve", "").want(200).has("write.changed", false)
	g.write("POST", roll, ":advance", `{"reason": "all is proved"}`).want(200).has("ramp_state.step", 1, "variants.1.weight", 2000)
	g.write("POST", roll, ":pause", `{"force": true, "reason": "x"}`).refused(422, "unknown_member")
	g.write("POST", roll, ":pause", `{"reason": "lunch"}`).want(200).has("state", "paused", "ramp_state.reason", "person")
	g.write("POST", roll, ":advance", "").refused(409, "invalid_state")
	g.write("POST", roll, ":resume", "").want(200).has("state", "running")

	// Weights are the ramp's.
	g.write("PUT", roll+"/weights", "", `{"weights": {"control": 5000, "canary": 5000}}`).refused(409, "ramp_active")
	g.write("PUT", roll+"/weights", "?pause_ramp=true", `{"weights": {"control": 5000, "canary": 5000}}`).want(200)
	g.v1("GET", roll, "").has("state", "paused", "variants.1.weight", 5000)
	g.write("POST", roll, ":rollback?dry_run=true", "").want(200).has("rollback_cost.head_room", true)
	g.write("POST", roll, ":rollback", `{"reason": "slow"}`).want(200).has("state", "rolled_back", "ramp_state.phase", "done")
	g.write("POST", roll, ":start", "").refused(409, "cooldown")
	g.write("POST", roll, ":start", `{"force": true}`).refused(422, "reason_required")
	g.write("POST", roll, ":start", `{"force": true, "reason": "it was the network"}`).want(200).has("generation", 2, "ramp_state.phase", "ready_wait")

	history := g.v1("GET", roll+"/history", "").want(200)
	var got []string
	for _, row := range history.get("items").([]any) {
		got = append(got, row.(map[string]any)["text"].(string))
	}
	all := strings.Join(got, "\n")
	for _, want := range []string{
		"started as generation 2: rolled_back → running, control 50 % → 100 %, canary 50 % → 0 %, waits until canary is ready (by local); it was the network",
		"rolled back: paused → rolled_back (by local); slow",
		"weights: running → paused, control 80 % → 50 %, canary 20 % → 50 %",
		"advanced: control 99 % → 80 %, canary 1 % → 20 %, step 2 of 3 (by local); all is proved",
		"paused: running → paused (by local); lunch", "created (by local)",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("the history has no %q:\n%s", want, all)
		}
	}
}

func TestRampReads(t *testing.T) {
	t.Parallel()
	g, f := rolling(t)
	g.v1("GET", exp+"/ramp", "").want(200).has("state", "running", "step", -1, "weights.canary", 1000, "rollback_cost.calls", 0)
	g.v1("GET", exp+"/forecast", "").refused(409, "no_ramp")
	g.v1("GET", exp+"/guardrails", "").want(200).has("items", "[]")
	for _, part := range []string{"ramp", "guardrails", "forecast", "preflight"} {
		g.v1("GET", "/experiments/none/"+part, "").refused(404, "not_found")
	}
	g.write("POST", roll, ":start", "").want(200)
	g.v1("GET", roll+"/guardrails", "").want(200).has("items.0.config.name", "error", "items.0.state", "OPEN", "items.0.variant", "canary", "items.0.verdict", nil, "items.1.config.name", "rejected")
	f.set(stands(guardrail.Pass, ramp.Hold, ramp.CodeApproval))
	g.v1("GET", roll+"/guardrails", "").want(200).has("items.0.state", "PASS", "items.0.value", 0.025, "items.0.verdict.canary.n", 40)
	g.v1("GET", roll+"/ramp", "").want(200).has("decision.code", "approval", "why_not.0", "error is not decided", "supervised", true)
	g.v1("GET", roll+"/forecast", "").want(200).has("steps.0.weight", 100)
	g.v1("GET", roll+"/preflight", "").refused(404, "no_preflight")
	g.v1("POST", roll+":preflight", "").want(200).has("ok", false)
	g.v1("GET", roll+"/preflight", "").want(200).has("experiment", "roll")
	g.v1("GET", roll+"/assignments/u1", "").want(200).has("variant", "control", "reason", "bucket", "heavy", false, "excluded", false)
	if rule := g.v1("GET", roll+"/assignments/u1", "").get("rule").(string); !strings.Contains(rule, "is one of control's") {
		t.Errorf("rule %q", rule)
	}
	if text := g.v1("GET", roll+"/assignments/u1", "").get("changed").(string); !strings.HasPrefix(text, "started") {
		t.Errorf("changed %q", text)
	}
}

// A rollout that stands otherwise is told to who listens, once.
func TestRampEvents(t *testing.T) {
	t.Parallel()
	g, f := rolling(t)
	g.write("POST", roll, ":start", "").want(200)
	f.set(stands(guardrail.Open, ramp.Continue, ramp.CodeOpen))
	srv := httptest.NewServer(g.api)
	defer srv.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", srv.URL+"/admin/v1/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := srv.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	next := func() (v struct {
		Experiment string
		Step       int
		Decision   ramp.Decision
		Guardrails map[string]string
	}) {
		for lines.Scan() {
			if lines.Text() != "event: ramp" {
				continue
			}
			lines.Scan()
			if err := json.Unmarshal([]byte(strings.TrimPrefix(lines.Text(), "data: ")), &v); err != nil {
				t.Fatal(err)
			}
			return v
		}
		t.Fatal("the stream ended", lines.Err())
		return v
	}
	if v := next(); v.Experiment != "roll" || v.Step != -1 || v.Guardrails["canary/error"] != "OPEN" {
		t.Errorf("%+v", v)
	}
	f.set(stands(guardrail.Pass, ramp.Hold, ramp.CodeHeadRoom))
	if v := next(); v.Decision.Code != ramp.CodeHeadRoom || v.Guardrails["canary/error"] != "PASS" {
		t.Errorf("%+v", v)
	}
}
