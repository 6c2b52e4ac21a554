package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	openai "github.com/sashabaranov/go-openai"

	"sluice/internal/fakellm"
)

// sdkGateway serves `chat` through an experiment and `embed` without one, with
// keys, in front of the dialect's wire shapes.
func sdkGateway(t *testing.T, dialect string) (url, key string) {
	var urls [4]any // two endpoints for each upstream, so that the gateway has something to retry on
	for i := range urls {
		urls[i] = fake(t, fakellm.Options{Dialect: dialect, Models: []string{"m-1", "e-1"}}).URL()
	}
	dir := t.TempDir()
	g := serve(t, dir, fmt.Sprintf(`
server: { listen: "%%DATA%%" }
admin: { listen: "%%ADMIN%%" }
storage: { url: "sqlite:%%DIR%%/sluice.db" }
auth: { data: keys }
data_dir: "%%DIR%%"
resources:
  upstreams:
    - { name: v1, dialect: %[1]s, endpoints: ["%[2]s", "%[3]s"], price: { input: "0.20", output: "0.80" } }
    - { name: v2, dialect: %[1]s, endpoints: ["%[4]s", "%[5]s"], price: { input: "0.30", output: "1.20" } }
  models:
    - { name: chat, default: { upstream: v1, model: m-1 } }
    - { name: embed, default: { upstream: v1, model: e-1 } }
  experiments:
    - key: chat-v2
      model: chat
      kind: canary
      state: running
      baseline: control
      variants:
        - { name: control, weight: 5000, upstream: v1, model: m-1 }
        - { name: canary, weight: 5000, upstream: v2, model: m-1 }
`, append([]any{dialect}, urls[:]...)...))
	var created struct {
		Secret string `json:"secret"`
	}
	if resp := g.admin("POST", "/keys", `{"name":"sdk"}`, &created); resp.StatusCode != 201 || created.Secret == "" {
		t.Fatalf("creating a key: status %d", resp.StatusCode)
	}
	deadline := time.Now().Add(5 * time.Second)
	for time.Now().Before(deadline) { // the key is in force on this replica at once; the loop guards a slow machine
		c := client(g.Data+"/v1", created.Secret)
		if _, err := c.ListModels(context.Background()); err == nil {
			break
		}
	}
	return g.Data + "/v1", created.Secret
}

func client(url, key string) *openai.Client {
	c := openai.DefaultConfig(key)
	c.BaseURL = url
	return openai.NewClientWithConfig(c)
}

func needs(t *testing.T, path string) {
	t.Helper()
	if _, err := os.Stat(path); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("%s is missing: run make test-deps", path)
		}
		t.Skipf("%s is missing: run make test-deps", path)
	}
}

func TestPythonSDK(t *testing.T) {
	python, _ := filepath.Abs("../../.cache/venv/bin/python")
	needs(t, python)
	for _, dialect := range []string{"openai", "vllm"} {
		t.Run(dialect, func(t *testing.T) { script(t, dialect, python, "python/conformance.py") })
	}
}

func TestNodeSDK(t *testing.T) {
	needs(t, "node/node_modules/openai")
	for _, dialect := range []string{"openai", "llamacpp"} {
		t.Run(dialect, func(t *testing.T) { script(t, dialect, "node", "node/conformance.mjs") })
	}
}

func script(t *testing.T, dialect string, argv ...string) {
	url, key := sdkGateway(t, dialect)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "SLUICE_URL="+url, "SLUICE_KEY="+key, "NO_PROXY=127.0.0.1")
	out, err := cmd.CombinedOutput()
	for line := range strings.SplitSeq(string(out), "\n") {
		if strings.HasPrefix(line, "FAIL") {
			t.Error(line)
		}
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if n := strings.Count(string(out), "\nok ") + 1; n < 15 {
		t.Errorf("only %d cases ran:\n%s", n, out)
	}
}

func ask(text string) openai.ChatCompletionRequest {
	return openai.ChatCompletionRequest{Model: "chat", MaxCompletionTokens: 6,
		Messages: []openai.ChatCompletionMessage{{Role: openai.ChatMessageRoleUser, Content: text}}}
}

func TestGoSDK(t *testing.T) {
	url, key := sdkGateway(t, "openai")
	c, ctx := client(url, key), t.Context()

	t.Run("chat", func(t *testing.T) {
		r, err := c.CreateChatCompletion(ctx, ask("hello"))
		if err != nil || r.Usage.CompletionTokens != 6 || r.Choices[0].FinishReason != "length" {
			t.Fatalf("%v %+v", err, r)
		}
		if r.Header().Get("X-Request-Id") == "" {
			t.Error("no x-request-id")
		}
	})
	t.Run("stream", func(t *testing.T) {
		text, err := readStream(ctx, c, ask("hello"))
		if err != nil || len(strings.Fields(text)) != 6 {
			t.Fatalf("%v %q", err, text)
		}
	})
	t.Run("stream with n=2 and logprobs", func(t *testing.T) {
		q := ask("hello")
		q.N, q.LogProbs = 2, true
		if _, err := readStream(ctx, c, q); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("tools", func(t *testing.T) {
		q := ask("weather")
		q.Tools = []openai.Tool{{Type: "function", Function: &openai.FunctionDefinition{Name: "lookup"}}}
		r, err := c.CreateChatCompletion(ctx, q)
		if err != nil || len(r.Choices[0].Message.ToolCalls) != 1 {
			t.Fatalf("%v %+v", err, r)
		}
	})
	t.Run("embeddings", func(t *testing.T) {
		r, err := c.CreateEmbeddings(ctx, openai.EmbeddingRequestStrings{Model: "embed", Input: []string{"a", "b"}})
		if err != nil || len(r.Data) != 2 || r.Data[0].Embedding[0] != 0.5 {
			t.Fatalf("%v %+v", err, r)
		}
	})
	t.Run("models", func(t *testing.T) {
		r, err := c.ListModels(ctx)
		if err != nil || len(r.Models) != 2 {
			t.Fatalf("%v %+v", err, r)
		}
	})
	t.Run("errors", func(t *testing.T) {
		for _, status := range []int{400, 404, 422, 429, 500, 503} {
			_, err := c.CreateChatCompletion(ctx, ask(fmt.Sprintf("[[status:%d]]", status)))
			var api *openai.APIError
			if !errors.As(err, &api) || api.HTTPStatusCode != status || api.Message == "" {
				t.Errorf("status %d: %v", status, err)
			}
		}
		_, err := client(url, "sk-wrong").ListModels(ctx)
		var api *openai.APIError
		if !errors.As(err, &api) || api.HTTPStatusCode != 401 || api.Code != "invalid_api_key" {
			t.Errorf("wrong key: %v", err)
		}
	})
	t.Run("truncation", func(t *testing.T) {
		text, err := readStream(ctx, c, ask("[[fault:truncate@3]]"))
		if err == nil || text == "" {
			t.Errorf("a cut answer ended as a whole one: %q %v", text, err)
		}
	})
}

func readStream(ctx context.Context, c *openai.Client, q openai.ChatCompletionRequest) (string, error) {
	q.Stream = true
	s, err := c.CreateChatCompletionStream(ctx, q)
	if err != nil {
		return "", err
	}
	defer s.Close()
	var b strings.Builder
	for {
		r, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return b.String(), nil
		}
		if err != nil {
			return b.String(), err
		}
		for _, ch := range r.Choices {
			b.WriteString(ch.Delta.Content)
		}
	}
}
