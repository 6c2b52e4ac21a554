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
	if e := plain.Experiments[0]; e.State != router.StateRolledBack || e.RampState != nil {
		t.Errorf("without a ramp: %s, %+v", e.State, e.RampState)
	}
}
