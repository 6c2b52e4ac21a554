package router_test

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"sluice/experiment"
	"sluice/experiment/ramp"
	"sluice/experiment/trial"
	"sluice/router"
)

const rampKey = "chat-v2"

// ramped is base as a draft with a ramp, and more members.
func ramped(t testing.TB, policy string, pairs ...string) *router.Document {
	t.Helper()
	return doc(t, append([]string{`"state": "running"`, `"state": "draft"`, `"baseline": "control"`, `"baseline": "control", "ramp": ` + policy}, pairs...)...)
}

// three adds a third variant with a weight.
var three = []string{`"weight": 9000`, `"weight": 8000`, `"params": {"temperature": 0.6}`, `"params": {}`, `]}
  ]
}`, `, {"name": "other", "weight": 1000, "upstream": "v1"}]}
  ]
}`}

func exp(d *router.Document) *router.Experiment { return d.Experiment(rampKey) }

func started(t testing.TB, policy string, pairs ...string) *router.Document {
	t.Helper()
	d := ramped(t, policy, pairs...)
	must(t, router.Start(d, 2, t0, rampKey))
	return d
}

func wants(t testing.TB, d *router.Document, state string, phase ramp.Phase, step, weight int) {
	t.Helper()
	e := exp(d)
	if e.RampState == nil {
		t.Fatalf("%s without a ramp", e.State)
	}
	if s := e.RampState; e.State != state || s.Phase != phase || s.Step != step || e.Variants[1].Weight != weight {
		t.Errorf("%s %s step %d weight %d, want %s %s step %d weight %d", e.State, s.Phase, s.Step, e.Variants[1].Weight, state, phase, step, weight)
	}
	if _, err := router.Compile(&router.Snapshot{Document: *d}, ups(d), router.CompileOptions{}); err != nil {
		t.Errorf("does not compile: %v", err)
	}
}

func refusedAs(t testing.TB, code string, err error) {
	t.Helper()
	if got := codeOf(err); got != code {
		t.Errorf("%v: code %q, want %q", err, got, code)
	}
}

func TestRampFromStartToEnd(t *testing.T) {
	t.Parallel()
	d := started(t, `{"steps": [100, {"weight": 2000, "approve": true}, 10000]}`)
	wants(t, d, "running", ramp.ReadyWait, -1, 0)
	if s := exp(d).RampState; s.Variant != "canary" || len(s.Steps) != 3 || s.Steps[2].Weight != 9900 || s.Epoch != 2 || !s.Since.Equal(t0) {
		t.Errorf("%+v", s)
	}
	setup := trial.Setup{Since: 5, Thresholds: make([]trial.Thresholds, 2)}
	refusedAs(t, router.CodeInvalidState, router.RampStep(d, 3, t0, rampKey, 1, setup, nil))
	must(t, router.RampStep(d, 3, t0, rampKey, 0, setup, []string{"0123456789abcdef"}))
	wants(t, d, "running", ramp.Ramping, 0, 100)
	must(t, router.RampHold(d, 4, t0, rampKey, ramp.CodeApproval))
	wants(t, d, "running", ramp.Holding, 0, 100)
	refusedAs(t, router.CodeApproval, router.RampStep(d, 5, t0, rampKey, 1, setup, nil))
	must(t, router.RampApprove(d, 5, t0, rampKey))
	must(t, router.RampStep(d, 6, t0, rampKey, 1, setup, nil))
	wants(t, d, "running", ramp.Ramping, 1, 2000)
	refusedAs(t, router.CodeInvalidState, router.RampPromote(d, 7, t0, rampKey))
	must(t, router.RampStep(d, 7, t0, rampKey, 2, setup, nil))
	must(t, router.RampPromote(d, 8, t0, rampKey))
	wants(t, d, "promoted", ramp.Baking, 2, 9900)
	if s := exp(d).RampState; s.Setup.Since != t0.UnixMilli() || len(s.Setup.Thresholds) != 2 || exp(d).Winner != "canary" {
		t.Errorf("the bake counts with what the last step fixed, from its beginning: %+v", s.Setup)
	}
	// The holdback stays on the baseline until the bake is over.
	served := func() map[string]int {
		table, err := router.Compile(&router.Snapshot{Document: *d}, ups(d), router.CompileOptions{})
		must(t, err)
		out := map[string]int{}
		ce, _ := table.Experiment(rampKey)
		for b := range 4000 {
			u := experiment.Unit{Type: "user", ID: string(rune('a'+b%26)) + strings.Repeat("x", b/26)}
			dec := ce.Exp.Decide(&experiment.Query{Unit: u, HasUnit: true, Override: -1})
			out[ce.Variants[dec.Variant].Name]++
		}
		return out
	}
	if n := served()["control"]; n < 10 || n > 100 {
		t.Errorf("%d of 4000 on the holdback of 1 %% while it bakes", n)
	}
	refusedAs(t, router.CodeRampActive, router.ArchiveExperiment(d, 9, t0, rampKey))
	must(t, router.RampDone(d, 9, t0, rampKey))
	wants(t, d, "promoted", ramp.Done, 2, 9900)
	if n := served()["control"]; n != 0 {
		t.Errorf("%d of 4000 on the baseline after the bake", n)
	}
	must(t, router.Rollback(d, 10, t0, rampKey)) // a person may, later too
	wants(t, d, "rolled_back", ramp.Done, 2, 9900)
}

