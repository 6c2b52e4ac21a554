package admin_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// chat is one data-plane request with a key.
func (g *gateway) chat(secret string) *httptest.ResponseRecorder {
	g.t.Helper()
	r := httptest.NewRequestWithContext(g.ctx, http.MethodPost, "http://127.0.0.1:8080/v1/chat/completions",
		strings.NewReader(`{"model": "chat", "user": "ada", "messages": [{"role": "user", "content": "hi"}]}`))
	r.Header.Set("Authorization", "Bearer "+secret)
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	g.data.Handler().ServeHTTP(w, r)
	return w
}

func TestKeyLifecycleOnTheDataPlane(t *testing.T) {
	t.Parallel()
	g := newGateway(t, nil)
	g.ready()
	created := g.v1("POST", "/keys", `{"name": "ci", "tenant": "acme", "tags": {"team": "ml"}, "models": ["chat"], "scopes": ["identity", "override", "identity"], "user": "bot"}`).want(201).
		has("key.name", "ci", "key.state", "active", "key.scopes", "[identity override]", "key.tags.team", "ml", "key.user", "bot", "write.changed", true)
	id, secret := created.get("key.id").(string), created.get("secret").(string)
	if p := created.get("key.prefix").(string); strings.Contains(secret, strings.ReplaceAll(p, "…", "")) || len(p) > 24 {
		t.Errorf("prefix %s", p)
	}
	if w := g.chat(secret); w.Code != 200 {
		t.Fatalf("a new key: %d %s", w.Code, w.Body)
	}
	g.v1("POST", "/keys/"+id+":revoke?dry_run=true", "").want(200).has("key.state", "revoked")
	if w := g.chat(secret); w.Code != 200 {
		t.Fatalf("after a dry run: %d %s", w.Code, w.Body)
	}
	g.v1("POST", "/keys/"+id+":revoke", `{"reason": "leaked"}`, "If-Match: *").want(200).has("key.state", "revoked", "write.changed", true)
	if w := g.chat(secret); w.Code != 401 {
		t.Fatalf("a revoked key: %d %s", w.Code, w.Body)
	}
	if row := g.lastAudit(); row.Action != "key.revoke" || row.Object != "key/"+id || row.Reason != "leaked" || row.Before == nil || row.After == nil {
		t.Errorf("audit row %+v", row)
	}
	at := g.v1("GET", "/keys", "").want(200).has("items.0.state", "revoked").get("items.0.revoked_at")
	g.v1("POST", "/keys/"+id+":revoke", "").want(200).has("write.changed", false, "key.revoked_at", at)
}

// ready waits for the endpoints' first checks.
func (g *gateway) ready() {
	g.t.Helper()
	eventually(g.t, "ready endpoints", func() bool {
		for _, u := range g.live.Load().Upstreams() {
			for _, e := range u.Status() {
				if !e.Ready {
					return false
				}
			}
		}
		return true
	})
}

