package router_test

import (
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

func TestStopWritesTheKillSet(t *testing.T) {
	t.Parallel()
	cutting := func(variant string) router.KillEntry {
		return router.KillEntry{Experiment: "chat-v2", Generation: 1, Variant: variant, CutStreams: true}
	}
	entry := func(generation int, variant string) router.KillEntry {
		return router.KillEntry{Experiment: "chat-v2", Generation: generation, Variant: variant}
	}
	rolledBack := func(d *router.Document) { must(t, router.Rollback(d, 2, t0, "chat-v2")) }
	for _, tt := range []struct {
		name  string
		prior func(d *router.Document)
		k     router.KillEntry
		want  string // state of the experiment and of the canary; "" for no change
	}{
		{"kill", nil, entry(1, "canary"), "running killed"},
		{"rollback", nil, entry(1, "*"), "rolled_back "},
		{"kill after the rollback", rolledBack, entry(1, "canary"), "rolled_back killed"},
		{"rollback again", rolledBack, entry(1, "*"), ""},
		{"kill again", func(d *router.Document) { must(t, router.Kill(d, 2, t0, "chat-v2", "canary")) }, entry(1, "canary"), ""},
		{"a kill that cuts after one that does not", func(d *router.Document) { must(t, router.Kill(d, 2, t0, "chat-v2", "canary")) }, cutting("canary"), "running killed"},
		{"a rollback that cuts after one that does not", rolledBack, cutting("*"), "rolled_back "},
		{"another generation", nil, entry(2, "canary"), ""},
		{"the baseline", nil, entry(1, "control"), ""},
		{"unknown variant", nil, entry(1, "x"), ""},
		{"unknown experiment", nil, router.KillEntry{Experiment: "x", Generation: 1, Variant: "*"}, ""},
		{"finished", func(d *router.Document) { must(t, router.Finish(d, 2, t0, "chat-v2")) }, entry(1, "canary"), ""},
	} {
		d := doc(t)
		if tt.prior != nil {
			tt.prior(d)
		}
		before := d.Clone()
		if lacks := d.Lacks(tt.k); lacks != (tt.want != "") {
			t.Errorf("%s: lacks %v", tt.name, lacks)
		}
		must(t, router.Stop(d, 9, t0, tt.k))
		if tt.want == "" {
			if diff := cmp.Diff(before, d); diff != "" {
				t.Errorf("%s: changed (-before +after):\n%s", tt.name, diff)
			}
			continue
		}
		e := d.Experiment("chat-v2")
		if got := e.State + " " + e.Variants[1].State; got != tt.want || d.Revision != 9 || d.Lacks(tt.k) {
			t.Errorf("%s: %q at revision %d", tt.name, got, d.Revision)
		}
	}
}
