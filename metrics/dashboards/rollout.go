package dashboards

const ofExperiment = `{experiment=~"$experiment"}`

// ramps marks panels that have data only while an experiment has a ramp or
// guardrails.
func ramps(list ...Panel) []Panel {
	for i := range list {
		list[i].Ramp = true
	}
	return list
}

// rollout is how far ramps are and what guardrails say. The leader alone exports
// it; max joins it with the one before when the lease moves.
func rollout() Row {
	const (
		guard = "max by (experiment, variant, guardrail) "
		name  = "{{experiment}} {{variant}} {{guardrail}}"
	)
	value := guard + "(sluice_experiment_guardrail_value" + ofExperiment + ")"
	bound := guard + "(sluice_experiment_guardrail_threshold" + ofExperiment + " > 0)"
	moved := "max by (experiment) (increase(sluice_experiment_moved_ratio_total" + ofExperiment + "[$__rate_interval]))"
	row := Row{"Rollout", ramps(
		Panel{Title: "Ramp", About: "The weight of the ramping variant: what the current step gives it, and what is configured. A fall to 0 is a rollback.", Kind: Lines, Unit: "percentunit", Queries: []Query{
			{"max by (experiment) (sluice_experiment_ramp_target_ratio" + ofExperiment + ")", "{{experiment}} step"},
			{"max by (experiment, variant) (sluice_experiment_variant_weight_ratio{experiment=~\"$experiment\",baseline=\"false\"})", armName},
		}},
		one("Phase", "ready_wait, ramping, holding, baking or done.", "short", "max by (experiment, phase) (sluice_experiment_ramp_phase"+ofExperiment+" == 1)", "{{experiment}} {{phase}}"),
		one("Time in step", "Since the step or the phase began.", "s", "max by (experiment) (sluice_experiment_ramp_step_seconds"+ofExperiment+")", "{{experiment}}"),
		one("Guardrails by state", "How many are pending (not proved either way), passing and breached.", "short",
			"sum by (experiment, variant, state) (max by (experiment, variant, guardrail, state) (sluice_experiment_guardrail_state"+ofExperiment+"))", armName+" {{state}}"),
		one("Value against its bound", "1 is the bound. Above it is no breach yet: the trials must prove it.", "none", value+" / on (experiment, variant, guardrail) "+bound, name),
		one("Guardrail values", "Rates, the lift of means (0.2 is 20 %) and readings of limits.", "none", value, name),
		one("Bad trials", "In the current step, of the treatment and of the baseline.", "short",
			`max by (experiment, variant, guardrail, arm) (sluice_experiment_guardrail_trials{experiment=~"$experiment",result="bad"})`, name+" {{arm}}"),
	)}
	row.Panels = append(row.Panels,
		one("Holds", "1 while a ramp takes no step, by why.", "short", zero("max by (experiment, reason) (sluice_experiment_ramp_hold"+ofExperiment+")"), "{{experiment}} {{reason}}"),
		one("Decisions", "Steps, holds, pauses and rollbacks of ramps.", "short",
			zero("sum by (experiment, action) (increase(sluice_experiment_ramp_decisions_total"+ofExperiment+"[$__range])) > 0"), "{{experiment}} {{action}}"),
		one("Rollbacks", "By what made them. Every replica counts each.", "short",
			zero("max by (experiment, trigger) (increase(sluice_experiment_rollbacks_total"+ofExperiment+"[$__range])) > 0"), "{{experiment}} {{trigger}}"),
		one("Users moved", "Users of the last hour times the share that changes of weights moved: at each step exactly the distance between the weights.", "short",
			zero(moved+" * on (experiment) sum by (experiment) (max by (experiment, variant) (sluice_experiment_units"+ofExperiment+"))"), "{{experiment}}"),
		one("Breaker trips", "Replicas that sent a variant's requests to the baseline by themselves.", "short",
			zero("sum by (experiment, variant) (increase(sluice_experiment_breaker_trips_total"+ofExperiment+"[$__range])) > 0"), armName),
	)
	return row
}

// supervision is whether rollouts are looked after.
func supervision() Row {
	row := Row{"Rollouts", []Panel{
		one("Leaders", "Replicas that decide; 1 is right.", "short", "sum(sluice_rollout_leader)", "leaders"),
		one("Observations", "Counts of a second and a replica, by what the leader did with them.", "cps", "sum by (result) (rate(sluice_rollout_observations_total[$__rate_interval]))", "{{result}}"),
		one("Webhook", "Messages by how they ended.", "short", "sum by (result) (increase(sluice_webhook_deliveries_total[$__range]))", "{{result}}"),
	}}
	row.Panels = append(row.Panels, ramps(
		one("Age of the newest observation", "By which the leader decides; seconds are right.", "s", "max by (experiment) (sluice_rollout_lag_seconds)", "{{experiment}}"))...)
	return row
}

// rolloutAlerts are those of ramps and of what decides about them.
func rolloutAlerts() []Rule {
	return []Rule{
		{Alert: "LLMGatewayGuardrailBreached", Severity: "critical", Runbook: "rollouts",
			Expr:    `max by (experiment, variant, guardrail) (sluice_experiment_guardrail_state{state="breached"}) == 1`,
			Summary: "Guardrail {{ $labels.guardrail }} of {{ $labels.experiment }}/{{ $labels.variant }} is breached"},
		{Alert: "LLMGatewayExperimentRolledBack", Severity: "critical", Runbook: "rollouts",
			Expr:    "max by (experiment, trigger) (increase(sluice_experiment_rollbacks_total[15m])) > 0",
			Summary: "{{ $labels.experiment }} was rolled back ({{ $labels.trigger }})"},
		{Alert: "LLMGatewayRampPaused", Severity: "warning", Runbook: "rollouts",
			Expr:    `sum by (experiment) (increase(sluice_experiment_ramp_decisions_total{action="pause"}[15m])) > 0`,
			Summary: "The ramp of {{ $labels.experiment }} paused itself; only a person goes on"},
		{Alert: "LLMGatewayRampHeld", For: "15m", Severity: "warning", Runbook: "rollouts",
			Expr:    "max by (experiment, reason) (sluice_experiment_ramp_hold) == 1",
			Summary: "The ramp of {{ $labels.experiment }} takes no step ({{ $labels.reason }})"},
		{Alert: "LLMGatewayRolloutsUnsupervised", For: "1m", Severity: "critical", Runbook: "rollouts",
			Expr:    "sum(sluice_rollout_leader) == 0",
			Summary: "No replica decides about ramps and guardrails"},
		{Alert: "LLMGatewayRolloutBlind", For: "2m", Severity: "warning", Runbook: "rollouts",
			Expr:    "max by (experiment) (sluice_rollout_lag_seconds) > 60",
			Summary: "Decisions about {{ $labels.experiment }} rest on counts that are {{ $value | humanizeDuration }} old"},
		{Alert: "LLMGatewayWebhookFailing", Severity: "warning", Runbook: "rollouts",
			Expr:    `sum by (result) (increase(sluice_webhook_deliveries_total{result!="delivered"}[15m])) > 0`,
			Summary: "Messages to the webhook are {{ $labels.result }}"},
	}
}