func TestKeysAreChecked(t *testing.T) {
	t.Parallel()
	g := newGateway(t, nil)
	for _, tt := range []struct{ body, code, location string }{
		{`{}`, "invalid_name", "body.name"}, {`{"name": "  "}`, "invalid_name", "body.name"}, {`{"name": "a\u0007"}`, "invalid_name", "body.name"},
		{`{"name": "` + strings.Repeat("ü", 101) + `"}`, "invalid_name", "body.name"}, {`{"name": 5}`, "wrong_type", "body.name"},
		{`{"name": "k", "tenant": "a b"}`, "invalid_tenant", "body.tenant"}, {`{"name": "k", "scopes": ["admin"]}`, "invalid_scope", "body.scopes"},
		{`{"name": "k", "scopes": "override"}`, "wrong_type", "body.scopes"}, {`{"name": "k", "models": ["nope"]}`, "unknown_model", "body.models[0]"},
		{`{"name": "k", "models": [null]}`, "wrong_type", "body.models[0]"}, {`{"name": "k", "user": "a\nb"}`, "invalid_user", "body.user"},
		{`{"name": "k", "tags": {"A": "x"}}`, "invalid_tag", "body.tags"}, {`{"name": "k", "tags": {"a": 1}}`, "wrong_type", "body.tags.a"},
		{`{"name": "k", "expires_at": "2020-01-01T00:00:00Z"}`, "expired", "body.expires_at"}, {`{"name": "k", "expires_at": "soon"}`, "wrong_type", "body.expires_at"},
		{`{"name": "k", "expires_at": "9999-12-31T23:59:59Z"}`, "invalid_expiry", "body.expires_at"}, {`{"name": "k", "secret": "sk-mine"}`, "unknown_member", "body.secret"},
	} {
		g.v1("POST", "/keys", tt.body).refused(422, tt.code).has("errors.0.location", tt.location)
	}
	g.v1("POST", "/keys", `{"name": "k", "secret": "sk-canary-value"}`).refused(422, "unknown_member")
	if r := g.v1("POST", "/keys", `{"name": ["sk-canary-value"], "tenant": "sk-canary value"}`); strings.Contains(string(r.body), "canary") {
		t.Errorf("a value is echoed: %s", r.body)
	}
	g.v1("GET", "/keys", "").want(200).has("items", "[]")
	soon := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	g.v1("POST", "/keys", `{"name": "Ключ 🔑", "expires_at": "`+soon+`", "tenant": null}`).want(201).has("key.name", "Ключ 🔑", "key.expires_at", soon)
}

func TestListsArePaged(t *testing.T) {
	t.Parallel()
	g := newGateway(t, nil)
	for i := range 5 {
		g.v1("POST", "/keys", fmt.Sprintf(`{"name": "k%d"}`, i)).want(201)
		g.v1("POST", "/upstreams", fmt.Sprintf(`{"name": "u%d", "endpoints": ["http://127.0.0.1:1/v1"]}`, 4-i)).want(201)
		g.v1("POST", "/experiments", fmt.Sprintf(`{"key": "z%d", "model": "spare", "kind": "ab", "state": "draft", "slice": [%d, %d], "baseline": "a", "variants": [{"name": "a", "weight": 10000, "upstream": "v1"}]}`, 4-i, i, i+1)).want(201)
	}
	walk := func(path, member string) (got []string) {
		cursor := ""
		for range 20 {
			r := g.v1("GET", path+cursor, "").want(200)
			items := r.get("items").([]any)
			for i := range items {
				got = append(got, fmt.Sprint(r.get(fmt.Sprintf("items.%d.%s", i, member))))
			}
			next, more := r.get("next_cursor").(string)
			if !more {
				return got
			}
			if len(items) != 2 {
				t.Errorf("%s: a page of %d", path, len(items))
			}
			cursor = "&cursor=" + next
		}
		t.Errorf("%s does not end", path)
		return got
	}
	for _, tt := range []struct{ path, member, want string }{
		{"/keys?limit=2", "name", "[k0 k1 k2 k3 k4]"},
		{"/upstreams?limit=2", "name", "[u0 u1 u2 u3 u4 v1 v2]"},
		{"/models?limit=2", "name", "[chat spare]"},
		{"/experiments?limit=2", "key", "[exp z4 z3 z2 z1 z0]"},
		{"/experiments?limit=2&state=draft", "key", "[z4 z3 z2 z1 z0]"},
		{"/experiments?limit=2&state=running,paused", "key", "[exp]"},
		{"/experiments?limit=2&model=chat", "key", "[exp]"},
	} {
		if got := fmt.Sprint(walk(tt.path, tt.member)); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.path, got, tt.want)
		}
	}
	if got := walk("/audit?limit=2", "action"); len(got) != 16 || got[0] != "experiment.create" || got[15] != "document.seed" {
		t.Errorf("audit %v", got)
	}
	if got := walk("/audit?limit=2&action=key.create", "action"); len(got) != 5 {
		t.Errorf("audit of keys %v", got)
	}
	g.v1("GET", "/audit?object=upstream/u3", "").want(200).has("items.0.object", "upstream/u3", "items.1", nil)
	g.v1("GET", "/audit?actor=nobody", "").want(200).has("items", "[]")
}
