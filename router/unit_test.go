package router_test

import (
	"strings"
	"testing"

	"sluice/experiment"
	"sluice/router"
	"sluice/upstream/wire"
)

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
