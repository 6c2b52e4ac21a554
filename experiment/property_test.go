package experiment_test

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"sluice/experiment"
)

// TestNeverServesKilledOrMasked: for any state of experiment, store and pins,
// a killed variant is never served, a masked one only as the baseline, after a
// rollback only the baseline is; and a decision is always whole.
func TestNeverServesKilledOrMasked(t *testing.T) {
	var tables []*experiment.Ownership
	for _, counts := range [][]int{{8000, 1000, 1000}, {0, 5000, 5000}, {2000, 2000, 2000}} {
		first := table(t, []int{5000, 5000, 0}, 1)
		next, _ := change(t, first, counts, 2)
		tables = append(tables, first, next)
	}
	rapid.Check(t, func(t *rapid.T) {
		states := []experiment.VariantState{experiment.Active, experiment.Masked, experiment.Killed, experiment.Draining, experiment.NotReady}
		def := experiment.Definition{
			Key: "p", Seed: "p-1", Variants: variants("a", "b", "c"), GenRevision: 1,
			State:      experiment.State(rapid.IntRange(0, int(experiment.Archived)).Draw(t, "state")),
			Stickiness: experiment.Stickiness(rapid.IntRange(0, 2).Draw(t, "stickiness")),
			Canary:     rapid.Bool().Draw(t, "canary"),
			Merge:      rapid.Bool().Draw(t, "merge"),
			Generation: uint16(rapid.IntRange(1, 3).Draw(t, "generation")),
			BlockBelow: uint16(rapid.IntRange(0, 3).Draw(t, "block_below")),
			Baseline:   rapid.IntRange(0, 2).Draw(t, "baseline"),
			Winner:     rapid.IntRange(0, 2).Draw(t, "winner"),
			Allocation: rapid.SampledFrom(tables).Draw(t, "table"),
			Fixed:      []experiment.Segment{{Variant: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "fixed"), Rules: []experiment.Rule{{Attr: "unit", Op: "percent", Values: []string{"10"}}}}},
		}
		for i := range def.Variants {
			def.Variants[i].State = rapid.SampledFrom(states).Draw(t, "variant state")
		}
		e, err := experiment.New(def)
		if err != nil {
			t.Skip("refused") // New's own tests say what
		}
		for range 50 {
			q := drawQuery(t)
			d := e.Decide(q)
			checkServed(t, &def, d)
			if d.NeedPin {
				if d.Variant != def.Baseline || q.Store != experiment.NotAsked {
					t.Fatalf("%+v", d)
				}
				q.Store = experiment.Store(rapid.IntRange(1, 2).Draw(t, "answer"))
				d = e.Decide(q)
				checkServed(t, &def, d)
			}
			checkWhole(t, &def, q, d)
		}
	})
}

func drawQuery(t *rapid.T) *experiment.Query {
	pin := func(name string) (experiment.Pin, bool) {
		return experiment.Pin{
			Variant: uint8(rapid.IntRange(0, 4).Draw(t, name)), Gen: uint16(rapid.IntRange(0, 4).Draw(t, name+" generation")),
			Flags: uint8(rapid.IntRange(0, 3).Draw(t, name+" flags")),
		}, rapid.Bool().Draw(t, name+" present")
	}
	q := &experiment.Query{
		HasUnit:      rapid.IntRange(0, 9).Draw(t, "has unit") > 0,
		Unit:         experiment.Unit{Type: "user", ID: fmt.Sprint(rapid.IntRange(0, 9999).Draw(t, "id"))},
		HasSession:   rapid.Bool().Draw(t, "has session"),
		Session:      experiment.Unit{Type: "session", ID: "s"},
		Override:     rapid.IntRange(-1, 3).Draw(t, "override"),
		Draw:         rapid.Uint64().Draw(t, "draw"),
		Store:        experiment.Store(rapid.IntRange(0, 2).Draw(t, "store")),
		Unsupervised: rapid.Bool().Draw(t, "unsupervised"),
		Revision:     int64(rapid.IntRange(0, 1<<40).Draw(t, "revision")),
	}
	q.Pin, q.HasPin = pin("pin")
	q.SessPin, q.HasSessPin = pin("session pin")
	return q
}

func checkServed(t *rapid.T, def *experiment.Definition, d experiment.Decision) {
	if d.Variant < 0 || d.Variant >= len(def.Variants) {
		t.Fatalf("variant %d: %+v", d.Variant, d)
	}
	state := def.Variants[d.Variant].State
	if state == experiment.Killed || state == experiment.Masked && d.Variant != def.Baseline {
		t.Fatalf("serves a variant in state %d: %+v", state, d)
	}
	if def.State == experiment.RolledBack && d.Variant != def.Baseline {
		t.Fatalf("serves %d after the rollback: %+v", d.Variant, d)
	}
}

// checkWhole tests what holds for every final decision.
func checkWhole(t *rapid.T, def *experiment.Definition, q *experiment.Query, d experiment.Decision) {
	if d.NeedPin || d.Reason == "" {
		t.Fatalf("not decided: %+v", d)
	}
	if d.Analysed && (!d.Exposure || !d.HasUnit || def.Stickiness == experiment.None) {
		t.Fatalf("analysed, but not exposed as a unit: %+v", d)
	}
	if d.WritePin != "" {
		if def.Stickiness != experiment.ByUser || !d.HasUnit || d.Pin.Gen != def.Generation || int(d.Pin.Variant) >= len(def.Variants) {
			t.Fatalf("writes a wrong pin: %+v", d)
		}
		if q.HasPin && q.Store == experiment.Up && q.Pin.Gen > def.Generation && d.WritePin != experiment.WriteAsync {
			t.Fatalf("writes over a pin of a newer generation: %+v", d)
		}
		if d.WritePin == experiment.WriteReplace && (!q.HasPin || !experiment.PutWins(&q.Pin, d.Pin, &q.Pin)) {
			t.Fatalf("replaces a pin that it did not read: %+v", d)
		}
	}
}

// TestReplicasAgree: an uncontested unit gets the same variant with the store
// up, down or not asked, and a unit that was pinned keeps its variant through
// later changes of weights.
func TestReplicasAgree(t *testing.T) {
	def := definition(t)
	def.Allocation = table(t, []int{5000, 5000, 0}, 10)
	before := compile(t, def)
	def.Allocation, _ = change(t, def.Allocation, []int{3000, 3000, 4000}, 11)
	after := compile(t, def)
	contested := 0
	for i := range 5000 {
		id := fmt.Sprint(i)
		first := before.Decide(user(id))
		if first.WritePin != experiment.WriteAsync {
			t.Fatalf("%s: %+v", id, first)
		}
		d := after.Decide(user(id))
		if !d.NeedPin {
			down := user(id)
			down.Store = experiment.Down
			if d.Variant != first.Variant || after.Decide(down).Variant != first.Variant {
				t.Fatalf("%s moved, though its bucket did not", id)
			}
			continue
		}
		contested++
		if d := after.Decide(pinned(id, first.Pin)); d.Variant != first.Variant || d.Reason != experiment.ReasonPin {
			t.Fatalf("%s: %+v, first %+v", id, d, first)
		}
	}
	if share := float64(contested) / 5000; share < 0.37 || share > 0.43 {
		t.Errorf("%.3f of the units need the store, want about the distance 0.4", share)
	}
}
