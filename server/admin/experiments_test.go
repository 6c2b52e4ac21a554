package admin_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const exp = "/experiments/exp"

func TestExperimentLifecycle(t *testing.T) {
	t.Parallel()
	g := newGateway(t, nil)
	body := `{"key": "second", "model": "spare", "kind": "ab", "state": "draft", "slice": [0, 1000], "baseline": "a",
		"variants": [{"name": "a", "weight": 5000, "upstream": "v1"}, {"name": "b", "weight": 5000, "upstream": "v2", "model": "other", "params": {"temperature": 0.5}}]}`
	created := g.v1("POST", "/experiments?reason=why", body).want(201).
		has("key", "second", "state", "draft", "stickiness", "user", "generation", 1, "differs", "[model params upstream]", "write.changed", true)
	if len(created.get("warnings").([]any)) != 1 {
		t.Errorf("no warning although three things differ: %s", created.body)
	}
	row := g.lastAudit()
	if row.Actor != "local" || row.Role != "admin" || row.IP != "127.0.0.1" || row.Reason != "why" || row.Action != "experiment.create" ||
		row.Object != "experiment/second" || row.Before != nil || !strings.Contains(string(row.After), `"second"`) || row.RequestID != created.header.Get("X-Request-Id") ||
		fmt.Sprint(created.get("revision")) != fmt.Sprint(float64(row.Revision)) {
		t.Errorf("audit row %+v", row)
	}
	const path = "/experiments/second"
	if tag := created.header.Get("ETag"); tag != g.etag(path) || tag != fmt.Sprintf(`"%d"`, row.Revision) {
		t.Errorf("ETag %s", tag)
	}
	g.v1("POST", "/experiments", body).refused(409, "already_exists")
	for _, step := range []struct{ verb, body, state string }{
		{"start", "", "running"}, {"pause", `{"reason": "wait"}`, "paused"}, {"resume", "{}", "running"},
		{"promote", `{"variant": "b", "reason": "better"}`, "promoted"}, {"rollback", "", "rolled_back"},
		{"start", "", "running"}, {"reset-pins", "", "running"}, {"reshuffle", "", "running"}, {"finish", "", "completed"},
	} {
		g.write("POST", path, ":"+step.verb, step.body).want(200).has("state", step.state, "write.changed", true)
		g.v1("GET", path, "").want(200).has("state", step.state)
		if row := g.lastAudit(); row.Action != "experiment."+step.verb || row.Before == nil || row.After == nil {
			t.Errorf("%s: audit row %+v", step.verb, row)
		}
	}
	g.write("POST", path, ":finish", "").want(200).has("write.changed", false)
	g.write("POST", path, ":pause", "").refused(409, "invalid_state")
	g.write("PATCH", path, "?reason=done", `{"slice": [0, 500]}`).want(200).has("slice", "[0 500]")
	g.write("DELETE", path, "?reason=old", "").want(200).has("changed", true)
	g.v1("GET", path, "").want(200).has("state", "archived")
	g.v1("GET", path+"/assignments/u", "").refused(409, "invalid_state")
	g.write("DELETE", path, "?purge=true", "").want(200)
	g.v1("GET", path, "").refused(404, "not_found")
	g.v1("GET", path+"/history?limit=2", "").want(200).has("items.0.action", "experiment.delete", "items.1.reason", "old")
	g.v1("GET", "/experiments/never/history", "").refused(404, "not_found")
	g.v1("GET", "/audit:verify", "").want(200).has("whole", true)
}

