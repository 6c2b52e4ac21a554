package router_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"sluice/experiment"
	"sluice/router"
)

// pins is a store in memory; fail makes it answer with an error.
type pins struct {
	mu    sync.Mutex
	m     map[[8]byte]experiment.Pin
	fail  error
	later int
	gets  int
	talks map[[8]byte]experiment.Pin // of conversations
	asked int                        // for one
	race  *experiment.Pin            // what a rival wrote just before the first Put
}

func (p *pins) Get(ctx context.Context, _ string, field [8]byte, _ uint16) (experiment.Pin, bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gets++
	if _, ok := ctx.Deadline(); !ok {
		return experiment.Pin{}, false, errors.New("no deadline")
	}
	pin, ok := p.m[field]
	return pin, ok, p.fail
}

func (p *pins) Put(_ context.Context, _ string, field [8]byte, _ uint16, pin experiment.Pin, expect *experiment.Pin) (experiment.Pin, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fail != nil {
		return experiment.Pin{}, p.fail
	}
	if p.race != nil {
		p.m[field], p.race = *p.race, nil
	}
	var stored *experiment.Pin
	if s, ok := p.m[field]; ok {
		stored = &s
	}
	if experiment.PutWins(stored, pin, expect) {
		p.m[field] = pin
	}
	return p.m[field], nil
}

func (p *pins) PutLater(_ string, field [8]byte, _ uint16, pin experiment.Pin) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.later++
	if _, ok := p.m[field]; !ok {
		p.m[field] = pin
	}
}

func (p *pins) GetConversation(ctx context.Context, exp string, field [8]byte, shard uint16) (experiment.Pin, bool, error) {
	if p.fail != nil {
		return experiment.Pin{}, false, p.fail
	}
	p.asked++
	pin, ok := p.talks[field]
	return pin, ok, nil
}

func (p *pins) PutConversation(_ string, field [8]byte, _ uint16, pin experiment.Pin) {
	if p.fail == nil {
		p.talks[field] = pin
	}
}

func newPins() *pins {
	return &pins{m: map[[8]byte]experiment.Pin{}, talks: map[[8]byte]experiment.Pin{}}
}

func TestPins(t *testing.T) {
	t.Parallel()
	ab := []string{`"kind": "canary"`, `"kind": "ab"`, `"fallback": "control"`, `"fallback": ""`}
	d := doc(t, ab...)
	before := compile(t, d)
	must(t, router.SetWeights(d, 2, t0, "chat-v2", map[string]int{"control": 5000, "canary": 5000}))
	after := compile(t, d)
	// A user whose bucket goes from control to canary.
	var mover, stayer string
	for i := 0; mover == "" || stayer == ""; i++ {
		id := fmt.Sprint("user-", i)
		a, b := route(t, before, query("chat", id)), route(t, after, query("chat", id))
		switch {
		case a.Variant.Name == "control" && b.Decision.Reason == experiment.ReasonProvisional:
			mover = id
		case a.Variant.Name == "control" && b.Variant.Name == "control":
			stayer = id
		}
	}
	do := func(table *router.Table, user string, p router.Pins) string {
		t.Helper()
		plan, err := table.Route(t.Context(), query("chat", user), p)
		must(t, err)
		return plan.Variant.Name + " " + string(plan.Decision.Reason)
	}
	store := newPins()
	check := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s: got %s, want %s", what, got, want)
		}
	}
	check("first seen before the change", do(before, mover, store), "control bucket")
	check("keeps its variant after it", do(after, mover, store), "control pin")
	check("a stable bucket", do(after, stayer, store), "control bucket")
	if store.later != 2 || store.gets != 1 {
		t.Errorf("%d background writes and %d reads, want 2 and 1: stable buckets are not read", store.later, store.gets)
	}
	check("new in a contested bucket", do(after, mover, newPins()), "canary bucket")
	check("without a store", do(after, mover, nil), "canary provisional")
	check("with a store that fails", do(after, mover, &pins{fail: errors.New("down")}), "canary provisional")
	check("a stable bucket does not care", do(after, stayer, &pins{fail: errors.New("down"), m: map[[8]byte]experiment.Pin{}}), "control bucket")
	rival := newPins()
	rival.race = &experiment.Pin{Variant: 0, Gen: 1, Revision: 1}
	check("the loser of a race serves the winner", do(after, mover, rival), "control pin")
	must(t, router.Kill(d, 3, t0, "chat-v2", "canary"))
	pinned := newPins()
	check("pinned to what will be killed", do(after, mover, pinned), "canary bucket")
	check("kill beats the pin", do(compile(t, d), mover, pinned), "control evicted")
	for _, pin := range pinned.m {
		if pin.Variant != 0 || pin.Flags&experiment.PinExcluded == 0 {
			t.Errorf("the pin is replaced: %+v", pin)
		}
	}
}

