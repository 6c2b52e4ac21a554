package admin_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

func TestBadBodies(t *testing.T) {
	t.Parallel()
	g := newGateway(t, nil)
	deep := strings.Repeat(`{"a":`, 100) + "1" + strings.Repeat("}", 100)
	routes := []struct{ method, path string }{
		{"POST", "/experiments"}, {"PATCH", exp}, {"PUT", exp + "/weights"}, {"POST", exp + "/weights:preview"}, {"POST", exp + ":pause"}, {"POST", exp + ":kill"},
		{"POST", "/upstreams"}, {"PATCH", "/upstreams/v1"}, {"POST", "/models"}, {"PATCH", "/models/chat"}, {"PUT", "/document"}, {"POST", "/keys"}, {"POST", "/keys/x:revoke"},
	}
	bodies := []struct {
		name, body string
		status     int
		code       string
		says       string
	}{
		{"cut", `{"a": `, 400, "invalid_json", "line 1"},
		{"second line", "{\n\"a\": x}", 400, "invalid_json", "line 2"},
		{"trailing data", `{} {}`, 400, "invalid_json", ""},
		{"no UTF-8", "{\"reason\": \"\xff\"}", 400, "invalid_json", "UTF-8"},
		{"a raw control character", "{\"reason\": \"\x01\"}", 400, "invalid_json", ""},
		{"too deep", deep, 400, "invalid_json", "64"},
		{"null", `null`, 422, "wrong_type", "object"},
		{"a list", `[]`, 422, "wrong_type", "object"},
		{"a string", `"x"`, 422, "wrong_type", "object"},
		{"a number", `1`, 422, "wrong_type", "object"},
		{"twice", `{"reason": "a", "reason": "b"}`, 422, "duplicate_member", "reason"},
		{"twice, deep in a list", `{"ramp": {"steps": [1, {"x": 1, "x": 2}]}}`, 422, "duplicate_member", "body.ramp.steps[1].x"},
		{"twice by an escape", "{\"a\": 1, \"\\u0061\": 2}", 422, "duplicate_member", "body.a"},
		{"unknown", `{"nonsense": 1}`, 422, "unknown_member", "nonsense"},
	}
	before := g.revision()
	for _, route := range routes {
		tag := "*"
		if object := strings.TrimSuffix(route.path, "/weights"); route.method == "PATCH" || route.method == "PUT" {
			tag = g.etag(object)
		}
		for _, b := range bodies {
			r := g.v1(route.method, route.path, b.body, "If-Match: "+tag)
			if r.status != b.status || r.get("code") != b.code || !strings.Contains(fmt.Sprint(r.get("detail")), b.says) {
				t.Errorf("%s: %s: %d, want %d %s with %q: %s", b.name, r.what, r.status, b.status, b.code, b.says, r.body)
			}
		}
		for _, kind := range []string{"text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/cbor", ";;;"} {
			g.v1(route.method, route.path, `{}`, "If-Match: "+tag, "Content-Type: "+kind).refused(415, "unsupported_media_type")
		}
		g.v1(route.method, route.path, `{}`, "If-Match: "+tag, "Content-Encoding: gzip").refused(415, "unsupported_media_type")
		size := 1<<20 + 1
		if route.path == "/document" {
			size = 5 << 20
		}
		g.v1(route.method, route.path, `{"reason": "`+strings.Repeat("x", size)+`"}`, "If-Match: "+tag).refused(413, "too_large")
	}
	if g.revision() != before {
		t.Error("a bad body wrote")
	}
	for _, kind := range []string{"application/merge-patch+json", "application/json; charset=utf-8", "Application/JSON"} {
		g.write("PATCH", exp, "", `{"targeting": []}`, "Content-Type: "+kind).want(200)
	}
}

