package experiment_test

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"sluice/experiment"
)

// moving is a canary whose table was 9000/1000/0 when the generation began and
// is 4000/5000/1000 now, with a unit of each way between its variants.
func moving(t testing.TB) (def experiment.Definition, moved, stayed *experiment.Query) {
	before := table(t, []int{9000, 1000, 0}, 10)
	def = definition(t)
	def.Canary, def.Stickiness = true, experiment.ByBucket
	def.Allocation, _ = change(t, before, []int{4000, 5000, 1000}, 11)
	for i := 0; moved == nil || stayed == nil; i++ {
		q := user(fmt.Sprint("v", i))
		b := experiment.Hash(def.Seed, q.Unit).Bucket
		was, _ := before.Owner(b)
		is, _ := def.Allocation.Owner(b)
		switch {
		case was == 0 && is == 1:
			moved = q
		case was == is:
			stayed = q
		}
	}
	return def, moved, stayed
}

func TestFinishByVariantState(t *testing.T) {
	def, moved, stayed := moving(t)
	began := experiment.Pin{Variant: 0, Gen: 1, Revision: 10}
	for _, c := range []struct {
		name   string
		change func(*experiment.Definition)
		q      *experiment.Query
		conv   experiment.Conversation
		want   string // variant reason, then need or write
	}{
		{"first turn of who moved", nil, moved, experiment.Conversation{}, "1 bucket write"},
		{"first turn of who stayed", nil, stayed, experiment.Conversation{}, "0 bucket write"},
		{"a later turn of who stayed reads nothing", nil, stayed, experiment.Conversation{Running: true}, "0 bucket write"},
		{"a later turn of who moved is looked up", nil, moved, experiment.Conversation{Running: true}, "1 bucket need"},
		{"it finishes", nil, moved, experiment.Conversation{Running: true, Store: experiment.Up, HasPin: true, Pin: began}, "0 conversation"},
		{"it began after the move", nil, moved, experiment.Conversation{Running: true, Store: experiment.Up, HasPin: true, Pin: experiment.Pin{Variant: 1, Gen: 1, Revision: 11}}, "1 bucket"},
		{"nobody knows where it began", nil, moved, experiment.Conversation{Running: true, Store: experiment.Up}, "1 bucket write"},
		{"the store is away", nil, moved, experiment.Conversation{Running: true, Store: experiment.Down}, "1 provisional"},
		{"the store is away, who stayed", nil, stayed, experiment.Conversation{Running: true, Store: experiment.Down}, "0 bucket write"},
		{"of an experiment of that name before", nil, moved, experiment.Conversation{Running: true, Store: experiment.Up, HasPin: true, Pin: experiment.Pin{Revision: 9, Gen: 1}}, "1 bucket write"},
		{"of a variant that is gone", nil, moved, experiment.Conversation{Running: true, Store: experiment.Up, HasPin: true, Pin: experiment.Pin{Variant: 7, Revision: 10}}, "1 bucket"},
		{"weight 0 beats it", func(d *experiment.Definition) { d.Variants[0].State = experiment.Masked }, moved,
			experiment.Conversation{Running: true, Store: experiment.Up, HasPin: true, Pin: began}, "1 bucket"},
		{"kill beats it", func(d *experiment.Definition) { d.Baseline, d.Variants[0].State = 2, experiment.Killed }, moved,
			experiment.Conversation{Running: true, Store: experiment.Up, HasPin: true, Pin: began}, "1 bucket"},
		{"rollback beats it", func(d *experiment.Definition) { d.State, d.Baseline = experiment.RolledBack, 1 }, moved,
			experiment.Conversation{Running: true, Store: experiment.Up, HasPin: true, Pin: began}, "1 rolled_back"},
		{"a variant that takes nobody new goes on", func(d *experiment.Definition) { d.Variants[0].State = experiment.Draining }, moved,
			experiment.Conversation{Running: true, Store: experiment.Up, HasPin: true, Pin: began}, "0 conversation"},
		{"not ready", func(d *experiment.Definition) { d.Baseline, d.Variants[0].State = 2, experiment.NotReady }, moved,
			experiment.Conversation{Running: true, Store: experiment.Up, HasPin: true, Pin: began}, "1 bucket"},
		{"targeting is told first", func(d *experiment.Definition) {
			d.Targeting = []experiment.Rule{{Attr: "tenant", Op: "in", Values: []string{"x"}}}
		}, moved, experiment.Conversation{Running: true, Store: experiment.Up, HasPin: true, Pin: experiment.Pin{Variant: 1, Revision: 10}}, "0 targeting"},
	} {
		t.Run(c.name, func(t *testing.T) {
			def := def
			def.Variants = variants("control", "b", "c")
			if c.change != nil {
				c.change(&def)
			}
			e := compile(t, def)
			d, need, write, keep := e.Finish(c.q, e.Decide(c.q), &c.conv)
			got := fmt.Sprint(d.Variant, " ", d.Reason)
			if need {
				got += " need"
			}
			if write {
				got += " write"
			}
			if got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
			if write && (int(keep.Variant) != d.Variant || keep.Revision != 11 || keep.Gen != 1) {
				t.Errorf("keeps %+v", keep)
			}
			if d.Reason == experiment.ReasonConversation && (d.Analysed || !d.Exposure) {
				t.Errorf("%+v: served under the experiment, but of neither arm", d)
			}
		})
	}
}

