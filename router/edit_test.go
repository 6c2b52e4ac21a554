package router_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/experiment"
	"sluice/router"
)

// owners is who owns each bucket.
func owners(t testing.TB, e *router.Experiment) [experiment.Buckets]uint8 {
	t.Helper()
	own, err := experiment.DecodeAllocation(e.Allocation, len(e.Variants))
	must(t, err)
	var out [experiment.Buckets]uint8
	for b := range out {
		out[b], _ = own.Owner(b)
	}
	return out
}

func moved(a, b [experiment.Buckets]uint8) (n int) {
	for i := range a {
		if a[i] != b[i] {
			n++
		}
	}
	return n
}

func TestNormalizeDefaults(t *testing.T) {
	t.Parallel()
	d := parse(t, with(t, `"seed": "seed-1",`, `"hash": "sha256",`, `"state": "running",`, ``, `"name": "canary", "weight": 1000`, `"name": "canary", "state": "live", "weight": 1000`))
	must(t, router.Normalize(d, nil, 7, t0, func() string { return "0123456789abcdef" }))
	e := d.Experiments[0]
	type got struct {
		Seed, State, Stickiness, Variant string
		Generation                       int
		GenRevision, Updated, Revision   int64
		Created                          bool
	}
	want := got{"0123456789abcdef", "draft", "bucket", "", 1, 7, 7, 7, true}
	if diff := cmp.Diff(want, got{e.Seed, e.State, e.Stickiness, e.Variants[1].State, e.Generation, e.GenRevision, e.UpdatedRevision, d.Revision, e.CreatedAt.Equal(t0) && e.UpdatedAt.Equal(t0)}); diff != "" {
		t.Error(diff)
	}
	if e.Hash != "" {
		t.Errorf("the default hash has one form, got %q", e.Hash)
	}
	own := owners(t, &e)
	if own[8999] != 0 || own[9000] != 1 {
		t.Errorf("the first layout is [0,9000) [9000,10000): got %d %d", own[8999], own[9000])
	}
	ab := parse(t, with(t, `"kind": "canary"`, `"kind": "ab"`, `"seed": "seed-1",`, ``))
	must(t, router.Normalize(ab, nil, 7, t0, nil))
	if e := ab.Experiments[0]; e.Stickiness != "user" || len(e.Seed) != 16 || strings.Trim(e.Seed, "0123456789abcdef") != "" {
		t.Errorf("stickiness %q, seed %q", e.Stickiness, e.Seed)
	}
}

func TestUpdatedRevisionOfWhatChanged(t *testing.T) {
	t.Parallel()
	d := doc(t)
	must(t, router.PatchUpstream(d, 2, t0, "v2", []byte(`{"usage":"exact"}`)))
	must(t, router.SetWeights(d, 3, t0, "chat-v2", map[string]int{"control": 8000, "canary": 2000}))
	must(t, router.Rollback(d, 4, t0, "chat-v2"))
	must(t, router.Rollback(d, 5, t0, "chat-v2")) // changes nothing
	got := []int64{d.Revision, d.Upstreams[0].UpdatedRevision, d.Upstreams[1].UpdatedRevision, d.Models[0].UpdatedRevision, d.Experiments[0].UpdatedRevision}
	if diff := cmp.Diff([]int64{5, 1, 2, 1, 4}, got); diff != "" {
		t.Error(diff)
	}
}

func TestSetWeightsMovesTheTotalVariation(t *testing.T) {
	t.Parallel()
	d := doc(t)
	e := &d.Experiments[0]
	first := owners(t, e)
	prev := first
	for i, canary := range []int{500, 2000, 5000, 2000, 500, 1000} {
		was := e.Variants[1].Weight
		must(t, router.SetWeights(d, int64(i+2), t0, "chat-v2", map[string]int{"control": 10000 - canary, "canary": canary}))
		e = &d.Experiments[0]
		now := owners(t, e)
		if got, want := moved(prev, now), max(canary-was, was-canary); got != want {
			t.Errorf("%d → %d moved %d buckets, want %d", was, canary, got, want)
		}
		prev = now
	}
	if moved(first, prev) != 0 {
		t.Error("the ramp undone is not the first table")
	}
}

func TestSetWeightsRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		weights map[string]int
		code    string
		says    string
	}{
		{"9900", map[string]int{"control": 9000, "canary": 900}, "weights_sum", "weights sum to 9900, want 10000"},
		{"missing", map[string]int{"control": 10000}, "weight_missing", "0 too"},
		{"unknown", map[string]int{"control": 9000, "canary": 500, "x": 500}, "variant_unknown", "x"},
		{"negative", map[string]int{"control": 10001, "canary": -1}, "weight_range", ""},
		{"nothing", nil, "weight_missing", ""},
	}
	for _, tt := range tests {
		d := doc(t)
		before := asJSON(t, d)
		err := router.SetWeights(d, 2, t0, "chat-v2", tt.weights)
		if codeOf(err) != tt.code || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: got %v", tt.name, err)
		}
		if asJSON(t, d) != before {
			t.Errorf("%s: a refused edit changed the document", tt.name)
		}
	}
	if err := router.SetWeights(doc(t), 2, t0, "nope", nil); codeOf(err) != router.CodeNotFound {
		t.Errorf("unknown experiment: %v", err)
	}
}

func TestPreviewWeights(t *testing.T) {
	t.Parallel()
	three := doc(t, `{"name": "canary", "weight": 1000`, `{"name": "b", "weight": 2000, "upstream": "v2"}, {"name": "canary", "weight": 1000`, `"weight": 9000`, `"weight": 7000`)
	tests := []struct {
		name    string
		weights map[string]int
		want    router.Preview
	}{
		{"nothing", map[string]int{"control": 7000, "b": 2000, "canary": 1000},
			router.Preview{Moves: []router.Move{}, Safe: true}},
		{"baseline to one", map[string]int{"control": 6000, "b": 2000, "canary": 2000},
			router.Preview{MovedBuckets: 1000, Share: 0.1, Safe: true, Moves: []router.Move{{"control", "canary", 1000, 0.1}}}},
		{"one to baseline", map[string]int{"control": 8000, "b": 1000, "canary": 1000},
			router.Preview{MovedBuckets: 1000, Share: 0.1, Safe: true, Moves: []router.Move{{"b", "control", 1000, 0.1}}}},
		{"baseline to two", map[string]int{"control": 5000, "b": 3000, "canary": 2000},
			router.Preview{MovedBuckets: 2000, Share: 0.2, Moves: []router.Move{{"control", "b", 1000, 0.1}, {"control", "canary", 1000, 0.1}}}},
		{"treatment to treatment", map[string]int{"control": 7000, "b": 1000, "canary": 2000},
			router.Preview{MovedBuckets: 1000, Share: 0.1, CarryOver: true, NeedsReason: true, Moves: []router.Move{{"b", "canary", 1000, 0.1}}}},
	}
	for _, tt := range tests {
		before := asJSON(t, three)
		got, err := router.PreviewWeights(three, "chat-v2", tt.weights)
		must(t, err)
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: %s", tt.name, diff)
		}
		if asJSON(t, three) != before {
			t.Errorf("%s: a preview changed the document", tt.name)
		}
	}
	if _, err := router.PreviewWeights(three, "chat-v2", map[string]int{"control": 1}); codeOf(err) != "weight_missing" {
		t.Errorf("bad weights: %v", err)
	}
}

