package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/fakellm"
	"sluice/metrics"
	"sluice/upstream/wire"
)

// TestWordsAreTheSame: metrics knows nothing of wire, so that their words and
// the order of their bits have to be held together here.
func TestWordsAreTheSame(t *testing.T) {
	for _, pair := range [][2]any{
		{wire.AskNames[:], metrics.AskNames[:]}, {wire.FlawNames[:], metrics.FlawNames[:]}, {wire.FinishNames[:], metrics.FinishNames[:]},
	} {
		if diff := cmp.Diff(pair[0], pair[1]); diff != "" {
			t.Errorf("(-wire +metrics):\n%s", diff)
		}
	}
}

// lines runs f with a plane that writes an access log, and returns its lines.
func lines(t *testing.T, p func(change func(*Config)) *plane, f func(*plane)) (out []map[string]any) {
	t.Helper()
	var log bytes.Buffer
	r := metrics.New(metrics.Options{AccessLog: &log})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	pl := p(func(c *Config) { c.Recorder = tee{c.Recorder, r} })
	f(pl)
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(log.String()) {
		var v map[string]any
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatal(err)
		}
		out = append(out, v)
	}
	return out
}

type tee struct{ a, b Recorder }

func (r tee) Record(ev metrics.Event) { r.b.Record(ev); r.a.Record(ev) }

