package admin_test

import (
	"bytes"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.yaml.in/yaml/v4"

	"sluice/server/admin"
)

type openAPI struct {
	OpenAPI    string                          `json:"openapi"`
	Paths      map[string]map[string]operation `json:"paths"`
	Components struct {
		Schemas map[string]any `json:"schemas"`
	} `json:"components"`
}

type operation struct {
	ID         string   `json:"operationId"`
	Summary    string   `json:"summary"`
	Tags       []string `json:"tags"`
	Parameters []struct {
		Name, In, Description string
		Required              bool
	} `json:"parameters"`
	RequestBody *struct {
		Required bool                      `json:"required"`
		Content  map[string]map[string]any `json:"content"`
	} `json:"requestBody"`
	Responses map[string]struct {
		Content map[string]struct{ Schema map[string]any } `json:"content"`
	} `json:"responses"`
}

func document(t testing.TB, g *gateway) openAPI {
	t.Helper()
	r := g.v1("GET", "/openapi.json", "").want(200)
	var doc openAPI
	if err := json.Unmarshal(r.body, &doc); err != nil || r.header.Get("Content-Type") != "application/openapi+json" {
		t.Fatal(err, r.header)
	}
	return doc
}

// each calls f for every operation with its path's parameters filled in.
func (d openAPI) each(f func(method, path, concrete string, op operation)) {
	fill := strings.NewReplacer("{key}", "exp", "{name}", "v1", "{id}", "x", "{unit}", "u")
	for path, item := range d.Paths {
		for method, op := range item {
			f(strings.ToUpper(method), path, fill.Replace(path), op)
		}
	}
}

var refs = regexp.MustCompile(`"\$ref":"#/components/schemas/([^"]+)"`)

func TestOpenAPIDocument(t *testing.T) {
	t.Parallel()
	g := newGateway(t, nil)
	doc := document(t, g)
	if !strings.HasPrefix(doc.OpenAPI, "3.1") {
		t.Errorf("openapi %s", doc.OpenAPI)
	}
	ids := map[string]bool{}
	var got []string
	doc.each(func(method, path, _ string, op operation) {
		name := method + " " + path
		got = append(got, name)
		if op.Summary == "" || len(op.Tags) == 0 || op.ID == "" || ids[op.ID] {
			t.Errorf("%s: summary %q, tags %v, id %q", name, op.Summary, op.Tags, op.ID)
		}
		ids[op.ID] = true
		problems, successes := 0, 0
		for status, resp := range op.Responses {
			switch status[0] {
			case '2':
				successes++
			case '4', '5':
				p, ok := resp.Content["application/problem+json"]
				if !ok || len(resp.Content) != 1 || p.Schema["$ref"] != "#/components/schemas/Problem" {
					t.Errorf("%s: %s is no problem: %v", name, status, resp.Content)
				}
				problems++
			}
		}
		if problems == 0 || successes != 1 {
			t.Errorf("%s: %d problems, %d successes", name, problems, successes)
		}
		match := false
		for _, p := range op.Parameters {
			if p.Description == "" && !strings.HasPrefix(path, "/usage") {
				t.Errorf("%s: the parameter %s is not described", name, p.Name)
			}
			match = match || p.Name == "If-Match" && p.Required
		}
		// Creating, revoking and previewing are not changes of what was read.
		needs := method != "GET" && op.ID != "revoke-key" && op.ID != "preview-weights" &&
			!slices.Contains([]string{"rollback-experiment", "kill-experiment", "pause-experiment", "run-preflight", "drain-upstream", "enable-upstream", "probe-upstream"}, op.ID) && !strings.HasPrefix(op.ID, "create-")
		if match != needs {
			t.Errorf("%s: If-Match is required: %v", name, match)
		}
		if _, ok := op.Responses["428"]; ok != needs {
			t.Errorf("%s: 428 documented: %v", name, ok)
		}
		if method == "PATCH" && op.RequestBody.Content["application/merge-patch+json"] == nil || method == "PUT" && !op.RequestBody.Required {
			t.Errorf("%s: body %+v", name, op.RequestBody)
		}
	})
	for _, want := range []string{"GET /experiments", "POST /experiments", "GET /experiments/{key}", "PATCH /experiments/{key}", "DELETE /experiments/{key}",
		"GET /experiments/{key}/weights", "PUT /experiments/{key}/weights", "POST /experiments/{key}/weights:preview",
		"POST /experiments/{key}:start", "POST /experiments/{key}:pause", "POST /experiments/{key}:resume", "POST /experiments/{key}:rollback",
		"POST /experiments/{key}:kill", "POST /experiments/{key}:promote", "POST /experiments/{key}:finish", "POST /experiments/{key}:reset-pins", "POST /experiments/{key}:reshuffle",
		"POST /experiments/{key}:advance", "POST /experiments/{key}:approve", "GET /experiments/{key}/ramp", "GET /experiments/{key}/guardrails",
		"GET /experiments/{key}/forecast", "GET /experiments/{key}/preflight", "POST /experiments/{key}:preflight", "GET /experiments/{key}/results", "GET /experiments/{key}/history", "GET /experiments/{key}/assignments/{unit}",
		"GET /upstreams", "POST /upstreams", "GET /upstreams/{name}", "PATCH /upstreams/{name}", "DELETE /upstreams/{name}", "GET /upstreams/{name}/status",
		"POST /upstreams/{name}:drain", "POST /upstreams/{name}:enable", "POST /upstreams/{name}:probe",
		"GET /models", "POST /models", "GET /models/{name}", "PATCH /models/{name}", "DELETE /models/{name}",
		"GET /document", "PUT /document", "GET /keys", "POST /keys", "POST /keys/{id}:revoke",
		"GET /audit", "GET /audit:verify", "GET /status", "GET /whoami", "GET /live", "GET /usage", "GET /events"} {
		if !slices.Contains(got, want) {
			t.Errorf("%s is missing", want)
		}
	}
	raw := g.v1("GET", "/openapi.json", "").body
	for _, m := range refs.FindAllSubmatch(raw, -1) {
		if doc.Components.Schemas[string(m[1])] == nil {
			t.Errorf("the schema %s is missing", m[1])
		}
	}
	if bytes.Contains(raw, []byte("127.0.0.1:8081")) {
		t.Error("the document quotes the Host header")
	}
}