func TestRecheck(t *testing.T) {
	t.Parallel()
	d := doc(t)
	old := compile(t, d)
	user := who(t, old, "canary", 1)[0]
	plan := route(t, old, query("chat", user))
	plain := route(t, old, query("plain", user))
	edits := []struct {
		name string
		edit func(d *router.Document) error
		want string
	}{
		{"the same", func(*router.Document) error { return nil }, "canary "},
		{"other weights", func(d *router.Document) error {
			return router.SetWeights(d, 2, t0, "chat-v2", map[string]int{"control": 9999, "canary": 1})
		}, "canary "},
		{"killed", func(d *router.Document) error { return router.Kill(d, 2, t0, "chat-v2", "canary") }, "control killed"},
		{"rolled back", func(d *router.Document) error { return router.Rollback(d, 2, t0, "chat-v2") }, "control killed"},
		{"finished", func(d *router.Document) error { return router.Finish(d, 2, t0, "chat-v2") }, "control not_running"},
		{"promoted another", func(d *router.Document) error { return router.Promote(d, 2, t0, "chat-v2", "control") }, "canary "},
		{"weight 0", func(d *router.Document) error {
			return router.SetWeights(d, 2, t0, "chat-v2", map[string]int{"control": 10000, "canary": 0})
		}, "control evicted"},
		{"deleted", func(d *router.Document) error {
			must(t, router.Rollback(d, 2, t0, "chat-v2"))
			return router.DeleteExperiment(d, 3, t0, "chat-v2")
		}, " killed"},
	}
	for _, tt := range edits {
		next := d.Clone()
		must(t, tt.edit(next))
		table := compile(t, next)
		v, reason, again := router.Recheck(table, &plan)
		if got := v.Name + " " + reason; got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
		switch {
		case again == nil:
			if v.Name != "canary" && v.Name != "" {
				t.Errorf("%s: no new decision", tt.name)
			}
		case again.Variant != 0 || again.Bucket != plan.Decision.Bucket || again.Digest != plan.Decision.Digest:
			t.Errorf("%s: %+v", tt.name, again)
		case reason == router.RecheckEvicted:
			if again.Reason != experiment.ReasonBucket || !again.Analysed {
				t.Errorf("%s: the new owner of the bucket serves by %q, analysed %v", tt.name, again.Reason, again.Analysed)
			}
		case string(again.Reason) != reason || again.Analysed || again.Exposure:
			t.Errorf("%s: %+v", tt.name, again)
		}
		if v, reason, again := router.Recheck(table, &plain); reason != "" || v.Target.Model != "plain" || again != nil {
			t.Errorf("%s: without experiment %v %s", tt.name, v, reason)
		}
	}
	if v, reason, _ := router.Recheck(old, &plan); v != plan.Variant || reason != "" {
		t.Error("on the table that decided nothing changes")
	}
	tripped := trip(t, d.Clone(), "chat-v2", "canary")
	if v, reason, again := router.Recheck(tripped, &plan); v.Name != "control" || reason != router.RecheckNotReady || again == nil || again.Reason != experiment.ReasonNotReady || again.Analysed {
		t.Errorf("tripped here: %s %s %+v", v.Name, reason, again)
	}
	forced := plan
	forced.Decision.Reason = experiment.ReasonOverride
	if v, reason, _ := router.Recheck(tripped, &forced); v.Name != "canary" || reason != "" {
		t.Errorf("tripped here, but forced: %s %s", v.Name, reason)
	}
	gone := parse(t, `{"upstreams": [{"name": "v1", "endpoints": ["http://gpu1:8000/v1"]}], "models": [{"name": "x", "default": {"upstream": "v1"}}]}`)
	must(t, router.Normalize(gone, nil, 9, t0, nil))
	if v, _, _ := router.Recheck(compile(t, gone), &plan); v == nil || v.Name != "control" {
		t.Errorf("model and experiment gone: %v", v)
	}
}

