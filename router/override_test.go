package router_test

import (
	"testing"

	"sluice/router"
)

// TestOverrideHeadersOfTheProcess takes names from the settings beside the
// experiment's own.
func TestOverrideHeadersOfTheProcess(t *testing.T) {
	d := doc(t)
	table, err := router.Compile(&router.Snapshot{Document: *d}, ups(d), router.CompileOptions{OverrideHeaders: []string{"X-LLM-Variant"}})
	must(t, err)
	q := query("chat", "u", "X-Llm-Variant", "canary")
	q.AuthNone, q.Loopback = true, true
	plan := route(t, table, q)
	if plan.Decision.Reason != "override" || plan.Variant.Name != "canary" {
		t.Errorf("reason %s, variant %s, note %q", plan.Decision.Reason, plan.Variant.Name, plan.Note)
	}
}
