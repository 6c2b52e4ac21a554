package router_test

import (
	"fmt"
	"testing"

	"sluice/experiment"
	"sluice/experiment/ramp"
	"sluice/experiment/trial"
	"sluice/router"
)

// onStep is a ramp that is at 1000 of its steps 1000 and 5000.
func onStep(t *testing.T, kind string) *router.Document {
	t.Helper()
	d := doc(t, `"kind": "canary", "state": "running"`, `"kind": "`+kind+`", "state": "draft", "ramp": {"steps": [1000, 5000]}`, `"fallback": "control"`, `"fallback": ""`)
	must(t, router.Start(d, 2, t0, "chat-v2"))
	must(t, router.RampStep(d, 3, t0, "chat-v2", 0, trial.Setup{}, nil))
	return d
}

// While the gate is closed the users of the variant that ramps get the
// baseline, without exposure or pin; the same users come back.
func TestNotReady(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"canary", "ab"} {
		d := onStep(t, kind)
		open := compile(t, d)
		store := newPins()
		before := map[string]string{}
		for i := range 300 {
			id := fmt.Sprint("user-", i)
			p, err := open.Route(t.Context(), query("chat", id), store)
			must(t, err)
			before[id] = p.Variant.Name
		}
		pins := len(store.m)
		closedBy := map[string]func(*router.Document) error{
			"hold":  func(d *router.Document) error { return router.RampHold(d, 4, t0, "chat-v2", ramp.CodeNotReady) },
			"pause": func(d *router.Document) error { return router.RampPause(d, 4, t0, "chat-v2", ramp.CodeNotReady) },
		}
		for name, shut := range closedBy {
			d := d.Clone()
			must(t, shut(d))
			closed := compile(t, d)
			for id, was := range before {
				p, err := closed.Route(t.Context(), query("chat", id), store)
				must(t, err)
				if was == "canary" && (p.Variant.Name != "control" || p.Decision.Reason != experiment.ReasonNotReady || p.Decision.Exposure || p.Decision.Analysed) {
					t.Fatalf("%s, %s: %s got %s, %+v", kind, name, id, p.Variant.Name, p.Decision)
				}
				if was == "control" && p.Variant.Name != "control" {
					t.Fatalf("%s, %s: %s moved", kind, name, id)
				}
			}
			if len(store.m) != pins {
				t.Errorf("%s, %s: %d pins were %d", kind, name, len(store.m), pins)
			}
			must(t, router.Resume(d, 5, t0, "chat-v2"))
			must(t, router.RampHold(d, 6, t0, "chat-v2", ""))
			again := compile(t, d)
			for id, was := range before {
				p, err := again.Route(t.Context(), query("chat", id), store)
				must(t, err)
				if p.Variant.Name != was {
					t.Fatalf("%s, %s: %s had %s and comes back to %s", kind, name, id, was, p.Variant.Name)
				}
			}
		}
		for _, code := range []string{ramp.CodeNoData, ramp.CodeHeadRoom} {
			other := d.Clone()
			must(t, router.RampHold(other, 4, t0, "chat-v2", code))
			table := compile(t, other)
			for id, was := range before {
				if p, _ := table.Route(t.Context(), query("chat", id), store); p.Variant.Name != was {
					t.Fatalf("%s moved though the hold is %s", id, code)
				}
			}
		}
	}
}

// A request under way goes to the baseline when the gate closes before it is sent.
func TestNotReadyWhileItWaits(t *testing.T) {
	t.Parallel()
	d := onStep(t, "canary")
	open := compile(t, d)
	must(t, router.RampHold(d, 4, t0, "chat-v2", ramp.CodeNotReady))
	closed := compile(t, d)
	for i := 0; ; i++ {
		p := route(t, open, query("chat", fmt.Sprint("user-", i)))
		if p.Variant.Name != "canary" {
			continue
		}
		v, reason, decision := router.Recheck(closed, &p)
		if v.Name != "control" || reason != router.RecheckNotReady || decision == nil || decision.Analysed {
			t.Errorf("%s, %s, %+v", v.Name, reason, decision)
		}
		return
	}
}

func TestUnsupervised(t *testing.T) {
	t.Parallel()
	for kind, want := range map[string]string{"canary": "control unsupervised", "ab": "canary bucket"} {
		d := onStep(t, kind)
		table := compile(t, d)
		var user string
		for i := 0; user == ""; i++ {
			if id := fmt.Sprint("user-", i); decided(t, table, query("chat", id), newPins()) == "canary bucket" {
				user = id
			}
		}
		q := query("chat", user)
		var asked *router.CompiledExperiment
		q.Unsupervised = func(e *router.CompiledExperiment) bool { asked = e; return true }
		if got := decided(t, table, q, newPins()); got != want {
			t.Errorf("%s: %s, want %s", kind, got, want)
		}
		if asked == nil || asked.Key != "chat-v2" || asked.Policy.StaleAfter != 0 {
			t.Errorf("asked of %+v", asked)
		}
		q.Unsupervised = func(*router.CompiledExperiment) bool { return false }
		if got := decided(t, table, q, newPins()); got != "canary bucket" {
			t.Errorf("%s, led: %s", kind, got)
		}
	}
}

// A heavy unit waits for the step of 20 %.
func TestHeavyUnitsWaitForTheirStep(t *testing.T) {
	t.Parallel()
	d := doc(t, `"kind": "canary", "state": "running"`, `"kind": "canary", "state": "draft", "ramp": {"steps": [1000, 5000]}`, `"fallback": "control"`, `"fallback": ""`)
	must(t, router.Start(d, 2, t0, "chat-v2"))
	must(t, router.RampStep(d, 3, t0, "chat-v2", 0, trial.Setup{}, nil))
	first := compile(t, d)
	var user string
	var field [8]byte
	for i := 0; user == ""; i++ {
		id := fmt.Sprint("user-", i)
		if p := route(t, first, query("chat", id)); p.Variant.Name == "canary" {
			user, field = id, p.Decision.Digest.Field
		}
	}
	heavy := []string{fmt.Sprintf("%x", field)}
	must(t, router.Rollback(d, 4, t0, "chat-v2"))
	must(t, router.StartAnyway(d, 5, t0, "chat-v2"))
	must(t, router.RampStep(d, 6, t0, "chat-v2", 0, trial.Setup{}, heavy))
	if got := decided(t, compile(t, d), query("chat", user), nil); got != "control heavy" {
		t.Errorf("at 10 %%: %s", got)
	}
	must(t, router.RampStep(d, 7, t0, "chat-v2", 1, trial.Setup{}, heavy))
	if got := decided(t, compile(t, d), query("chat", user), nil); got != "canary bucket" {
		t.Errorf("at 50 %%: %s", got)
	}
}