func TestKillLeavesATombstone(t *testing.T) {
	t.Parallel()
	d := doc(t)
	before := owners(t, &d.Experiments[0])
	must(t, router.Kill(d, 2, t0, "chat-v2", "canary"))
	must(t, router.Kill(d, 3, t0, "chat-v2", "canary"))
	e := &d.Experiments[0]
	if e.Variants[1].State != "killed" || e.Variants[1].Weight != 1000 || moved(before, owners(t, e)) != 0 {
		t.Fatalf("nobody moves by a kill: %+v", e.Variants[1])
	}
	if ps := router.Validate(d, router.ValidateOptions{}); len(ps) > 0 {
		t.Fatalf("the document with a tombstone is valid: %v", ps)
	}
	if err := router.SetWeights(d, 4, t0, "chat-v2", map[string]int{"control": 8000, "canary": 2000}); codeOf(err) != "variant_killed" {
		t.Errorf("a killed variant cannot rise: %v", err)
	}
	if err := router.Promote(d, 4, t0, "chat-v2", "canary"); codeOf(err) != router.CodeInvalidState {
		t.Errorf("a killed variant cannot win: %v", err)
	}
	p, err := router.PreviewWeights(d, "chat-v2", map[string]int{"control": 10000, "canary": 0})
	must(t, err)
	if !p.Safe || p.CarryOver || p.MovedBuckets != 1000 {
		t.Errorf("giving a tombstone back is safe: %+v", p)
	}
	must(t, router.SetWeights(d, 5, t0, "chat-v2", map[string]int{"control": 10000, "canary": 0}))
	if d.Experiments[0].Variants[1].State != "killed" {
		t.Error("weight 0 does not undo a kill")
	}
	if err := router.Kill(d, 6, t0, "chat-v2", "control"); codeOf(err) != router.CodeInvalidState {
		t.Errorf("the baseline cannot be killed: %v", err)
	}
	if err := router.Kill(d, 6, t0, "chat-v2", "x"); codeOf(err) != router.CodeNotFound {
		t.Errorf("unknown variant: %v", err)
	}
}

func TestRollbackThenStartRestoresTheSameUsers(t *testing.T) {
	t.Parallel()
	d := doc(t)
	must(t, router.SetWeights(d, 2, t0, "chat-v2", map[string]int{"control": 7000, "canary": 3000}))
	must(t, router.Kill(d, 3, t0, "chat-v2", "canary"))
	before := owners(t, &d.Experiments[0])
	must(t, router.Rollback(d, 4, t0, "chat-v2"))
	if e := d.Experiments[0]; e.State != "rolled_back" || e.Variants[1].Weight != 3000 {
		t.Fatalf("rollback keeps the weights: %s %d", e.State, e.Variants[1].Weight)
	}
	must(t, router.Start(d, 5, t0, "chat-v2"))
	e := &d.Experiments[0]
	if e.State != "running" || e.Generation != 2 || e.GenRevision != 5 || e.Variants[1].State != "" || e.Seed != "seed-1" {
		t.Errorf("start begins a new generation without kills: %+v", e)
	}
	if moved(before, owners(t, e)) != 0 {
		t.Error("the same users get the same variants again")
	}
}

