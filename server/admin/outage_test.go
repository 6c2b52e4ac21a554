package admin_test

import (
	"strings"
	"testing"
)

func TestDatabaseAway(t *testing.T) {
	t.Parallel()
	g := newGateway(t, nil)
	id := g.v1("POST", "/keys", `{"name": "k"}`).want(201).get("key.id").(string)
	tag, up := g.etag(exp), g.etag("/upstreams/v1")
	g.failing.set(true)
	for _, w := range []struct{ method, path, body, match string }{
		{"PUT", exp + "/weights", `{"weights": {"control": 8000, "canary": 2000}}`, tag}, {"PATCH", exp, `{"targeting": []}`, tag}, {"DELETE", exp, "", tag},
		{"POST", exp + ":pause", "", "*"}, {"POST", exp + ":finish", "", tag}, {"POST", exp + ":promote", `{"variant": "canary"}`, tag},
		{"POST", "/experiments", `{"key": "x", "model": "spare", "kind": "ab", "baseline": "a", "variants": [{"name": "a", "weight": 10000, "upstream": "v1"}]}`, ""},
		{"POST", "/upstreams", `{"name": "v3", "endpoints": ["http://127.0.0.1:1/v1"]}`, ""}, {"PATCH", "/upstreams/v1", `{"usage": "exact"}`, up},
		{"POST", "/models", `{"name": "m", "default": {"upstream": "v1"}}`, ""}, {"PUT", "/document", `{}`, g.etag("/document")},
		{"POST", "/keys", `{"name": "k"}`, ""}, {"POST", "/keys/" + id + ":revoke", "", ""}, {"POST", exp + ":rollback?dry_run=true", "", "*"},
		{"GET", "/audit", "", ""}, {"GET", "/audit:verify", "", ""}, {"GET", "/usage", "", ""}, {"GET", exp + "/history", "", ""},
	} {
		headers := []string{"Idempotency-Key: away"}
		if w.match != "" {
			headers = append(headers, "If-Match: "+w.match)
		}
		r := g.v1(w.method, w.path, w.body, headers...).refused(503, "read_only")
		if r.header.Get("Retry-After") == "" || strings.Contains(string(r.body), "hunter2") || strings.Contains(string(r.body), "10.1.2.3") {
			t.Errorf("%s: %v %s", r.what, r.header, r.body)
		}
	}
	// Reads come from memory.
	for _, path := range []string{"/experiments", exp, exp + "/weights", "/upstreams", "/upstreams/v1", "/models", "/document", "/keys", "/live", "/whoami", "/openapi.json", exp + "/assignments/u"} {
		g.v1("GET", path, "").want(200)
	}
	g.v1("GET", exp+"/results", "").want(200).has("stored", "[]", "notes.0", "The database is away: stored figures are missing.")
	eventually(t, "the status", func() bool { return g.v1("GET", "/status", "").want(200).get("read_only") == true })
	g.v1("GET", "/status", "").has("degraded.0.code", "database")

	// The safe direction works, under a precondition too.
	g.v1("POST", exp+":kill", `{"variant": "canary"}`, `If-Match: "1"`).refused(412, "stale")
	g.v1("POST", exp+":kill", `{"variant": "nope"}`, "If-Match: *").refused(404, "not_found")
	g.v1("POST", "/experiments/nope:rollback", "", "If-Match: *").refused(404, "not_found")
	r := g.v1("POST", exp+":kill", `{"variant": "canary", "reason": "burning"}`, "If-Match: *", "Idempotency-Key: k").want(200).
		has("write.deferred", true, "write.changed", true, "variants.1.state", "killed")
	if r.header.Get("ETag") != "" {
		t.Error("what is not in the document has an ETag")
	}
	g.v1("GET", exp, "", "If-None-Match: "+tag).want(200).has("variants.1.state", "killed", "state", "running")
	g.v1("POST", exp+":rollback?wait=applied&timeout=1s", `{"reason": "all of it"}`, "If-Match: "+tag).want(200).has("write.deferred", true, "state", "rolled_back")
	got := g.v1("GET", "/experiments?state=rolled_back", "").want(200).has("items.0.key", "exp", "items.0.state", "rolled_back")
	if !strings.Contains(string(got.body), "not in the document yet") {
		t.Errorf("no warning: %s", got.body)
	}
	if g.lastAudit().Action != "key.create" {
		t.Error("an audit row without a database")
	}

	g.failing.set(false)
	eventually(t, "the replay", func() bool {
		return g.live.Load().Snapshot.Document.Experiment("exp").State == "rolled_back"
	})
	rows := g.v1("GET", exp+"/history", "").want(200)
	for _, want := range []string{"all of it; in force since", `"actor":"local"`} {
		if !strings.Contains(string(rows.body), want) {
			t.Errorf("the history lacks %q: %s", want, rows.body)
		}
	}
	g.v1("GET", "/audit:verify", "").want(200).has("whole", true)
	g.write("POST", exp, ":start", "").want(200).has("state", "running", "generation", 2, "variants.1.state", "live")
}
