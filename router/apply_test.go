package router_test

import (
	"sluice/experiment/trial"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/router"
)

func TestReplaceDocumentKeepsRuntime(t *testing.T) {
	t.Parallel()
	d := doc(t)
	must(t, router.Kill(d, 2, t0, "chat-v2", "canary"))
	must(t, router.Pause(d, 3, t0, "chat-v2"))
	was := owners(t, &d.Experiments[0])
	// The file still says running and alive, and wants other weights and a target.
	file := parse(t, with(t, `"weight": 1000`, `"weight": 500`, `"weight": 9000`, `"weight": 9500`, `"seed-1"`, `"seed-2"`,
		`"baseline": "control"`, `"baseline": "control", "targeting": [{"attr": "tenant", "op": "in", "values": ["a"]}]`))
	report, err := router.ReplaceDocument(d, 4, t0, file, router.ApplyOptions{})
	must(t, err)
	e := &d.Experiments[0]
	if e.State != "paused" || e.Variants[1].State != "killed" || e.Seed != "seed-1" || e.Generation != 1 {
		t.Errorf("runtime members must be kept: %+v", e)
	}
	if e.Variants[1].Weight != 500 || moved(was, owners(t, e)) != 500 {
		t.Errorf("without a ramp the weights are the file's: %d", e.Variants[1].Weight)
	}
	if len(report.Drift) != 1 || len(report.Drift[0].Fields) != 3 {
		t.Errorf("drift of state, seed and kill: %+v", report.Drift)
	}
	want := []router.DiffLine{{Object: "experiment/chat-v2", Action: "update", Fields: []string{
		`targeting: [{"attr":"tenant","op":"in","values":["a"]}]`, "variants/canary/weight: 1000 → 500", "variants/control/weight: 9000 → 9500"}}}
	if diff := cmp.Diff(want, report.Changes); diff != "" {
		t.Error(diff)
	}
	// Again: nothing to do.
	report, err = router.ReplaceDocument(d, 5, t0, file, router.ApplyOptions{})
	must(t, err)
	if len(report.Changes) != 0 || d.Experiments[0].UpdatedRevision != 4 {
		t.Errorf("applying twice changes nothing: %+v", report.Changes)
	}
}

func TestReplaceDocumentAfterATombstoneWasGivenBack(t *testing.T) {
	t.Parallel()
	for _, runtime := range []bool{false, true} {
		d := doc(t)
		must(t, router.Kill(d, 2, t0, "chat-v2", "canary"))
		must(t, router.SetWeights(d, 3, t0, "chat-v2", map[string]int{"control": 10000, "canary": 0}))
		file := parse(t, with(t, `"8b-1"`, `"8b-2"`)) // still says canary 1000
		report, err := router.ReplaceDocument(d, 4, t0, file, router.ApplyOptions{Runtime: runtime})
		must(t, err)
		if e := d.Experiments[0]; e.Variants[1].Weight != 0 || e.Variants[0].Version != "8b-2" {
			t.Errorf("runtime %v: got %+v", runtime, e.Variants)
		}
		if !runtime && (len(report.Drift) != 1 || len(report.Drift[0].Fields) != 3) {
			t.Errorf("drift: %+v", report.Drift)
		}
	}
}

func TestReplaceDocumentWithARamp(t *testing.T) {
	t.Parallel()
	ramp := []string{`"baseline": "control"`, `"baseline": "control", "ramp": {"steps": [1000, 10000]}`}
	d := doc(t, ramp...)
	e := &d.Experiments[0]
	if e.RampState == nil || e.RampState.Phase != "ready_wait" || e.Variants[1].Weight != 0 {
		t.Fatalf("an experiment that is written as running begins its ramp: %+v", e.RampState)
	}
	file := parse(t, with(t, ramp...))
	report, err := router.ReplaceDocument(d, 2, t0, file, router.ApplyOptions{})
	must(t, err)
	e = &d.Experiments[0]
	if e.Variants[1].Weight != 0 || e.State != "running" || len(report.Drift) != 1 || len(report.Drift[0].Fields) != 2 {
		t.Errorf("while ramping the weights are the ramp's: %+v", report)
	}
	must(t, router.RampStep(d, 3, t0, "chat-v2", 0, trial.Setup{}, nil))
	saved := parse(t, asJSON(t, d))
	must(t, router.RampAdvance(d, 4, t0, "chat-v2"))
	report, err = router.ReplaceDocument(d, 5, t0, saved, router.ApplyOptions{})
	must(t, err)
	e = &d.Experiments[0]
	if got := strings.Join(report.Drift[0].Fields, "\n"); e.RampState.Step != 1 || !strings.Contains(got, "ramp_state/step: 1 (kept), the document says 0") {
		t.Errorf("step %d, drift %s", e.RampState.Step, got)
	}
	// With Runtime the weights are the file's: the ramp pauses, and as the file
	// has it running it goes on from there.
	_, err = router.ReplaceDocument(d, 6, t0, saved, router.ApplyOptions{Runtime: true})
	must(t, err)
	e = &d.Experiments[0]
	if e.Variants[1].Weight != 1000 || e.State != "running" || e.RampState.Step != 0 || e.RampState.Epoch != 6 {
		t.Errorf("weight %d, %s, %+v", e.Variants[1].Weight, e.State, e.RampState)
	}
}