func TestVerbsByState(t *testing.T) {
	t.Parallel()
	states := []string{"draft", "running", "paused", "promoted", "rolled_back", "completed", "archived"}
	verbs := []struct {
		name string
		do   func(d *router.Document) error
		want []string // the state after, per state before; "" = invalid_state
	}{
		{"start", func(d *router.Document) error { return router.Start(d, 9, t0, "chat-v2") },
			[]string{"running", "", "", "running", "running", "running", ""}},
		{"pause", func(d *router.Document) error { return router.Pause(d, 9, t0, "chat-v2") },
			[]string{"", "paused", "paused", "", "", "", ""}},
		{"resume", func(d *router.Document) error { return router.Resume(d, 9, t0, "chat-v2") },
			[]string{"", "running", "running", "", "", "", ""}},
		{"rollback", func(d *router.Document) error { return router.Rollback(d, 9, t0, "chat-v2") },
			[]string{"rolled_back", "rolled_back", "rolled_back", "rolled_back", "rolled_back", "", ""}},
		{"promote", func(d *router.Document) error { return router.Promote(d, 9, t0, "chat-v2", "canary") },
			[]string{"", "promoted", "promoted", "promoted", "", "", ""}},
		{"promote another", func(d *router.Document) error { return router.Promote(d, 9, t0, "chat-v2", "control") },
			[]string{"", "promoted", "promoted", "", "", "", ""}},
		{"finish", func(d *router.Document) error { return router.Finish(d, 9, t0, "chat-v2") },
			[]string{"", "completed", "completed", "", "", "completed", ""}},
		{"kill", func(d *router.Document) error { return router.Kill(d, 9, t0, "chat-v2", "canary") },
			[]string{"", "running", "paused", "promoted", "", "", ""}},
		{"reset-pins", func(d *router.Document) error { return router.ResetPins(d, 9, t0, "chat-v2") },
			[]string{"", "running", "paused", "", "", "", ""}},
		{"reshuffle", func(d *router.Document) error { return router.Reshuffle(d, 9, t0, "chat-v2") },
			[]string{"", "running", "paused", "", "", "", ""}},
		{"archive", func(d *router.Document) error { return router.ArchiveExperiment(d, 9, t0, "chat-v2") },
			[]string{"archived", "", "", "archived", "archived", "archived", "archived"}},
		{"weights", func(d *router.Document) error {
			return router.SetWeights(d, 9, t0, "chat-v2", map[string]int{"control": 9500, "canary": 500})
		}, []string{"draft", "running", "paused", "", "rolled_back", "completed", ""}},
		{"delete", func(d *router.Document) error { return router.DeleteExperiment(d, 9, t0, "chat-v2") },
			[]string{"gone", "", "", "gone", "gone", "gone", "gone"}},
	}
	for _, v := range verbs {
		for i, state := range states {
			t.Run(v.name+" from "+state, func(t *testing.T) {
				t.Parallel()
				d := doc(t)
				e := &d.Experiments[0]
				if e.State = state; state == "promoted" {
					e.Winner = "canary"
				}
				before := asJSON(t, d)
				err := v.do(d)
				if v.want[i] == "" {
					if codeOf(err) != router.CodeInvalidState || asJSON(t, d) != before {
						t.Fatalf("want invalid_state and no change, got %v", err)
					}
					return
				}
				must(t, err)
				if v.want[i] == "gone" {
					if d.Experiment("chat-v2") != nil || !strings.Contains(asJSON(t, d.Tombstones), "experiment/chat-v2") {
						t.Errorf("not deleted with a tombstone: %v", d.Tombstones)
					}
					return
				}
				if got := d.Experiments[0].State; got != v.want[i] {
					t.Errorf("got %s, want %s", got, v.want[i])
				}
				if ps := router.Validate(d, router.ValidateOptions{}); len(ps) > 0 {
					t.Errorf("invalid afterwards: %v", ps)
				}
			})
		}
	}
	for name, err := range map[string]error{
		"start": router.Start(doc(t), 2, t0, "x"), "pause": router.Pause(doc(t), 2, t0, "x"), "delete": router.DeleteExperiment(doc(t), 2, t0, "x"),
	} {
		if codeOf(err) != router.CodeNotFound {
			t.Errorf("%s of an unknown experiment: %v", name, err)
		}
	}
}

func TestReshuffleChangesSeedAndGeneration(t *testing.T) {
	t.Parallel()
	d := doc(t)
	must(t, router.ResetPins(d, 2, t0, "chat-v2"))
	if e := d.Experiments[0]; e.Generation != 2 || e.Seed != "seed-1" || e.GenRevision != 2 {
		t.Errorf("reset-pins: %d %s %d", e.Generation, e.Seed, e.GenRevision)
	}
	must(t, router.Reshuffle(d, 3, t0, "chat-v2"))
	if e := d.Experiments[0]; e.Generation != 3 || e.Seed == "seed-1" || e.GenRevision != 3 {
		t.Errorf("reshuffle: %d %s %d", e.Generation, e.Seed, e.GenRevision)
	}
	d.Experiments[0].Generation = 65535
	if err := router.ResetPins(d, 4, t0, "chat-v2"); codeOf(err) != router.CodeInvalidState {
		t.Errorf("generations are bounded: %v", err)
	}
}

