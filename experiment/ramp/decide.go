package ramp

import (
	"fmt"

	"sluice/experiment/guardrail"
)

// Action is what a decision asks the caller to do.
type Action string

// The actions.
const (
	None        Action = "none"         // nothing, by who asks or by the state
	Continue    Action = "continue"     // the step goes on
	Advance     Action = "advance"      // take the next step; from ready_wait the first
	Promote     Action = "promote"      // the last step passed: begin the bake
	Hold        Action = "hold"         // no step is taken, nothing else changes
	Pause       Action = "pause"        // freeze; only a person goes on
	Rollback    Action = "rollback"     // everybody on the baseline
	KillVariant Action = "kill_variant" // Decision.Variant's users on the baseline, nobody else moves
	FinishBake  Action = "finish_bake"  // the bake is over: the winner for everybody
)

// Reduces reports an action that any replica may take, without a lease.
func (a Action) Reduces() bool { return a == Pause || a == Rollback || a == KillVariant }

// The codes of decisions: why they are what they are.
const (
	CodeGuardrail         = "guardrail" // a FAIL
	CodeHardFail          = "hard_fail" // local breakers that agree
	CodeBaselineUnhealthy = "baseline_unhealthy"
	CodeSRM               = "srm"
	CodeNotReady          = "not_ready"
	CodePreflight         = "preflight"
	CodeInconclusive      = "inconclusive"
	CodeNoData            = "no_data"
	CodeLimit             = "limit"
	CodeApproval          = "approval"
	CodeHeadRoom          = "head_room"
	CodeMaxWeight         = "max_weight"
	CodeMinDuration       = "min_duration"
	CodeOpen              = "open"
	CodePassed            = "passed"
	CodeReady             = "ready"
	CodeUnmeasured        = "unmeasured"
	CodeBaking            = "baking"
	CodeBaked             = "baked"
	CodeNotLeader         = "not_leader"
	CodeUnsupervised      = "unsupervised"
	CodeNotRunning        = "not_running"
)

// Decide says what to do now. The first that applies wins
// (reference/experiments.md 5.8 with design.md's amendments):
//
//  1. a proof against a variant by comparison, or local breakers that agree:
//     the guardrail's action, also while paused or baking, by any replica
//  2. a proof against an absolute bound: the same, unless the baseline is
//     unhealthy too
//  3. not the leader, or nothing to decide: none
//  4. the baseline is unhealthy: hold
//  5. the sample ratio does not match: pause
//  6. not ready: hold, after the limit pause
//  7. beyond max_duration without data, proofs or units: pause
//  8. no data: hold; then a limit that asks for a hold or has no reading: hold
//  9. under min_duration: continue
//  10. all satisfied and enough units: advance or promote, if a person has
//     approved, the baseline could take the users back, and max_weight allows it
//  11. else continue
//
// No timer advances or promotes, no data does not, and a pause needs a person.
func Decide(in *Input) Decision {
	if in.over() {
		return Decision{Action: None, Code: CodeNotRunning, Text: "nothing to decide: the experiment is " + in.state()}
	}
	if d, ok := in.failures(); ok {
		return d
	}
	switch {
	case !in.Leader:
		return in.following()
	case in.State == "paused":
		return Decision{Action: None, Code: CodeNotRunning, Text: "paused: only a person goes on"}
	case in.State == "promoted":
		return in.bake()
	case in.Phase == "":
		return Decision{Action: Continue, Code: CodeOpen, Text: "no guardrail has failed; without a ramp nothing grows by itself"}
	case in.Phase == ReadyWait:
		return in.start()
	}
	return in.ramp()
}

// over reports an experiment in which nothing is left to decide.
func (in *Input) over() bool {
	switch in.State {
	case "running", "paused":
		return in.Phase == Done && in.State == "running"
	case "promoted":
		return in.Phase != Baking
	}
	return true
}

func (in *Input) state() string {
	if in.State == "promoted" || in.Phase == Done {
		return "promoted, and the bake is over"
	}
	if in.State == "" {
		return "not running"
	}
	return in.State
}

// severity orders the actions of failures that come together.
func severity(a Action) int {
	switch a {
	case Rollback:
		return 3
	case KillVariant:
		return 2
	case Pause:
		return 1
	}
	return 0
}