func TestKillAndStop(t *testing.T) {
	t.Parallel()
	g := newGateway(t, nil)
	for _, verb := range []string{"kill", "promote"} {
		g.v1("POST", exp+":"+verb, "", "If-Match: *").refused(400, "body_required")
		g.v1("POST", exp+":"+verb, "{}", "If-Match: *").refused(422, "variant_required")
	}
	g.v1("POST", exp+":pause", `{"variant": "canary"}`, "If-Match: *").refused(422, "unknown_member")
	g.v1("POST", exp+":kill", `{"variant": "control"}`, "If-Match: *").refused(409, "invalid_state")
	g.v1("POST", exp+":kill", `{"variant": "nope"}`, "If-Match: *").refused(404, "not_found")
	g.v1("POST", exp+":kill", `{"variant": "canary", "reason": "5xx"}`, "If-Match: *").want(200).has("variants.1.state", "killed", "variants.1.weight", 1000)
	if row := g.lastAudit(); row.Action != "experiment.kill" || row.Reason != "5xx" {
		t.Errorf("audit row %+v", row)
	}
	g.v1("POST", exp+":kill", `{"variant": "canary", "cut_streams": true}`, "If-Match: *").want(200).has("variants.1.cut_streams", true)
	g.v1("POST", exp+":pause", `{"cut_streams": true}`, "If-Match: *").refused(422, "unknown_member")
	eventually(t, "the kill set", func() bool { return g.v1("GET", "/status", "").want(200).get("kills.0.variant") == "canary" })
	g.v1("POST", exp+":pause", "", "If-Match: *").want(200).has("state", "paused")
	g.v1("POST", exp+":rollback", "", "If-Match: *").want(200).has("state", "rolled_back")
}

func TestPreconditions(t *testing.T) {
	t.Parallel()
	g := newGateway(t, nil)
	weights := `{"weights": {"control": 8000, "canary": 2000}}`
	writes := []struct{ method, path, body string }{
		{"PUT", exp + "/weights", weights}, {"PATCH", exp, `{"slice": null}`}, {"DELETE", exp, ""},
		{"POST", exp + ":start", ""}, {"POST", exp + ":resume", ""}, {"POST", exp + ":promote", `{"variant": "canary"}`},
		{"POST", exp + ":finish", ""}, {"POST", exp + ":reset-pins", ""}, {"POST", exp + ":reshuffle", ""},
		{"PATCH", "/upstreams/v1", `{"usage": "final"}`}, {"DELETE", "/upstreams/v1", ""},
		{"PATCH", "/models/chat", `{"aliases": ["x"]}`}, {"DELETE", "/models/chat", ""},
		{"PUT", "/document", `{}`},
	}
	before := g.revision()
	for _, w := range writes {
		object := strings.TrimSuffix(strings.SplitN(w.path, ":", 2)[0], "/weights")
		now := g.etag(object)
		g.v1(w.method, w.path, w.body).refused(428, "if_match_required").has("errors.0.location", "header.If-Match")
		for _, match := range []string{`"1"`, "W/" + now, "garbage", `"", "`, strings.Trim(now, `"`)} {
			r := g.v1(w.method, w.path, w.body, "If-Match: "+match).refused(412, "stale").has("current_etag", now)
			if r.header.Get("ETag") != now {
				t.Errorf("%s: a 412 has the ETag %q", r.what, r.header.Get("ETag"))
			}
		}
		g.v1(w.method, w.path, w.body, "If-Match: *").refused(412, "if_match_star").has("current_etag", now)
	}
	for _, verb := range []string{"rollback", "pause"} {
		g.v1("POST", exp+":"+verb, "", `If-Match: "1"`).refused(412, "stale")
	}
	if g.revision() != before {
		t.Fatal("a refused write wrote")
	}
	// Of two writes from one ETag the second is refused.
	tag := g.etag(exp)
	first := g.v1("PUT", exp+"/weights", weights, `If-Match: "7", `+tag).want(200)
	g.v1("PUT", exp+"/weights", weights, "If-Match: "+tag).refused(412, "stale").has("current_etag", first.header.Get("ETag"))
	g.v1("PUT", exp+"/weights", weights, "If-Match: "+first.header.Get("ETag")).want(200).has("write.changed", false)
	if g.etag(exp) != first.header.Get("ETag") || g.etag(exp+"/weights") != g.etag(exp) {
		t.Error("a write that changes nothing changed the ETag")
	}
}

