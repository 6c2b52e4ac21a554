package router_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/experiment"
	"sluice/router"
	"sluice/upstream/wire"
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

func TestUnitSources(t *testing.T) {
	t.Parallel()
	const unit = `"unit": {"from": ["header:x-user-id", "body:user"]},`
	body := func(user, safety, meta, session string) *wire.Head {
		return &wire.Head{User: user, SafetyIdentifier: safety, MetadataUserID: meta, MetadataSessionID: session}
	}
	plainKey := &router.Key{ID: "k1", Tenant: "acme"}
	idKey := &router.Key{ID: "k2", Tenant: "acme", Scopes: []string{"identity"}}
	userKey := &router.Key{ID: "k3", Tenant: "acme", User: "bound"}
	oddKey := &router.Key{ID: "k4", Tenant: "a c/m:e"}
	long := strings.Repeat("x", 513)
	tests := []struct {
		name    string
		from    string // JSON list, "" = the default chain
		key     *router.Key
		head    *wire.Head
		headers []string
		want    string // type:tenant:id, "" = no unit
	}{
		{"header without auth", "", nil, body("b", "", "", ""), []string{"x-user-id", "h"}, "user::h"},
		{"header of a key without identity", "", plainKey, body("b", "", "", ""), []string{"x-user-id", "h"}, "user:acme.k1:b"},
		{"header of a key with identity", "", idKey, body("b", "", "", ""), []string{"x-user-id", "h"}, "user:acme:h"},
		{"body of a key with identity", "", idKey, body("b", "", "", ""), nil, "user:acme:b"},
		{"key-bound user first", "", userKey, body("b", "s", "", ""), []string{"x-user-id", "h"}, "user:acme:bound"},
		{"safety identifier before user", "", nil, body("u", "s", "m", "x"), nil, "user::s"},
		{"user before metadata", "", nil, body("u", "", "m", "x"), nil, "user::u"},
		{"metadata before session", "", nil, body("", "", "m", "x"), nil, "user::m"},
		{"session of metadata", "", nil, body("", "", "", "x"), nil, "session::x"},
		{"session header first", "", plainKey, body("", "", "", "x"), []string{"x-session-id", "h"}, "session:acme:h"},
		{"nothing", "", nil, body("", "", "", ""), nil, ""},
		{"no head", "", nil, nil, nil, ""},
		{"key only when asked", "", plainKey, body("", "", "", ""), nil, ""},
		{"key", `["key"]`, plainKey, body("u", "", "", ""), nil, "key:acme:k1"},
		{"key without auth", `["key"]`, nil, body("u", "", "", ""), nil, ""},
		{"listed only", `["session"]`, nil, body("u", "s", "m", ""), []string{"x-user-id", "h"}, ""},
		{"order as listed", `["user", "header:x-user-id"]`, nil, body("u", "", "", ""), []string{"x-user-id", "h"}, "user::u"},
		{"cookie without auth", `["cookie:sid"]`, nil, nil, []string{"cookie", `a=1; sid="c"; b=2`}, "user::c"},
		{"cookie of a key without identity", `["cookie:sid"]`, plainKey, nil, []string{"cookie", "sid=c"}, ""},
		{"cookie name is exact", `["cookie:sid"]`, nil, nil, []string{"cookie", "xsid=c; sidx=d"}, ""},
		{"cookie twice", `["cookie:sid"]`, nil, nil, []string{"cookie", "sid=c; sid=d"}, ""},
		{"null", "", nil, body("null", "UNDEFINED", " None ", ""), []string{"x-user-id", "Anonymous"}, ""},
		{"blank", "", nil, body("  \t", "", "", ""), []string{"x-user-id", " "}, ""},
		{"too long", "", nil, body(long, "", "", "s"), nil, "session::s"},
		{"512 bytes", "", nil, body(long[1:], "", "", ""), nil, "user::" + long[1:]},
		{"header twice", "", nil, body("b", "", "", ""), []string{"x-user-id", "h", "x-user-id", "i"}, "user::b"},
		{"header twice the same", "", nil, body("b", "", "", ""), []string{"x-user-id", "h", "x-user-id", "h"}, "user::h"},
		{"forwarded address is nothing", "", nil, body("", "", "", ""), []string{"x-forwarded-for", "1.2.3.4"}, ""},
		{"tenant that does not fit", `["key"]`, oddKey, nil, nil, "key:h.*:k4"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			repl := ""
			if tt.from != "" {
				repl = `"unit": {"from": ` + tt.from + `},`
			}
			var keys []router.Key
			if tt.key != nil {
				k := *tt.key
				k.Hash = strings.Repeat("ab", 32)
				keys = append(keys, k)
			}
			table := compile(t, doc(t, unit, repl), keys...)
			q := query("chat", "", tt.headers...)
			q.Head, q.Key, q.AuthNone = tt.head, tt.key, tt.key == nil
			p := route(t, table, q)
			got := ""
			if p.Decision.HasUnit {
				u := p.Decision.Unit
				got = u.Type + ":" + u.Tenant + ":" + u.ID
				if strings.HasPrefix(u.Tenant, "h.") {
					got = u.Type + ":h.*:" + u.ID
				}
			}
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestConversationIsStickyOverTurns(t *testing.T) {
	t.Parallel()
	table := compile(t, doc(t, `"unit": {"from": ["header:x-user-id", "body:user"]},`, ``))
	first := `{"model":"chat","messages":[{"role":"system","content":"s"},{"role":"user","content":"hello"}]}`
	second := `{"model":"chat","messages":[{"role":"system","content":"s"},{"role":"user","content":"hello"},{"role":"assistant","content":"hi"},{"role":"user","content":"more"}]}`
	other := strings.Replace(first, "hello", "hullo", 1)
	unit := func(body string, key *router.Key) experiment.Unit {
		head, ferr := wire.Scan([]byte(body), wire.Chat)
		if ferr != nil {
			t.Fatal(ferr)
		}
		q := query("chat", "")
		q.Head, q.Body, q.Key, q.AuthNone = &head, []byte(body), key, key == nil
		return route(t, table, q).Decision.Unit
	}
	a := unit(first, nil)
	if a.Type != "conversation" || a.ID == "" || unit(second, nil) != a || unit(other, nil) == a {
		t.Errorf("units %v %v %v", a, unit(second, nil), unit(other, nil))
	}
	if unit(first, &router.Key{ID: "k1"}) == unit(first, &router.Key{ID: "k2"}) {
		t.Error("the key is mixed in")
	}
}

func TestTargetingAttributes(t *testing.T) {
	t.Parallel()
	key := &router.Key{ID: "k1", Tenant: "acme", Tags: map[string]string{"plan": "pro"}}
	for _, tt := range []struct {
		rule string
		ok   bool
	}{
		{`{"attr": "tenant", "op": "in", "values": ["acme"]}`, true},
		{`{"attr": "tenant", "op": "in", "values": ["other"]}`, false},
		{`{"attr": "key", "op": "in", "values": ["k1"]}`, true},
		{`{"attr": "tag:plan", "op": "in", "values": ["pro"]}`, true},
		{`{"attr": "tag:none", "op": "in", "values": ["pro"]}`, false},
		{`{"attr": "tag:none", "op": "not_in", "values": ["pro"]}`, true},
		{`{"attr": "model", "op": "prefix", "values": ["gpt-"]}`, true},
		{`{"attr": "api", "op": "in", "values": ["chat_completions"]}`, true},
		{`{"attr": "api", "op": "in", "values": ["embeddings"]}`, false},
		{`{"attr": "header:X-App-Version", "op": "semver_gte", "values": ["2.0.0"]}`, true},
		{`{"attr": "header:x-app-version", "op": "semver_gte", "values": ["3.0.0"]}`, false},
		{`{"attr": "header:x-absent", "op": "in", "values": ["1"]}`, false},
		{`{"attr": "unit", "op": "percent", "values": ["100"]}`, true},
		{`{"attr": "unit", "op": "percent", "values": ["0"]}`, false},
	} {
		table := compile(t, doc(t, `"baseline": "control"`, `"baseline": "control", "targeting": [`+tt.rule+`]`))
		q := query("gpt-4o", "u", "x-app-version", "2.1.0")
		q.Key, q.AuthNone, q.Head = key, false, &wire.Head{User: "u"}
		p := route(t, table, q)
		if got := p.Decision.Reason != experiment.ReasonTargeting; got != tt.ok {
			t.Errorf("%s: got %v (%s)", tt.rule, got, p.Decision.Reason)
		}
	}
	q := query("chat", "u", "authorization", "secret", "cookie", "a=b")
	route(t, compile(t, doc(t)), q)
	for _, attr := range []string{"header:authorization", "header:Authorization", "header:cookie", "header:x-user-id"} {
		if v, ok := q.Attr(attr); ok {
			t.Errorf("%s is answered: %q", attr, v)
		}
	}
}

func TestFixedSegment(t *testing.T) {
	t.Parallel()
	table := compile(t, doc(t, `"baseline": "control"`, `"baseline": "control", "fixed": [{"name": "qa", "rules": [{"attr": "header:x-team", "op": "in", "values": ["qa"]}], "variant": "canary"}]`))
	p := route(t, table, query("chat", "", "x-team", "qa"))
	if p.Variant.Name != "canary" || p.Decision.Reason != experiment.ReasonFixed || p.Decision.Analysed {
		t.Errorf("got %s %+v", p.Variant.Name, p.Decision)
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

// pins is a store in memory; fail makes it answer with an error.
type pins struct {
	mu    sync.Mutex
	m     map[[8]byte]experiment.Pin
	fail  error
	later int
	gets  int
	race  *experiment.Pin // what a rival wrote just before the first Put
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

func newPins() *pins { return &pins{m: map[[8]byte]experiment.Pin{}} }

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
		v, reason := router.Recheck(table, &plan)
		if got := v.Name + " " + reason; got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
		if fb := router.Fallback(table, &plan); v.Name == "canary" && (fb == nil || fb.Name != "control") {
			t.Errorf("%s: fallback %v", tt.name, fb)
		}
		if v, reason := router.Recheck(table, &plain); reason != "" || v.Target.Model != "plain" {
			t.Errorf("%s: without experiment %v %s", tt.name, v, reason)
		}
	}
	if v, reason := router.Recheck(old, &plan); v != plan.Variant || reason != "" {
		t.Error("on the table that decided nothing changes")
	}
	gone := parse(t, `{"upstreams": [{"name": "v1", "endpoints": ["http://gpu1:8000/v1"]}], "models": [{"name": "x", "default": {"upstream": "v1"}}]}`)
	must(t, router.Normalize(gone, nil, 9, t0, nil))
	if v, _ := router.Recheck(compile(t, gone), &plan); v == nil || v.Name != "control" {
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
		v, reason := router.Recheck(table, &plan)
		if want := route(t, table, query("chat", user)).Variant; v != want || reason != router.RecheckEvicted {
			t.Fatalf("%s: got %s %s, the table says %s", user, v.Name, reason, want.Name)
		}
	}
	// A pinned unit gets the baseline instead.
	ab := doc(t, append(three, `"kind": "canary"`, `"kind": "ab"`)...)
	old = compile(t, ab)
	plan := route(t, old, query("chat", who(t, old, "canary", 1)[0]))
	must(t, router.SetWeights(ab, 2, t0, "chat-v2", map[string]int{"control": 1000, "b": 9000, "canary": 0}))
	if v, reason := router.Recheck(compile(t, ab), &plan); v.Name != "control" || reason != router.RecheckEvicted {
		t.Errorf("pinned: %s %s", v.Name, reason)
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

func TestKillSetOverlay(t *testing.T) {
	t.Parallel()
	d := doc(t)
	user := who(t, compile(t, d), "canary", 1)[0]
	for _, tt := range []struct {
		kill router.KillEntry
		want string
	}{
		{router.KillEntry{Experiment: "chat-v2", Generation: 1, Variant: "canary"}, "control killed"},
		{router.KillEntry{Experiment: "chat-v2", Generation: 1, Variant: "*"}, "control rolled_back"},
		{router.KillEntry{Experiment: "chat-v2", Generation: 2, Variant: "*"}, "canary bucket"},
		{router.KillEntry{Experiment: "chat-v2", Generation: 1, Variant: "gone"}, "canary bucket"},
		{router.KillEntry{Experiment: "chat-v2", Generation: 1, Variant: "control"}, "canary bucket"},
		{router.KillEntry{Experiment: "other", Generation: 1, Variant: "*"}, "canary bucket"},
	} {
		table, err := router.Compile(&router.Snapshot{Document: *d}, ups(d), router.CompileOptions{Kills: []router.KillEntry{tt.kill}, Epoch: 3})
		must(t, err)
		p := route(t, table, query("chat", user))
		if got := p.Variant.Name + " " + string(p.Decision.Reason); got != tt.want || table.Epoch != 3 {
			t.Errorf("%+v: got %s, want %s", tt.kill, got, tt.want)
		}
	}
}

func TestCompileTwiceIsEqual(t *testing.T) {
	t.Parallel()
	d := doc(t, `"params": {"temperature": 0.6}`, `"params": {"temperature": 0.6, "top_p": 1, "seed": 2, "logprobs": true}`)
	s, u := &router.Snapshot{Document: *d}, ups(d)
	a, err := router.Compile(s, u, router.CompileOptions{})
	must(t, err)
	b, err := router.Compile(s, u, router.CompileOptions{})
	must(t, err)
	if got := a.Upstreams(); len(got) != 2 || got[0] != u["v1"] || got[1] != u["v2"] {
		t.Errorf("upstreams %v", got)
	}
	if !reflect.DeepEqual(a, b) {
		t.Error("two compiles of one snapshot differ")
	}
}

func TestCompileRefuses(t *testing.T) {
	t.Parallel()
	d := doc(t)
	d.Upstreams[0].Credential = "vllm"
	u := ups(d)
	delete(u, "v2")
	d.Experiments[0].Baseline = "x"
	_, err := router.Compile(&router.Snapshot{Document: *d, Keys: []router.Key{{ID: "k", Hash: "zz"}}}, u,
		router.CompileOptions{Secrets: func(string) bool { return false }})
	var ps router.Problems
	if !errors.As(err, &ps) || len(ps) != 4 {
		t.Fatalf("want all four problems, got %v", err)
	}
	for _, code := range []string{"secret_unknown", "upstream_missing", "variant_unknown", "key_invalid"} {
		if !strings.Contains(fmt.Sprintf("%#v", ps), code) {
			t.Errorf("no %s in %+v", code, ps)
		}
	}
}

func TestUpstreamConfigs(t *testing.T) {
	t.Parallel()
	d := doc(t, `"dialect": "vllm", "endpoints": ["http://gpu1`, `"credential": "vllm", "usage": "exact", "balance": "prefix", "timeouts": {"connect": "0s", "total": "1m"},
		"deny_fields": [], "headers": {"request": ["X-A"]}, "readiness": {"interval": "3s", "up": 1}, "dialect": "vllm", "endpoints": ["http://gpu1`)
	got, ps := router.UpstreamConfigs(d, func(name string) (string, bool) { return "s3cret", name == "vllm" })
	if len(ps) > 0 || len(got) != 2 {
		t.Fatalf("%v %v", got, ps)
	}
	c := got[0]
	if c.Credential != "s3cret" || !c.UsageExact || c.Balance != "" || c.Timeouts.Connect != -1 || c.Timeouts.Total != time.Minute ||
		c.Timeouts.FirstByte != 0 || c.DenyFields == nil || c.ReqHeaders[0] != "x-a" || c.Readiness.Interval != 3*time.Second || c.Readiness.Up != 1 {
		t.Errorf("got %+v", c)
	}
	if got[1].DenyFields != nil || got[1].Credential != "" {
		t.Errorf("got %+v", got[1])
	}
	got, ps = router.UpstreamConfigs(d, nil)
	if len(got) != 1 || len(ps) != 1 || ps[0].Path != "/upstreams/0/credential" {
		t.Errorf("unresolvable: %v %v", got, ps)
	}
	d.Upstreams[0].Credential = "sk-CANARY"
	if _, ps := router.UpstreamConfigs(d, nil); strings.Contains(ps.Error(), "CANARY") {
		t.Errorf("repeats a secret: %v", ps)
	}
}

func TestKeys(t *testing.T) {
	t.Parallel()
	hash := func(s string) string { return fmt.Sprintf("%x", sha(s)) }
	keys := []router.Key{
		{ID: "a", Hash: hash("sk-a")},
		{ID: "b", Hash: hash("sk-b"), ExpiresAt: t0},
		{ID: "c", Hash: hash("sk-c"), RevokedAt: t0, ExpiresAt: t0},
	}
	table := compile(t, doc(t), keys...)
	for secret, want := range map[string]string{"sk-a": "", "sk-b": "expired", "sk-c": "revoked", "sk-d": "unknown", "": "unknown", strings.Repeat("x", 1<<20): "unknown"} {
		k, ok := table.Key(secret, t0)
		if got := table.KeyStatus(secret, t0); got != want || ok != (want == "") || ok && "sk-"+k.ID != secret {
			t.Errorf("%.10s: got %q %v", secret, got, ok)
		}
	}
	if k, ok := table.Key("sk-b", t0.Add(-time.Second)); !ok || k.ID != "b" {
		t.Error("not expired yet")
	}
	if !table.HasKeys() || compile(t, doc(t)).HasKeys() {
		t.Error("HasKeys")
	}
}

func TestLiveNeverGoesBack(t *testing.T) {
	t.Parallel()
	var live router.Live
	if live.Load() != nil {
		t.Error("nothing was stored yet")
	}
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range 500 {
				live.Store(&router.Table{Revision: int64((i*7+w*13)%500 + 1), Epoch: int64(i % 3)})
			}
		})
		wg.Go(func() {
			revision, epoch := int64(0), int64(0)
			for range 2000 {
				if table := live.Load(); table != nil {
					if table.Revision < revision || table.Revision == revision && table.Epoch < epoch {
						t.Errorf("went from %d/%d to %d/%d", revision, epoch, table.Revision, table.Epoch)
						return
					}
					revision, epoch = table.Revision, table.Epoch
				}
			}
		})
	}
	wg.Wait()
	if live.Load().Revision != 500 || live.Store(&router.Table{Revision: 499, Epoch: 9}) || live.Store(&router.Table{Revision: 500, Epoch: live.Load().Epoch}) {
		t.Error("an older or equal table was taken")
	}
	if !live.Store(&router.Table{Revision: 500, Epoch: 10}) {
		t.Error("a newer kill set on the same revision is taken")
	}
}

func TestHostileHeaders(t *testing.T) {
	t.Parallel()
	table := compile(t, doc(t, `"unit": {"from": ["header:x-user-id", "body:user"]},`, `"unit": {"from": ["header:x-user-id", "cookie:sid", "session"]},`))
	for _, v := range []string{"", "\x00", "\xff\xfe", strings.Repeat("a", 1<<20), strings.Repeat(";", 1<<16), "=;=;sid", `sid="`, "a=b,c=d,", strings.Repeat(",", 1<<16)} {
		for _, name := range []string{"x-user-id", "cookie", "x-session-id", "x-sluice-variant"} {
			q := query("chat", "", name, v)
			q.Loopback = true
			if p := route(t, table, q); p.Variant == nil {
				t.Errorf("%s %.10q: no variant", name, v)
			}
		}
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