func TestOpenAPIAsYAML(t *testing.T) {
	t.Parallel()
	g := newGateway(t, nil)
	r := g.v1("GET", "/openapi.yaml", "").want(200)
	var v map[string]any
	if err := yaml.Unmarshal(r.body, &v); err != nil || v["openapi"] != "3.1.0" || v["paths"] == nil {
		t.Fatal(err, v["openapi"])
	}
}

func TestOpenAPIIsServedToManyAtOnce(t *testing.T) {
	t.Parallel()
	g := newGateway(t, nil)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { g.v1("GET", "/openapi.json", ""); g.v1("GET", "/openapi.yaml", "") })
	}
	wg.Wait()
}

// Every operation of the document refuses callers without the token and pages
// of another origin.
func TestEveryOperationAsksWho(t *testing.T) {
	t.Parallel()
	const token = "a-long-enough-token"
	g := newGateway(t, func(c *admin.Config) { c.Token = token })
	before := g.revision()
	n := 0
	document(t, g).each(func(method, _, path string, op operation) {
		n++
		body := ""
		if op.RequestBody != nil {
			body = "{}"
		}
		if r := g.v1(method, path, body, "Authorization: ", "If-Match: *").refused(401, "unauthorized"); r.header.Get("WWW-Authenticate") == "" {
			t.Errorf("%s: no WWW-Authenticate", r.what)
		}
		for _, headers := range [][]string{{"Origin: https://evil.example"}, {"Origin: null"}, {"Sec-Fetch-Site: cross-site"}, {"Sec-Fetch-Site: same-site"},
			{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate"}, {"Sec-Fetch-Site: cross-site", "Origin: http://127.0.0.1:8081"}} {
			g.v1(method, path, body, append(headers, "If-Match: *")...).refused(403, "cross_origin")
		}
	})
	for _, path := range []string{"/metrics", "/debug/pprof/", "/debug/pprof/cmdline", "/debug/pprof/heap", "/admin/v1/nope", "/admin/v1/openapi.json"} {
		g.call("GET", path, "", "Authorization: ").refused(401, "unauthorized")
	}
	if n < 40 || g.revision() != before {
		t.Errorf("%d operations, revision %d, was %d", n, g.revision(), before)
	}
	g.call("GET", "/metrics", "").want(200)
	g.call("GET", "/healthz", "", "Authorization: ").want(204)
}
