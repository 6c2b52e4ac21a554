package router_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"sluice/experiment"
	"sluice/router"
)

// who finds user ids that the table gives to variant.
func who(t testing.TB, table *router.Table, variant string, n int) []string {
	t.Helper()
	var out []string
	for i := 0; len(out) < n && i < 100000; i++ {
		id := fmt.Sprint("user-", i)
		if p := route(t, table, query("chat", id)); p.Variant.Name == variant {
			out = append(out, id)
		}
	}
	if len(out) < n {
		t.Fatalf("no %d users of %s", n, variant)
	}
	return out
}

func TestModelLookup(t *testing.T) {
	t.Parallel()
	table := compile(t, doc(t))
	for requested, want := range map[string]string{
		"chat": "chat", "plain": "plain", "gpt-4o": "chat", "gpt-4o-mini": "chat", "gpt-3": "chat",
	} {
		if p := route(t, table, query(requested, "u")); p.Model.Name != want {
			t.Errorf("%s goes to %s, want %s", requested, p.Model.Name, want)
		}
	}
	longest := compile(t, doc(t, `{"name": "plain", "default"`, `{"name": "plain", "aliases": ["gpt-4o-*"], "default"`))
	for requested, want := range map[string]string{"gpt-4o": "chat", "gpt-4o-mini": "plain", "gpt-4": "chat"} {
		if p := route(t, longest, query(requested, "u")); p.Model.Name != want {
			t.Errorf("%s goes to %s, want %s", requested, p.Model.Name, want)
		}
	}
	for requested, code := range map[string]string{"": router.CodeInvalidRequest, "Chat": router.CodeModelNotFound, "gpt": router.CodeModelNotFound, strings.Repeat("x", 1<<20): router.CodeModelNotFound} {
		_, err := table.Route(t.Context(), query(requested, "u"), nil)
		var re *router.RouteError
		if !errors.As(err, &re) || re.Code != code || re.Param != "model" || len(re.Message) > 300 {
			t.Errorf("%.20q: got %v", requested, err)
		}
	}
	key := router.Key{ID: "k1", Models: []string{"plain"}}
	q := query("gpt-4o", "u")
	q.Key, q.AuthNone = &key, false
	_, err := table.Route(t.Context(), q, nil)
	var re *router.RouteError
	if !errors.As(err, &re) || re.Code != router.CodePermissionDenied {
		t.Errorf("a model outside the key's: %v", err)
	}
	if got := table.Models(&key); len(got) != 1 || got[0].Name != "plain" {
		t.Errorf("models of the key: %v", got)
	}
	if got := table.Models(nil); len(got) != 2 || got[0].Name != "chat" {
		t.Errorf("all models: %v", got)
	}
}

func TestRouteWithoutExperiment(t *testing.T) {
	t.Parallel()
	p := route(t, compile(t, doc(t)), query("plain", "u1", "x-sluice-variant", "canary"))
	if p.Experiment != nil || p.Decision.Reason != experiment.ReasonDefault || p.Decision.Bucket != -1 || p.Variant.Target.Model != "plain" || p.Variant.Name != "" {
		t.Errorf("got %+v", p)
	}
	if p.Variant.Price == nil || p.Note != "" {
		t.Errorf("price %v, note %q", p.Variant.Price, p.Note)
	}
}

func TestRouteByBucket(t *testing.T) {
	t.Parallel()
	d := doc(t)
	table := compile(t, d)
	own, canary := owners(t, &d.Experiments[0]), 0
	for i := range 20000 {
		q := query("chat", fmt.Sprint("u", i))
		p := route(t, table, q)
		if p.Decision.Reason != experiment.ReasonBucket || int(own[p.Decision.Bucket]) != p.Decision.Variant {
			t.Fatalf("user %d: %+v", i, p.Decision)
		}
		if p.Variant.Name == "canary" {
			canary++
		}
	}
	if canary < 1800 || canary > 2200 {
		t.Errorf("%d of 20000 in the canary, want about 2000", canary)
	}
	id := who(t, table, "canary", 1)[0]
	v := route(t, table, query("chat", id)).Variant
	if v.Target.Model != "Qwen3-8B-awq" || v.Version != "8b-awq-3" || v.Fallback == nil || v.Fallback.Name != "control" || v.Price != nil {
		t.Errorf("got %+v", v)
	}
	patch := v.Target.Patch
	if patch == nil || patch.SystemPrepend != "Be brief." || len(patch.Force) != 1 || string(patch.Force[0].Value) != "0.6" {
		t.Errorf("patch %+v", patch)
	}
	if tag, ok := v.Target.Tag.(*router.CompiledVariant); !ok || tag != v {
		t.Error("the target's tag is its variant")
	}
}

