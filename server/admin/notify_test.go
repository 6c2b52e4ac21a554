package admin_test

import (
	"slices"
	"testing"

	"sluice/experiment/ramp"
	"sluice/server/admin"
)

// People outside are told once of what a person did, with the reason: not of
// dry runs, of what changed nothing, of refusals, of repeated requests.
func TestNotices(t *testing.T) {
	var told []ramp.Notice
	g := newGateway(t, func(c *admin.Config) { c.Notify = func(n ramp.Notice) { told = append(told, n) } })
	const exp = "/experiments/exp"
	g.write("POST", exp, ":pause?dry_run=true", `{"reason":"look"}`).want(200)
	g.write("POST", exp, ":promote", `{}`).want(422)
	g.write("POST", exp, ":pause", `{"reason":"to think"}`, "Idempotency-Key: k1").want(200)
	g.v1("POST", exp+":pause", `{"reason":"to think"}`, "If-Match: *").want(200) // it is paused
	g.write("POST", exp, ":resume", ``).want(200)
	g.write("POST", exp, ":kill", `{"variant":"canary","reason":"wrong language"}`).want(200)
	g.v1("POST", exp+":rollback", `{"reason":"enough"}`, "If-Match: *").want(200)
	g.write("POST", exp, ":start", `{"reason":"fixed"}`).want(200)
	g.write("POST", exp, ":finish", ``).want(200)
	g.write("POST", exp, ":start", ``).want(200)
	g.write("POST", exp, ":promote", `{"variant":"canary","reason":"it is good"}`).want(200)
	var got []string
	for _, n := range told {
		got = append(got, n.Event+": "+n.Text)
		if n.Experiment != "exp" || n.Model != "chat" || n.Baseline != "control" || n.Actor == "" || n.Generation == 0 || n.Revision == 0 || n.At.IsZero() {
			t.Errorf("%+v", n)
		}
	}
	who := "local"
	if len(told) > 0 {
		who = told[0].Actor
	}
	want := []string{
		"paused: " + who + " paused it: nobody moves (to think)",
		"resumed: " + who + " resumed it",
		"killed: " + who + " killed canary: its users get control (wrong language)",
		"rolled_back: " + who + " rolled it back: everybody gets control (enough)",
		"started: " + who + " started it as generation 2 (fixed)",
		"completed: " + who + " finished it: everybody gets control",
		"started: " + who + " started it as generation 3",
		"promoted: " + who + " promoted canary (it is good)",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}
