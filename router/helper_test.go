package router_test

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"sluice/router"
	"sluice/upstream"
	"sluice/upstream/wire"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// base is a document with a canary; tests change single members of it.
const base = `{
  "upstreams": [
    {"name": "v1", "dialect": "vllm", "endpoints": ["http://gpu1:8000/v1"], "price": {"input": "0.20", "output": "0.80"}},
    {"name": "v2", "dialect": "vllm", "endpoints": ["http://gpu2:8000/v1"]}
  ],
  "models": [
    {"name": "chat", "aliases": ["gpt-4o", "gpt-4*", "gpt-*"], "default": {"upstream": "v1", "model": "Qwen3-8B"}},
    {"name": "plain", "default": {"upstream": "v1"}}
  ],
  "experiments": [
    {"key": "chat-v2", "model": "chat", "kind": "canary", "state": "running", "seed": "seed-1",
     "unit": {"from": ["header:x-user-id", "body:user"]}, "baseline": "control",
     "variants": [
       {"name": "control", "weight": 9000, "upstream": "v1", "model": "Qwen3-8B", "version": "8b-1"},
       {"name": "canary", "weight": 1000, "upstream": "v2", "model": "Qwen3-8B-awq", "version": "8b-awq-3",
        "params": {"temperature": 0.6}, "prompt": {"system_prepend": "Be brief."}, "fallback": "control"}
     ]}
  ]
}`

// with replaces parts of base (old, new, old, new, …), each of which must be there.
func with(t testing.TB, pairs ...string) string {
	t.Helper()
	s := base
	for i := 0; i+1 < len(pairs); i += 2 {
		if !strings.Contains(s, pairs[i]) {
			t.Fatalf("base has no %q", pairs[i])
		}
		s = strings.Replace(s, pairs[i], pairs[i+1], 1)
	}
	return s
}

func parse(t testing.TB, s string) *router.Document {
	t.Helper()
	d, err := router.ParseDocument([]byte(s))
	if err != nil {
		t.Fatalf("ParseDocument: %v", err)
	}
	return d
}

// doc is a normalised document at revision 1.
func doc(t testing.TB, pairs ...string) *router.Document {
	t.Helper()
	d := parse(t, with(t, pairs...))
	if err := router.Normalize(d, nil, 1, t0, nil); err != nil {
		t.Fatalf("Normalize: %v", err)
	}
	if ps := router.Validate(d, router.ValidateOptions{}); len(ps) > 0 {
		t.Fatalf("Validate: %v", ps)
	}
	return d
}

func ups(d *router.Document) map[string]*upstream.Upstream {
	out := map[string]*upstream.Upstream{}
	for _, u := range d.Upstreams {
		out[u.Name] = new(upstream.Upstream) // routing never calls it
	}
	return out
}

func compile(t testing.TB, d *router.Document, keys ...router.Key) *router.Table {
	t.Helper()
	table, err := router.Compile(&router.Snapshot{Document: *d, Keys: keys}, ups(d), router.CompileOptions{})
	if err != nil {
		t.Fatalf("Compile: %v", err)
	}
	return table
}

// trip compiles d with a variant out of service on this replica.
func trip(t testing.TB, d *router.Document, exp, variant string) *router.Table {
	t.Helper()
	table, err := router.Compile(&router.Snapshot{Document: *d}, ups(d), router.CompileOptions{
		Trips: []router.KillEntry{{Experiment: exp, Generation: d.Experiment(exp).Generation, Variant: variant}},
	})
	must(t, err)
	return table
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func codeOf(err error) string {
	var e *router.EditError
	var ps router.Problems
	switch {
	case err == nil:
		return ""
	case errors.As(err, &e):
		return e.Code
	case errors.As(err, &ps):
		return ps[0].Code
	}
	return "other: " + err.Error()
}

func asJSON(t testing.TB, v any) string {
	t.Helper()
	raw, err := json.Marshal(v)
	must(t, err)
	return string(raw)
}

// query is a chat request without auth by the user id, "" for none.
func query(model, user string, headers ...string) *router.Query {
	h := http.Header{}
	if user != "" {
		h.Set("x-user-id", user)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		h.Add(headers[i], headers[i+1])
	}
	return &router.Query{Model: model, API: wire.Chat, Head: &wire.Head{}, Header: h, AuthNone: true}
}

func route(t testing.TB, table *router.Table, q *router.Query) router.Plan {
	t.Helper()
	p, err := table.Route(t.Context(), q, nil)
	if err != nil {
		t.Fatalf("Route: %v", err)
	}
	return p
}

func sha(s string) [sha256.Size]byte { return sha256.Sum256([]byte(s)) }
