package router_test

import (
	"testing"

	"sluice/experiment/ramp"
	"sluice/experiment/trial"
	"sluice/router"
)

// TestRampRollbackKeepsItsReason: what a guardrail rolled back is told from what
// a person did, and a second one changes nothing.
func TestRampRollbackKeepsItsReason(t *testing.T) {
	t.Parallel()
	d := doc(t, `"baseline": "control"`, `"baseline": "control", "ramp": {"steps": [1000, 10000]}`)
	must(t, router.RampStep(d, 3, t0, "chat-v2", 0, trial.Setup{}, nil))
	for _, code := range []string{ramp.CodeHardFail, ramp.CodeGuardrail} {
		must(t, router.RampRollback(d, 4, t0, "chat-v2", code))
		if e := d.Experiments[0]; e.State != router.StateRolledBack || e.RampState.Phase != ramp.Done || e.RampState.Reason != ramp.CodeHardFail {
			t.Errorf("after %s: %s, %+v", code, e.State, e.RampState)
		}
	}
	plain := doc(t)
	must(t, router.RampRollback(plain, 4, t0, "chat-v2", ramp.CodeGuardrail))
	must(t, router.RampRollback(plain, 5, t0, "chat-v2", ramp.CodeLimit))
	if e := plain.Experiments[0]; e.State != router.StateRolledBack || e.RampState != nil || e.LastRollback.Reason != ramp.CodeGuardrail {
		t.Errorf("without a ramp: %s, %+v, %+v", e.State, e.RampState, e.LastRollback)
	}
	// One that was in force before the database had it.
	for _, code := range []string{ramp.CodeGuardrail, ""} {
		late := doc(t, `"baseline": "control"`, `"baseline": "control", "ramp": {"steps": [1000, 10000]}`)
		must(t, router.Stop(late, 4, t0, router.KillEntry{Experiment: "chat-v2", Generation: 1, Variant: "*", Code: code}))
		if e := late.Experiments[0]; e.State != router.StateRolledBack || e.LastRollback.Reason != code {
			t.Errorf("from the kill set: %s, %+v", e.State, e.LastRollback)
		}
	}
	// A person's, after one of the controller.
	must(t, router.StartAnyway(plain, 6, t0, "chat-v2"))
	must(t, router.Rollback(plain, 7, t0, "chat-v2"))
	if m := plain.Experiments[0].LastRollback; m == nil || m.Reason != "" {
		t.Errorf("a person's rollback: %+v", m)
	}
}