// A reshuffle begins a generation in which no bucket is contested, and yet
// everybody may have moved.
func TestFinishOverAReshuffle(t *testing.T) {
	def := definition(t)
	def.Seed, def.Generation, def.GenRevision, def.RunsFrom = "other", 2, 20, 10
	def.Allocation = table(t, []int{5000, 5000, 0}, 20)
	e := compile(t, def)
	q := user("u1")
	d := e.Decide(q)
	conv := experiment.Conversation{Running: true}
	if _, need, _, _ := e.Finish(q, d, &conv); !need {
		t.Fatal("nobody looks where it began")
	}
	conv.Store, conv.HasPin, conv.Pin = experiment.Up, true, experiment.Pin{Variant: uint8(1 - d.Variant), Gen: 1, Revision: 10}
	if got, _, _, _ := e.Finish(q, d, &conv); got.Variant != 1-d.Variant || got.Reason != experiment.ReasonConversation {
		t.Errorf("%+v", got)
	}
	def.RunsFrom = 0 // started anew
	if got, need, write, _ := compile(t, def).Finish(q, d, &conv); need || !write || got.Variant != d.Variant {
		t.Errorf("%+v: a conversation of before counts", got)
	}
}

func TestConversationDigest(t *testing.T) {
	a, b := user("a").Unit, user("b").Unit
	id := [16]byte{1}
	d := experiment.ConversationDigest(a, id)
	if d == experiment.ConversationDigest(b, id) || d == experiment.ConversationDigest(a, [16]byte{2}) || d != experiment.ConversationDigest(a, id) {
		t.Error("it does not depend on unit and conversation alone")
	}
	if n := testing.AllocsPerRun(100, func() { experiment.ConversationDigest(a, id) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Over any changes of weights, states and generations: a conversation that is
// known stays where it began unless that variant may not serve, and one that is
// not known goes where its unit goes.
func TestFinishKeepsConversations(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		own, err := experiment.NewOwnership([]int{5000, 5000, 0}, []int{5000, 5000, 0}, 1)
		if err != nil {
			t.Fatal(err)
		}
		def := experiment.Definition{Key: "p", Seed: "p", Canary: true, State: experiment.Running, Generation: 1, GenRevision: 1,
			Variants: variants("a", "b", "c"), Winner: -1, Allocation: own}
		q := &experiment.Query{Unit: experiment.Unit{Type: "user", ID: fmt.Sprint(rapid.IntRange(0, 1e6).Draw(t, "unit"))}, HasUnit: true, Override: -1, Revision: 1}
		e, err := experiment.New(def)
		if err != nil {
			t.Fatal(err)
		}
		first, _, write, pin := e.Finish(q, e.Decide(q), &experiment.Conversation{})
		if !write {
			t.Fatal("the first turn is not kept")
		}
		for revision := int64(2); revision < 8; revision++ {
			a := rapid.IntRange(1, 9998).Draw(t, "a")
			b := rapid.IntRange(1, 9999-a).Draw(t, "b")
			if def.Allocation, _, err = def.Allocation.Change([]int{a, b, 10000 - a - b}, revision); err != nil {
				t.Fatal(err)
			}
			if rapid.IntRange(0, 3).Draw(t, "new generation") == 0 {
				def.RunsFrom, def.Generation, def.GenRevision, def.Seed = 1, def.Generation+1, revision, fmt.Sprint("p", revision)
			}
			state := rapid.SampledFrom([]experiment.VariantState{experiment.Active, experiment.Active, experiment.Killed, experiment.Masked, experiment.NotReady}).Draw(t, "state")
			def.Variants[first.Variant].State = state
			def.Baseline = (first.Variant + 1) % 3
			if e, err = experiment.New(def); err != nil {
				t.Fatal(err)
			}
			q.Revision = revision
			plain := e.Decide(q)
			conv := experiment.Conversation{Running: true}
			d, need, _, _ := e.Finish(q, plain, &conv)
			if need {
				conv.Store, conv.HasPin, conv.Pin = experiment.Up, true, pin
				d, _, _, _ = e.Finish(q, plain, &conv)
			}
			switch {
			case state == experiment.Active && d.Variant != first.Variant && plain.Reason == experiment.ReasonBucket:
				t.Fatalf("it moved from %d to %+v", first.Variant, d)
			case state != experiment.Active && d.Variant == first.Variant:
				t.Fatalf("it is served by a variant in state %d", state)
			}
		}
	})
}

func TestHeavyUnitsWait(t *testing.T) {
	def := definition(t)
	def.Canary, def.Stickiness = true, experiment.ByBucket
	heavy, light := user("u1"), user("u0") // of b and c
	base := user("")
	for i := 0; ; i++ {
		base = user(fmt.Sprint("h", i))
		if o, _ := def.Allocation.Owner(experiment.Hash(def.Seed, base.Unit).Bucket); o == 0 {
			break
		}
	}
	def.Ramping = 1
	for _, q := range []*experiment.Query{heavy, base} {
		def.Heavy = append(def.Heavy, experiment.Hash(def.Seed, q.Unit).Field)
	}
	e := compile(t, def)
	d := e.Decide(heavy)
	if d.Variant != 0 || d.Reason != experiment.ReasonHeavy || d.Exposure || d.Analysed || d.WritePin != "" || d.Bucket != 5086 {
		t.Errorf("heavy: %+v", d)
	}
	if d := e.Decide(base); d.Variant != 0 || d.Reason != experiment.ReasonBucket || d.Analysed {
		t.Errorf("heavy, of the baseline: %+v; it is in neither arm", d)
	}
	if d := e.Decide(light); d.Variant != 2 || !d.Analysed {
		t.Errorf("light: %+v", d)
	}
	for _, q := range []*experiment.Query{heavy, base, light} {
		if n := testing.AllocsPerRun(100, func() { e.Decide(q) }); n != 0 {
			t.Errorf("%v allocations", n)
		}
	}
	// A pin says that it was let in: it stays.
	def.Stickiness = experiment.ByUser
	def.Allocation, _ = change(t, table(t, []int{10000, 0, 0}, 10), []int{5000, 5000, 0}, 11)
	e = compile(t, def)
	for i := 0; ; i++ {
		q := user(fmt.Sprint("p", i))
		if o, _ := def.Allocation.Owner(experiment.Hash(def.Seed, q.Unit).Bucket); o != 1 {
			continue
		}
		def.Heavy = [][8]byte{experiment.Hash(def.Seed, q.Unit).Field}
		e = compile(t, def)
		q.Store = experiment.Up
		if d := e.Decide(q); d.Variant != 0 || d.Reason != experiment.ReasonHeavy || d.WritePin != "" {
			t.Errorf("no pin: %+v", d)
		}
		q.HasPin, q.Pin = true, experiment.Pin{Variant: 1, Gen: 1}
		if d := e.Decide(q); d.Variant != 1 || d.Reason != experiment.ReasonPin || d.Analysed {
			t.Errorf("pinned: %+v", d)
		}
		break
	}
}