func TestConditionalReads(t *testing.T) {
	t.Parallel()
	g := newGateway(t, nil)
	for _, path := range []string{exp, exp + "/weights", "/upstreams/v1", "/models/chat", "/document"} {
		tag := g.etag(path)
		for _, match := range []string{tag, "W/" + tag, `"1", ` + tag, "*"} {
			r := g.v1("GET", path, "", "If-None-Match: "+match).want(304)
			if len(r.body) > 0 || r.header.Get("ETag") != tag {
				t.Errorf("%s: 304 with %q and ETag %q", r.what, r.body, r.header.Get("ETag"))
			}
		}
		g.v1("GET", path, "", `If-None-Match: "1"`).want(200)
		if r := g.v1("HEAD", path, "").want(200); r.header.Get("ETag") != tag {
			t.Errorf("%s: ETag %q", r.what, r.header.Get("ETag"))
		}
	}
}

func TestDryRunWritesNothing(t *testing.T) {
	t.Parallel()
	g := newGateway(t, nil)
	before, row := g.revision(), g.lastAudit().ID
	match := "If-Match: " + g.etag(exp)
	g.v1("PUT", exp+"/weights?dry_run=true", `{"weights": {"control": 5000, "canary": 5000}}`, match).want(200).
		has("weights.canary", 5000, "moved.moved_buckets", 4000, "write.dry_run", true, "write.changed", true, "write.changes.0.object", "experiment/exp")
	g.v1("POST", exp+":kill?dry_run=1", `{"variant": "canary"}`, match).want(200).has("variants.1.state", "killed")
	r := g.v1("POST", exp+":rollback?dry_run=t", "", match).want(200).has("state", "rolled_back")
	if tag := r.header.Get("ETag"); tag != "" {
		t.Errorf("what does not exist has the ETag %s", tag)
	}
	g.v1("POST", "/experiments?dry_run=true", `{"key": "x", "model": "spare", "kind": "ab", "baseline": "a", "variants": [{"name": "a", "weight": 10000, "upstream": "v1"}]}`).want(201).has("key", "x")
	g.v1("POST", "/keys?dry_run=true", `{"name": "k"}`).want(201).has("key.name", "k", "secret", nil)
	g.v1("POST", "/upstreams?dry_run=true", `{"name": "v3", "endpoints": ["http://127.0.0.1:1/v1"]}`).want(201).has("object.name", "v3")
	g.v1("DELETE", "/upstreams/v1?dry_run=true", "", "If-Match: "+g.etag("/upstreams/v1")).refused(409, "in_use")
	g.v1("PUT", "/document?dry_run=true&prune=true", `{"upstreams": [{"name": "v9", "endpoints": ["http://127.0.0.1:1/v1"]}]}`, "If-Match: "+g.etag("/document")).refused(409, "invalid_state")
	g.v1("PUT", exp+"/weights?dryrun=true", `{"weights": {"control": 5000, "canary": 5000}}`, match).refused(422, "unknown_parameter")
	if g.revision() != before || g.lastAudit().ID != row || g.weight("canary") != 1000 {
		t.Error("a dry run wrote")
	}
	g.v1("GET", exp, "").want(200).has("state", "running", "variants.1.state", "live")
}

