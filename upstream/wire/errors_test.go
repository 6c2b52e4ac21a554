package wire_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"sluice/upstream/wire"
)

func TestParseError(t *testing.T) {
	for name, tc := range map[string]struct {
		status  int
		ctype   string
		body    string
		dialect wire.Dialect
		want    wire.ErrorInfo
	}{
		"openai": {400, "", `{"error":{"message":"m","type":"t","param":"p","code":"c"}}`, wire.OpenAI,
			wire.ErrorInfo{Status: 400, Message: "m", Type: "t", Param: "p", Code: "c", Nested: true, ClientFault: true}},
		"vllm, unknown model": {404, "", `{"error":{"message":"The model x does not exist.","type":"NotFoundError","param":"model","code":404}}`, wire.VLLM,
			wire.ErrorInfo{Status: 404, Message: "The model x does not exist.", Type: "NotFoundError", Param: "model", Nested: true, ModelNotFound: true}},
		"vllm, no key": {401, "", `{"error":"Unauthorized"}`, wire.VLLM,
			wire.ErrorInfo{Status: 401, Message: "Unauthorized", Type: "authentication_error"}},
		"vllm, scaling": {503, "", `{"error":"The model is currently scaling"}`, wire.VLLM,
			wire.ErrorInfo{Status: 503, Message: "The model is currently scaling", Type: "upstream_error", Code: "upstream_error"}},
		"sglang": {400, "", `{"object":"error","message":"The input is longer than the model's context length","type":"BadRequest","param":null,"code":400}`, wire.SGLang,
			wire.ErrorInfo{Status: 400, Message: "The input is longer than the model's context length", Type: "invalid_request_error", Code: "context_length_exceeded", ClientFault: true}},
		"sglang, full": {503, "", `{"object":"error","message":"The request queue is full.","type":"x","param":null,"code":503}`, wire.SGLang,
			wire.ErrorInfo{Status: 503, Message: "The request queue is full.", Type: "upstream_error", Code: "upstream_error"}},
		"tgi, generation": {424, "", `{"error":"Request failed during generation: x","error_type":"generation"}`, wire.TGI,
			wire.ErrorInfo{Status: 424, Message: "Request failed during generation: x", Type: "invalid_request_error", ClientFault: true}},
		"tgi, text": {422, "text/plain", "Failed to deserialize the JSON body into the target type", wire.TGI,
			wire.ErrorInfo{Status: 422, Message: "Failed to deserialize the JSON body into the target type", Type: "invalid_request_error", ClientFault: true}},
		"tgi, no key": {401, "", "", wire.TGI,
			wire.ErrorInfo{Status: 401, Message: "The upstream answered with status 401 and no message.", Type: "authentication_error"}},
		"llama, broken json": {500, "", `{"error":{"code":500,"message":"[json.exception.parse_error.101] parse error","type":"server_error"}}`, wire.LlamaCPP,
			wire.ErrorInfo{Status: 500, Message: "[json.exception.parse_error.101] parse error", Type: "server_error", Nested: true, ClientFault: true}},
		"llama, its own": {500, "", `{"error":{"code":500,"message":"out of memory","type":"server_error"}}`, wire.LlamaCPP,
			wire.ErrorInfo{Status: 500, Message: "out of memory", Type: "server_error", Nested: true}},
		"llama, router": {400, "", `{"error":{"code":400,"message":"model 'x' not found","type":"invalid_request_error"}}`, wire.LlamaCPP,
			wire.ErrorInfo{Status: 400, Message: "model 'x' not found", Type: "invalid_request_error", Nested: true, ModelNotFound: true}},
		"another's 500 about json": {500, "", `{"error":{"message":"parse json"}}`, wire.VLLM,
			wire.ErrorInfo{Status: 500, Message: "parse json", Nested: true}},
		"fastapi, text": {404, "", `{"detail":"Not Found"}`, wire.OpenAI,
			wire.ErrorInfo{Status: 404, Message: "Not Found", Type: "invalid_request_error", ClientFault: true}},
		"fastapi, list": {422, "", `{"detail":[{"loc":["body","messages",0],"msg":"field required","type":"x"},{"msg":"too long"}]}`, wire.OpenAI,
			wire.ErrorInfo{Status: 422, Message: "body.messages.0: field required; too long", Type: "invalid_request_error", ClientFault: true}},
		"html": {502, "text/html; charset=utf-8", "<!DOCTYPE html><html><head><title>\n502 Bad &amp; Gateway</title></head><body>x</body></html>", wire.OpenAI,
			wire.ErrorInfo{Status: 502, Message: "502 Bad & Gateway", Type: "upstream_error", Code: "upstream_error"}},
		"html by its looks, no title": {500, "", "<html><h1>secret</h1>", wire.OpenAI,
			wire.ErrorInfo{Status: 500, Message: "The upstream answered with an HTML page.", Type: "upstream_error", Code: "upstream_error"}},
		"rate limit": {429, "", `{"message":"slow down"}`, wire.OpenAI,
			wire.ErrorInfo{Status: 429, Message: "slow down", Type: "rate_limit_error", Code: "upstream_rate_limited"}},
		"own sentinel": {424, "", `{}`, wire.OpenAI,
			wire.ErrorInfo{Status: 424, Message: "The upstream answered with status 424 and no message.", Type: "invalid_request_error", ClientFault: true}},
		"unknown object": {500, "", `{"a":"b"}`, wire.OpenAI,
			wire.ErrorInfo{Status: 500, Message: `{"a":"b"}`, Type: "upstream_error", Code: "upstream_error"}},
		"nested without message": {500, "", `{"error":{"code":"boom"}}`, wire.OpenAI,
			wire.ErrorInfo{Status: 500, Message: `{"error":{"code":"boom"}}`, Type: "upstream_error", Code: "boom"}},
		"a status that is none": {302, "", "x", wire.OpenAI,
			wire.ErrorInfo{Status: 502, Message: "x", Type: "upstream_error", Code: "upstream_error"}},
		"json string": {500, "", `"boom"`, wire.OpenAI,
			wire.ErrorInfo{Status: 500, Message: "boom", Type: "upstream_error", Code: "upstream_error"}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, wire.ParseError(tc.status, tc.ctype, []byte(tc.body), tc.dialect)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestParseErrorBounds: whatever comes, the message is short, valid and there.
func TestParseErrorBounds(t *testing.T) {
	long := strings.Repeat("é🦀", 50_000)
	for name, body := range map[string]string{
		"long text":      long,
		"long message":   `{"error":{"message":"` + long + `"}}`,
		"long flat":      `{"message":"` + long + `"}`,
		"long detail":    `{"detail":[` + strings.Repeat(`{"loc":["a"],"msg":"`+long[:600]+`"},`, 100) + `{}]}`,
		"long title":     "<title>" + long + "</title>",
		"invalid":        "\xff\xfe\xc3",
		"invalid nested": "{\"error\":{\"message\":\"\xff\xfe\"}}",
		"deep":           strings.Repeat(`{"error":`, 20_000),
		"huge":           `{"error":{"message":"m","x":"` + strings.Repeat("y", 2<<20) + `"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			e := wire.ParseError(500, "", []byte(body), wire.OpenAI)
			if n := len(e.Message); n == 0 || n > 2<<10 || !utf8.ValidString(e.Message) {
				t.Errorf("message of %d bytes, valid = %v", n, utf8.ValidString(e.Message))
			}
			if strings.HasPrefix(name, "invalid") && e.Nested {
				t.Error("a body that is not UTF-8 passes as it is")
			}
		})
	}
}

func TestAppendEnvelope(t *testing.T) {
	got := string(wire.AppendErrorEvent([]byte("x"), "a <b> & \"c\"\n\x00\xff\u2028é", "upstream_error", "", "upstream_truncated"))
	want := `xdata: {"error":{"message":"a <b> & \"c\"\n\u0000` + "\uFFFD\u2028é" + `","type":"upstream_error","param":null,"code":"upstream_truncated"}}` + "\n\n"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	var any map[string]any
	if err := json.Unmarshal(wire.AppendEnvelope(nil, "m", "t", "p", ""), &any); err != nil {
		t.Error(err)
	}
}