func TestRouteByState(t *testing.T) {
	t.Parallel()
	canary := who(t, compile(t, doc(t)), "canary", 1)[0]
	for state, want := range map[string]string{
		"draft": "control not_running", "completed": "control not_running", "running": "canary bucket",
		"paused": "canary bucket", "rolled_back": "control rolled_back", "promoted": "canary promoted",
	} {
		d := doc(t)
		if d.Experiments[0].State = state; state == "promoted" {
			d.Experiments[0].Winner = "canary"
		}
		p := route(t, compile(t, d), query("chat", canary))
		if got := p.Variant.Name + " " + string(p.Decision.Reason); got != want {
			t.Errorf("%s: got %s, want %s", state, got, want)
		}
	}
	d := doc(t)
	d.Experiments[0].State = "archived"
	if p := route(t, compile(t, d), query("chat", canary)); p.Experiment != nil || p.Decision.Reason != experiment.ReasonDefault {
		t.Errorf("archived is as if absent: %+v", p.Decision)
	}
	if p := route(t, compile(t, doc(t)), query("chat", "")); p.Variant.Name != "control" || p.Decision.Reason != experiment.ReasonNoUnit {
		t.Errorf("no unit: %+v", p.Decision)
	}
}

func TestOverrides(t *testing.T) {
	t.Parallel()
	names := []string{`"baseline": "control"`, `"baseline": "control", "override_headers": ["X-LLM-Variant"]`}
	d := doc(t, names...)
	table := compile(t, d)
	control := who(t, table, "control", 1)[0]
	killed := doc(t, names...)
	must(t, router.Kill(killed, 2, t0, "chat-v2", "canary"))
	masked := doc(t, names...)
	must(t, router.SetWeights(masked, 2, t0, "chat-v2", map[string]int{"control": 10000, "canary": 0}))
	rolled := doc(t, names...)
	must(t, router.Rollback(rolled, 2, t0, "chat-v2"))
	scoped := &router.Key{ID: "k1", Scopes: []string{"override", "identity"}}
	plain := &router.Key{ID: "k2", Scopes: []string{"identity"}}
	tests := []struct {
		name          string
		d             *router.Document
		key           *router.Key
		loopback      bool
		header, value string
		want, note    string
	}{
		{"key with the scope", d, scoped, false, "x-sluice-variant", "canary", "canary override", ""},
		{"by experiment", d, scoped, false, "x-sluice-variant", "chat-v2=canary", "canary override", ""},
		{"in a list", d, scoped, false, "x-sluice-variant", "other=b, chat-v2 = canary", "canary override", ""},
		{"more headers", d, scoped, false, "x-llm-variant", "canary", "canary override", ""},
		{"key without the scope", d, plain, false, "x-sluice-variant", "canary", "control bucket", "override_denied"},
		{"key without the scope on loopback", d, plain, true, "x-sluice-variant", "canary", "control bucket", "override_denied"},
		{"no auth on loopback", d, nil, true, "x-sluice-variant", "canary", "canary override", ""},
		{"no auth from elsewhere", d, nil, false, "x-sluice-variant", "canary", "control bucket", "override_denied"},
		{"unknown variant", d, scoped, false, "x-sluice-variant", "nope", "control bucket", "override_unknown_variant"},
		{"unknown experiment", d, scoped, false, "x-sluice-variant", "x=canary", "control bucket", "override_unknown_variant"},
		{"empty", d, scoped, false, "x-sluice-variant", "", "control bucket", "override_unknown_variant"},
		{"hostile", d, scoped, false, "x-sluice-variant", ",=,==canary,\x00,chat-v2=", "control bucket", "override_unknown_variant"},
		{"killed", killed, scoped, false, "x-sluice-variant", "canary", "control bucket", "override_masked"},
		{"masked", masked, scoped, false, "x-sluice-variant", "canary", "control bucket", "override_masked"},
		{"rolled back", rolled, scoped, false, "x-sluice-variant", "canary", "control rolled_back", "override_masked"},
		{"header nobody configured", d, scoped, false, "x-force-model", "canary", "control bucket", ""},
	}
	for _, tt := range tests {
		q := query("chat", control, tt.header, tt.value)
		q.Key, q.AuthNone, q.Loopback = tt.key, tt.key == nil, tt.loopback
		if tt.key != nil {
			// The same unit as without auth, which has no tenant.
			q.Key = &router.Key{ID: tt.key.ID, Scopes: tt.key.Scopes}
		}
		p := route(t, compile(t, tt.d), q)
		if got := p.Variant.Name + " " + string(p.Decision.Reason); got != tt.want || p.Note != tt.note {
			t.Errorf("%s: got %s note %q, want %s note %q", tt.name, got, p.Note, tt.want, tt.note)
		}
		if p.Decision.Reason == experiment.ReasonOverride && p.Decision.Analysed {
			t.Errorf("%s: an override is never analysed", tt.name)
		}
	}
	q := query("chat", control, "x-sluice-variant", "canary", "x-sluice-variant", "control")
	q.Loopback = true
	if p := route(t, table, q); p.Note != "override_unknown_variant" {
		t.Errorf("two values name no variant: %q %s", p.Note, p.Decision.Reason)
	}
}

