package metrics

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// RolloutInfo is what the gauges say of one experiment with a ramp or guardrails.
type RolloutInfo struct {
	Experiment string
	Phase      string    // of RampPhases; "" without a ramp
	Step       int       // index of the current step, -1 before the first
	Steps      int       // how many there are
	Target     int       // weight of the ramping variant in this step, basis points
	Since      time.Time // when the step or the phase began; zero: unknown
	Hold       string    // code of why no step is taken; "" while it goes on
	DataAt     time.Time // end of the newest observation that was counted; zero: none yet
	Guardrails []GuardrailInfo
}

// GuardrailInfo is the standing of one guardrail of one treatment.
type GuardrailInfo struct {
	Variant, Name string
	State         string   // of GuardrailStates
	Value         *float64 // a rate, the lift of a mean or the reading of a limit; nil: no data
	Threshold     *float64 // what Value is held against; nil: nothing to compare with yet
	Trials        Trials   // of the treatment
	Baseline      Trials
}

// Trials are those of one arm in the current step.
type Trials struct{ N, Bad int64 }

// The label values of rollouts: closed sets. A word outside of them is counted
// as other.
var (
	RampPhases       = []string{"ready_wait", "ramping", "holding", "baking", "done"}
	GuardrailStates  = []string{"pending", "passing", "breached"}
	RampActions      = []string{"advance", "promote", "hold", "continue", "pause", "rollback", "kill_variant", "finish_bake"}
	RollbackTriggers = []string{"manual", "guardrail", "limit", "breaker"}
	WebhookResults   = []string{"delivered", "failed", "dropped"}
	ObsResults       = []string{"folded", "other_epoch", "unreadable", "late", "dropped"}
)

var (
	guardState     = prometheus.NewDesc("sluice_experiment_guardrail_state", "1 for the state of a guardrail in the current step, else 0: pending is not proved either way. Of the leader.", []string{"experiment", "variant", "guardrail", "state"}, nil)
	guardValue     = prometheus.NewDesc("sluice_experiment_guardrail_value", "The treatment's rate, the lift of its mean (0.2 is 20 %) or the reading of a limit. Of the leader.", []string{"experiment", "variant", "guardrail"}, nil)
	guardThreshold = prometheus.NewDesc("sluice_experiment_guardrail_threshold", "What the guardrail's value is held against, in the same unit. Of the leader.", []string{"experiment", "variant", "guardrail"}, nil)
	guardTrials    = prometheus.NewDesc("sluice_experiment_guardrail_trials", "Trials of the current step by arm and result; both begin at 0 with every step. Of the leader.", []string{"experiment", "variant", "guardrail", "arm", "result"}, nil)
	rampPhase      = prometheus.NewDesc("sluice_experiment_ramp_phase", "1 for the phase of the ramp, else 0. Of the leader.", []string{"experiment", "phase"}, nil)
	rampStep       = prometheus.NewDesc("sluice_experiment_ramp_step", "Index of the ramp's current step, -1 before the first. Of the leader.", []string{"experiment"}, nil)
	rampSteps      = prometheus.NewDesc("sluice_experiment_ramp_steps", "How many steps the ramp has. Of the leader.", []string{"experiment"}, nil)
	rampTarget     = prometheus.NewDesc("sluice_experiment_ramp_target_ratio", "Weight that the current step gives the ramping variant, 0 to 1. Of the leader.", []string{"experiment"}, nil)
	rampSeconds    = prometheus.NewDesc("sluice_experiment_ramp_step_seconds", "Time since the step or phase began. Of the leader.", []string{"experiment"}, nil)
	rampHold       = prometheus.NewDesc("sluice_experiment_ramp_hold", "1 while the ramp takes no step, by why. Of the leader.", []string{"experiment", "reason"}, nil)
	rolloutLag     = prometheus.NewDesc("sluice_rollout_lag_seconds", "Age of the newest observation that was counted. Of the leader.", []string{"experiment"}, nil)
	rolloutLeader  = prometheus.NewDesc("sluice_rollout_leader", "1 on the replica that decides about ramps and guardrails.", nil, nil)

	rolloutDescs = []*prometheus.Desc{guardState, guardValue, guardThreshold, guardTrials, rampPhase, rampStep, rampSteps, rampTarget, rampSeconds, rampHold, rolloutLag, rolloutLeader}
)

// rolloutFamilies are the counters of rollouts.
type rolloutFamilies struct {
	decisions    *prometheus.CounterVec
	trips        *prometheus.CounterVec
	moved        *prometheus.CounterVec
	observations *prometheus.CounterVec
	webhooks     *prometheus.CounterVec
	preflight    *prometheus.GaugeVec
}

func (f *families) addRollout() {
	o := &f.rollout
	o.decisions = f.counter("sluice_experiment_ramp_decisions_total", "What the leader decided about a ramp.", []string{"experiment", "action"})
	o.trips = f.counter("sluice_experiment_breaker_trips_total", "Times that this replica by itself sent a variant's requests to the baseline.", []string{"experiment", "variant"})
	o.moved = f.counter("sluice_experiment_moved_ratio_total", "Share of all units that changes of weights moved to another variant, as this replica saw it: 0.05 is 5 %.", []string{"experiment"})
	o.observations = f.counter("sluice_rollout_observations_total", "Counts of one second and one replica by what the leader did with them.", []string{"result"})
	o.webhooks = f.counter("sluice_webhook_deliveries_total", "Messages to the webhook by how they ended.", []string{"result"})
	o.preflight = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "sluice_experiment_preflight_probes", Help: "Probes of the last preflight by result; blocking ones pass on the baseline and fail on the variant."},
		[]string{"experiment", "variant", "result"})
	f.all = append(f.all, o.preflight)
	for _, w := range WebhookResults {
		o.webhooks.WithLabelValues(w)
	}
	for _, w := range ObsResults {
		o.observations.WithLabelValues(w)
	}
}