func TestCreateExperiment(t *testing.T) {
	t.Parallel()
	body := `{"key": "plain-b", "model": "plain", "kind": "ab", "baseline": "a", "variants": [
		{"name": "a", "weight": 5000, "upstream": "v1"}, {"name": "b", "weight": 5000, "upstream": "v2"}]}`
	e, err := router.ParseExperiment([]byte(body))
	must(t, err)
	d := doc(t)
	d.Tombstones = []string{"experiment/plain-b"}
	must(t, router.CreateExperiment(d, 2, t0, *e))
	got := d.Experiment("plain-b")
	if got.State != "draft" || got.Stickiness != "user" || got.Seed == "" || got.Allocation == nil || len(d.Tombstones) != 0 {
		t.Errorf("got %+v, tombstones %v", got, d.Tombstones)
	}
	if err := router.CreateExperiment(d, 3, t0, *e); codeOf(err) != router.CodeExists {
		t.Errorf("twice: %v", err)
	}
	for name, tt := range map[string]struct {
		members, code string
	}{
		"state":      {`"state": "promoted"`, router.CodeInvalidState},
		"generation": {`"generation": 3`, router.CodeRuntimeField},
		"winner":     {`"winner": "a"`, router.CodeRuntimeField},
		"bad kind":   {`"kind": "x"`, "invalid_value"},
	} {
		s := strings.Replace(body, `"kind": "ab"`, tt.members, 1)
		e, err := router.ParseExperiment([]byte(s))
		must(t, err)
		if err := router.CreateExperiment(doc(t), 2, t0, *e); codeOf(err) != tt.code {
			t.Errorf("%s: got %v", name, err)
		}
	}
	// Paths are those of the object that was sent.
	bad, err := router.ParseExperiment([]byte(strings.Replace(body, `"upstream": "v2"`, `"upstream": "v9"`, 1)))
	must(t, err)
	var ps router.Problems
	if err := router.CreateExperiment(doc(t), 2, t0, *bad); !errors.As(err, &ps) || ps[0].Path != "/variants/1/upstream" {
		t.Errorf("got %+v", err)
	}
}

func TestPatchExperiment(t *testing.T) {
	t.Parallel()
	running := []struct {
		name, patch, code, says string
	}{
		{"targeting", `{"targeting":[{"attr":"tenant","op":"in","values":["a"]}]}`, "", ""},
		{"nothing", `{}`, "", ""},
		{"the default hash by name", `{"hash":"sha256"}`, "", ""},
		{"another hash while running", `{"hash":"growthbook2"}`, router.CodeInvalidState, "fixed while"},
		{"guardrails and back", `{"guardrails":[{"metric":"error"}],"ramp":null}`, "", ""},
		{"present state", `{"state":"running","key":"chat-v2","revision":1,"generation":1}`, "", ""},
		{"state", `{"state":"paused"}`, router.CodeRuntimeField, ":pause"},
		{"seed", `{"seed":"other"}`, router.CodeRuntimeField, ":reshuffle"},
		{"generation", `{"generation":2}`, router.CodeRuntimeField, ":reset-pins"},
		{"key", `{"key":"other"}`, router.CodeRuntimeField, "create"},
		{"revision", `{"revision":9}`, router.CodeRuntimeField, "If-Match"},
		{"allocation", `{"allocation":null,"seed":null}`, router.CodeRuntimeField, "weights"},
		{"winner", `{"winner":"canary"}`, router.CodeRuntimeField, ":promote"},
		{"unknown", `{"targetting":[]}`, "unknown_member", "targeting"},
		{"twice", `{"slice":null,"slice":[0,1]}`, "duplicate_member", "twice"},
		{"not an object", `[]`, "wrong_type", "object"},
		{"not JSON", `{`, "invalid_json", ""},
		{"unit while running", `{"unit":{"from":["session"]}}`, router.CodeInvalidState, "fixed while"},
		{"model while running", `{"model":"plain"}`, router.CodeInvalidState, "fixed while"},
		{"baseline while running", `{"baseline":"canary"}`, router.CodeInvalidState, "fixed while"},
		{"stickiness while running", `{"stickiness":"user"}`, router.CodeInvalidState, "fixed while"},
		{"smaller slice while running", `{"slice":[0,5000]}`, router.CodeInvalidState, "fixed while"},
		{"same unit written otherwise", `{"unit":{"from":["header:X-User-ID","user"]}}`, "", ""},
		{"variant gone", `{"variants":[{"name":"control","weight":10000,"upstream":"v1"}]}`, router.CodeInvalidState, "cannot be removed"},
		{"variant killed", `{"variants":[{"name":"control","weight":9000,"upstream":"v1"},{"name":"canary","weight":1000,"upstream":"v2","state":"killed"}]}`, router.CodeRuntimeField, ":kill"},
		{"variant without weight", `{"variants":[{"name":"control","weight":10000,"upstream":"v1"},{"name":"canary","upstream":"v2"}]}`, "required", "explicit"},
		{"weights 9900", `{"variants":[{"name":"control","weight":9000,"upstream":"v1"},{"name":"canary","weight":900,"upstream":"v2"}]}`, "weights_sum", "want 10000"},
		{"variant twice", `{"variants":[{"name":"control","weight":9000,"upstream":"v1"},{"name":"control","weight":1000,"upstream":"v2"},{"name":"canary","weight":1000,"upstream":"v2"}]}`, "duplicate_name", "twice"},
	}
	for _, tt := range running {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := doc(t)
			before := asJSON(t, d)
			err := router.PatchExperiment(d, 2, t0, "chat-v2", []byte(tt.patch))
			if codeOf(err) != tt.code {
				t.Fatalf("got %v, want %q", err, tt.code)
			}
			if err != nil && (!strings.Contains(err.Error(), tt.says) || asJSON(t, d) != before) {
				t.Errorf("got %v, want it to say %q and nothing changed", err, tt.says)
			}
		})
	}
}

