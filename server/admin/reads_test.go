package admin_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/router"
)

func TestFigures(t *testing.T) {
	t.Parallel()
	g := newGateway(t, nil)
	g.v1("GET", exp+"/results", "").want(200).has("stored.0.variant", "control", "stored.0.weight", 9000, "stored.0.baseline", true, "stored.0.requests", 0,
		"stored.0.error_ratio", nil, "stored.0.cost_usd", "0", "stored.1.variant", "canary", "live", "[]", "notes", "[]")
	g.v1("GET", "/usage", "").want(200).has("items", "[]", "truncated", false)
	g.ready()
	secret := g.v1("POST", "/keys", `{"name": "k", "tenant": "acme"}`).want(201).get("secret").(string)
	for range 3 {
		if w := g.chat(secret); w.Code != 200 {
			t.Fatal(w.Code, w.Body)
		}
	}
	eventually(t, "the ledger", func() bool {
		return fmt.Sprint(g.v1("GET", "/usage?group_by=model", "").want(200).get("items.0.requests")) == "3"
	})
	g.v1("GET", "/usage?group_by=model,%20tenant,model&since=2h&until=0s&model=chat&tenant=acme", "").want(200).
		has("items.0.group.tenant", "acme", "items.0.group.model", "chat", "items.0.requests", 3, "items.0.cost_usd", "0", "items.0.unpriced_attempts", 3)
	g.v1("GET", "/usage?tenant=nobody", "").want(200).has("items", "[]")
	g.v1("GET", "/usage?group_by=variant,minute&limit=1&since="+time.Now().Add(-time.Hour).UTC().Format(time.RFC3339), "").want(200)
	r := g.v1("GET", exp+"/results?since=1h", "").want(200)
	total := 0.0
	for _, v := range []string{"0", "1"} {
		total += r.get("stored." + v + ".requests").(float64)
	}
	if total != 3 || !strings.Contains(string(r.body), "have no price") {
		t.Errorf("results: %s", r.body)
	}
	g.v1("GET", "/live", "").want(200).has("items.0.model", "chat")
	g.v1("GET", exp+"/assignments/ada?tenant=acme", "").want(200).has("key", "exp", "unit", "user:acme:ada", "pin", nil, "last_change.action", nil)
	g.v1("GET", exp+"/assignments/ada?tenant=a%20b", "").refused(422, "invalid_unit")
	g.v1("GET", "/upstreams/v1/status", "").want(200).has("name", "v1", "endpoints.0.ready", true)
	g.v1("GET", "/status", "").want(200).has("version", "test", "auth", "keys", "source", "database", "read_only", false)
}

// explain must say what a request gets.
func TestExplainAgreesWithServing(t *testing.T) {
	t.Parallel()
	g := newGateway(t, nil)
	g.write("PUT", exp+"/weights", "", `{"weights": {"control": 5000, "canary": 5000}}`).want(200)
	seen := map[string]bool{}
	for i := range 40 {
		unit := fmt.Sprintf("user-%d", i)
		q := &router.Query{Model: "chat", AuthNone: true, Header: map[string][]string{"X-User-Id": {unit}}}
		plan, err := g.live.Load().Route(t.Context(), q, g.sticky)
		if err != nil {
			t.Fatal(err)
		}
		want := plan.Variant.Name
		seen[want] = true
		g.v1("GET", exp+"/assignments/"+unit, "").want(200).has("variant", want, "bucket", plan.Decision.Bucket, "owner", want, "last_change.action", "experiment.set_weights")
	}
	if len(seen) != 2 {
		t.Errorf("all units on one variant: %v", seen)
	}
}

