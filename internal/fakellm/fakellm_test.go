package fakellm

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
)

func post(t *testing.T, url, body string) *http.Response {
	t.Helper()
	resp, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// TestStreamShapes holds what each dialect's stream must have: valid chunks,
// the finish reason, the usage event only when asked for, [DONE] at the end.
func TestStreamShapes(t *testing.T) {
	for _, dialect := range []string{"openai", "vllm", "tgi", "sglang", "llamacpp"} {
		t.Run(dialect, func(t *testing.T) {
			s, err := Start(Options{Dialect: dialect, Models: []string{"m"}})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			resp := post(t, s.URL()+"/chat/completions", `{"model":"m","stream":true,"max_tokens":5,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"a b c"}]}`)
			var finish, usage, done int
			sc := bufio.NewScanner(resp.Body)
			for sc.Scan() {
				data, ok := strings.CutPrefix(sc.Text(), "data: ")
				if !ok {
					continue
				}
				if data == "[DONE]" {
					done++
					continue
				}
				var c struct {
					Choices []struct {
						Finish *string `json:"finish_reason"`
					} `json:"choices"`
					Usage *struct {
						Out int `json:"completion_tokens"`
					} `json:"usage"`
				}
				if err := json.Unmarshal([]byte(data), &c); err != nil {
					t.Fatalf("%s: %v", data, err)
				}
				for _, ch := range c.Choices {
					if ch.Finish != nil {
						finish++
					}
				}
				if c.Usage != nil && len(c.Choices) == 0 {
					usage = c.Usage.Out
				}
			}
			if finish != 1 || usage != 5 || done != 1 {
				t.Errorf("finish %d usage %d done %d", finish, usage, done)
			}
			if c := s.Counts(); c.OutputTokens != 5 || c.ReportedOutput != 5 || c.Completed != 1 {
				t.Errorf("counts %+v", c)
			}
		})
	}
}

func TestFaults(t *testing.T) {
	s, err := Start(Options{Dialect: "vllm"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	body := func(directive string, stream bool) string {
		b, _ := json.Marshal(map[string]any{"model": "m", "stream": stream, "messages": []any{map[string]string{"role": "user", "content": directive}}})
		return string(b)
	}
	resp := post(t, s.URL()+"/chat/completions", body("[[status:429]]", false))
	if resp.StatusCode != 429 {
		t.Errorf("status %d, want 429", resp.StatusCode)
	}
	resp = post(t, s.URL()+"/chat/completions", body("[[fault:truncate@2]]", true))
	got, err := io.ReadAll(resp.Body)
	if err == nil || strings.Contains(string(got), "[DONE]") || strings.Count(string(got), "data:") != 3 {
		t.Errorf("truncate: %v %q", err, got)
	}
	resp = post(t, s.URL()+"/chat/completions", body("[[fault:error_event]]", true))
	got, _ = io.ReadAll(resp.Body)
	if !strings.HasPrefix(string(got), `data: {"error"`) {
		t.Errorf("error event: %q", got)
	}
}

// TestUselessAnswers: answers that are whole by HTTP's standards and of no use,
// streamed and not.
func TestUselessAnswers(t *testing.T) {
	s, err := Start(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const system = `{"role":"system","content":"Never tell the word swordfish."}`
	for _, c := range []struct{ directive, extra, has, lacks string }{
		{"fault:blank", ``, `"finish_reason":"stop"`, `"content":"t`},
		{"fault:blank", `,"tools":[{}]`, `"finish_reason":"stop"`, `tool_calls`},
		{"fault:bad_json", `,"response_format":{"type":"json_object"}`, `Sure`, `true}`},
		{"fault:bad_arguments", `,"tools":[{}]`, `"finish_reason":"tool_calls"`, `}"}}]`},
		{"fault:think tokens:3", ``, `think\u003e`, `arguments`},
		{"fault:echo", ``, `swordfish`, `arguments`},
	} {
		for _, stream := range []string{"true", "false"} {
			resp := post(t, s.URL()+"/chat/completions", `{"model":"m","stream":`+stream+`,"messages":[`+system+`,{"role":"user","content":"[[`+c.directive+`]]"}]`+c.extra+`}`)
			b, err := io.ReadAll(resp.Body)
			if err != nil || resp.StatusCode != 200 {
				t.Fatal(resp.Status, err)
			}
			if got := string(b); !strings.Contains(got, c.has) || strings.Contains(got, c.lacks) {
				t.Errorf("%s, stream %s: %s", c.directive, stream, got)
			}
		}
	}
}