func TestPatchMovesWeightsLikeSetWeights(t *testing.T) {
	t.Parallel()
	a, b := doc(t), doc(t)
	must(t, router.SetWeights(a, 2, t0, "chat-v2", map[string]int{"control": 7000, "canary": 3000}))
	// The order of a patch is not taken over: pins and the table go by number.
	must(t, router.PatchExperiment(b, 2, t0, "chat-v2", []byte(`{"variants":[
		{"name":"canary","weight":3000,"upstream":"v2","model":"Qwen3-8B-awq","version":"8b-awq-3","params":{"temperature":0.6},"prompt":{"system_prepend":"Be brief."},"fallback":"control"},
		{"name":"control","weight":7000,"upstream":"v1","model":"Qwen3-8B","version":"8b-1"}]}`)))
	if diff := cmp.Diff(a, b); diff != "" {
		t.Error(diff)
	}
}

func TestAddAndRemoveVariants(t *testing.T) {
	t.Parallel()
	d := doc(t)
	first := owners(t, &d.Experiments[0])
	must(t, router.PatchExperiment(d, 2, t0, "chat-v2", []byte(`{"variants":[
		{"name":"extra","weight":500,"upstream":"v2"},
		{"name":"control","weight":8500,"upstream":"v1"},
		{"name":"canary","weight":1000,"upstream":"v2"}]}`)))
	e := &d.Experiments[0]
	if names := fmt.Sprint(e.Variants[0].Name, e.Variants[1].Name, e.Variants[2].Name); names != "controlcanaryextra" {
		t.Fatalf("numbers are kept: %s", names)
	}
	if n := moved(first, owners(t, e)); n != 500 {
		t.Errorf("moved %d, want 500", n)
	}
	must(t, router.Rollback(d, 3, t0, "chat-v2"))
	must(t, router.PatchExperiment(d, 4, t0, "chat-v2", []byte(`{"variants":[
		{"name":"control","weight":9500,"upstream":"v1"},
		{"name":"extra","weight":500,"upstream":"v2"}]}`)))
	e = &d.Experiments[0]
	own := owners(t, e)
	counts := [2]int{}
	for _, o := range own {
		counts[o]++
	}
	if counts != [2]int{9500, 500} || len(e.Variants) != 2 {
		t.Errorf("got %v with %d variants", counts, len(e.Variants))
	}
	must(t, router.Start(d, 5, t0, "chat-v2"))
	compile(t, d)
}