func TestRampByHand(t *testing.T) {
	t.Parallel()
	d := started(t, `{"steps": [100, {"weight": 2000, "approve": true}, 10000]}`)
	refusedAs(t, router.CodeInvalidState, router.Promote(d, 3, t0, rampKey, "canary")) // nobody has tried it
	refusedAs(t, router.CodeRampActive, router.Finish(d, 3, t0, rampKey))
	must(t, router.RampAdvance(d, 3, t0, rampKey))
	must(t, router.RampAdvance(d, 4, t0, rampKey)) // approval included
	wants(t, d, "running", ramp.Ramping, 1, 2000)
	if len(exp(d).RampState.Setup.Thresholds) != 0 {
		t.Error("the leader has to fix what a person's step counts")
	}
	must(t, router.RampSetup(d, 5, t0, rampKey, trial.Setup{Since: 9, Thresholds: make([]trial.Thresholds, 2)}, nil))
	if s := exp(d).RampState; s.Epoch != 5 || s.Setup.Since != 9 || !s.Since.Equal(t0) {
		t.Errorf("%+v", s)
	}
	must(t, router.Pause(d, 6, t0, rampKey))
	if s := exp(d).RampState; s.Reason != router.ReasonPerson {
		t.Errorf("paused for %q", s.Reason)
	}
	refusedAs(t, router.CodeInvalidState, router.RampAdvance(d, 7, t0, rampKey))
	refusedAs(t, router.CodeInvalidState, router.RampStep(d, 7, t0, rampKey, 2, trial.Setup{}, nil))
	must(t, router.Resume(d, 7, t0.Add(time.Hour), rampKey))
	wants(t, d, "running", ramp.Ramping, 1, 2000)
	if s := exp(d).RampState; s.Reason != "" || s.Epoch != 7 || !s.Since.Equal(t0.Add(time.Hour)) {
		t.Errorf("a resumed step begins anew: %+v", s)
	}
	must(t, router.Promote(d, 8, t0, rampKey, "canary")) // to the top, and bakes
	wants(t, d, "promoted", ramp.Baking, 2, 9900)
	must(t, router.Promote(d, 9, t0, rampKey, "canary"))
	wants(t, d, "promoted", ramp.Baking, 2, 9900)
	must(t, router.RampAdvance(d, 10, t0, rampKey))
	wants(t, d, "promoted", ramp.Done, 2, 9900)

	d = started(t, `{"bake": 0}`)
	must(t, router.RampAdvance(d, 3, t0, rampKey))
	must(t, router.Promote(d, 4, t0, rampKey, "canary"))
	wants(t, d, "promoted", ramp.Done, 0, 100)
}

