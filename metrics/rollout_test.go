package metrics_test

import (
	"math"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/metrics"
)

func num(v float64) *float64 { return &v }

// rollouts tells r of one ramp, such as a leader does.
func rollouts(r *metrics.Recorder) {
	r.SetRollouts(true, []metrics.RolloutInfo{{
		Experiment: "e1", Phase: "holding", Step: 1, Steps: 4, Target: 500, Since: time.Now().Add(-time.Minute), Hold: "shared_outage", DataAt: time.Now().Add(-3 * time.Second),
		Guardrails: []metrics.GuardrailInfo{
			{Variant: "canary", Name: "error", State: "breached", Value: num(0.2), Threshold: num(0.01), Trials: metrics.Trials{N: 50, Bad: 10}, Baseline: metrics.Trials{N: 400, Bad: 1}},
			{Variant: "canary", Name: "slow_ttfa", State: "pending"},
		},
	}})
	r.CountDecision("e1", "advance")
	r.CountDecision("e1", "fly")
	r.CountTrip("e1", "canary")
	r.CountObservations("folded", 3)
	r.CountObservations("folded", -3)
	r.CountObservations("eaten", 1)
	r.CountWebhook("failed")
	r.SetPreflight("e1", "canary", 14, 0, 1)
}

func TestRolloutGauges(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	r := full(t, reg)
	guard := func(more ...string) map[string]string {
		l := map[string]string{"experiment": "e1", "variant": "canary", "guardrail": "error"}
		for i := 0; i < len(more); i += 2 {
			l[more[i]] = more[i+1]
		}
		return l
	}
	e1 := map[string]string{"experiment": "e1"}
	for _, c := range []struct {
		name   string
		labels map[string]string
		want   float64
	}{
		{"sluice_rollout_leader", nil, 1},
		{"sluice_experiment_guardrail_state", guard("state", "breached"), 1},
		{"sluice_experiment_guardrail_state", guard("state", "passing"), 0},
		{"sluice_experiment_guardrail_state", map[string]string{"guardrail": "slow_ttfa", "state": "pending"}, 1},
		{"sluice_experiment_guardrail_value", guard(), 0.2},
		{"sluice_experiment_guardrail_threshold", guard(), 0.01},
		{"sluice_experiment_guardrail_trials", guard("arm", "treatment", "result", "bad"), 10},
		{"sluice_experiment_guardrail_trials", guard("arm", "treatment", "result", "good"), 40},
		{"sluice_experiment_guardrail_trials", guard("arm", "baseline", "result", "good"), 399},
		{"sluice_experiment_ramp_phase", map[string]string{"experiment": "e1", "phase": "holding"}, 1},
		{"sluice_experiment_ramp_phase", map[string]string{"experiment": "e1", "phase": "ramping"}, 0},
		{"sluice_experiment_ramp_step", e1, 1},
		{"sluice_experiment_ramp_steps", e1, 4},
		{"sluice_experiment_ramp_target_ratio", e1, 0.05},
		{"sluice_experiment_ramp_hold", map[string]string{"experiment": "e1", "reason": "shared_outage"}, 1},
		{"sluice_experiment_ramp_decisions_total", map[string]string{"experiment": "e1", "action": "advance"}, 1},
		{"sluice_experiment_ramp_decisions_total", map[string]string{"experiment": "e1", "action": "other"}, 1},
		{"sluice_experiment_breaker_trips_total", map[string]string{"experiment": "e1", "variant": "canary"}, 1},
		{"sluice_rollout_observations_total", map[string]string{"result": "folded"}, 3},
		{"sluice_rollout_observations_total", map[string]string{"result": "other"}, 1},
		{"sluice_webhook_deliveries_total", map[string]string{"result": "failed"}, 1},
		{"sluice_experiment_preflight_probes", map[string]string{"experiment": "e1", "variant": "canary", "result": "blocking"}, 1},
	} {
		if got, n := sums(t, reg, c.name, c.labels); got != c.want || n == 0 {
			t.Errorf("%s%v = %v in %d series, want %v", c.name, c.labels, got, n, c.want)
		}
	}
	for name, least := range map[string]float64{"sluice_experiment_ramp_step_seconds": 60, "sluice_rollout_lag_seconds": 3} {
		if got, _ := sums(t, reg, name, e1); got < least || got > least+60 {
			t.Errorf("%s = %v, want a little over %v", name, got, least)
		}
	}
	if _, n := sums(t, reg, "sluice_experiment_guardrail_value", map[string]string{"guardrail": "slow_ttfa"}); n != 0 {
		t.Error("a guardrail without data has a value")
	}

	r.SetRollouts(false, []metrics.RolloutInfo{{Experiment: "e1", Phase: "ramping"}})
	for _, name := range []string{"sluice_experiment_guardrail_state", "sluice_experiment_ramp_phase", "sluice_rollout_lag_seconds"} {
		if _, n := sums(t, reg, name, nil); n != 0 {
			t.Errorf("%s has %d series on a replica that does not lead", name, n)
		}
	}
	if got, n := sums(t, reg, "sluice_rollout_leader", nil); got != 0 || n != 1 {
		t.Errorf("sluice_rollout_leader = %v in %d series, want 0 in 1", got, n)
	}
}