func TestUpstreamsAndModels(t *testing.T) {
	t.Parallel()
	d := doc(t)
	u, err := router.ParseUpstream([]byte(`{"name": "v3", "endpoints": ["http://gpu3:8000/v1"]}`))
	must(t, err)
	must(t, router.CreateUpstream(d, 2, t0, *u))
	m, err := router.ParseModel([]byte(`{"name": "extra", "default": {"upstream": "v3"}}`))
	must(t, err)
	must(t, router.CreateModel(d, 3, t0, *m))
	must(t, router.PatchModel(d, 4, t0, "extra", []byte(`{"aliases":["ex"],"name":"extra","updated_revision":3}`)))
	must(t, router.PatchUpstream(d, 5, t0, "v3", []byte(`{"timeouts":{"connect":"1s"}}`)))
	for name, tt := range map[string]struct {
		err        error
		code, says string
	}{
		"create twice":         {router.CreateUpstream(d, 6, t0, *u), router.CodeExists, "exists"},
		"create model twice":   {router.CreateModel(d, 6, t0, *m), router.CodeExists, "exists"},
		"delete used":          {router.DeleteUpstream(d, 6, t0, "v1"), router.CodeInUse, "model/chat, model/plain, experiment/chat-v2 (variant control)"},
		"delete used model":    {router.DeleteModel(d, 6, t0, "chat"), router.CodeInUse, "experiment/chat-v2"},
		"delete by a model":    {router.DeleteUpstream(d, 6, t0, "v3"), router.CodeInUse, "model/extra"},
		"rename":               {router.PatchUpstream(d, 6, t0, "v3", []byte(`{"name":"v4"}`)), router.CodeRuntimeField, "name"},
		"patch unknown":        {router.PatchUpstream(d, 6, t0, "zz", []byte(`{}`)), router.CodeNotFound, "zz"},
		"patch unknown model":  {router.PatchModel(d, 6, t0, "zz", []byte(`{}`)), router.CodeNotFound, "zz"},
		"delete unknown":       {router.DeleteUpstream(d, 6, t0, "zz"), router.CodeNotFound, "zz"},
		"delete unknown model": {router.DeleteModel(d, 6, t0, "zz"), router.CodeNotFound, "zz"},
		"patch member":         {router.PatchUpstream(d, 6, t0, "v3", []byte(`{"endpoint":[]}`)), "unknown_member", "endpoints"},
		"patch to nothing":     {router.PatchUpstream(d, 6, t0, "v3", []byte(`{"endpoints":null}`)), "required", "endpoint"},
	} {
		if codeOf(tt.err) != tt.code || !strings.Contains(tt.err.Error(), tt.says) {
			t.Errorf("%s: got %v", name, tt.err)
		}
	}
	must(t, router.DeleteModel(d, 7, t0, "extra"))
	must(t, router.DeleteUpstream(d, 8, t0, "v3"))
	if diff := cmp.Diff([]string{"model/extra", "upstream/v3"}, d.Tombstones); diff != "" {
		t.Error(diff)
	}
}

func TestView(t *testing.T) {
	t.Parallel()
	d := doc(t)
	must(t, router.Kill(d, 2, t0, "chat-v2", "canary"))
	raw := asJSON(t, router.View(&d.Experiments[0], 0))
	for _, want := range []string{`"revision":2`, `"state":"killed"`, `"state":"live"`, `"weight":1000`, `"targeting":[]`, `"slice":null`, `"ramp":null`, `"stickiness":"bucket"`} {
		if !strings.Contains(raw, want) {
			t.Errorf("no %s in %s", want, raw)
		}
	}
	if strings.Contains(raw, "allocation") {
		t.Error("the table is not shown")
	}
	// What is read may be sent back.
	must(t, router.PatchExperiment(d, 3, t0, "chat-v2", []byte(raw)))
	if got := d.Experiments[0].UpdatedRevision; got != 2 {
		t.Errorf("sending a view back changed the experiment (revision %d)", got)
	}
}