func TestWeightsDuringARamp(t *testing.T) {
	t.Parallel()
	at20 := func(policy string) *router.Document {
		d := started(t, policy)
		for rev := int64(3); rev < 6; rev++ {
			must(t, router.RampAdvance(d, rev, t0, rampKey))
		}
		wants(t, d, "running", ramp.Ramping, 2, 2000)
		return d
	}
	weights := func(canary int) map[string]int { return map[string]int{"control": 10000 - canary, "canary": canary} }
	d := at20(`{}`)
	refusedAs(t, router.CodeRampActive, router.SetWeights(d, 9, t0, rampKey, weights(3000)))
	refusedAs(t, router.CodeRampActive, router.PatchExperiment(d, 9, t0, rampKey, []byte(`{"variants":[{"name":"control","weight":7000,"upstream":"v1","model":"Qwen3-8B","version":"8b-1"},`+
		`{"name":"canary","weight":3000,"upstream":"v2","model":"Qwen3-8B-awq","version":"8b-awq-3","params":{"temperature":0.6},"prompt":{"system_prepend":"Be brief."},"fallback":"control"}]}`)))
	wants(t, d, "running", ramp.Ramping, 2, 2000)
	// Less is always possible. It pauses, and the ramp goes on from there.
	before := ownerNames(t, exp(d))
	must(t, router.SetWeights(d, 9, t0, rampKey, weights(700)))
	wants(t, d, "paused", ramp.Ramping, 2, 700)
	must(t, router.Resume(d, 10, t0, rampKey))
	wants(t, d, "running", ramp.Ramping, 2, 700)
	if s := exp(d).RampState; len(s.Steps) != 6 || s.Steps[2].Weight != 700 || s.Steps[3].Weight != 2000 {
		t.Errorf("steps %v", s.Steps)
	}
	must(t, router.RampAdvance(d, 11, t0, rampKey))
	for b, name := range ownerNames(t, exp(d)) {
		if name != before[b] {
			t.Fatalf("bucket %d: the same users come back, got %s, had %s", b, name, before[b])
		}
	}
	must(t, router.ChangeWeights(d, 12, t0, rampKey, weights(3000), true))
	wants(t, d, "paused", ramp.Ramping, 3, 3000)
	must(t, router.ChangeWeights(d, 13, t0, rampKey, weights(0), false)) // a paused ramp decides nothing
	must(t, router.Resume(d, 14, t0, rampKey))
	wants(t, d, "running", ramp.ReadyWait, -1, 0)

	d = started(t, `{"max_weight": 500}`)
	must(t, router.RampAdvance(d, 3, t0, rampKey))
	if s := exp(d).RampState; len(s.Steps) != 2 || s.Steps[1].Weight != 500 {
		t.Errorf("steps above max_weight: %v", s.Steps)
	}
	refusedAs(t, "max_weight", router.ChangeWeights(d, 4, t0, rampKey, weights(501), true))
	must(t, router.ChangeWeights(d, 4, t0, rampKey, weights(500), true))
	must(t, router.Resume(d, 5, t0, rampKey))
	must(t, router.PatchExperiment(d, 6, t0, rampKey, []byte(`{"ramp":{"max_weight":2000}}`)))
	if s := exp(d).RampState; s.Step != 1 || s.Steps[len(s.Steps)-1].Weight != 2000 {
		t.Errorf("a higher max_weight has steps again: %+v", s)
	}
}

func TestRampAndEdits(t *testing.T) {
	t.Parallel()
	on := func() *router.Document {
		d := started(t, `{}`)
		must(t, router.RampStep(d, 3, t0, rampKey, 0, trial.Setup{Since: 1, Thresholds: make([]trial.Thresholds, 3)}, nil))
		return d
	}
	variants := func(model, version string) string {
		return `{"variants":[{"name":"control","weight":9900,"upstream":"v1","model":"` + model + `","version":"8b-1"},{"name":"canary","weight":100,"upstream":"v2","model":"Qwen3-8B-awq","version":"` + version +
			`","params":{"temperature":0.6},"prompt":{"system_prepend":"Be brief."},"fallback":"control"}]}`
	}
	for _, c := range []struct{ name, patch, code string }{
		{"the ramp goes", `{"ramp":null}`, router.CodeRampActive},
		{"another model is tried", variants("Qwen3-8B", "8b-awq-4"), router.CodeRampActive},
		{"what the server keeps", `{"ramp_state":{"phase":"done"}}`, router.CodeRuntimeField},
		{"and its mark", `{"last_rollback":{"at":"2026-01-01T00:00:00Z"}}`, router.CodeRuntimeField},
		{"the baseline is mended", variants("Qwen3-8B-fixed", "8b-awq-3"), ""},
		{"another guardrail", `{"guardrails":[{"metric":"error"},{"metric":"empty"}]}`, ""},
		{"shorter steps", `{"ramp":{"min_duration":"1m"}}`, ""},
	} {
		d := on()
		err := router.PatchExperiment(d, 9, t0.Add(time.Hour), rampKey, []byte(c.patch))
		if codeOf(err) != c.code {
			t.Errorf("%s: %v, want %q", c.name, err, c.code)
		}
		s := exp(d).RampState
		anew := s.Epoch == 9 && len(s.Setup.Thresholds) == 0 && s.Since.Equal(t0.Add(time.Hour))
		if want := strings.Contains(c.name, "mended") || strings.Contains(c.name, "guardrail"); anew != want {
			t.Errorf("%s: the evidence begins anew: %v, want %v", c.name, anew, want)
		}
	}
	d := on()
	view := asJSON(t, router.View(exp(d), 0))
	must(t, router.PatchExperiment(d, 9, t0, rampKey, []byte(view))) // what was read may be sent back
	must(t, router.Kill(d, 10, t0, rampKey, "canary"))
	wants(t, d, "running", ramp.Done, 0, 100)
	refusedAs(t, router.CodeInvalidState, router.RampAdvance(d, 11, t0, rampKey))
}

