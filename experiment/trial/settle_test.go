package trial_test

import (
	"encoding/json"
	"fmt"
	"math"
	"testing"
	"time"

	"sluice/experiment/guardrail"
	"sluice/experiment/trial"
)

const ms = time.Millisecond

// planOf is a plan of one guardrail, whose threshold is 2 s.
func planOf(t *testing.T, metric string) *trial.Plan {
	t.Helper()
	threshold := ""
	if len(metric) > 5 && metric[:5] == "slow_" {
		threshold = `,"threshold":"2s"`
	}
	configs, err := guardrail.Parse(json.RawMessage(`[{"metric":"`+metric+`"`+threshold+`}]`), false)
	if err != nil {
		t.Fatal(err)
	}
	thresholds, _ := trial.Fix(configs, new(trial.Profile))
	p, err := trial.NewPlan(configs, trial.Setup{Since: 1000, Thresholds: thresholds, Settled: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// facts are those of an answered request of the canary, changed.
func facts(change func(*trial.Facts)) *trial.Facts {
	f := &trial.Facts{Arm: trial.Canary, Analysed: true, Ordinal: 1, Started: 1000, Prompt: 100, Age: 900 * ms,
		First: 100 * ms, Answer: 200 * ms, End: 900 * ms, Ending: trial.Answered,
		Flags: trial.AskedJSON | trial.AskedTools | trial.AskedSystem, HasUsage: true, Input: 10, Output: 9, Chars: 40, Closed: true, HasCost: true, Cost: 2}
	if change != nil {
		change(f)
	}
	return f
}

// running are the facts of a request that has no token yet.
func running(age time.Duration) func(*trial.Facts) {
	return func(f *trial.Facts) {
		f.First, f.Answer, f.End, f.Ending, f.Age = 0, 0, 0, trial.Running, age
	}
}

func ended(e trial.Ending, after time.Duration) func(*trial.Facts) {
	return func(f *trial.Facts) {
		f.First, f.Answer, f.End, f.Ending, f.Age = 0, 0, after, e, after
	}
}

func left(after time.Duration) func(*trial.Facts) {
	return func(f *trial.Facts) {
		running(after)(f)
		f.Cancel = after
	}
}

// TestSettle is what each kind of metric makes of each way in which a request
// goes: the rules of "What one trial is".
func TestSettle(t *testing.T) {
	type want struct {
		state trial.State
		why   trial.Why
	}
	bad, good, pending := want{state: trial.Bad}, want{state: trial.Good}, want{state: trial.Pending}
	none := func(w trial.Why) want { return want{trial.None, w} }
	tests := []struct {
		metric, name string
		change       func(*trial.Facts)
		want         want
	}{
		{"error", "answered", nil, good},
		{"error", "runs", running(time.Hour), pending},
		{"error", "failed", ended(trial.Fault, ms), bad},
		{"error", "broke off", func(f *trial.Facts) { f.Ending = trial.Broken }, bad},
		{"error", "refused", ended(trial.Refusal, ms), none(trial.Refused)},
		{"error", "ended by the gateway", ended(trial.Ours, ms), none(trial.Gateway)},
		{"error", "left", left(5 * ms), none(trial.Withdrawn)},
		{"error", "left after it had failed", func(f *trial.Facts) { ended(trial.Fault, ms)(f); f.Cancel = 2 * ms }, bad},
		{"error", "failed after the client left", func(f *trial.Facts) { ended(trial.Fault, 2*ms)(f); f.Cancel = ms }, none(trial.Withdrawn)},
		{"error", "abandoned", ended(trial.Abandoned, ms), none(trial.Withdrawn)},
		{"error", "empty", func(f *trial.Facts) { f.Flags |= trial.EmptyAnswer }, bad},
		{"error", "no JSON where it was demanded", func(f *trial.Facts) { f.Flags |= trial.BadJSON }, bad},
		{"error", "no JSON where it was not", func(f *trial.Facts) { f.Flags = trial.BadJSON }, good},
		{"error", "a broken tool call is not an error", func(f *trial.Facts) { f.Flags |= trial.BadToolCall }, good},

		{"rejected", "answered", nil, good},
		{"rejected", "first token", func(f *trial.Facts) { running(time.Second)(f); f.First = ms }, good},
		{"rejected", "runs", running(time.Hour), pending},
		{"rejected", "refused", ended(trial.Refusal, ms), bad},
		{"rejected", "failed", ended(trial.Fault, ms), none(trial.Failed)},
		{"rejected", "broke off", func(f *trial.Facts) { f.Ending = trial.Broken }, good},
		{"rejected", "left", left(ms), none(trial.Withdrawn)},
		{"rejected", "ended by the gateway", ended(trial.Ours, ms), none(trial.Gateway)},

		{"slow_ttfa", "in time", nil, good},
		{"slow_ttfa", "at the threshold", func(f *trial.Facts) { f.Answer, f.End = 2*time.Second, 3*time.Second }, good},
		{"slow_ttfa", "just over it", func(f *trial.Facts) { f.Answer, f.End = 2*time.Second+1, 3*time.Second }, bad},
		{"slow_ttfa", "thought in time, answered late", func(f *trial.Facts) { f.Answer, f.End = 5*time.Second, 6*time.Second }, bad},
		{"slow_ttfa", "runs, young", running(1900 * ms), pending},
		{"slow_ttfa", "runs, at the threshold", running(2 * time.Second), bad},
		{"slow_ttfa", "hangs", running(time.Hour), bad},
		{"slow_ttfa", "left before", left(1999 * ms), none(trial.Withdrawn)},
		{"slow_ttfa", "left after", left(2 * time.Second), bad},
		{"slow_ttfa", "left after the answer began", func(f *trial.Facts) { f.Ending, f.End, f.Cancel = trial.Running, 0, time.Second }, good},
		{"slow_ttfa", "failed before", ended(trial.Fault, ms), none(trial.Failed)},
		{"slow_ttfa", "failed late", ended(trial.Fault, 10*time.Second), bad},
		{"slow_ttfa", "refused", ended(trial.Refusal, ms), none(trial.Refused)},
		{"slow_ttfa", "over without a token", ended(trial.Answered, ms), none(trial.Unknown)},
		{"slow_ttfa", "the first after a move", func(f *trial.Facts) { f.Moved = true }, none(trial.SwitchCost)},
		{"slow_ttft", "the first after a move", func(f *trial.Facts) { f.Moved = true }, none(trial.SwitchCost)},
		{"slow_ttft", "thought in time, answered late", func(f *trial.Facts) { f.Answer, f.End = 5*time.Second, 6*time.Second }, good},
		{"slow_total", "the first after a move", func(f *trial.Facts) { f.Moved = true }, good},
		{"slow_total", "in time", nil, good},
		{"slow_total", "late", func(f *trial.Facts) { f.End = 3 * time.Second; f.Age = f.End }, bad},
		{"slow_total", "runs for long", func(f *trial.Facts) { f.End, f.Ending, f.Age = 0, trial.Running, 3*time.Second }, bad},
		{"slow_total", "broke off early", func(f *trial.Facts) { f.Ending = trial.Broken }, none(trial.Unknown)},
		{"slow_tpot", "runs", running(time.Hour), pending},
		{"slow_tpot", "one token", func(f *trial.Facts) { f.Output = 1 }, none(trial.Unknown)},
		{"slow_tpot", "fast", nil, good},
		{"slow_tpot", "slow", func(f *trial.Facts) { f.End = time.Minute; f.Age = f.End }, bad},

		{"empty", "answered", nil, good},
		{"empty", "empty", func(f *trial.Facts) { f.Flags |= trial.EmptyAnswer }, bad},
		{"error", "no server was there", ended(trial.Unreached, ms), none(trial.NotReady)},
		{"rejected", "no server was there", ended(trial.Unreached, ms), none(trial.NotReady)},
		{"slow_ttfa", "no server was there", ended(trial.Unreached, ms), none(trial.NotReady)},
		{"slow_ttfa", "waited long for a server", ended(trial.Unreached, 3*time.Second), bad},
		{"empty", "not judged", func(f *trial.Facts) { f.Unjudged = trial.EmptyAnswer }, none(trial.Unknown)},
		{"empty", "something else was not judged", func(f *trial.Facts) { f.Unjudged = trial.BadJSON }, good},
		{"empty", "failed", ended(trial.Fault, ms), none(trial.Failed)},
		{"empty", "broke off", func(f *trial.Facts) { f.Ending = trial.Broken }, none(trial.Failed)},
		{"truncated", "broke off", func(f *trial.Facts) { f.Ending = trial.Broken }, bad},
		{"truncated", "answered", nil, good},
		{"invalid_json", "not demanded", func(f *trial.Facts) { f.Flags = trial.BadJSON }, none(trial.NotAsked)},
		{"invalid_json", "invalid", func(f *trial.Facts) { f.Flags |= trial.BadJSON }, bad},
		{"invalid_tool_call", "no tools offered", func(f *trial.Facts) { f.Flags = 0 }, none(trial.NotAsked)},
		{"invalid_tool_call", "broken", func(f *trial.Facts) { f.Flags |= trial.BadToolCall }, bad},
		{"prompt_leak", "no system prompt", func(f *trial.Facts) { f.Flags = trial.LeakedPrompt }, none(trial.NotAsked)},
		{"prompt_leak", "quoted", func(f *trial.Facts) { f.Flags |= trial.LeakedPrompt }, bad},
		{"reasoning_leak", "leaked", func(f *trial.Facts) { f.Flags |= trial.LeakedReasoning }, bad},
		{"finish_length", "cut by length", func(f *trial.Facts) { f.Flags |= trial.StoppedByLength }, bad},
		{"finish_length", "stopped", nil, good},
		{"canceled", "left", left(ms), bad},
		{"canceled", "answered", nil, good},

		{"cost_per_request", "young", nil, pending},
		{"cost_per_request", "another attempt runs", func(f *trial.Facts) { f.Closed, f.Age = false, time.Hour }, pending},
		{"output_tokens", "the first attempt is over", func(f *trial.Facts) { f.Closed, f.HasUsage, f.Age = false, false, time.Hour }, none(trial.Unknown)},
		{"output_tokens", "runs", running(time.Hour), pending},
		{"output_tokens", "unknown", func(f *trial.Facts) { f.HasUsage, f.Age = false, time.Hour }, none(trial.Unknown)},
		{"output_tokens", "refused", ended(trial.Refusal, ms), none(trial.Refused)},

		{"error", "an SDK's retry", func(f *trial.Facts) { f.Retry = 1 }, none(trial.SDKRetry)},
		{"error", "before the step", func(f *trial.Facts) { f.Started = 999 }, none(trial.BeforeStep)},
		{"error", "not analysed", func(f *trial.Facts) { f.Analysed = false }, none(trial.Outside)},
		{"error", "a third arm", func(f *trial.Facts) { f.Arm = trial.Neither }, none(trial.Outside)},
		{"error", "a past of 5 % errors", func(f *trial.Facts) { f.History.Errors = trial.Tally{N: 20, Bad: 1} }, none(trial.PreTreatment)},
		{"error", "a past of fewer", func(f *trial.Facts) { f.History.Errors = trial.Tally{N: 21, Bad: 1} }, good},
		{"slow_ttfa", "a past of 10 % slow", func(f *trial.Facts) { f.History.Slow = trial.Tally{N: 10, Bad: 1} }, none(trial.PreTreatment)},
		{"slow_ttfa", "a past of errors", func(f *trial.Facts) { f.History.Errors = trial.Tally{N: 1, Bad: 1} }, good},
		{"rejected", "a past of refusals", func(f *trial.Facts) { f.History.Rejected = trial.Tally{N: 1, Bad: 1} }, none(trial.PreTreatment)},
		{"empty", "a past of flaws", func(f *trial.Facts) { f.History.Flawed = trial.Tally{N: 1, Bad: 1} }, none(trial.PreTreatment)},
	}
	for _, tt := range tests {
		t.Run(tt.metric+"/"+tt.name, func(t *testing.T) {
			got := planOf(t, tt.metric).Settle(facts(tt.change), 0)
			if got.State != tt.want.state || got.Why != tt.want.why {
				t.Errorf("%v %q, want %v %q", got.State, got.Why, tt.want.state, tt.want.why)
			}
		})
	}
}

func TestMeans(t *testing.T) {
	old := func(change func(*trial.Facts)) func(*trial.Facts) {
		return func(f *trial.Facts) {
			f.Age = time.Second
			if change != nil {
				change(f)
			}
		}
	}
	for _, tt := range []struct {
		metric string
		change func(*trial.Facts)
		want   float64
	}{
		{"cost_per_request", nil, 2},
		{"cost_per_request", func(f *trial.Facts) { f.MaxCost = 1.5 }, 1.5},
		{"cost_per_request", func(f *trial.Facts) { ended(trial.Fault, ms)(f); f.Age = time.Second }, 2}, // a fallback was paid for
		{"input_tokens", nil, 10}, {"output_tokens", nil, 9}, {"output_chars", nil, 40}, {"tpot", nil, float64(100 * ms)},
	} {
		got := planOf(t, tt.metric).Settle(facts(old(tt.change)), 0)
		if got.State != trial.Measured || got.Value != tt.want {
			t.Errorf("%s: %+v, want %v", tt.metric, got, tt.want)
		}
	}
}

// What an attempt's outcome means for its variant.
func TestEnding(t *testing.T) {
	tests := []struct {
		call trial.Call
		want trial.Ending
	}{
		{trial.Call{Outcome: "success", Status: 200}, trial.Answered},
		{trial.Call{Outcome: "canceled"}, trial.Abandoned},
		{trial.Call{Outcome: "upstream_truncated", Status: 200}, trial.Broken},
		{trial.Call{Outcome: "upstream_error", Status: 503}, trial.Fault},
		{trial.Call{Outcome: "upstream_timeout"}, trial.Fault},
		{trial.Call{Outcome: "upstream_unreachable"}, trial.Unreached}, // readiness holds
		{trial.Call{Outcome: "upstream_timeout", Unreached: true}, trial.Unreached},
		{trial.Call{Outcome: "no_endpoint", Unreached: true}, trial.Unreached},
		{trial.Call{Outcome: "upstream_timeout", Expired: true}, trial.Abandoned},
		{trial.Call{Outcome: "client_error", Status: 500}, trial.Refusal}, // that is how some servers refuse a long prompt
		{trial.Call{Outcome: "client_error", Status: 200}, trial.Refusal}, // inside a 200
		{trial.Call{Outcome: "client_error", Status: 429}, trial.Fault},
		{trial.Call{Outcome: "internal_error", Status: 500}, trial.Ours},
		{trial.Call{Outcome: "upstream_invalid", Status: 200}, trial.Fault},
		{trial.Call{Outcome: "upstream_rate_limited", Status: 429}, trial.Fault},
		{trial.Call{Outcome: "queue_full"}, trial.Fault},
		{trial.Call{Outcome: "no_endpoint"}, trial.Fault}, // an open breaker is the consequence of failures
		{trial.Call{Outcome: "client_error", Status: 400}, trial.Refusal},
		{trial.Call{Outcome: "client_error", Status: 413}, trial.Refusal},
		{trial.Call{Outcome: "client_error", Status: 415}, trial.Refusal},
		{trial.Call{Outcome: "client_error", Status: 422}, trial.Refusal},
		{trial.Call{Outcome: "client_error", Status: 404}, trial.Refusal},
		{trial.Call{Outcome: "client_error", Status: 404, ServedModel: true}, trial.Fault},
		{trial.Call{Outcome: "client_error", Status: 401}, trial.Fault},
		{trial.Call{Outcome: "client_error", Status: 403}, trial.Fault},
		{trial.Call{Outcome: "client_error", Status: 400, Gateway: true}, trial.Ours},
		{trial.Call{Outcome: "rate_limited", Status: 429}, trial.Ours},
		{trial.Call{Outcome: "budget_exceeded", Status: 402}, trial.Ours},
		{trial.Call{Outcome: "shutting_down"}, trial.Ours},
		{trial.Call{Outcome: "what is this"}, trial.Ours},
	}
	for _, tt := range tests {
		if got := tt.call.Ending(); got != tt.want {
			t.Errorf("%+v: %v, want %v", tt.call, got, tt.want)
		}
	}
}

// A long prompt is slow by the threshold of its class, and a class that nobody
// knows yet takes that of shorter prompts, if that is longer.
func TestThresholdsByClass(t *testing.T) {
	var p trial.Profile
	add := func(n, prompt int, answer time.Duration) {
		for range n {
			p.Add(facts(func(f *trial.Facts) {
				f.Arm, f.Prompt, f.First, f.Answer, f.End = trial.Baseline, prompt, answer, answer, 2*answer
			}))
		}
	}
	configs, err := guardrail.Parse(json.RawMessage(`[{"metric":"slow_ttfa","threshold":"baseline_p95*2"},{"metric":"error"}]`), false)
	if err != nil {
		t.Fatal(err)
	}
	add(99, 10, 100*ms)
	if n := p.Lacks(configs); n != 1 {
		t.Errorf("it lacks %d answers, want 1", n)
	}
	if got, _ := trial.Fix(configs, &p); got[0] != (trial.Thresholds{}) {
		t.Errorf("99 requests make a threshold: %v", got[0])
	}
	add(200, 10, 100*ms)
	add(200, 5000, time.Second)
	if n := p.Lacks(configs); n != 0 {
		t.Errorf("it lacks %d answers, want 0", n)
	}
	got, settled := trial.Fix(configs, &p)
	near := func(d, want time.Duration) bool { return math.Abs(float64(d-want)) < 0.05*float64(want) }
	if !near(got[0][0], 200*ms) || !near(got[0][2], 2*time.Second) || got[0][1] < got[0][0] || got[0][3] < got[0][2] {
		t.Errorf("thresholds %v", got[0])
	}
	if got[1] != (trial.Thresholds{}) || !near(settled, 2*time.Second) {
		t.Errorf("error has thresholds %v; p99 duration %v", got[1], settled)
	}
	for _, prompt := range []int{0, 999, 1000, 3999, 4000, 15999, 16000, -1} {
		want := map[int]int{0: 0, 999: 0, 1000: 1, 3999: 1, 4000: 2, 15999: 2, 16000: 3, -1: -1}[prompt]
		if c := trial.Class(prompt); c != want {
			t.Errorf("class of %d tokens: %d, want %d", prompt, c, want)
		}
	}
	raw, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	var back trial.Profile
	if err := json.Unmarshal(raw, &back); err != nil {
		t.Fatal(err)
	}
	if again, _ := trial.Fix(configs, &back); again[0] != got[0] {
		t.Errorf("after a round trip: %v, want %v", again[0], got[0])
	}
	if err := json.Unmarshal([]byte(`{"ttfa":[[[4000000000,1]]]}`), &back); err == nil {
		t.Error("a cell out of range is taken")
	}
}

// Without a threshold for its prompt a request is no trial of slowness.
func TestNoThreshold(t *testing.T) {
	configs, err := guardrail.Parse(json.RawMessage(`[{"metric":"slow_ttfa"}]`), false)
	if err != nil {
		t.Fatal(err)
	}
	p, err := trial.NewPlan(configs, trial.Setup{Thresholds: []trial.Thresholds{{time.Second, 0, 0, 0}, {}}})
	if err != nil {
		t.Fatal(err)
	}
	for prompt, want := range map[int]trial.Why{10: "", 2000: trial.NoThreshold, -1: trial.NoThreshold} {
		if got := p.Settle(facts(func(f *trial.Facts) { f.Prompt = prompt }), 0); got.Why != want {
			t.Errorf("%d tokens: %+v", prompt, got)
		}
	}
}

// Admission is by the request's hash: reproducible, and P(admitted) = 2/j.
func TestAdmitted(t *testing.T) {
	for _, j := range []int{1, 2, 3, 10, 100} {
		n := 0
		for i := range 50_000 {
			if trial.Admitted(trial.Hash(fmt.Sprint("r", i)), j) {
				n++
			}
		}
		want := math.Min(1, 2/float64(j))
		if got := float64(n) / 50_000; math.Abs(got-want) > 4*math.Sqrt(want*(1-want)/50_000) {
			t.Errorf("j=%d: %.4f admitted, want %.4f", j, got, want)
		}
	}
}
