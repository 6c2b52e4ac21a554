package fakellm

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"strings"
)

func (a *answer) usage(out int) string {
	n := out * a.req.N
	in := a.in
	switch a.s.opt.Dialect {
	case "tgi":
		return fmt.Sprintf(`{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}`, in, n, in+n)
	case "sglang":
		return fmt.Sprintf(`{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d},"reasoning_tokens":%d}`, in, in+n, n, a.b.Cached, a.b.Reasoning)
	}
	u := fmt.Sprintf(`{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d`, in, in+n, n)
	if a.b.Cached > 0 {
		u += fmt.Sprintf(`,"prompt_tokens_details":{"cached_tokens":%d}`, a.b.Cached)
	}
	if a.b.Reasoning > 0 {
		u += fmt.Sprintf(`,"completion_tokens_details":{"reasoning_tokens":%d}`, a.b.Reasoning)
	}
	return u + "}"
}

func (a *answer) id() string {
	switch a.s.opt.Dialect {
	case "tgi":
		return ""
	case "sglang":
		return "5f0c1de2a3b4"
	}
	return "chatcmpl-fake"
}

// chunk is one stream chunk; choices is the array's inside, rest trailing members.
func (a *answer) chunk(choices, rest string) string {
	object := "chat.completion.chunk"
	if a.api == "completions" {
		object = "text_completion"
	}
	return fmt.Sprintf(`{"id":%q,"object":%q,"created":%d,"model":%s,"choices":[%s]%s}`,
		a.id(), object, created, quote(a.req.Model), choices, rest)
}

func quote(s string) string { b, _ := json.Marshal(s); return string(b) }

// delta is a choice with content.
func (a *answer) delta(index int, text string) string {
	if a.api == "completions" {
		return fmt.Sprintf(`{"index":%d,"text":%s,"logprobs":null,"finish_reason":null}`, index, quote(text))
	}
	lp := "null"
	if a.req.Logprobs == true {
		lp = fmt.Sprintf(`{"content":[{"token":%s,"logprob":-0.1,"bytes":null,"top_logprobs":[]}]}`, quote(text))
	}
	switch a.s.opt.Dialect {
	case "tgi":
		return fmt.Sprintf(`{"index":%d,"delta":{"role":"assistant","content":%s},"logprobs":%s,"finish_reason":null}`, index, quote(text), lp)
	case "sglang":
		return fmt.Sprintf(`{"index":%d,"delta":{"reasoning_content":null,"content":%s},"logprobs":%s,"finish_reason":null,"matched_stop":null}`, index, quote(text), lp)
	}
	return fmt.Sprintf(`{"index":%d,"delta":{"content":%s},"logprobs":%s,"finish_reason":null}`, index, quote(text), lp)
}

func (a *answer) finishReason() string {
	if a.b.Tool && a.api == "chat" {
		return "tool_calls"
	}
	if a.short && a.api == "chat" && a.b.Text == "" && a.b.Fault == NoFault {
		return "length"
	}
	return "stop"
}

func (a *answer) finish(index int) string {
	if a.api == "completions" {
		return fmt.Sprintf(`{"index":%d,"text":"","logprobs":null,"finish_reason":"stop"}`, index)
	}
	return fmt.Sprintf(`{"index":%d,"delta":{},"logprobs":null,"finish_reason":"%s"}`, index, a.finishReason())
}

func (a *answer) toolDelta(index, i int, text string) string {
	if i == 0 {
		return fmt.Sprintf(`{"index":%d,"delta":{"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"lookup","arguments":""}}]},"logprobs":null,"finish_reason":null}`, index)
	}
	return fmt.Sprintf(`{"index":%d,"delta":{"tool_calls":[{"index":0,"function":{"arguments":%s}}]},"logprobs":null,"finish_reason":null}`, index, quote(text))
}

// arguments are those of its tool call.
func (a *answer) arguments() string {
	if a.b.Fault == BadArguments {
		return `{"q": "weath`
	}
	return `{"q": "weather"}`
}