func TestRampOfOneOfSeveral(t *testing.T) {
	t.Parallel()
	d := parse(t, with(t, append([]string{`"baseline": "control"`, `"baseline": "control", "ramp": {}`}, three...)...))
	if ps := router.Validate(d, router.ValidateOptions{}); len(ps) != 1 || ps[0].Code != "ramp_variant" || ps[0].Path != "/experiments/0/ramp/variant" {
		t.Errorf("several treatments need a name: %v", ps)
	}
	d = started(t, `{"variant": "canary"}`, three...)
	wants(t, d, "running", ramp.ReadyWait, -1, 0)
	if s, e := exp(d).RampState, exp(d); s.Steps[4].Weight != 8900 || e.Variants[2].Weight != 1000 || e.Variants[0].Weight != 9000 {
		t.Errorf("the other treatment keeps its users: %+v %+v", s.Steps, e.Variants)
	}
	must(t, router.RampAdvance(d, 3, t0, rampKey))
	must(t, router.Kill(d, 4, t0, rampKey, "other")) // its tombstone stays
	for rev := int64(5); rev < 9; rev++ {
		must(t, router.RampAdvance(d, rev, t0, rampKey))
	}
	wants(t, d, "running", ramp.Ramping, 4, 8900)
	must(t, router.RampAdvance(d, 9, t0, rampKey)) // to the bake: what the killed one left may be had
	wants(t, d, "promoted", ramp.Baking, 5, 9900)

	d = started(t, `{"variant": "canary"}`, three...)
	must(t, router.RampAdvance(d, 3, t0, rampKey))
	must(t, router.Kill(d, 4, t0, rampKey, "canary"))
	if exp(d).RampState != nil || exp(d).State != "running" {
		t.Errorf("the other treatment goes on without a ramp: %+v", exp(d).RampState)
	}
}

func TestCooldown(t *testing.T) {
	t.Parallel()
	failed := func() *router.Document {
		d := started(t, `{"cooldown": "1h"}`)
		must(t, router.RampAdvance(d, 3, t0, rampKey))
		must(t, router.Rollback(d, 4, t0, rampKey))
		must(t, router.Rollback(d, 5, t0.Add(30*time.Minute), rampKey)) // again changes nothing
		return d
	}
	d := failed()
	err := router.Start(d, 6, t0.Add(40*time.Minute), rampKey)
	refusedAs(t, router.CodeCooldown, err)
	if !strings.Contains(err.Error(), "20m") {
		t.Errorf("it says how long: %v", err)
	}
	must(t, router.StartAnyway(d, 6, t0, rampKey))
	wants(t, d, "running", ramp.ReadyWait, -1, 0)
	if exp(d).LastRollback != nil {
		t.Error("the mark of a generation that is over")
	}
	d = failed()
	must(t, router.Start(d, 6, t0.Add(time.Hour), rampKey))
	d = failed()
	must(t, router.PatchExperiment(d, 6, t0, rampKey, []byte(`{"ramp":{"min_units":5}}`)))
	refusedAs(t, router.CodeCooldown, router.Start(d, 7, t0, rampKey)) // not another variant
	must(t, router.PatchExperiment(d, 7, t0, rampKey, []byte(`{"variants":[{"name":"control","weight":9900,"upstream":"v1"},{"name":"canary","weight":100,"upstream":"v2","version":"new"}]}`)))
	must(t, router.Start(d, 8, t0, rampKey))
	// Without a ramp there is no cooldown.
	d = doc(t)
	must(t, router.Rollback(d, 2, t0, rampKey))
	must(t, router.Start(d, 3, t0, rampKey))
	// A document may not start it again unless it says so.
	d = failed()
	file := parse(t, asJSON(t, d))
	file.Experiment(rampKey).State = "running"
	_, err = router.ReplaceDocument(d, 6, t0.Add(2*time.Hour), file, router.ApplyOptions{Runtime: true})
	refusedAs(t, router.CodeInvalidState, err)
	_, err = router.ReplaceDocument(d, 6, t0, file, router.ApplyOptions{Runtime: true, Force: true})
	must(t, err)
}