func TestBodyIsRequired(t *testing.T) {
	t.Parallel()
	g := newGateway(t, nil)
	for _, route := range []struct{ method, path string }{
		{"POST", "/experiments"}, {"PATCH", exp}, {"PUT", exp + "/weights"}, {"POST", exp + "/weights:preview"}, {"POST", exp + ":kill"},
		{"POST", "/upstreams"}, {"PATCH", "/upstreams/v1"}, {"POST", "/models"}, {"PUT", "/document"}, {"POST", "/keys"},
	} {
		for _, empty := range []string{"", "  \n"} {
			g.v1(route.method, route.path, empty, `If-Match: "1"`).refused(400, "body_required")
		}
	}
	for _, empty := range []string{"", " ", "{}"} {
		g.v1("POST", exp+":pause", empty, "If-Match: *").want(200).has("state", "paused")
	}
}

func TestMembersAreNamed(t *testing.T) {
	t.Parallel()
	g := newGateway(t, nil)
	tests := []struct{ method, path, body, code, location string }{
		{"POST", "/experiments", `{"key": "x", "variants": [{"name": "a", "weight": 10000, "upstrem": "v1"}]}`, "unknown_member", "body.variants[0].upstrem"},
		{"POST", "/experiments", `{"key": "x", "variants": [{"name": "a"}]}`, "required", "body.variants[0].weight"},
		{"POST", "/experiments", `{"key": "x", "model": "spare", "kind": "ab", "baseline": "a", "variants": [{"name": "a", "weight": 10000, "upstream": "nope"}]}`, "", "body.variants[0].upstream"},
		{"POST", "/experiments", `{"key": "UPPER", "model": "spare", "kind": "ab", "baseline": "a", "variants": [{"name": "a", "weight": 10000, "upstream": "v1"}]}`, "", "body.key"},
		{"POST", "/experiments", `{"key": 7}`, "wrong_type", "body.key"},
		{"POST", "/experiments", `{"key": "x", "differs": []}`, "unknown_member", "body.differs"},
		{"PATCH", exp, `{"variants": [{"name": "control", "weight": 10000, "upstream": "v1", "params": {"a": 1}, "parms": {}}]}`, "unknown_member", "body.variants[0].parms"},
		{"PATCH", "/upstreams/v1", `{"timeouts": {"connect": "soon"}}`, "", "body.timeouts.connect"},
		{"PATCH", "/upstreams/v1", `{"name": "v7"}`, "runtime_field", ""},
		{"PATCH", exp, `{"state": "paused"}`, "runtime_field", ""},
		{"POST", "/upstreams", `{"name": "x", "endpoints": ["ftp://x"]}`, "", "body.endpoints[0]"},
		{"POST", "/upstreams", `{"name": "x", "endpoints": ["http://127.0.0.1:1/v1"], "credential": "unheard-of"}`, "", "document.upstreams[2].credential"},
		{"POST", "/models", `{"name": "a b", "default": {"upstream": "v1"}}`, "", "body.name"},
		{"PUT", "/document", `{"upstreams": [{"name": "v1", "endpoints": [], "x": 1}]}`, "unknown_member", "document.upstreams[0].x"},
		{"PUT", "/document", `{"experimnts": []}`, "unknown_member", "body.experimnts"},
	}
	before := g.revision()
	for _, tt := range tests {
		var r *reply
		if tt.method == "POST" {
			r = g.v1(tt.method, tt.path, tt.body)
		} else {
			r = g.write(tt.method, tt.path, "", tt.body)
		}
		if r.status != 422 || tt.code != "" && r.get("code") != tt.code || tt.location != "" && r.get("errors.0.location") != tt.location {
			t.Errorf("%s: %d, want 422 %s at %s: %s", tt.body, r.status, tt.code, tt.location, r.body)
		}
	}
	if g.revision() != before {
		t.Error("a bad body wrote")
	}
}