// of returns word where it is one of a closed set.
func of(set []string, word string) string {
	if slices.Contains(set, word) {
		return word
	}
	return other
}

// SetRollouts replaces what the gauges say of ramps and guardrails. Only the
// leader knows: with leader false the list is ignored and nothing is exported,
// so that a sum over replicas has one of each.
func (r *Recorder) SetRollouts(leader bool, list []RolloutInfo) {
	if !leader {
		list = nil
	}
	for _, e := range list {
		if e.Phase == "" {
			continue
		}
		for _, a := range RampActions { // at 0, so that increase() sees the first
			r.prom.rollout.decisions.WithLabelValues(label(e.Experiment, other), a)
		}
	}
	g := r.gauges
	g.mu.Lock()
	defer g.mu.Unlock()
	g.leader, g.rollouts = leader, list
}

// CountDecision counts one of RampActions that was carried out.
func (r *Recorder) CountDecision(experiment, action string) {
	r.prom.rollout.decisions.WithLabelValues(label(experiment, other), of(RampActions, action)).Inc()
}

// CountTrip counts a trip of this replica's own breaker of a variant.
func (r *Recorder) CountTrip(experiment, variant string) {
	r.prom.rollout.trips.WithLabelValues(label(experiment, other), label(variant, other)).Inc()
}

// CountObservations adds n observations by one of ObsResults.
func (r *Recorder) CountObservations(result string, n int) {
	if n > 0 {
		r.prom.rollout.observations.WithLabelValues(of(ObsResults, result)).Add(float64(n))
	}
}

// CountWebhook counts a message by one of WebhookResults.
func (r *Recorder) CountWebhook(result string) {
	r.prom.rollout.webhooks.WithLabelValues(of(WebhookResults, result)).Inc()
}

// SetPreflight replaces what the last preflight of a variant found: how many
// probes passed, how many failed as they do on the baseline, and how many fail
// on this variant alone.
func (r *Recorder) SetPreflight(experiment, variant string, passed, failed, blocking int) {
	for result, n := range map[string]int{"passed": passed, "failed": failed, "blocking": blocking} {
		r.prom.rollout.preflight.WithLabelValues(label(experiment, other), label(variant, other), result).Set(float64(n))
	}
}

// collectRollouts exports the gauges of rollouts.
func collectRollouts(leader bool, list []RolloutInfo, now time.Time, emit func(*prometheus.Desc, float64, ...string)) {
	emit(rolloutLeader, oneIf(leader))
	for _, e := range list {
		if !e.DataAt.IsZero() {
			emit(rolloutLag, max(now.Sub(e.DataAt), 0).Seconds(), e.Experiment)
		}
		for _, g := range e.Guardrails {
			collectGuardrail(e.Experiment, &g, emit)
		}
		if e.Phase == "" {
			continue
		}
		for _, p := range RampPhases {
			emit(rampPhase, oneIf(p == e.Phase), e.Experiment, p)
		}
		emit(rampStep, float64(e.Step), e.Experiment)
		emit(rampSteps, float64(e.Steps), e.Experiment)
		emit(rampTarget, float64(e.Target)/10000, e.Experiment)
		if !e.Since.IsZero() {
			emit(rampSeconds, max(now.Sub(e.Since), 0).Seconds(), e.Experiment)
		}
		if e.Hold != "" {
			emit(rampHold, 1, e.Experiment, label(e.Hold, other))
		}
	}
}

func collectGuardrail(experiment string, g *GuardrailInfo, emit func(*prometheus.Desc, float64, ...string)) {
	for _, s := range GuardrailStates {
		emit(guardState, oneIf(s == g.State), experiment, g.Variant, g.Name, s)
	}
	if g.Value != nil {
		emit(guardValue, *g.Value, experiment, g.Variant, g.Name)
	}
	if g.Threshold != nil {
		emit(guardThreshold, *g.Threshold, experiment, g.Variant, g.Name)
	}
	for _, arm := range []struct {
		name string
		t    Trials
	}{{"treatment", g.Trials}, {"baseline", g.Baseline}} {
		emit(guardTrials, float64(arm.t.Bad), experiment, g.Variant, g.Name, arm.name, "bad")
		emit(guardTrials, float64(max(arm.t.N-arm.t.Bad, 0)), experiment, g.Variant, g.Name, arm.name, "good")
	}
}

// shares are what each variant of an experiment gets, in basis points.
func (e *ExperimentInfo) shares() map[string]int {
	out := map[string]int{}
	switch {
	case e.State == "rolled_back", e.State == "completed":
		out[e.Baseline] = 10000
		return out
	case e.State == "promoted" && e.Winner != "":
		out[e.Winner] = 10000
		return out
	}
	for _, v := range e.Variants {
		out[v.Name] = v.Weight
	}
	return out
}

// movedShare is the total variation distance between two states of an
// experiment, 0 to 1: the ownership table moves exactly that share of the units.
func movedShare(was, now *ExperimentInfo) float64 {
	a, b := was.shares(), now.shares()
	gained := 0
	for v, n := range b {
		gained += max(n-a[v], 0)
	}
	return float64(gained) / 10000
}