func TestRampIsValidated(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ member, path, code string }{
		{`"ramp": {"steps": [100, 50]}`, "/experiments/0/ramp/steps/1", "ramp_invalid"},
		{`"ramp": {"steps": [1, 5, 20]}`, "/experiments/0/ramp/steps", "ramp_invalid"},
		{`"ramp": {"ready": {"probs": 1}}`, "/experiments/0/ramp/ready/probs", "unknown_member"},
		{`"ramp": {"variant": "control"}`, "/experiments/0/ramp/variant", "ramp_variant"},
		{`"ramp": {"variant": "nobody"}`, "/experiments/0/ramp/variant", "ramp_variant"},
		{`"ramp": {"slo": {"empty": 0.01}}`, "/experiments/0/ramp/slo/empty", "ramp_invalid"},
		{`"ramp": []`, "/experiments/0/ramp", "wrong_type"},
		{`"guardrails": [{"metric": "error", "window": "5m"}]`, "/experiments/0/guardrails/0/window", "unknown_member"},
		{`"guardrails": [{"metric": "error"}, {"metric": "error"}]`, "/experiments/0/guardrails", "guardrail_invalid"},
		{`"guardrails": [{"metric": "error"}, {"metric": "slow_ttfa", "threshold": "soon"}]`, "/experiments/0/guardrails/1", "guardrail_invalid"},
		{`"guardrails": [null]`, "/experiments/0/guardrails/0", "wrong_type"},
		{`"ramp_state": {"phase": "ramping", "variant": "control", "steps": [], "step": -1}`, "/experiments/0/ramp_state/variant", "variant_unknown"},
		{`"ramp_state": {"phase": "flying", "variant": "canary", "steps": [], "step": -1}`, "/experiments/0/ramp_state/phase", ""},
		{`"ramp_state": {"phase": "ramping", "variant": "canary", "steps": [{"weight": 100}], "step": 1}`, "/experiments/0/ramp_state/step", "out_of_range"},
		{`"ramp_state": {"phase": "ramping", "variant": "canary", "steps": [{"weight": 100}], "step": 0, "heavy": ["../x"]}`, "/experiments/0/ramp_state/heavy", "invalid_value"},
	} {
		d := parse(t, with(t, `"baseline": "control"`, `"baseline": "control", `+c.member))
		ps := router.Validate(d, router.ValidateOptions{})
		if len(ps) == 0 || ps[0].Path != c.path || c.code != "" && ps[0].Code != c.code {
			t.Errorf("%s: %v, want %s %s", c.member, ps, c.code, c.path)
		}
	}
}

// At every step exactly the distance moves, nobody but from the baseline, and
// whoever was in a smaller step is in the larger ones.
func TestStepsMoveTheDistance(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		d := started(t, `{"variant": "canary", "holdback": 50}`, three...)
		n := rapid.IntRange(1, 8).Draw(r, "steps")
		e := exp(d)
		e.RampState.Steps = nil
		for w, i := 0, 0; i < n; i++ {
			if w += rapid.IntRange(1, 1100).Draw(r, "by"); w > 8900 {
				break
			}
			e.RampState.Steps = append(e.RampState.Steps, ramp.Step{Weight: w})
		}
		revision := int64(3)
		for range rapid.IntRange(1, 2*n).Draw(r, "edits") {
			before, was := ownerNames(t, exp(d)), exp(d).Variants[1].Weight
			var err error
			switch op := rapid.IntRange(0, 3).Draw(r, "op"); op {
			case 0, 1:
				err = router.RampAdvance(d, revision, t0, rampKey)
			case 2:
				w := rapid.IntRange(0, was).Draw(r, "lower")
				err = router.SetWeights(d, revision, t0, rampKey, map[string]int{"control": 9000 - w, "canary": w, "other": 1000})
			case 3:
				err = router.Resume(d, revision, t0, rampKey)
			}
			if err != nil {
				continue
			}
			now, moved := exp(d).Variants[1].Weight, 0
			for b, name := range ownerNames(t, exp(d)) {
				if name == before[b] {
					continue
				}
				moved++
				if up := now > was; up && (before[b] != "control" || name != "canary") || !up && (before[b] != "canary" || name != "control") {
					r.Fatalf("bucket %d went from %s to %s", b, before[b], name)
				}
			}
			if moved != max(now-was, was-now) {
				r.Fatalf("%d → %d moved %d", was, now, moved)
			}
			checkInvariants(r, t, d, revision)
			revision++
		}
	})
}
