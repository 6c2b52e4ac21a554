package experiment_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/experiment"
)

// answer is what a test wants of a decision.
type answer struct {
	Variant            int
	Reason             experiment.Reason
	Exposure, Analysed bool
	WritePin           string
	Pin                experiment.Pin
	Note               string
}

func answerOf(d experiment.Decision) answer {
	return answer{d.Variant, d.Reason, d.Exposure, d.Analysed, d.WritePin, d.Pin, d.Note}
}

func want(t *testing.T, name string, d experiment.Decision, w answer) {
	t.Helper()
	if d.NeedPin {
		t.Errorf("%s: asks for the pin", name)
	}
	if diff := cmp.Diff(w, answerOf(d)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

const excluded = experiment.PinExcluded

// TestWeightZeroMasks follows a pinned unit through weight 0 and back.
func TestWeightZeroMasks(t *testing.T) {
	def := definition(t)
	own := experiment.Pin{Variant: 2, Gen: 1, Revision: 11}
	want(t, "before", compile(t, def).Decide(pinned("u0", own)),
		answer{Variant: 2, Reason: experiment.ReasonPin, Exposure: true, Analysed: true})

	before := def.Allocation
	def.Allocation, _ = change(t, before, []int{9000, 1000, 0}, 12)
	def.Variants[2].State = experiment.Masked
	masked := compile(t, def)
	flagged := own
	flagged.Flags |= excluded
	want(t, "masked, pinned", masked.Decide(pinned("u0", own)),
		answer{Reason: experiment.ReasonEvicted, Exposure: true, WritePin: experiment.WriteReplace, Pin: flagged})
	want(t, "masked, flagged already", masked.Decide(pinned("u0", flagged)),
		answer{Reason: experiment.ReasonEvicted, Exposure: true})
	if d := masked.Decide(user("u0")); !d.NeedPin || d.Variant != 0 {
		t.Errorf("masked: %+v; the pin must be asked for, on the baseline meanwhile", d)
	}
	q := user("u0")
	q.Override = 2
	q.Store = experiment.Up
	if d := masked.Decide(q); d.Variant == 2 || d.Note != "override_masked" {
		t.Errorf("override to a masked variant: %+v", d)
	}

	def.Allocation, _ = change(t, def.Allocation, []int{8000, 1000, 1000}, 13)
	def.Variants[2].State = experiment.Active
	again := compile(t, def)
	want(t, "back", again.Decide(pinned("u0", flagged)),
		answer{Variant: 2, Reason: experiment.ReasonPin, Exposure: true})
	for b := range experiment.Buckets {
		if o, _ := before.Owner(b); int(o) != again.Owner(b) {
			t.Fatalf("bucket %d did not come back to %d", b, o)
		}
	}
}

// TestBaselineAtWeightZero: it owns no bucket but serves who has no variant.
func TestBaselineAtWeightZero(t *testing.T) {
	def := definition(t)
	def.Allocation, _ = change(t, def.Allocation, []int{0, 5000, 5000}, 12)
	def.Variants[0].State = experiment.Masked
	def.Targeting = []experiment.Rule{{Attr: "tenant", Op: "not_in", Values: []string{"globex"}}}
	e := compile(t, def)
	for b := range experiment.Buckets {
		if e.Owner(b) == 0 {
			t.Fatalf("bucket %d is the baseline's", b)
		}
	}
	none := &experiment.Query{Override: -1}
	want(t, "no unit", e.Decide(none), answer{Reason: experiment.ReasonNoUnit})
	q := user("u1")
	q.Attrs = attrs{"tenant": "globex"}
	want(t, "targeting", e.Decide(q), answer{Reason: experiment.ReasonTargeting})
	pin := experiment.Pin{Variant: 0, Gen: 1}
	flagged := experiment.Pin{Variant: 0, Gen: 1, Flags: excluded}
	want(t, "pinned to the baseline", e.Decide(pinned("u0", pin)),
		answer{Reason: experiment.ReasonEvicted, Exposure: true, WritePin: experiment.WriteReplace, Pin: flagged})
}

// TestKillIsATombstone: the killed variant's units get the baseline, pins are
// replaced, and nobody else moves.
func TestKillIsATombstone(t *testing.T) {
	def := definition(t)
	live := compile(t, def)
	def.Variants[1].State = experiment.Killed
	killed := compile(t, def)
	for b := range experiment.Buckets {
		if live.Owner(b) != killed.Owner(b) || live.Contested(b) != killed.Contested(b) {
			t.Fatalf("bucket %d changed by the kill", b)
		}
	}
	base := experiment.Pin{Variant: 0, Gen: 1, Revision: 11, Flags: excluded}
	want(t, "no pin", killed.Decide(user("u1")), answer{Reason: experiment.ReasonKilled})
	want(t, "pinned", killed.Decide(pinned("u0", experiment.Pin{Variant: 1, Gen: 1})),
		answer{Reason: experiment.ReasonEvicted, Exposure: true, WritePin: experiment.WriteReplace, Pin: base})
	want(t, "after", killed.Decide(pinned("u0", base)),
		answer{Reason: experiment.ReasonPin, Exposure: true})
	want(t, "another's pin", killed.Decide(pinned("u0", experiment.Pin{Variant: 2, Gen: 1})),
		answer{Variant: 2, Reason: experiment.ReasonPin, Exposure: true, Analysed: true})

	def.State, def.Winner = experiment.Promoted, 1
	want(t, "promoted, then killed", compile(t, def).Decide(user("u1")), answer{Reason: experiment.ReasonKilled})
}

func TestRollback(t *testing.T) {
	def := definition(t)
	def.State = experiment.RolledBack
	def.Fixed = []experiment.Segment{{Variant: "b", Rules: []experiment.Rule{{Attr: "tenant", Op: "in", Values: []string{"qa"}}}}}
	e := compile(t, def)
	for i := range 100 {
		q := pinned(fmt.Sprint("u", i), experiment.Pin{Variant: 1, Gen: 1})
		q.Attrs = attrs{"tenant": "qa"}
		want(t, "rolled back", e.Decide(q), answer{Reason: experiment.ReasonRolledBack})
	}
	q := user("u1")
	q.Override = 0
	want(t, "override to the baseline", e.Decide(q), answer{Reason: experiment.ReasonOverride, Exposure: true})
	q.Override = 1
	want(t, "override", e.Decide(q), answer{Reason: experiment.ReasonRolledBack, Note: "override_killed"})
}

func TestStates(t *testing.T) {
	for state, reason := range map[experiment.State]experiment.Reason{
		experiment.Draft: experiment.ReasonNotRunning, experiment.Completed: experiment.ReasonNotRunning,
		experiment.Archived: experiment.ReasonNotRunning, experiment.RolledBack: experiment.ReasonRolledBack,
	} {
		def := definition(t)
		def.State, def.Allocation = state, nil // these need no table
		want(t, fmt.Sprint("state ", state), compile(t, def).Decide(user("u1")), answer{Reason: reason})
	}
}

// TestStickinessNone: drawn per request, with or without a unit.
func TestStickinessNone(t *testing.T) {
	def := definition(t)
	def.Canary, def.Stickiness = true, experiment.None
	def.Allocation = table(t, []int{5000, 2500, 2500}, 10)
	e := compile(t, def)
	counts := make([]int, 3)
	for bucket := range experiment.Buckets {
		q := &experiment.Query{Override: -1, Draw: (uint64(bucket)<<32/experiment.Buckets + 1) << 32}
		if bucket%2 == 0 {
			q.Unit, q.HasUnit = experiment.Unit{Type: "user", ID: "1"}, true
		}
		d := e.Decide(q)
		if d.Bucket != bucket || d.Reason != experiment.ReasonRandom || d.Analysed || !d.Exposure || d.WritePin != "" {
			t.Fatalf("draw for bucket %d: %+v", bucket, d)
		}
		counts[d.Variant]++
	}
	if diff := cmp.Diff([]int{5000, 2500, 2500}, counts); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
	// Without a unit the slice of the layer is drawn too, apart from the variant.
	def.LayerSeed, def.Slice = "layer-1", [2]int{0, 5000}
	e = compile(t, def)
	low := &experiment.Query{Override: -1, Draw: 1<<63 | 1}
	want(t, "in the slice", e.Decide(low), answer{Variant: 1, Reason: experiment.ReasonRandom, Exposure: true})
	high := &experiment.Query{Override: -1, Draw: 1<<63 | 1<<31}
	want(t, "outside the slice", e.Decide(high), answer{Reason: experiment.ReasonLayer})
}

func TestFixedSegments(t *testing.T) {
	def := definition(t)
	rule := func(v string) []experiment.Rule {
		return []experiment.Rule{{Attr: "tenant", Op: "in", Values: []string{v}}}
	}
	def.Targeting = []experiment.Rule{{Attr: "tenant", Op: "not_in", Values: []string{"qa", "legal"}}}
	def.Fixed = []experiment.Segment{{Name: "qa", Rules: rule("qa"), Variant: "c"}, {Rules: rule("legal"), Variant: "control"}}
	ask := func(e *experiment.Experiment, tenant string) experiment.Decision {
		q := pinned("u1", experiment.Pin{Variant: 1, Gen: 1})
		q.Attrs = attrs{"tenant": tenant}
		return e.Decide(q)
	}
	e := compile(t, def)
	want(t, "qa", ask(e, "qa"), answer{Variant: 2, Reason: experiment.ReasonFixed, Exposure: true})
	want(t, "legal", ask(e, "legal"), answer{Reason: experiment.ReasonFixed, Exposure: true})
	if d := ask(e, "acme"); d.Reason != experiment.ReasonBucket || d.Variant != 1 {
		t.Errorf("others: %+v", d)
	}
	q := &experiment.Query{Override: -1, Attrs: attrs{"tenant": "qa"}}
	want(t, "needs no unit", e.Decide(q), answer{Variant: 2, Reason: experiment.ReasonFixed, Exposure: true})
	for state, reason := range map[experiment.VariantState]experiment.Reason{
		experiment.Killed: experiment.ReasonKilled, experiment.Masked: experiment.ReasonEvicted,
		experiment.NotReady: experiment.ReasonNotReady,
	} {
		def.Variants[2].State = state
		want(t, string(reason), ask(compile(t, def), "qa"), answer{Reason: reason})
	}
}

func TestDraining(t *testing.T) {
	def := definition(t)
	def.Variants[1].State = experiment.Draining
	e := compile(t, def)
	if d := e.Decide(user("u1")); !d.NeedPin {
		t.Fatal("a draining owner must tell enrolled units from new ones")
	}
	up := user("u1")
	up.Store = experiment.Up
	want(t, "new", e.Decide(up), answer{Reason: experiment.ReasonEnrolmentPaused})
	want(t, "enrolled", e.Decide(pinned("u1", experiment.Pin{Variant: 1, Gen: 1})),
		answer{Variant: 1, Reason: experiment.ReasonPin, Exposure: true, Analysed: true})
	down := user("u1")
	down.Store = experiment.Down
	want(t, "store down", e.Decide(down), answer{Variant: 1, Reason: experiment.ReasonProvisional, Exposure: true})
}

// TestPaused: what the vectors leave open. A canary with pins goes on
// enrolling, and without pins the table stays.
func TestPaused(t *testing.T) {
	def := definition(t)
	def.State, def.Canary = experiment.Paused, true
	e := compile(t, def)
	want(t, "canary with pins, stable bucket", e.Decide(user("u1")), answer{
		Variant: 1, Reason: experiment.ReasonBucket, Exposure: true, Analysed: true,
		WritePin: experiment.WriteAsync, Pin: experiment.Pin{Variant: 1, Gen: 1, Revision: 11},
	})
	up := user("u0")
	up.Store = experiment.Up
	want(t, "canary with pins, new unit in a contested bucket", e.Decide(up), answer{
		Variant: 2, Reason: experiment.ReasonBucket, Exposure: true, Analysed: true,
		WritePin: experiment.WriteSync, Pin: experiment.Pin{Variant: 2, Gen: 1, Revision: 11},
	})
	def.Canary, def.Stickiness = false, experiment.ByBucket
	want(t, "a/b without pins", compile(t, def).Decide(user("u0")),
		answer{Variant: 2, Reason: experiment.ReasonBucket, Exposure: true, Analysed: true})
	def.Stickiness, def.Generation = experiment.ByUser, 2
	want(t, "a pin of an old generation does not enrol", compile(t, def).Decide(pinned("u1", experiment.Pin{Variant: 1, Gen: 1})),
		answer{Reason: experiment.ReasonEnrolmentPaused})
}

func TestMergeEdges(t *testing.T) {
	def := definition(t)
	def.Merge, def.Generation = true, 2
	merge := func(sess experiment.Pin, own *experiment.Pin) *experiment.Query {
		q := user("u2")
		q.Session, q.HasSession = experiment.Unit{Type: "session", Tenant: "acme", ID: "s1"}, true
		q.Store, q.SessPin, q.HasSessPin = experiment.Up, sess, true
		if own != nil {
			q.Pin, q.HasPin = *own, true
		}
		return q
	}
	e := compile(t, def)
	d := e.Decide(&experiment.Query{Override: -1, Unit: user("u2").Unit, HasUnit: true,
		Session: experiment.Unit{Type: "session", Tenant: "acme", ID: "s1"}, HasSession: true})
	if !d.NeedPin || !d.NeedSession || d.SessDigest != experiment.Hash("seed-exp1", experiment.Unit{Type: "session", Tenant: "acme", ID: "s1"}) {
		t.Fatalf("%+v; want both pins asked for", d)
	}
	sess := experiment.Pin{Variant: 1, Gen: 2}
	old := experiment.Pin{Variant: 2, Gen: 1}
	copied := experiment.Pin{Variant: 1, Gen: 2, Revision: 11, Flags: experiment.PinMerged}
	want(t, "own pin is of an old generation", e.Decide(merge(sess, &old)),
		answer{Variant: 1, Reason: experiment.ReasonMerged, Exposure: true, Analysed: true, WritePin: experiment.WriteReplace, Pin: copied})
	sess.Flags = excluded
	copied.Flags |= excluded
	want(t, "an excluded session", e.Decide(merge(sess, nil)),
		answer{Variant: 1, Reason: experiment.ReasonMerged, Exposure: true, WritePin: experiment.WriteSync, Pin: copied})
	want(t, "a session of a newer generation", e.Decide(merge(experiment.Pin{Variant: 1, Gen: 3}, nil)),
		answer{Reason: experiment.ReasonBucket, Exposure: true, Analysed: true})

	def.Variants[1].State = experiment.Masked
	want(t, "a masked session", compile(t, def).Decide(merge(sess, nil)),
		answer{Reason: experiment.ReasonEvicted, Exposure: true, WritePin: experiment.WriteSync, Pin: copied})
	def.Variants[1].State = experiment.Killed
	copied.Variant = 0
	want(t, "a killed session", compile(t, def).Decide(merge(sess, nil)),
		answer{Reason: experiment.ReasonEvicted, Exposure: true, WritePin: experiment.WriteSync, Pin: copied})
	def.Variants[1].State = experiment.NotReady
	want(t, "a session that is not ready", compile(t, def).Decide(merge(sess, nil)), answer{Reason: experiment.ReasonNotReady})

	def.BlockBelow = 2
	want(t, "a session of a blocked generation", compile(t, def).Decide(merge(old, nil)), answer{Reason: experiment.ReasonBlocked})
}

// TestSliceAndHoldout: two experiments on slices of one layer never share a
// unit, together they have everybody, and the holdout is in neither.
func TestSliceAndHoldout(t *testing.T) {
	def := definition(t)
	def.LayerSeed, def.HoldoutSeed, def.Holdout = "layer-chat", "holdout-1", 1000
	def.Slice = [2]int{0, 3000}
	a := compile(t, def)
	def.Key, def.Seed, def.Slice = "exp2", "seed-exp2", [2]int{3000, 10000}
	b := compile(t, def)
	count := map[string]int{}
	const n = 10000
	for i := range n {
		q := user(fmt.Sprint(i))
		q.Store = experiment.Up
		da, db := a.Decide(q), b.Decide(q)
		switch {
		case da.Reason == experiment.ReasonHoldout && db.Reason == experiment.ReasonHoldout:
			count["holdout"]++
			if da.Digest.Field != experiment.Hash("seed-exp1", q.Unit).Field || da.Bucket != -1 {
				t.Fatalf("the holdout's exposure does not name the unit: %+v", da)
			}
		case da.Reason == experiment.ReasonLayer && db.Reason != experiment.ReasonLayer:
			count["b"]++
		case db.Reason == experiment.ReasonLayer && da.Reason != experiment.ReasonLayer:
			count["a"]++
		default:
			t.Fatalf("unit %d: %s and %s", i, da.Reason, db.Reason)
		}
	}
	for name, share := range map[string]float64{"holdout": 0.1, "a": 0.27, "b": 0.63} {
		if got := float64(count[name]) / n; got < share-0.02 || got > share+0.02 {
			t.Errorf("%s has %.3f of the units, want about %.2f", name, got, share)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	long := strings.Repeat("x", 65)
	tests := []struct {
		name string
		edit func(*experiment.Definition)
		err  string
	}{
		{"key", func(d *experiment.Definition) { d.Key = "Exp 1" }, "the key"},
		{"seed", func(d *experiment.Definition) { d.Seed = "a:b" }, `seed "a:b"`},
		{"no seed", func(d *experiment.Definition) { d.Seed = "" }, "seed"},
		{"long seed", func(d *experiment.Definition) { d.Seed = long }, "seed"},
		{"imported seed", func(d *experiment.Definition) { d.Hash, d.Seed = "growthbook2", "" }, "imported"},
		{"hash", func(d *experiment.Definition) { d.Hash = "md5" }, `hash "md5"`},
		{"state", func(d *experiment.Definition) { d.State = 99 }, "unknown state 99"},
		{"stickiness", func(d *experiment.Definition) { d.Stickiness = 9 }, "unknown stickiness"},
		{"none in ab", func(d *experiment.Definition) { d.Stickiness = experiment.None }, "canaries only"},
		{"merge without pins", func(d *experiment.Definition) { d.Stickiness, d.Merge = experiment.ByBucket, true }, "need stickiness user"},
		{"block_below", func(d *experiment.Definition) { d.BlockBelow = 2 }, "above generation 1"},
		{"no variants", func(d *experiment.Definition) { d.Variants = nil }, "0 variants"},
		{"two of a name", func(d *experiment.Definition) { d.Variants[1].Name = "c" }, "two variants are named c"},
		{"variant name", func(d *experiment.Definition) { d.Variants[1].Name = "-b" }, `variant name "-b"`},
		{"variant state", func(d *experiment.Definition) { d.Variants[1].State = 77 }, "unknown state 77"},
		{"baseline", func(d *experiment.Definition) { d.Baseline = 3 }, "baseline is variant 3"},
		{"killed baseline", func(d *experiment.Definition) { d.Variants[0].State = experiment.Killed }, "baseline control is killed"},
		{"winner", func(d *experiment.Definition) { d.State = experiment.Promoted }, "winner is variant -1"},
		{"masked winner", func(d *experiment.Definition) {
			d.State, d.Winner, d.Variants[1].State = experiment.Promoted, 1, experiment.Masked
		}, "winner b has weight 0"},
		{"no table", func(d *experiment.Definition) { d.Allocation = nil }, "no allocation"},
		{"owner", func(d *experiment.Definition) { d.Variants = d.Variants[:2] }, "owned by variant 2"},
		{"layer seed", func(d *experiment.Definition) { d.LayerSeed = "A" }, "layer: seed"},
		{"layer has the same seed", func(d *experiment.Definition) { d.LayerSeed = d.Seed }, "own seed"},
		{"slice", func(d *experiment.Definition) { d.LayerSeed, d.Slice = "l", [2]int{5, 10001} }, "slice [5, 10001)"},
		{"backward slice", func(d *experiment.Definition) { d.LayerSeed, d.Slice = "l", [2]int{5, 4} }, "slice [5, 4)"},
		{"holdout", func(d *experiment.Definition) { d.Holdout = 10001 }, "holdout of 10001"},
		{"rule", func(d *experiment.Definition) { d.Targeting = []experiment.Rule{{Attr: "tenant", Op: "is"}} }, "targeting: rule 0"},
		{"segment", func(d *experiment.Definition) { d.Fixed = []experiment.Segment{{Variant: "zz"}} }, `no variant is named "zz"`},
		{"empty segment", func(d *experiment.Definition) { d.Fixed = []experiment.Segment{{Variant: "b"}} }, "would take everybody"},
	}
	for _, tt := range tests {
		def := definition(t)
		tt.edit(&def)
		_, err := experiment.New(def)
		checkErr(t, tt.name, err, tt.err)
	}
	_, err := experiment.New(experiment.Definition{})
	checkErr(t, "zero definition", err, "0 variants")
}