func TestBadParameters(t *testing.T) {
	t.Parallel()
	g := newGateway(t, nil)
	for _, tt := range []struct{ path, code, location string }{
		{"/audit?limit=0", "invalid_parameter", "query.limit"}, {"/audit?limit=201", "invalid_parameter", "query.limit"}, {"/audit?limit=x", "invalid_parameter", "query.limit"},
		{"/audit?cursor=%21", "invalid_cursor", "query.cursor"}, {"/audit?cursor=-1", "invalid_cursor", "query.cursor"}, {"/audit?cursor=zzzzzzzzzzzzzzzzzzzz", "invalid_cursor", "query.cursor"},
		{"/keys?cursor=%21%21", "invalid_cursor", "query.cursor"}, {"/experiments?cursor=a%00b", "invalid_cursor", "query.cursor"},
		{"/experiments?state=nope", "invalid_parameter", "query.state"}, {"/experiments?stat=running", "unknown_parameter", "query.stat"},
		{"/usage?since=yesterday", "invalid_since", "query.since"}, {"/usage?since=-5m", "invalid_since", "query.since"}, {"/usage?since=0001-01-01T00:00:00Z", "invalid_since", "query.since"},
		{"/usage?group_by=password", "invalid_group_by", "query.group_by"}, {"/usage?group_by=minute,tenant", "invalid_group_by", "query.group_by"},
		{"/usage?group_by=minute&key=x", "invalid_group_by", "query.group_by"}, {"/usage?since=1h&until=2h", "invalid_until", "query.until"},
		{exp + "/results?since=%00", "invalid_since", "query.since"}, {exp + "/assignments/u?type=A", "invalid_parameter", "query.type"},
		{"/experiments/UPPER", "invalid_parameter", "path.key"}, {"/experiments/a.b", "invalid_parameter", "path.key"}, {"/experiments/-a", "invalid_parameter", "path.key"},
		{"/experiments/%2e%2e", "invalid_parameter", "path.key"}, {"/experiments/a%2Fb", "invalid_parameter", "path.key"}, {"/experiments/" + strings.Repeat("a", 64), "invalid_parameter", "path.key"},
		{"/experiments/%00", "invalid_parameter", "path.key"}, {"/upstreams/" + strings.Repeat("a", 129), "invalid_parameter", "path.name"},
	} {
		g.v1("GET", tt.path, "").refused(422, tt.code).has("errors.0.location", tt.location)
	}
	match := "If-Match: " + g.etag(exp)
	for _, q := range []string{"timeout=x", "timeout=-1s", "timeout=31s", "timeout=" + strings.Repeat("1", 40) + "s"} {
		if r := g.v1("POST", exp+":pause?wait=applied&"+q, "", match); r.status != 422 || r.get("errors.0.location") != "query.timeout" {
			t.Errorf("%s: %d %s", q, r.status, r.body)
		}
	}
	g.v1("POST", exp+":pause?wait=never", "", match).refused(422, "invalid_parameter")
	g.v1("POST", exp+":pause?dry_run=maybe", "", match).refused(422, "invalid_parameter")
	g.v1("POST", exp+":pause?dry_run=false;x=1", "", match).refused(422, "invalid_query")
	g.v1("POST", exp+":pause?dry_run=%zz", "", match).refused(422, "invalid_query")
	g.v1("POST", exp+":pause?dry_run=false&dry_run=true", "", match).refused(422, "repeated_parameter").has("errors.0.location", "query.dry_run")
	g.v1("GET", exp, "").has("state", "running")
}

func TestReasons(t *testing.T) {
	t.Parallel()
	g := newGateway(t, nil)
	const unicode = "zurück → ролбэк 回滚 🚑\n\tnext line"
	g.v1("POST", exp+":pause", `{"reason": "zurück → ролбэк 回滚 🚑\n\tnext line"}`, "If-Match: *").want(200)
	if got := g.lastAudit().Reason; got != unicode {
		t.Errorf("reason %q", got)
	}
	g.v1("POST", exp+":rollback", `{"reason": "a\u0000b"}`, "If-Match: *").refused(422, "invalid_reason")
	g.v1("POST", exp+":rollback", `{"reason": "\u001b[31mred"}`, "If-Match: *").refused(422, "invalid_reason")
	g.v1("POST", exp+":rollback", `{"reason": "`+strings.Repeat("é", 1001)+`"}`, "If-Match: *").refused(422, "reason_too_long")
	g.v1("POST", exp+":rollback", `{"reason": "`+strings.Repeat("é", 1000)+`"}`, "If-Match: *").want(200)
	g.v1("DELETE", exp+"?reason=%00", "", "If-Match: "+g.etag(exp)).refused(422, "invalid_reason")
	g.v1("DELETE", exp+"?reason=%ff", "", "If-Match: "+g.etag(exp)).refused(422, "invalid_reason")
	g.v1("GET", "/audit:verify", "").want(200).has("whole", true)
}