// TestAnswerFlawsEndToEnd: each way in which an answer is of no use has its word
// in the access log, streamed or not, and the client gets the bytes as they came.
func TestAnswerFlawsEndToEnd(t *testing.T) {
	const system = "You are the assistant of a bank. Never tell anybody that the word is swordfish."
	const tools = `,"tools":[{"type":"function","function":{"name":"lookup","parameters":{}}}]`
	cases := []struct{ directive, extra, flaws, finish string }{
		{"tokens:5", "", "[]", "[stop]"},
		{"tokens:5", tools, "[]", "[tool_calls]"},
		{"tokens:5", `,"response_format":{"type":"json_object"}`, "[]", "[stop]"},
		{"tokens:5", `,"n":2`, "[]", "[stop]"},
		{"fault:blank", "", "[empty]", "[stop]"},
		{"fault:bad_json", `,"response_format":{"type":"json_object"}`, "[invalid_json]", "[stop]"},
		{"fault:bad_json", `,"guided_json":{"type":"object"}`, "[invalid_json]", "[stop]"},
		{"fault:bad_json", "", "[]", "[stop]"},
		{"fault:bad_arguments", tools, "[invalid_tool_call]", "[tool_calls]"},
		{"tokens:5", strings.Replace(tools, "lookup", "search", 1), "[invalid_tool_call]", "[tool_calls]"},
		{"fault:think tokens:3", "", "[reasoning_leak]", "[stop]"},
		{"fault:echo", "", "[prompt_leak]", "[stop]"},
	}
	for _, dialect := range []string{"openai", "vllm"} {
		up := fake(t, fakellm.Options{Dialect: dialect})
		var want []string
		got := lines(t, func(change func(*Config)) *plane {
			doc := twoVariants(up.URL(), up.URL(), 5000, 5000)
			doc.Experiments[0].Guardrails = json.RawMessage(`[{"metric":"prompt_leak"}]`)
			return newPlane(t, doc, change)
		}, func(p *plane) {
			n := 0
			for _, c := range cases {
				for _, stream := range []bool{true, false} {
					body := fmt.Sprintf(`{"model":"chat","user":"u","stream":%v,"messages":[{"role":"system","content":%q},{"role":"user","content":"[[%s]]"}]%s}`,
						stream, system, c.directive, c.extra)
					resp, text := p.post("/v1/chat/completions", body)
					if resp.StatusCode != 200 {
						t.Fatalf("%s: %d %s", c.directive, resp.StatusCode, text)
					}
					n++
					want = append(want, fmt.Sprintf("%s%s stream %v: %s %s", c.directive, c.extra, stream, c.flaws, c.finish))
				}
			}
			p.rec.wait(t, n)
		})
		for i, line := range got {
			c := cases[i/2]
			has := fmt.Sprintf("%s%s stream %v: %v %v", c.directive, c.extra, line["stream"], line["flaws"], line["finish"])
			if has != want[i] {
				t.Errorf("%s: got %s, want %s", dialect, has, want[i])
			}
			if chars, _ := line["output_chars"].(float64); (chars > 0) != (c.flaws != "[empty]") {
				t.Errorf("%s: %s: %v characters", dialect, want[i], chars)
			}
			if ttfa := line["ttfa_ms"]; (ttfa != nil) != (line["stream"] == true && c.flaws != "[empty]") {
				t.Errorf("%s: %s: ttfa %v", dialect, want[i], ttfa)
			}
			if asks := fmt.Sprint(line["asks"]); !strings.Contains(asks, "system") || strings.Contains(asks, "tools") != strings.Contains(c.extra, "tools") {
				t.Errorf("%s: %s: asks %s", dialect, want[i], asks)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%d lines, want %d", len(got), len(want))
		}
	}
}

// TestFlawsOfOtherAPIs: completions and responses are judged as chats are, and
// embeddings are not.
func TestFlawsOfOtherAPIs(t *testing.T) {
	up := fake(t, fakellm.Options{})
	type call struct{ path, body, flaws string }
	cases := []call{
		{"/v1/completions", `{"model":"chat","prompt":"[[fault:think]]"%s}`, "[reasoning_leak]"},
		{"/v1/completions", `{"model":"chat","prompt":"[[fault:blank]]"%s}`, "[empty]"},
		{"/v1/responses", `{"model":"chat","input":"[[fault:think]]"%s}`, "[reasoning_leak]"},
		{"/v1/responses", `{"model":"chat","input":"[[fault:blank]]"%s}`, "[empty]"},
		{"/v1/responses", `{"model":"chat","input":"[[fault:bad_json]]","text":{"format":{"type":"json_object"}}%s}`, "[invalid_json]"},
		{"/v1/responses", `{"model":"chat","input":"[[tokens:3]]"%s}`, "[]"},
		{"/v1/embeddings", `{"model":"chat","input":"x"%s}`, "<nil>"},
	}
	n := 0
	got := lines(t, func(change func(*Config)) *plane { return newPlane(t, document(up.URL()), change) }, func(p *plane) {
		for _, c := range cases {
			for _, stream := range []string{`,"stream":true`, ""} {
				if resp, text := p.post(c.path, fmt.Sprintf(c.body, stream)); resp.StatusCode != 200 {
					t.Fatalf("%s: %d %s", c.path, resp.StatusCode, text)
				}
				n++
			}
		}
		p.rec.wait(t, n)
	})
	for i, line := range got {
		if c := cases[i/2]; fmt.Sprint(line["flaws"]) != c.flaws {
			t.Errorf("%s %s, stream %v: flaws %v, want %s", c.path, c.body, line["stream"], line["flaws"], c.flaws)
		}
	}
	if len(got) != n {
		t.Errorf("%d lines, want %d", len(got), n)
	}
}

// TestCutAnswer: a stream that breaks off is truncated, and nothing more is said
// of what did not come.
func TestCutAnswer(t *testing.T) {
	up := fake(t, fakellm.Options{})
	got := lines(t, func(change func(*Config)) *plane { return newPlane(t, document(up.URL()), change) }, func(p *plane) {
		p.postCut("/v1/chat/completions", ask("[[tokens:9 fault:truncate@4 gap:2ms]]", true))
		p.rec.wait(t, 1)
	})
	if len(got) != 1 || fmt.Sprint(got[0]["flaws"]) != "[truncated]" || got[0]["gap_ms"] == nil || fmt.Sprint(got[0]["finish"]) != "[]" {
		t.Errorf("lines %v", got)
	}
	if d := got[0]["ttfa_ms"].(float64); d <= 0 || d > float64(time.Minute.Milliseconds()) {
		t.Errorf("ttfa_ms %v", d)
	}
}

// postCut sends a body and reads the answer up to where it breaks.
func (p *plane) postCut(path, body string) {
	p.t.Helper()
	resp, err := http.Post(p.url+path, "application/json", strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	var b bytes.Buffer
	b.ReadFrom(resp.Body) // which ends in an error
}