func TestWeights(t *testing.T) {
	t.Parallel()
	g := newGateway(t, nil)
	g.v1("GET", exp+"/weights", "").want(200).has("key", "exp", "baseline", "control", "weights.control", 9000, "weights.canary", 1000)
	g.v1("POST", exp+"/weights:preview", `{"weights": {"control": 7500, "canary": 2500}}`).want(200).
		has("moved_buckets", 1500, "share", 0.15, "safe", true, "moves.0.from", "control", "moves.0.to", "canary", "recent_units", 0)
	g.write("PUT", exp+"/weights", "", `{"weights": {"control": 10000, "canary": 0}, "reason": "off"}`).want(200).has("weights.canary", 0, "moved.moved_buckets", 1000)
	g.v1("GET", exp, "").want(200).has("variants.1.weight", 0)
	if !strings.Contains(string(g.v1("GET", exp, "").body), `"weight":0`) {
		t.Error("a weight of 0 is not written out")
	}
	if row := g.lastAudit(); row.Action != "experiment.set_weights" || row.Reason != "off" || !strings.Contains(string(row.Before), `"weight":1000`) || !strings.Contains(string(row.After), `"weight":0`) {
		t.Errorf("audit row %+v", row)
	}
	bad := []struct{ body, code, location string }{
		{`{"weights": {"control": 9000, "canary": 900}}`, "weights_sum", "body.weights"},
		{`{"weights": {"control": 0, "canary": 0}}`, "weights_sum", "body.weights"},
		{`{"weights": {"control": 10000}}`, "weight_missing", "body.weights.canary"},
		{`{"weights": {"control": 10000, "canary": null}}`, "", "body.weights.canary"},
		{`{"weights": {}}`, "weight_missing", "body.weights.control"},
		{`{"weights": null}`, "weight_missing", "body.weights.control"},
		{`{}`, "weight_missing", "body.weights.control"},
		{`{"weights": {"control": 10001, "canary": -1}}`, "", "body.weights.canary"},
		{`{"weights": {"control": 9000, "canary": 500, "x": 500}}`, "variant_unknown", "body.weights.x"},
		{`{"weights": {"control": 9000.5, "canary": 999.5}}`, "wrong_type", "body.weights.control"},
		{`{"weights": {"control": "9000", "canary": 1000}}`, "wrong_type", "body.weights.control"},
		{`{"weights": {"control": 9e3, "canary": 1000}}`, "wrong_type", "body.weights.control"},
		{`{"weights": {"control": 99999999999999999999, "canary": 0}}`, "wrong_type", "body.weights.control"},
		{`{"weights": [9000, 1000]}`, "wrong_type", "body.weights"},
		{`{"weights": {"control": 9000, "canary": 500, "canary": 1000}}`, "duplicate_member", "body.weights.canary"},
		{`{"weights": {"control": 9000, "canary": 1000}, "Weights": {}}`, "unknown_member", "body.Weights"},
	}
	before := g.revision()
	for _, b := range bad {
		for _, r := range []*reply{g.write("PUT", exp+"/weights", "", b.body), g.v1("POST", exp+"/weights:preview", b.body)} {
			if r.status != 422 || b.code != "" && r.get("code") != b.code || !strings.Contains(string(r.body), fmt.Sprintf("%q", b.location)) {
				t.Errorf("%s %s: %d, want 422 %s at %s: %s", r.what, b.body, r.status, b.code, b.location, r.body)
			}
		}
	}
	if g.revision() != before {
		t.Error("a refused write wrote")
	}
}

// Kinds of weights that the shared vectors name.
func TestWeightVectors(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile(filepath.Join("testdata", "weights.json"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Weights []struct {
			BP    map[string]int  `json:"weights_bp"`
			JSON  string          `json:"json"`
			Error json.RawMessage `json:"error"`
		} `json:"weights"`
	}
	if err := json.Unmarshal(data, &file); err != nil || len(file.Weights) == 0 {
		t.Fatal(err, len(file.Weights))
	}
	g := newGateway(t, nil)
	for i, v := range file.Weights {
		weights := v.JSON
		names := []string{"a", "b"}
		if v.BP != nil {
			raw, _ := json.Marshal(v.BP)
			weights, names = string(raw), nil
			for _, n := range []string{"a", "b", "c", "d"} {
				if _, ok := v.BP[n]; ok {
					names = append(names, n)
				}
			}
		}
		key := fmt.Sprintf("/experiments/w%d", i)
		variants := []string{fmt.Sprintf(`{"name": %q, "weight": 10000, "upstream": "v1"}`, names[0])}
		for _, n := range names[1:] {
			variants = append(variants, fmt.Sprintf(`{"name": %q, "weight": 0, "upstream": "v1"}`, n))
		}
		g.v1("POST", "/experiments", fmt.Sprintf(`{"key": "w%d", "model": "spare", "kind": "ab", "state": "draft", "slice": [%d, %d], "baseline": "a", "variants": [%s]}`, i, i, i+1, strings.Join(variants, ","))).want(201)
		r := g.write("PUT", key+"/weights", "", `{"weights": `+weights+`, "reason": "vector"}`)
		if want := 200; v.Error == nil && r.status != want || v.Error != nil && r.status != 422 {
			t.Errorf("%s: %d: %s", weights, r.status, r.body)
		}
	}
}