func TestRecheckDecidesAgainAmongThree(t *testing.T) {
	t.Parallel()
	three := []string{`{"name": "canary", "weight": 1000`, `{"name": "b", "weight": 4000, "upstream": "v2"}, {"name": "canary", "weight": 1000`, `"weight": 9000`, `"weight": 5000`}
	d := doc(t, three...)
	old := compile(t, d)
	next := d.Clone()
	must(t, router.SetWeights(next, 2, t0, "chat-v2", map[string]int{"control": 1000, "b": 9000, "canary": 0}))
	table := compile(t, next)
	for _, user := range who(t, old, "canary", 20) {
		plan := route(t, old, query("chat", user))
		v, reason, again := router.Recheck(table, &plan)
		want := route(t, table, query("chat", user))
		if v != want.Variant || reason != router.RecheckEvicted {
			t.Fatalf("%s: got %s %s, the table says %s", user, v.Name, reason, want.Variant.Name)
		}
		if again.Reason != want.Decision.Reason || again.Bucket != want.Decision.Bucket || again.Variant != want.Decision.Variant {
			t.Fatalf("%s: %+v, the table says %+v", user, again, want.Decision)
		}
	}
	// A pinned unit gets the baseline instead.
	ab := doc(t, append(three, `"kind": "canary"`, `"kind": "ab"`)...)
	old = compile(t, ab)
	plan := route(t, old, query("chat", who(t, old, "canary", 1)[0]))
	must(t, router.SetWeights(ab, 2, t0, "chat-v2", map[string]int{"control": 1000, "b": 9000, "canary": 0}))
	v, reason, again := router.Recheck(compile(t, ab), &plan)
	if v.Name != "control" || reason != router.RecheckEvicted || again.Reason != experiment.ReasonEvicted || again.Analysed {
		t.Errorf("pinned: %s %s %+v", v.Name, reason, again)
	}
}

// A request that is drawn for itself goes to the new owner of the bucket drawn.
func TestRecheckDraws(t *testing.T) {
	t.Parallel()
	d := doc(t, `"kind": "canary"`, `"kind": "canary", "stickiness": "none"`)
	old := compile(t, d)
	must(t, router.SetWeights(d, 2, t0, "chat-v2", map[string]int{"control": 10000, "canary": 0}))
	table := compile(t, d)
	for moved := 0; moved < 20; {
		plan := route(t, old, query("chat", "u"))
		if plan.Variant.Name != "canary" {
			continue
		}
		moved++
		v, _, again := router.Recheck(table, &plan)
		if v.Name != "control" || again.Reason != experiment.ReasonRandom || again.Bucket != plan.Decision.Bucket {
			t.Fatalf("%s %+v, drawn was %d", v.Name, again, plan.Decision.Bucket)
		}
	}
}

func TestFallbackTargetsAreAlive(t *testing.T) {
	t.Parallel()
	back := []string{`"fallback": "control"`, `"version": "x"`, `"version": "8b-awq-3",`, ``, `"version": "8b-1"`, `"version": "8b-1", "fallback": "canary"`}
	d := doc(t, back...)
	user := who(t, compile(t, d), "control", 1)[0]
	fallback := func(d *router.Document) string {
		p := route(t, compile(t, d), query("chat", user))
		if p.Variant.Fallback == nil {
			return ""
		}
		return p.Variant.Fallback.Name
	}
	if got := fallback(d); got != "canary" {
		t.Fatalf("got %q", got)
	}
	for name, edit := range map[string]func(d *router.Document) error{
		"killed": func(d *router.Document) error { return router.Kill(d, 2, t0, "chat-v2", "canary") },
		"masked": func(d *router.Document) error {
			return router.SetWeights(d, 2, t0, "chat-v2", map[string]int{"control": 10000, "canary": 0})
		},
		"rolled back": func(d *router.Document) error { return router.Rollback(d, 2, t0, "chat-v2") },
		"finished":    func(d *router.Document) error { return router.Finish(d, 2, t0, "chat-v2") },
	} {
		next := d.Clone()
		must(t, edit(next))
		if got := fallback(next); got != "" {
			t.Errorf("%s: falls back to %q", name, got)
		}
	}
	// The baseline stays a fallback target at weight 0.
	zero := doc(t)
	must(t, router.SetWeights(zero, 2, t0, "chat-v2", map[string]int{"control": 0, "canary": 10000}))
	if p := route(t, compile(t, zero), query("chat", user)); p.Variant.Name != "canary" || p.Variant.Fallback == nil {
		t.Errorf("baseline at weight 0: %s %v", p.Variant.Name, p.Variant.Fallback)
	}
}

// discard is a store that takes pins and knows none.
type discard struct{}

func (discard) Get(context.Context, string, [8]byte, uint16) (experiment.Pin, bool, error) {
	return experiment.Pin{}, false, nil
}

func (discard) Put(_ context.Context, _ string, _ [8]byte, _ uint16, pin experiment.Pin, _ *experiment.Pin) (experiment.Pin, error) {
	return pin, nil
}

func (discard) PutLater(string, [8]byte, uint16, experiment.Pin) {}
func (discard) GetConversation(context.Context, string, [8]byte, uint16) (experiment.Pin, bool, error) {
	return experiment.Pin{}, false, nil
}
func (discard) PutConversation(string, [8]byte, uint16, experiment.Pin) {}
