package server

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/internal/fakellm"
	"sluice/metrics"
	"sluice/router"
)

// TestRequestFixtures sends every body in testdata/requests and compares what
// reaches the upstream, byte for byte but for the model and stream_options.
func TestRequestFixtures(t *testing.T) {
	var mu sync.Mutex
	var last []byte
	var calls int
	up := fake(t, fakellm.Options{})
	up.OnCall(func(c fakellm.Call, _ http.Header) { mu.Lock(); last, calls = c.Body, calls+1; mu.Unlock() })
	doc := document(up.URL())
	doc.Models[0].Aliases = []string{"fx-alias", "fx-embed", "allowed"}
	p := newPlane(t, doc, nil)
	metas, _ := filepath.Glob("testdata/requests/*.meta.json")
	if len(metas) < 8 {
		t.Fatalf("only %d fixtures", len(metas))
	}
	for _, file := range metas {
		var m struct {
			Name     string
			BodyFile string `json:"body_file"`
			Expect   struct {
				Status   int     `json:"client_status"`
				Path     string  `json:"path"`
				Upstream string  `json:"upstream_body"`
				Calls    *int    `json:"upstream_calls"`
				Param    *string `json:"param"`
			}
		}
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(raw, &m); err != nil {
			t.Fatal(err)
		}
		t.Run(m.Name, func(t *testing.T) {
			body, err := os.ReadFile(filepath.Join("testdata/requests", m.BodyFile))
			if err != nil {
				t.Fatal(err)
			}
			mu.Lock()
			last, calls = nil, 0
			mu.Unlock()
			path := m.Expect.Path
			if path == "" {
				path = "/v1/chat/completions"
			}
			resp, got := p.post(path, string(body))
			if m.Expect.Status != 0 && resp.StatusCode != m.Expect.Status {
				t.Fatalf("status %d, want %d: %s", resp.StatusCode, m.Expect.Status, got)
			}
			mu.Lock()
			defer mu.Unlock()
			if m.Expect.Calls != nil && calls != *m.Expect.Calls {
				t.Errorf("%d upstream calls, want %d", calls, *m.Expect.Calls)
			}
			if resp.StatusCode == 400 {
				e := envelope(t, got)
				if m.Expect.Param != nil && (e.Param == nil || *e.Param != *m.Expect.Param) {
					t.Errorf("the error names %v, want %s: %s", e.Param, *m.Expect.Param, got)
				}
				return
			}
			want := body
			for _, alias := range []string{"fx-alias", "fx-embed"} {
				want = bytes.Replace(want, []byte(`"`+alias+`"`), []byte(`"served"`), 1)
			}
			if strings.Contains(m.Expect.Upstream, "stream_options") {
				i := bytes.LastIndexByte(want, '}')
				want = append(append(append([]byte{}, want[:i]...), `,"stream_options":{"include_usage":true}`...), want[i:]...)
			}
			if !bytes.Equal(bytes.TrimSpace(last), bytes.TrimSpace(want)) {
				t.Errorf("upstream got\n%s\nwant\n%s", last, want)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	up := fake(t, fakellm.Options{})
	p := newPlane(t, document(up.URL()), func(c *Config) { c.MaxBody = 1 << 20 })
	var gz bytes.Buffer
	zw := gzip.NewWriter(&gz)
	zw.Write([]byte(ask("x", false)))
	zw.Close()
	for name, c := range map[string]struct {
		path, body  string
		header      []string
		status      int
		code, param string
		method      string
	}{
		"malformed":          {body: `{"model":`, status: 400, code: "invalid_request"},
		"trailing data":      {body: `{"model":"chat"} {}`, status: 400, code: "invalid_request"},
		"empty":              {body: ``, status: 400, code: "invalid_request"},
		"array":              {body: `["model"]`, status: 400, code: "invalid_request"},
		"stream not bool":    {body: `{"model":"chat","stream":"yes"}`, status: 400, code: "invalid_request", param: "stream"},
		"n not integer":      {body: `{"model":"chat","n":1.5}`, status: 400, code: "invalid_request", param: "n"},
		"unknown model":      {body: `{"model":"nope"}`, status: 404, code: "model_not_found", param: "model"},
		"no model":           {body: `{"messages":[]}`, status: 400, code: "invalid_request", param: "model"},
		"too large":          {body: `{"model":"chat","x":"` + strings.Repeat("a", 1<<20) + `"}`, status: 413, code: "request_too_large"},
		"gzip":               {body: gz.String(), header: []string{"Content-Encoding", "gzip"}, status: 415, code: "unsupported_media_type"},
		"multipart":          {body: "x", header: []string{"Content-Type", "multipart/form-data; boundary=x"}, status: 415, code: "unsupported_media_type"},
		"unknown path":       {path: "/v1/nope", body: "{}", status: 404, code: "not_found"},
		"admin on the plane": {path: "/admin/v1/experiments", body: "{}", status: 404, code: "not_found"},
		"wrong method":       {path: "/v1/models", body: "{}", status: 405, code: "method_not_allowed"},
	} {
		t.Run(name, func(t *testing.T) {
			path := c.path
			if path == "" {
				path = "/v1/chat/completions"
			}
			resp, body := p.post(path, c.body, c.header...)
			if resp.StatusCode != c.status {
				t.Fatalf("status %d, want %d: %s", resp.StatusCode, c.status, body)
			}
			e := envelope(t, body)
			if e.Code == nil || *e.Code != c.code || resp.Header.Get("X-Sluice-Error") != c.code {
				t.Errorf("code %v, header %q, want %s", e.Code, resp.Header.Get("X-Sluice-Error"), c.code)
			}
			if c.param != "" && (e.Param == nil || *e.Param != c.param) {
				t.Errorf("param %v, want %s", e.Param, c.param)
			}
			if resp.Header.Get("X-Request-Id") == "" || e.Message == "" {
				t.Error("no request id or message")
			}
		})
	}
	if n := up.Counts().Calls; n != 0 {
		t.Errorf("%d calls reached the upstream", n)
	}
	if n := p.srv.buffered.Load(); n != 0 {
		t.Errorf("%d bytes are still counted as buffered", n)
	}
}

func TestPathsAreOnePolicy(t *testing.T) {
	up := fake(t, fakellm.Options{})
	p := newPlane(t, document(up.URL()), nil)
	for _, path := range []string{"/v1/chat/completions", "/chat/completions", "/v1/chat/completions/", "/chat/completions/"} {
		if resp, body := p.post(path, ask("hi", false)); resp.StatusCode != 200 {
			t.Errorf("%s: %d %s", path, resp.StatusCode, body)
		}
	}
	for _, path := range []string{"/v1/models", "/models/", "/v1/models/chat", "/healthz", "/readyz", "/readyz?verbose"} {
		resp, err := http.Get(p.url + path)
		if err != nil || resp.StatusCode != 200 {
			t.Errorf("%s: %v %v", path, resp, err)
		}
		resp.Body.Close()
	}
	for _, path := range []string{"/metrics", "/admin/experiments", "/debug/pprof/", "/debug/vars", "/ui"} {
		resp, err := http.Get(p.url + path)
		if err != nil || resp.StatusCode != 404 {
			t.Errorf("%s is on the data plane: %v %v", path, resp, err)
		}
		resp.Body.Close()
	}
}

func TestRequestHeaders(t *testing.T) {
	var mu sync.Mutex
	var got http.Header
	up := fake(t, fakellm.Options{})
	up.OnCall(func(_ fakellm.Call, h http.Header) { mu.Lock(); got = h.Clone(); mu.Unlock() })
	doc := document(up.URL())
	p := newPlane(t, doc, nil)
	send := []string{
		"Authorization", "Bearer CANARY", "X-Api-Key", "CANARY", "Api-Key", "CANARY", "X-Goog-Api-Key", "CANARY", "Cookie", "a=CANARY",
		"Proxy-Authorization", "CANARY", "Connection", "keep-alive, x-secret", "X-Secret", "CANARY", "TE", "trailers", "X-Sluice-Variant", "CANARY",
		"X-Forwarded-For", "CANARY", "X-Vllm-Priority", "CANARY", "X-Data-Parallel-Rank", "CANARY", "X-Conversation-Id", "CANARY",
		"X-Override-Rid", "CANARY", "OpenAI-Organization", "CANARY", "OpenAI-Project", "CANARY", "Accept-Encoding", "gzip",
		"OpenAI-Beta", "assistants=v2", "traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "X-Request-Id", "mine",
	}
	resp, _ := p.post("/v1/chat/completions", ask("hi", false), send...)
	if resp.StatusCode != 200 {
		t.Fatal(resp.Status)
	}
	mu.Lock()
	defer mu.Unlock()
	for k, v := range got {
		if strings.Contains(strings.Join(v, ","), "CANARY") {
			t.Errorf("%s reached the upstream", k)
		}
	}
	if got.Get("OpenAI-Beta") == "" || got.Get("Traceparent") == "" {
		t.Errorf("an allowed header is missing: %v", got)
	}
	if enc := got.Get("Accept-Encoding"); enc != "" && enc != "identity" {
		t.Errorf("accept-encoding %q", enc)
	}
	if id := got.Get("X-Request-Id"); id == "mine" || id == "" {
		t.Errorf("x-request-id %q is not ours", id)
	}
	if ev := p.rec.wait(t, 1)[0]; ev.ClientRequestID != "mine" {
		t.Errorf("client_request_id %q", ev.ClientRequestID)
	}
}

func TestKeys(t *testing.T) {
	up := fake(t, fakellm.Options{})
	doc := document(up.URL())
	p := newPlane(t, doc, func(c *Config) { c.AuthKeys = true; c.CORSOrigins = []string{"https://app.example"} })
	resp, body := p.post("/v1/chat/completions", ask("hi", false), "Authorization", "Bearer sk-wrong", "Origin", "https://app.example")
	if e := envelope(t, body); resp.StatusCode != 401 || *e.Code != "invalid_api_key" || e.Type != "authentication_error" {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	if resp.Header.Get("Access-Control-Allow-Origin") != "https://app.example" {
		t.Error("a browser would hide the 401")
	}
	if strings.Contains(body, "sk-wrong") || strings.Contains(p.log.String(), "sk-wrong") {
		t.Error("the key is quoted")
	}
	req, _ := http.NewRequest("OPTIONS", p.url+"/v1/chat/completions", nil)
	req.Header.Set("Origin", "https://app.example")
	req.Header.Set("Access-Control-Request-Method", "POST")
	req.Header.Set("Access-Control-Request-Headers", "authorization,content-type,x-stainless-os")
	pre, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	pre.Body.Close()
	if pre.StatusCode != 204 || pre.Header.Get("Access-Control-Allow-Headers") != "authorization,content-type,x-stainless-os" {
		t.Errorf("preflight: %d %v", pre.StatusCode, pre.Header)
	}
}

// twoVariants is an experiment between two upstreams at the given weights.
func twoVariants(a, b string, wa, wb int) *router.Document {
	doc := document(a)
	doc.Upstreams = append(doc.Upstreams, router.Upstream{Name: "v2", Endpoints: []string{b}})
	doc.Experiments = []router.Experiment{{
		Key: "exp", Model: "chat", Kind: "canary", State: "running", Baseline: "control", Seed: "00ff00ff00ff00ff",
		Variants: []router.Variant{
			{Name: "control", Weight: wa, Upstream: "v1", Model: "m1", Version: "one"},
			{Name: "canary", Weight: wb, Upstream: "v2", Model: "m2", Version: "two", Fallback: "control"},
		},
	}}
	return doc
}

func TestStickyAcrossRatioChanges(t *testing.T) {
	a, b := fake(t, fakellm.Options{}), fake(t, fakellm.Options{})
	p := newPlane(t, twoVariants(a.URL(), b.URL(), 9000, 1000), nil)
	assigned := func() map[string]string {
		m := map[string]string{}
		for i := range 300 {
			u := fmt.Sprint("user-", i)
			resp, body := p.post("/v1/chat/completions", ask("hi [[tokens:1]]", false), "X-User-Id", u)
			if resp.StatusCode != 200 {
				t.Fatal(body)
			}
			m[u] = resp.Header.Get("X-Sluice-Variant")
		}
		return m
	}
	before := assigned()
	edited := p.doc.Clone()
	if err := router.SetWeights(edited, p.doc.Revision+1, time.Now(), "exp", map[string]int{"control": 5000, "canary": 5000}); err != nil {
		t.Fatal(err)
	}
	edited.Revision = p.doc.Revision + 1
	p.compile(edited)
	moved := 0
	for u, v := range assigned() {
		if v != before[u] {
			moved++
			if v == "control" {
				t.Errorf("%s moved back to control", u)
			}
		}
	}
	// 40 % of the buckets move; of 300 users 120 ± 4 standard deviations of sampling.
	if moved < 86 || moved > 154 {
		t.Errorf("%d of 300 users moved, want about 120", moved)
	}
}

func TestFallbackIsToldAndRecorded(t *testing.T) {
	a, b := fake(t, fakellm.Options{}), fake(t, fakellm.Options{})
	b.Set(fakellm.Behaviour{Fault: fakellm.Status, Status: 503})
	p := newPlane(t, twoVariants(a.URL(), b.URL(), 0, 10000), nil)
	resp, body := p.post("/v1/chat/completions", ask("hi", true), "X-User-Id", "u1")
	if resp.StatusCode != 200 || !strings.Contains(body, "[DONE]") {
		t.Fatalf("%d %s", resp.StatusCode, body)
	}
	h := resp.Header
	if h.Get("X-Sluice-Variant") != "control" || h.Get("X-Sluice-Assigned") != "canary" || h.Get("X-Sluice-Fallback-From") != "canary" || h.Get("X-Sluice-Attempts") != "2" || h.Get("X-Sluice-Version") != "one" {
		t.Errorf("headers: %v", h)
	}
	ev := p.rec.wait(t, 1)[0]
	if ev.Assigned != "canary" || ev.Served != "control" || ev.Outcome != "success" || len(ev.Attempts) != 2 {
		t.Errorf("event: %+v", ev)
	}
	if ev.Attempts[0].Outcome != "upstream_error" || ev.Attempts[1].Outcome != "success" || !ev.Attempts[1].Priced {
		t.Errorf("attempts: %+v", ev.Attempts)
	}
}

// TestKillBeforeTheNextAttempt kills the variant while its first attempt fails:
// the retry must not go there again.
func TestKillBeforeTheNextAttempt(t *testing.T) {
	a, b, c := fake(t, fakellm.Options{}), fake(t, fakellm.Options{}), fake(t, fakellm.Options{})
	doc := twoVariants(a.URL(), b.URL(), 0, 10000)
	doc.Upstreams[1].Endpoints = []string{b.URL(), c.URL()}
	p := newPlane(t, doc, nil)
	var once sync.Once
	kill := func(fakellm.Call, http.Header) {
		once.Do(func() {
			next := p.doc.Clone()
			if err := router.Kill(next, p.doc.Revision+1, time.Now(), "exp", "canary"); err != nil {
				t.Error(err)
			}
			next.Revision = p.doc.Revision + 1
			p.compile(next)
		})
	}
	for _, s := range []*fakellm.Server{b, c} {
		s.OnCall(kill)
		s.Set(fakellm.Behaviour{Fault: fakellm.Status, Status: 503})
	}
	resp, body := p.post("/v1/chat/completions", ask("hi", false), "X-User-Id", "u1")
	if resp.StatusCode != 200 || resp.Header.Get("X-Sluice-Variant") != "control" {
		t.Errorf("%d %s %v", resp.StatusCode, body, resp.Header)
	}
	if n := b.Counts().Calls + c.Counts().Calls; n != 1 {
		t.Errorf("the killed variant got %d calls, want the one that was under way", n)
	}
}

func TestOverrideNeedsTheScope(t *testing.T) {
	a, b := fake(t, fakellm.Options{}), fake(t, fakellm.Options{})
	p := newPlane(t, twoVariants(a.URL(), b.URL(), 10000, 0), nil)
	resp, _ := p.post("/v1/chat/completions", ask("hi", false), "X-Sluice-Variant", "nope", "X-User-Id", "u")
	if resp.Header.Get("X-Sluice-Variant") != "control" || resp.Header.Get("X-Sluice-Note") != "override_unknown_variant" {
		t.Errorf("%v", resp.Header)
	}
	// Masked: never, not even from loopback.
	resp, _ = p.post("/v1/chat/completions", ask("hi", false), "X-Sluice-Variant", "canary", "X-User-Id", "u")
	if resp.Header.Get("X-Sluice-Variant") != "control" {
		t.Errorf("a masked variant was given: %v", resp.Header)
	}
	evs := p.rec.wait(t, 2)
	if want := []uint8{metrics.Note("override_unknown_variant"), metrics.Note("override_masked")}; evs[0].Notes != want[0] || evs[1].Notes != want[1] || want[0] == want[1] {
		t.Errorf("notes %b and %b are counted, want %b", evs[0].Notes, evs[1].Notes, want)
	}
}

// TestNotesAreCounted: every note that a request can get has a word in the metrics.
func TestNotesAreCounted(t *testing.T) {
	for _, word := range []string{router.NoteOverrideDenied, router.NoteOverrideUnknown, router.NoteOverrideMasked, "merge_conflict"} {
		if metrics.Note(word) == 0 {
			t.Errorf("%s is not among %v", word, metrics.NoteNames)
		}
	}
}