func TestReplaceDocumentRuntime(t *testing.T) {
	t.Parallel()
	with1 := func(pairs ...string) *router.Document { return parse(t, with(t, pairs...)) }
	state := func(s string) *router.Document { return with1(`"state": "running"`, `"state": "`+s+`"`) }
	rt := router.ApplyOptions{Runtime: true}
	d := doc(t)
	step := func(revision int64, file *router.Document, o router.ApplyOptions, want string) {
		t.Helper()
		_, err := router.ReplaceDocument(d, revision, t0, file, o)
		must(t, err)
		if got := d.Experiments[0].State; got != want {
			t.Errorf("revision %d: %s, want %s", revision, got, want)
		}
	}
	step(2, state("paused"), rt, "paused")
	step(3, state("running"), rt, "running")
	step(4, state("rolled_back"), rt, "rolled_back")
	if _, err := router.ReplaceDocument(d, 5, t0, state("running"), rt); codeOf(err) != router.CodeInvalidState || !strings.Contains(err.Error(), "force") {
		t.Errorf("a rolled-back generation needs force: %v", err)
	}
	step(6, state("running"), router.ApplyOptions{Runtime: true, Force: true}, "running")
	if d.Experiments[0].Generation != 2 {
		t.Errorf("generation %d, want 2", d.Experiments[0].Generation)
	}
	step(7, with1(`"weight": 1000`, `"weight": 1000, "state": "killed"`), rt, "running")
	if d.Experiments[0].Variants[1].State != "killed" {
		t.Error("not killed")
	}
	step(8, with1(), rt, "running")
	if d.Experiments[0].Variants[1].State != "killed" {
		t.Error("a document does not undo a kill")
	}
	step(9, with1(`"state": "running"`, `"state": "promoted", "winner": "control"`), rt, "promoted")
	step(10, state("archived"), rt, "archived")
}

func TestReplaceDocumentPrune(t *testing.T) {
	t.Parallel()
	d := doc(t)
	small := parse(t, `{"upstreams": [{"name": "v1", "endpoints": ["http://gpu1:8000/v1"]}], "models": [{"name": "plain", "default": {"upstream": "v1"}}]}`)
	report, err := router.ReplaceDocument(d, 2, t0, small, router.ApplyOptions{})
	must(t, err)
	if diff := cmp.Diff([]string{"upstream/v2", "model/chat", "experiment/chat-v2"}, report.Unpruned); diff != "" {
		t.Error(diff)
	}
	if d.Experiment("chat-v2") == nil {
		t.Fatal("without prune nothing is deleted")
	}
	if _, err := router.ReplaceDocument(d, 3, t0, small, router.ApplyOptions{Prune: true}); codeOf(err) != router.CodeInvalidState {
		t.Errorf("a running experiment is not pruned: %v", err)
	}
	_, err = router.ReplaceDocument(d, 4, t0, small, router.ApplyOptions{Prune: true, Force: true})
	must(t, err)
	if len(d.Upstreams) != 1 || len(d.Models) != 1 || len(d.Experiments) != 0 || len(d.Tombstones) != 3 {
		t.Errorf("got %s", asJSON(t, d))
	}
	// And back again, which raises the tombstones.
	_, err = router.ReplaceDocument(d, 5, t0, parse(t, base), router.ApplyOptions{})
	must(t, err)
	if len(d.Tombstones) != 0 || len(d.Experiments) != 1 {
		t.Errorf("tombstones %v", d.Tombstones)
	}
}