// pieces splits a text over n pieces.
func pieces(whole string, n int) []string {
	if n < 1 {
		n = 1
	}
	var parts []string
	for i := range n {
		parts = append(parts, whole[i*len(whole)/n:(i+1)*len(whole)/n])
	}
	return parts
}

func (a *answer) whole() string {
	var choices []string
	text := strings.Join(a.words, "")
	for i := range a.req.N {
		switch {
		case a.api == "completions":
			choices = append(choices, fmt.Sprintf(`{"index":%d,"text":%s,"logprobs":null,"finish_reason":"stop"}`, i, quote(text)))
		case a.b.Tool:
			choices = append(choices, fmt.Sprintf(`{"index":%d,"message":{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"lookup","arguments":%s}}]},"logprobs":null,"finish_reason":"tool_calls"}`, i, quote(a.arguments())))
		default:
			lp := "null"
			if a.req.Logprobs == true {
				lp = `{"content":[{"token":"the","logprob":-0.1,"bytes":null,"top_logprobs":[]}]}`
			}
			choices = append(choices, fmt.Sprintf(`{"index":%d,"message":{"role":"assistant","content":%s},"logprobs":%s,"finish_reason":%q}`, i, quote(text), lp, a.finishReason()))
		}
	}
	object := "chat.completion"
	if a.api == "completions" {
		object = "text_completion"
	}
	return fmt.Sprintf(`{"id":%q,"object":%q,"created":%d,"model":%s,"choices":[%s],"usage":%s}`,
		a.id(), object, created, quote(a.req.Model), strings.Join(choices, ","), a.usage(len(a.words)))
}

func (a *answer) embeddings() string {
	n := 1
	var list []json.RawMessage
	if json.Unmarshal(a.req.Input, &list) == nil && len(list) > 0 && list[0][0] == '"' {
		n = len(list)
	}
	var data []string
	for i := range n {
		vec := "[0.5,-0.25,0.125]"
		if a.req.Encoding == "base64" {
			var raw []byte
			for _, f := range []float32{0.5, -0.25, 0.125} {
				raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(f))
			}
			vec = `"` + base64.StdEncoding.EncodeToString(raw) + `"`
		}
		data = append(data, fmt.Sprintf(`{"object":"embedding","index":%d,"embedding":%s}`, i, vec))
	}
	return fmt.Sprintf(`{"object":"list","data":[%s],"model":%s,"usage":{"prompt_tokens":%d,"total_tokens":%d}}`,
		strings.Join(data, ","), quote(a.req.Model), a.in, a.in)
}

func (a *answer) response() string {
	return fmt.Sprintf(`{"id":"resp_fake","object":"response","created_at":%d,"status":"completed","model":%s,"output":[{"type":"message","id":"msg_1","role":"assistant","status":"completed","content":[{"type":"output_text","text":%s,"annotations":[]}]}],"usage":{"input_tokens":%d,"input_tokens_details":{"cached_tokens":%d},"output_tokens":%d,"output_tokens_details":{"reasoning_tokens":%d},"total_tokens":%d}}`,
		created, quote(a.req.Model), quote(strings.Join(a.words, "")), a.in, a.b.Cached, len(a.words), a.b.Reasoning, a.in+len(a.words))
}

// errorEvent is the dialect's in-band error (wire facts 1.4).
func (a *answer) errorEvent() (event string, done bool) {
	code := a.b.Status
	if code == 0 {
		code = 500
	}
	switch a.s.opt.Dialect {
	case "tgi":
		return `{"error":{"message":"Model is overloaded","http_status_code":422}}`, true
	case "sglang":
		return fmt.Sprintf(`{"error": {"object": "error", "message": "scripted error", "type": "SERVICE_UNAVAILABLE", "param": null, "code": %d}}`, code), true
	case "llamacpp":
		return fmt.Sprintf(`{"error":{"code":%d,"message":"scripted error","type":"server_error"}}`, code), false
	}
	return fmt.Sprintf(`{"error": {"message": "scripted error", "type": "InternalServerError", "param": null, "code": %d}}`, code), true
}
