package admin_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"sluice/router"
)

// Any sequence of calls keeps the document valid, revisions strictly growing,
// ETags true and the audit chain whole, and nothing but a success writes.
func TestRandomCalls(t *testing.T) {
	t.Parallel()
	g := newGateway(t, nil)
	rapid.Check(t, func(rt *rapid.T) {
		r := &randomCalls{gateway: *g, rt: rt}
		r.t = rt
		for range rapid.IntRange(1, 8).Draw(rt, "calls") {
			r.one()
		}
	})
	if rows, err := g.store.VerifyAudit(t.Context()); err != nil {
		t.Errorf("after %d audit rows: %v", rows, err)
	}
}

type randomCalls struct {
	gateway
	rt *rapid.T
}

func (r *randomCalls) pick(label string, from ...string) string {
	return rapid.SampledFrom(from).Draw(r.rt, label)
}

func (r *randomCalls) one() {
	before, row := r.revision(), r.lastAudit()
	method, object, path, body := r.request()
	match := "*"
	if current := r.v1("GET", object, "").header.Get("ETag"); current != "" {
		match = r.pick("match", current, current, current, "*", `"1"`, "")
	}
	dry := r.pick("dry", "", "", "", "?dry_run=true")
	headers := []string{}
	if match != "" {
		headers = append(headers, "If-Match: "+match)
	}
	out := r.v1(method, path+dry, body, headers...)
	if out.status >= 500 {
		r.rt.Fatalf("%s %s: %d %s", out.what, body, out.status, out.body)
	}
	after, now := r.revision(), r.lastAudit()
	changed := false
	if out.status < 300 {
		raw, _ := json.Marshal(out.get("write"))
		if object == "" || strings.Contains(string(raw), "null") {
			raw = out.body // of a deletion
		}
		changed = strings.Contains(string(raw), `"changed":true`) && dry == ""
	}
	switch {
	case changed && (after <= before || now.Revision != after || now.Prev != row.Hash):
		r.rt.Fatalf("%s: revision %d → %d, audit %d", out.what, before, after, now.Revision)
	case !changed && (after != before || now.ID != row.ID):
		r.rt.Fatalf("%s %s: %d wrote: revision %d → %d: %s", out.what, body, out.status, before, after, out.body)
	}
	live := r.live.Load()
	if live.Revision != after {
		r.rt.Fatalf("%s: revision %d serves, %d is newest", out.what, live.Revision, after)
	}
	if ps := router.Validate(&live.Snapshot.Document, router.ValidateOptions{}); len(ps) > 0 {
		r.rt.Fatalf("%s %s: the document is not valid: %v", out.what, body, ps)
	}
	if tag := out.header.Get("ETag"); tag != "" && out.status < 300 && r.v1("GET", object, "").header.Get("ETag") != tag {
		r.rt.Fatalf("%s: answered ETag %s, which is not the object's", out.what, tag)
	}
	if tag := r.v1("GET", "/document", "").header.Get("ETag"); tag != fmt.Sprintf(`"%d"`, after) {
		r.rt.Fatalf("the document's ETag is %s at revision %d", tag, after)
	}
}

// request draws one write; object is what its If-Match is about.
func (r *randomCalls) request() (method, object, path, body string) {
	key := r.pick("key", "exp", "one", "two", "gone")
	object = "/experiments/" + key
	w := rapid.IntRange(0, 10000).Draw(r.rt, "weight")
	sum := 10000 - w + rapid.SampledFrom([]int{0, 0, 0, 1}).Draw(r.rt, "off")
	switch kind := rapid.IntRange(0, 9).Draw(r.rt, "kind"); kind {
	case 0, 1:
		return "PUT", object, object + "/weights", fmt.Sprintf(`{"weights": {"control": %d, "canary": %d}, "reason": "r"}`, sum, w)
	case 2, 3, 4:
		verb := r.pick("verb", "start", "pause", "resume", "rollback", "kill", "promote", "finish", "reset-pins", "reshuffle", "nope")
		if verb == "kill" || verb == "promote" {
			body = fmt.Sprintf(`{"variant": %q}`, r.pick("variant", "canary", "control", "x"))
		}
		return "POST", object, object + ":" + verb, body
	case 5:
		return "POST", object, "/experiments", fmt.Sprintf(`{"key": %q, "model": %q, "kind": "ab", "state": %q, "baseline": "control", "variants": [
			{"name": "control", "weight": %d, "upstream": "v1"}, {"name": "canary", "weight": %d, "upstream": "v2"}]}`,
			key, r.pick("model", "chat", "spare", "m"), r.pick("state", "draft", "running", "paused"), sum, w)
	case 6:
		return "PATCH", object, object, r.pick("patch", `{"targeting": []}`, `{"kind": "ab"}`, `{"slice": [0, 500]}`, `{"slice": null}`, `{"variants": []}`, `{"baseline": "canary"}`, `{"unit": {"from": ["user"]}}`, `{"state": "running"}`, `{"x": 1}`)
	case 7:
		return "DELETE", object, object, ""
	case 8:
		name := r.pick("upstream", "v1", "v2", "v3")
		object = "/upstreams/" + name
		switch r.pick("what", "create", "patch", "delete") {
		case "create":
			return "POST", object, "/upstreams", fmt.Sprintf(`{"name": %q, "endpoints": ["http://127.0.0.1:1/v1"]}`, name)
		case "patch":
			return "PATCH", object, object, r.pick("patch", `{"usage": "final"}`, `{"usage": "exact", "dialect": "vllm"}`, `{"endpoints": []}`, `{"balance": "round_robin"}`)
		}
		return "DELETE", object, object, ""
	}
	name := r.pick("name", "chat", "spare", "m")
	object = "/models/" + name
	switch r.pick("what", "create", "patch", "delete") {
	case "create":
		return "POST", object, "/models", fmt.Sprintf(`{"name": %q, "default": {"upstream": %q}}`, name, r.pick("to", "v1", "v3"))
	case "patch":
		return "PATCH", object, object, r.pick("patch", `{"aliases": ["alias"]}`, `{"aliases": null}`, `{"default": {"upstream": "v3"}}`, `{"echo_public_model": true}`)
	}
	return "DELETE", object, object, ""
}