func TestReplaceDocumentRefuses(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ in, code string }{
		"duplicate experiment": {strings.Replace(base, `"experiments": [`, `"experiments": [`+base[strings.Index(base, `{"key"`):strings.LastIndex(base, "]}")]+"]},", 1), "duplicate_name"},
		"duplicate upstream":   {with(t, `"name": "v2"`, `"name": "v1"`), "duplicate_name"},
		"bad weights":          {with(t, `"weight": 1000`, `"weight": 1`), "weights_sum"},
		"unit while running":   {with(t, `"header:x-user-id"`, `"session"`), router.CodeInvalidState},
	} {
		d := doc(t)
		before := asJSON(t, d)
		in, err := router.ParseDocument([]byte(tt.in))
		must(t, err)
		if _, err := router.ReplaceDocument(d, 2, t0, in, router.ApplyOptions{Prune: true}); codeOf(err) != tt.code || asJSON(t, d) != before {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestReplaceDocumentRestoresABackup(t *testing.T) {
	t.Parallel()
	d := doc(t)
	must(t, router.SetWeights(d, 90, t0, "chat-v2", map[string]int{"control": 7000, "canary": 3000}))
	must(t, router.SetWeights(d, 91, t0, "chat-v2", map[string]int{"control": 8000, "canary": 2000}))
	fresh := &router.Document{}
	_, err := router.ReplaceDocument(fresh, 3, t0, d.Clone(), router.ApplyOptions{Prune: true})
	must(t, err)
	if moved(owners(t, &d.Experiments[0]), owners(t, &fresh.Experiments[0])) != 0 {
		t.Error("a restored experiment keeps its users")
	}
	if a := fresh.Experiments[0].Allocation; a.Revision > 3 {
		t.Errorf("revision %d of elsewhere", a.Revision)
	}
	must(t, router.SetWeights(fresh, 4, t0, "chat-v2", map[string]int{"control": 9000, "canary": 1000}))
}

func TestSeed(t *testing.T) {
	t.Parallel()
	resources := parse(t, base)
	d := &router.Document{}
	report, err := router.Seed(d, 1, t0, resources)
	must(t, err)
	if len(report.Added) != 5 || d.Experiments[0].State != "running" || d.Experiments[0].Allocation == nil {
		t.Fatalf("got %+v", report)
	}
	// Again, after an edit: nothing is overwritten.
	must(t, router.SetWeights(d, 2, t0, "chat-v2", map[string]int{"control": 5000, "canary": 5000}))
	before := asJSON(t, d)
	report, err = router.Seed(d, 3, t0, resources)
	must(t, err)
	if len(report.Added) != 0 || asJSON(t, d) != before {
		t.Errorf("a seed overwrote: %+v", report)
	}
	// A deletion stays, and takes what refers to it along.
	must(t, router.Rollback(d, 4, t0, "chat-v2"))
	must(t, router.DeleteExperiment(d, 5, t0, "chat-v2"))
	must(t, router.DeleteUpstream(d, 6, t0, "v2"))
	more := parse(t, with(t, `"key": "chat-v2"`, `"key": "chat-v3"`))
	report, err = router.Seed(d, 7, t0, more)
	must(t, err)
	want := router.SeedReport{Added: []string{}, Skipped: []router.SeedSkip{
		{"upstream/v1", "exists"}, {"upstream/v2", "deleted"}, {"model/chat", "exists"}, {"model/plain", "exists"},
		{"experiment/chat-v3", "there is no upstream/v2: it was deleted"}}}
	if diff := cmp.Diff(want, report); diff != "" {
		t.Error(diff)
	}
	for name, in := range map[string]string{
		"bad reference": with(t, `"upstream": "v2", "model": "Qwen3-8B-awq"`, `"upstream": "v9", "model": "x"`),
		"bad state":     with(t, `"running"`, `"paused"`),
		"bad weights":   with(t, `"weight": 9000`, `"weight": 1`),
	} {
		empty := &router.Document{}
		if _, err := router.Seed(empty, 1, t0, parse(t, in)); err == nil || len(empty.Upstreams) != 0 {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestDiff(t *testing.T) {
	t.Parallel()
	a := doc(t)
	b := a.Clone()
	if lines := router.Diff(a, b); len(lines) != 0 {
		t.Errorf("equal documents differ: %v", lines)
	}
	must(t, router.Rollback(b, 2, t0, "chat-v2"))
	must(t, router.PatchUpstream(b, 3, t0, "v2", []byte(`{"usage":"exact"}`)))
	must(t, router.DeleteModel(b, 4, t0, "plain"))
	want := []router.DiffLine{
		{"upstream/v2", "update", []string{`usage: "exact"`}},
		{"model/plain", "delete", []string{}},
		{"experiment/chat-v2", "update", []string{`state: "running" → "rolled_back"`}},
	}
	if diff := cmp.Diff(want, router.Diff(a, b)); diff != "" {
		t.Error(diff)
	}
	if got := router.Diff(nil, a); len(got) != 5 || got[0].Action != "create" {
		t.Errorf("from nothing: %v", got)
	}
	if got := router.Diff(a, nil); len(got) != 5 || got[0].Action != "delete" {
		t.Errorf("to nothing: %v", got)
	}
	if s := want[2].String(); s != "~ experiment/chat-v2\n    state: \"running\" → \"rolled_back\"" {
		t.Errorf("for people: %q", s)
	}
}