func TestDocumentRoundTrip(t *testing.T) {
	t.Parallel()
	g := newGateway(t, nil)
	g.write("PUT", exp+"/weights", "", `{"weights": {"control": 5000, "canary": 5000}}`).want(200)
	before := g.v1("GET", "/document", "").want(200)
	g.v1("PUT", "/document", string(before.body), "If-Match: "+before.header.Get("ETag")).want(200).has("write.changed", false, "changes", "[]")
	var doc map[string]any
	if err := json.Unmarshal(before.body, &doc); err != nil {
		t.Fatal(err)
	}
	doc["models"] = append(doc["models"].([]any), map[string]any{"name": "extra", "default": map[string]any{"upstream": "v1"}})
	body, _ := json.Marshal(doc)
	r := g.v1("PUT", "/document?reason=gitops", string(body), "If-Match: "+before.header.Get("ETag")).want(200).has("write.changed", true, "changes.0.object", "model/extra", "changes.0.action", "create")
	if r.header.Get("ETag") != g.etag("/document") {
		t.Error("ETag of the answer")
	}
	if row := g.lastAudit(); row.Action != "document.apply" || row.Reason != "gitops" {
		t.Errorf("audit row %+v", row)
	}
	g.v1("PUT", "/document", string(body), "If-Match: "+before.header.Get("ETag")).refused(412, "stale")
	g.v1("PUT", "/document?prune=true", `{"upstreams": [{"name": "v1", "endpoints": ["http://127.0.0.1:1/v1"]}], "models": [], "experiments": []}`, "If-Match: "+g.etag("/document")).want(409)
}

// An answer can be edited and sent back.
func TestPatchTakesAnAnswer(t *testing.T) {
	t.Parallel()
	g := newGateway(t, nil)
	now := g.v1("GET", exp, "").want(200)
	again := g.v1("PATCH", exp, string(now.body), "If-Match: "+now.header.Get("ETag")).want(200).has("write.changed", false)
	var a, b map[string]any
	if json.Unmarshal(now.body, &a) != nil || json.Unmarshal(again.body, &b) != nil {
		t.Fatal("no JSON")
	}
	delete(b, "write")
	if diff := cmp.Diff(a, b); diff != "" {
		t.Error(diff)
	}
}

func TestUpstreamsAndModels(t *testing.T) {
	t.Parallel()
	g := newGateway(t, nil)
	g.v1("POST", "/upstreams?reason=new", `{"name": "v3", "dialect": "vllm", "endpoints": ["http://127.0.0.1:1/v1"], "price": {"input": "0.20"}}`).want(201).
		has("object.name", "v3", "object.price.input", "0.20", "write.changed", true)
	g.v1("POST", "/upstreams", `{"name": "v4", "endpoints": ["http://127.0.0.1:1/v1"], "price": {"input": "0.1234567"}}`).want(422).has("errors.0.location", "body.price.input")
	g.write("PATCH", "/upstreams/v3", "", `{"price": null, "timeouts": {"connect": "1s"}}`).want(200).has("object.price", nil, "object.timeouts.connect", "1s", "object.dialect", "vllm")
	if row := g.lastAudit(); row.Action != "upstream.patch" || row.Object != "upstream/v3" || !strings.Contains(string(row.Before), "0.20") || strings.Contains(string(row.After), "0.20") {
		t.Errorf("audit row %+v", row)
	}
	g.write("PATCH", "/upstreams/v1", "", `{"endpoints": ["http://127.0.0.1:2/v1"]}`).want(200).has("object.credential", "vllm")
	g.write("DELETE", "/upstreams/v1", "", "").refused(409, "in_use")
	g.write("DELETE", "/upstreams/v3", "", "").want(200).has("changed", true)
	g.v1("POST", "/models", `{"name": "gpt-4o", "aliases": ["gpt-4*"], "default": {"upstream": "v2", "model": "served"}}`).want(201).has("object.aliases", "[gpt-4*]")
	g.write("DELETE", "/models/chat", "", "").refused(409, "in_use")
	g.write("DELETE", "/models/gpt-4o", "", "").want(200)
	g.v1("POST", "/models", `{"name": "x", "default": {"upstream": "nope"}}`).want(422).has("errors.0.location", "body.default.upstream")
}

func TestWaitApplied(t *testing.T) {
	t.Parallel()
	g := newGateway(t, nil)
	r := g.write("PUT", exp+"/weights", "?wait=applied&timeout=10s", `{"weights": {"control": 8000, "canary": 2000}}`).want(200).has("write.applied", true, "write.missing", nil)
	if rev := int64(r.get("write.revision").(float64)); g.control.Status(t.Context()).Reported < rev {
		t.Errorf("reported %d, want %d", g.control.Status(t.Context()).Reported, rev)
	}
	g.write("PUT", exp+"/weights", "", `{"weights": {"control": 7000, "canary": 3000}}`).want(200).has("write.applied", nil)
}
