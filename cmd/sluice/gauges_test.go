package main

import (
	"testing"

	"sluice/experiment/ramp"
	"sluice/router"
)

// TestTrigger: what rolled an experiment back is told with a ramp and without.
func TestTrigger(t *testing.T) {
	for code, want := range map[string]string{
		ramp.CodeGuardrail: "guardrail", ramp.CodeHardFail: "breaker", ramp.CodeLimit: "limit", "": "manual", router.ReasonRolledBack: "manual",
	} {
		if got := trigger(&router.Experiment{LastRollback: &router.RollbackMark{Reason: code}}); got != want {
			t.Errorf("%q without a ramp: %s, want %s", code, got, want)
		}
		if got := trigger(&router.Experiment{RampState: &ramp.State{Reason: code}, LastRollback: &router.RollbackMark{}}); got != want {
			t.Errorf("%q in a document of before: %s, want %s", code, got, want)
		}
	}
	if got := trigger(&router.Experiment{}); got != "manual" {
		t.Errorf("neither: %s", got)
	}
}