// TestRollbacksAndMovement: the first rollback can be seen by increase(), and
// what moves is the distance between the weights.
func TestRollbacksAndMovement(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	r := metrics.New(metrics.Options{Registerer: reg, Log: quiet})
	set := func(state, trigger string, control, canary int) {
		r.SetExperiments([]metrics.ExperimentInfo{{Key: "e1", Model: "chat", State: state, Trigger: trigger, Baseline: "control",
			Variants: []metrics.VariantInfo{{Name: "control", Weight: control}, {Name: "canary", Weight: canary}}}})
	}
	moved := func() float64 { v, _ := sums(t, reg, "sluice_experiment_moved_ratio_total", nil); return v }
	trigger := func(word string) (float64, int) {
		return sums(t, reg, "sluice_experiment_rollbacks_total", map[string]string{"experiment": "e1", "trigger": word})
	}
	set("draft", "", 9500, 500)
	set("running", "", 9500, 500)
	if got, n := trigger("guardrail"); got != 0 || n != 1 {
		t.Errorf("before a rollback the counter is %v in %d series, want 0 in 1", got, n)
	}
	for _, step := range []struct {
		control, canary int
		want            float64
	}{{9500, 500, 0}, {8000, 2000, 0.15}, {8000, 2000, 0.15}, {0, 10000, 0.95}} {
		set("running", "", step.control, step.canary)
		if got := moved(); math.Abs(got-step.want) > 1e-9 {
			t.Errorf("at %d the moved share is %v, want %v", step.canary, got, step.want)
		}
	}
	set("rolled_back", "guardrail", 0, 10000)
	set("rolled_back", "guardrail", 0, 10000)
	if got := moved(); math.Abs(got-1.95) > 1e-9 {
		t.Errorf("after the rollback the moved share is %v, want 1.95", got)
	}
	set("running", "", 9500, 500)
	set("rolled_back", "a spell", 9500, 500)
	for word, want := range map[string]float64{"guardrail": 1, "other": 1, "manual": 0} {
		if got, _ := trigger(word); got != want {
			t.Errorf("rollbacks by %s = %v, want %v", word, got, want)
		}
	}
	was := moved()
	r.SetExperiments([]metrics.ExperimentInfo{{Key: "e1", State: "promoted", Baseline: "control", Winner: "canary", Variants: []metrics.VariantInfo{{Name: "control", Weight: 9500}, {Name: "canary", Weight: 500}}}})
	if got := moved() - was; math.Abs(got-1) > 1e-9 {
		t.Errorf("a promotion after a rollback moves a share of %v, want all", got)
	}
	r.Forget("e1")
	if _, n := sums(t, reg, "sluice_experiment_rollbacks_total", nil); n != 0 {
		t.Error("a forgotten experiment has rollbacks")
	}
}

// TestHedges: a call beside another is no retry, whoever wins; what follows a
// failed race is one.
func TestHedges(t *testing.T) {
	at := time.Unix(1_800_000_000, 0)
	call := func(reason, outcome string, after time.Duration) metrics.Attempt {
		return metrics.Attempt{Variant: "canary", Upstream: "v1", Outcome: outcome, Reason: reason, Start: at.Add(after)}
	}
	for name, c := range map[string]struct {
		attempts           []metrics.Attempt
		won, lost, retries float64
	}{
		"none":              {attempts: []metrics.Attempt{call("", "success", 0)}},
		"won":               {attempts: []metrics.Attempt{call("", "canceled", 0), call("hedge", "success", 5)}, won: 1},
		"lost":              {attempts: []metrics.Attempt{call("hedge", "canceled", 5), call("", "success", 0)}, lost: 1},
		"won, failed later": {attempts: []metrics.Attempt{call("", "upstream_error", 0), call("hedge", "upstream_error", 5), call("retry", "success", 9)}, won: 1, retries: 1},
		"lost, and failed":  {attempts: []metrics.Attempt{call("hedge", "upstream_error", 5), call("", "upstream_error", 0), call("retry", "success", 9)}, lost: 1, retries: 1},
		"a retry":           {attempts: []metrics.Attempt{call("", "upstream_error", 0), call("retry", "success", 9)}, retries: 1},
	} {
		t.Run(name, func(t *testing.T) {
			reg := prometheus.NewPedanticRegistry()
			r := metrics.New(metrics.Options{Registerer: reg, Log: quiet})
			ev := event("e1", "canary")
			ev.Attempts = c.attempts
			r.Record(ev)
			won, _ := sums(t, reg, "sluice_hedges_total", map[string]string{"upstream": "v1", "result": "won"})
			lost, _ := sums(t, reg, "sluice_hedges_total", map[string]string{"upstream": "v1", "result": "lost"})
			retries, _ := sums(t, reg, "sluice_retries_total", nil)
			if won != c.won || lost != c.lost || retries != c.retries {
				t.Errorf("won %v, lost %v, retries %v; want %v, %v, %v", won, lost, retries, c.won, c.lost, c.retries)
			}
		})
	}
}