// failures is the gravest thing that a failed guardrail asks for.
func (in *Input) failures() (worst Decision, ok bool) {
	take := func(d Decision) {
		if severity(d.Action) > severity(worst.Action) {
			worst, ok = d, true
		}
	}
	for i := range in.HardFail {
		// One replica's breaker knows no baseline of the others: it counts while
		// that is healthy.
		if t := &in.HardFail[i]; !in.BaselineUnhealthy {
			action := t.Action
			if action == guardrail.ActionKill {
				action = guardrail.ActionPause // a kill cannot be taken back
			}
			take(in.act(action, Decision{Code: CodeHardFail, Variant: t.Variant, Guardrail: t.Guardrail}, t.Text))
		}
	}
	for i := range in.Treatments {
		t := &in.Treatments[i]
		for j := range t.Verdicts {
			v := &t.Verdicts[j]
			if t.Killed || v.Decision != guardrail.Fail || in.shared(v) {
				continue
			}
			take(in.act(v.Action, Decision{Code: CodeGuardrail, Variant: t.Name, Guardrail: v.Name}, failure(v)))
		}
	}
	return worst, ok
}

// shared reports a failure against a bound that says nothing of the variant,
// for the baseline does no better.
func (in *Input) shared(v *guardrail.Verdict) bool {
	absolute := v.Code == guardrail.Absolute || v.Code == guardrail.OverMax
	return absolute && (in.BaselineUnhealthy || v.BaselineUnhealthy)
}

// act turns a guardrail's action into a decision; None for those that only
// warn, only hold, or are not possible in this state.
func (in *Input) act(a guardrail.Action, d Decision, why string) Decision {
	switch a {
	case guardrail.ActionRollback:
		d.Action = Rollback
		d.Text = "rolled back: " + why
	case guardrail.ActionKill:
		d.Action = KillVariant
		d.Text = fmt.Sprintf("%s killed: %s", d.Variant, why)
	case guardrail.ActionPause:
		if in.State != "running" {
			return Decision{Action: None} // paused already, or baking: then the bake does not end
		}
		d.Action = Pause
		d.Text = "paused: " + why
	default:
		return Decision{Action: None}
	}
	return d
}

// following is the decision of a replica without the lease.
func (in *Input) following() Decision {
	c := in.Config
	if c.StaleAfter > 0 && in.Unsupervised.D() > c.StaleAfter {
		text := fmt.Sprintf("nobody has led for %s; nothing grows", span(in.Unsupervised.D()))
		if c.OnUnsupervised == UnsupervisedBaseline {
			text = fmt.Sprintf("nobody has led for %s; until somebody does, everybody gets the baseline", span(in.Unsupervised.D()))
		}
		return Decision{Action: None, Code: CodeUnsupervised, Text: text}
	}
	return Decision{Action: None, Code: CodeNotLeader, Text: "another replica leads; this one only reduces"}
}

// start leaves ready_wait.
func (in *Input) start() Decision {
	switch {
	case in.BaselineUnhealthy:
		return hold(CodeBaselineUnhealthy, "the start waits: the baseline itself fails")
	case !in.Preflight.OK:
		return hold(CodePreflight, "preflight: "+or(in.Preflight.Text, "it has not passed yet"))
	case !in.Ready.OK:
		return in.notReady()
	}
	if d, stop := in.gates(0); stop {
		return d
	}
	if n := in.Unmeasured; n > 0 {
		return hold(CodeUnmeasured, fmt.Sprintf("what is slow is not known yet: it takes %d more answers of the baseline, or a threshold in the guardrail", n))
	}
	// A user whose app fails on the baseline too is no witness against the
	// variant, if that is known before: rolled out blindly, one of five healthy
	// variants was rolled back in simulation.
	if least := in.Config.MinDuration; in.Newcomers > fewNewcomers && in.Elapsed.D() < least {
		return hold(CodeUnmeasured, fmt.Sprintf("learning whose requests fail anyway: %s %% of the last minute's are of users not seen before; it begins at %s %%, or after min_duration, %s",
			digits(100*in.Newcomers), digits(100*fewNewcomers), span(least)))
	}
	if len(in.Steps) == 0 {
		return hold(CodeNotReady, "the steps are not sized yet: steps: auto waits for traffic")
	}
	return Decision{Action: Advance, Code: CodeReady, Variant: in.ramping(),
		Text: fmt.Sprintf("ready: %s begins with %s", in.ramping(), percent(in.Steps[0].Weight))}
}

// fewNewcomers is the share of unknown units with which a rollout may begin.
const fewNewcomers = 0.01

func (in *Input) notReady() Decision {
	why := or(in.Ready.Text, "its servers do not answer the probes")
	if limit := in.Config.Ready.NotReadyLimit; in.NotReadyFor.D() > limit {
		return Decision{Action: Pause, Code: CodeNotReady, Variant: in.ramping(),
			Text: fmt.Sprintf("paused: %s has not been ready for %s, over the limit of %s: %s", in.ramping(), span(in.NotReadyFor.D()), span(limit), why)}
	}
	return hold(CodeNotReady, fmt.Sprintf("%s is not ready for %s: %s", in.ramping(), span(in.NotReadyFor.D()), why))
}