func TestSlicesOfALayer(t *testing.T) {
	t.Parallel()
	two := `"baseline": "control", "slice": [0, 5000]`
	d := doc(t, `"baseline": "control"`, two, `"fallback": "control"}
     ]}`, `"fallback": "control"}
     ]}, {"key": "other", "model": "chat", "kind": "ab", "state": "running", "baseline": "a", "slice": [5000, 8000],
       "variants": [{"name": "a", "weight": 5000, "upstream": "v1"}, {"name": "b", "weight": 5000, "upstream": "v2"}]}`)
	table := compile(t, d)
	got := map[string]int{}
	for i := range 20000 {
		p := route(t, table, query("chat", fmt.Sprint("u", i)))
		if p.Experiment == nil {
			got["none "+string(p.Decision.Reason)]++
		} else {
			got[p.Experiment.Key+" "+p.Variant.Name]++
		}
	}
	for name, want := range map[string]int{"chat-v2 control": 9000, "chat-v2 canary": 1000, "other a": 3000, "other b": 3000, "none default": 4000} {
		if n := got[name]; n < want-300 || n > want+300 {
			t.Errorf("%s: %d, want about %d (%v)", name, n, want, got)
		}
	}
	alone := compile(t, doc(t, `"baseline": "control"`, two))
	layer := 0
	for i := range 2000 {
		if p := route(t, alone, query("chat", fmt.Sprint("u", i))); p.Decision.Reason == experiment.ReasonLayer && p.Variant.Name == "control" {
			layer++
		}
	}
	if layer < 900 || layer > 1100 {
		t.Errorf("%d of 2000 outside half a layer", layer)
	}
	// An override reaches an experiment whose slice the unit is not in.
	for i := range 100 {
		q := query("chat", fmt.Sprint("u", i), "x-sluice-variant", "other=b")
		q.Loopback = true
		if p := route(t, table, q); p.Experiment == nil || p.Experiment.Key != "other" || p.Variant.Name != "b" {
			t.Fatalf("user %d: %+v", i, p.Decision)
		}
	}
}

func TestStickinessNone(t *testing.T) {
	t.Parallel()
	table := compile(t, doc(t, `"baseline": "control"`, `"baseline": "control", "stickiness": "none"`, `"weight": 1000`, `"weight": 5000`, `"weight": 9000`, `"weight": 5000`))
	got := map[string]int{}
	for range 2000 {
		p := route(t, table, query("chat", "same"))
		if p.Decision.Reason != experiment.ReasonRandom || p.Decision.Analysed {
			t.Fatalf("got %+v", p.Decision)
		}
		got[p.Variant.Name]++
	}
	if got["canary"] < 800 || got["canary"] > 1200 {
		t.Errorf("got %v", got)
	}
}

// A decision on an uncontested bucket stays off the heap.
func TestRouteDoesNotAllocate(t *testing.T) {
	rule := `"targeting": [{"attr": "header:x-app", "op": "prefix", "values": ["ios"]}]`
	table := compile(t, doc(t, `"kind": "canary"`, `"kind": "ab"`, `"baseline": "control"`, `"baseline": "control", `+rule))
	q, ctx := query("chat", "user-12345", "x-app", "ios-17"), t.Context()
	var p router.Plan
	if n := testing.AllocsPerRun(200, func() { p, _ = table.Route(ctx, q, discard{}) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
	if p.Decision.Reason != experiment.ReasonBucket {
		t.Errorf("measured %s", p.Decision.Reason)
	}
}