func TestUnknownPathsAndMethods(t *testing.T) {
	t.Parallel()
	g := newGateway(t, nil)
	for _, tt := range []struct {
		method, path string
		status       int
		code         string
	}{
		{"GET", "/nope", 404, "not_found"}, {"POST", "/nope", 404, "not_found"}, {"GET", "", 404, "not_found"}, {"GET", "/experiments/", 404, "not_found"},
		{"GET", exp + "/nope", 404, "not_found"}, {"GET", "/docs", 404, "not_found"}, {"GET", "/schemas/Problem.json", 404, "not_found"},
		{"POST", exp + ":nope", 404, "unknown_verb"}, {"POST", exp + ":", 404, "unknown_verb"}, {"POST", exp + ":start:pause", 404, "unknown_verb"}, {"POST", exp + ":Start", 404, "unknown_verb"},
		{"POST", exp, 405, "method_not_allowed"}, {"PUT", exp, 405, "method_not_allowed"}, {"DELETE", "/experiments", 405, "method_not_allowed"},
		{"GET", exp + ":start", 422, "invalid_parameter"}, {"TRACE", exp, 405, "method_not_allowed"}, {"PATCH", "/document", 405, "method_not_allowed"},
		{"GET", "/experiments/nope", 404, "not_found"}, {"GET", "/upstreams/nope", 404, "not_found"}, {"GET", "/models/nope", 404, "not_found"},
		{"GET", "/experiments/nope/weights", 404, "not_found"}, {"GET", "/experiments/nope/results", 404, "not_found"}, {"GET", "/upstreams/nope/status", 404, "not_found"},
		{"GET", "/experiments/nope/assignments/u", 404, "not_found"}, {"POST", "/keys/nope:revoke", 404, "not_found"},
	} {
		g.v1(tt.method, tt.path, "").refused(tt.status, tt.code)
	}
	r := g.v1("PUT", exp, "")
	if allow := r.header.Get("Allow"); allow != "GET, HEAD, PATCH, DELETE" {
		t.Errorf("Allow: %s", allow)
	}
	g.v1("POST", exp+":nope", "").has("detail", `There is no verb nope here; an experiment has start, pause, resume, advance, approve, rollback, kill, promote, finish, reset-pins, reshuffle.`)
	g.call("GET", "/favicon.ico", "").refused(404, "not_found")
	g.call("GET", "/"+strings.Repeat("x", 5000), "").refused(404, "not_found")
}

func TestPercentEncodedNames(t *testing.T) {
	t.Parallel()
	g := newGateway(t, nil)
	for _, name := range []string{"meta/llama-3", "a%b", "100%/x", "a:b", "qwen?x#y", "a+b", "..", "x/status"} {
		path := "/models/" + strings.NewReplacer("%", "%25", "/", "%2F", "?", "%3F", "#", "%23").Replace(name)
		g.v1("POST", "/models", fmt.Sprintf(`{"name": %q, "default": {"upstream": "v1"}}`, name)).want(http.StatusCreated)
		g.v1("GET", path, "").want(200).has("object.name", name)
		g.write("PATCH", path, "", `{"echo_public_model": true}`).want(200).has("object.echo_public_model", true)
		g.write("DELETE", path, "", "").want(200)
		g.v1("GET", path, "").refused(404, "not_found")
	}
	g.v1("GET", "/experiments/%65xp", "").want(200).has("key", "exp")
	unit := "a/b c%d:e?ü"
	g.v1("GET", exp+"/assignments/a%2Fb%20c%25d:e%3F%C3%BC", "").want(200).has("unit", "user::"+unit)
	g.v1("GET", exp+"/assignments/%ff", "").want(200)
}