// ramp is the decision while ramping or holding.
func (in *Input) ramp() Decision {
	c := in.Config
	satisfied, enough := in.unsatisfied() == nil, in.Units >= c.MinUnits
	late := in.Elapsed.D() > c.MaxDuration
	noData := in.DataAge.D() > c.NoDataAfter
	switch {
	case in.BaselineUnhealthy:
		return hold(CodeBaselineUnhealthy, "the baseline itself fails: nothing can be said of "+in.ramping()+", and it is not blamed")
	case in.SRM.Alarm:
		return Decision{Action: Pause, Code: CodeSRM, Variant: in.ramping(), Text: "paused: " + in.SRM.words()}
	case !in.Ready.OK:
		return in.notReady()
	case late && noData:
		return Decision{Action: Pause, Code: CodeNoData, Variant: in.ramping(),
			Text: fmt.Sprintf("paused: the step lasts for %s, max_duration is %s, and %s", span(in.Elapsed.D()), span(c.MaxDuration), in.noData())}
	case late && !(satisfied && enough):
		return Decision{Action: Pause, Code: CodeInconclusive, Variant: in.ramping(),
			Text: fmt.Sprintf("paused: the step lasts for %s, max_duration is %s, and it is not proved good: %s",
				span(in.Elapsed.D()), span(c.MaxDuration), first(in.lacking()))}
	case noData:
		return hold(CodeNoData, in.noData())
	}
	if v := in.limit(); v != nil {
		return hold(CodeLimit, v.Text())
	}
	switch {
	case in.Elapsed.D() < c.MinDuration:
		return Decision{Action: Continue, Code: CodeMinDuration, Text: fmt.Sprintf("the step lasts for %s, min_duration is %s",
			span(in.Elapsed.D()), span(c.MinDuration))}
	case !satisfied || !enough:
		return Decision{Action: Continue, Code: CodeOpen, Text: first(in.lacking())}
	}
	return in.passed()
}

// passed is the decision when the step has proved good.
func (in *Input) passed() Decision {
	next := in.Step + 1
	if next >= len(in.Steps) {
		if in.Config.Capped() {
			return hold(CodeMaxWeight, fmt.Sprintf("all is proved good, and max_weight keeps %s at %s; promote it, or raise max_weight",
				in.ramping(), percent(in.weight())))
		}
		return Decision{Action: Promote, Code: CodePassed, Variant: in.ramping(),
			Text: fmt.Sprintf("promoted: %s; it bakes for %s", in.evidence(), span(in.Config.Bake))}
	}
	if d, stop := in.gates(next); stop {
		return d
	}
	return Decision{Action: Advance, Code: CodePassed, Variant: in.ramping(),
		Text: fmt.Sprintf("advanced from %s to %s: %s", percent(in.weight()), percent(in.Steps[next].Weight), in.evidence())}
}

// gates are the questions before a step that no evidence answers.
func (in *Input) gates(next int) (Decision, bool) {
	switch {
	case next < len(in.Steps) && in.Steps[next].Approve && in.Approved < next:
		return hold(CodeApproval, fmt.Sprintf("the step to %s waits for a person to approve it", percent(in.Steps[next].Weight))), true
	case !in.HeadRoom.OK:
		return hold(CodeHeadRoom, or(in.HeadRoom.Text, "it is not known whether the baseline could take back what a rollback returns")), true
	}
	return Decision{}, false
}

// bake is the decision between the promotion and its end.
func (in *Input) bake() Decision {
	c := in.Config
	switch {
	case in.BaselineUnhealthy:
		return hold(CodeBaselineUnhealthy, "the bake waits: the baseline itself fails")
	case in.SRM.Alarm:
		return hold(CodeSRM, "the bake waits: "+in.SRM.words())
	case !in.Ready.OK:
		return hold(CodeNotReady, "the bake waits: "+or(in.Ready.Text, in.ramping()+" is not ready"))
	case in.DataAge.D() > c.NoDataAfter:
		return hold(CodeNoData, "the bake waits: "+in.noData())
	case in.failing() != nil:
		return hold(CodeGuardrail, "the bake waits: "+failure(in.failing()))
	case in.limit() != nil:
		return hold(CodeLimit, "the bake waits: "+in.limit().Text())
	case in.Elapsed.D() < c.Bake:
		return Decision{Action: Continue, Code: CodeBaking, Text: fmt.Sprintf("baked for %s of %s", span(in.Elapsed.D()), span(c.Bake))}
	}
	return Decision{Action: FinishBake, Code: CodeBaked, Variant: in.ramping(),
		Text: fmt.Sprintf("%s has baked for %s without a failure: everybody gets it", in.ramping(), span(in.Elapsed.D()))}
}

func hold(code, text string) Decision { return Decision{Action: Hold, Code: code, Text: text} }

func first(s []string) string {
	if len(s) == 0 {
		return "it is not decided"
	}
	return s[0]
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
