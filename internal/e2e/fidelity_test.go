package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"sluice/internal/fakellm"
)

// TestBytesAreTheUpstreams sends the same requests straight to the engine and
// through the gateway, with every dialect: the answers must be equal, byte for
// byte, also when the gateway asked for usage that the client did not.
func TestBytesAreTheUpstreams(t *testing.T) {
	for _, dialect := range []string{"openai", "vllm", "tgi", "sglang", "llamacpp"} {
		for _, usage := range []string{"final", "exact"} {
			if usage == "exact" && dialect != "vllm" && dialect != "sglang" {
				continue
			}
			t.Run(dialect+" "+usage, func(t *testing.T) {
				up := fake(t, fakellm.Options{Dialect: dialect})
				g := serve(t, t.TempDir(), fmt.Sprintf(plainYAML, dialect, up.URL(), usage))
				for name, body := range map[string]string{
					"unary":           `{"model":"chat","messages":[{"role":"user","content":"<b>a && b</b> ü"}],"max_tokens":4}`,
					"stream":          `{"model":"chat","stream":true,"messages":[{"role":"user","content":"a b"}]}`,
					"stream usage":    `{"model":"chat","stream":true,"stream_options":{"include_usage":true},"messages":[]}`,
					"usage false":     `{"model":"chat","stream":true,"stream_options":{"include_usage":false},"messages":[]}`,
					"options null":    `{"model":"chat","stream":true,"stream_options":null,"messages":[]}`,
					"options empty":   `{ "model" : "chat", "stream" : true, "stream_options" : {}, "messages":[] }`,
					"n=2":             `{"model":"chat","stream":true,"n":2,"messages":[]}`,
					"tools":           `{"model":"chat","stream":true,"tools":[{"type":"function","function":{"name":"f"}}],"messages":[]}`,
					"error":           `{"model":"chat","messages":[{"role":"user","content":"[[status:400]]"}]}`,
					"error in stream": `{"model":"chat","stream":true,"messages":[{"role":"user","content":"[[fault:error_event@3]]"}]}`,
				} {
					want := raw(t, strings.TrimSuffix(up.URL(), "/v1"), body)
					got := raw(t, g.Data, body)
					if dialect == "tgi" || dialect == "sglang" {
						if name == "error" {
							continue // flat envelopes are put into OpenAI's; see TestErrorShapes
						}
					}
					if !bytes.Equal(got, want) {
						t.Errorf("%s:\n got %q\nwant %q", name, got, want)
					}
				}
			})
		}
	}
}

const plainYAML = `
server: { listen: "%%DATA%%" }
admin: { listen: "%%ADMIN%%" }
storage: { url: "sqlite:%%DIR%%/sluice.db" }
data_dir: "%%DIR%%"
resources:
  upstreams: [ { name: v1, dialect: %s, endpoints: ["%s"], usage: %s, price: { input: "0.20", output: "0.80" } } ]
  models: [ { name: chat, default: { upstream: v1, model: chat } } ]
`

func raw(t *testing.T, base, body string) []byte {
	t.Helper()
	resp, err := http.Post(base+"/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestErrorShapes(t *testing.T) {
	for _, dialect := range []string{"tgi", "sglang"} {
		up := fake(t, fakellm.Options{Dialect: dialect})
		g := serve(t, t.TempDir(), fmt.Sprintf(plainYAML, dialect, up.URL(), "final"))
		var e struct {
			Error struct{ Message, Type string }
		}
		if err := json.Unmarshal(raw(t, g.Data, chatBody("[[status:422]]", false)), &e); err != nil || e.Error.Message != "scripted status 422" || e.Error.Type != "invalid_request_error" {
			t.Errorf("%s: %v %+v", dialect, err, e)
		}
	}
}
