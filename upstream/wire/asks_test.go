package wire_test

import (
	"fmt"
	"strings"
	"testing"

	"sluice/upstream/wire"
)

// askNames are the asks in words, "-" for none.
func askNames(a wire.Asks) string {
	var names []string
	for i, n := range wire.AskNames {
		if a&(1<<i) != 0 {
			names = append(names, n)
		}
	}
	if len(names) == 0 {
		return "-"
	}
	return strings.Join(names, " ")
}

func TestAsks(t *testing.T) {
	const user = `"messages":[{"role":"user","content":"hi"}]`
	for _, c := range []struct {
		api        wire.API
		body, want string
	}{
		{wire.Chat, `{` + user + `}`, "-"},
		{wire.Chat, `{"stream":true,` + user + `}`, "stream"},
		{wire.Chat, `{"tools":[{"type":"function"}],` + user + `}`, "tools"},
		{wire.Chat, `{"tools":[],` + user + `}`, "-"},
		{wire.Chat, `{"tools":null,"tool_choice":"required"}`, "-"},
		{wire.Chat, `{"tools":[{}],"tool_choice":"none"}`, "-"},
		{wire.Chat, `{"tools":[{}],"tool_choice":"auto"}`, "tools"},
		{wire.Chat, `{"tools":[{}],"tool_choice":"required"}`, "tools tool_call"},
		{wire.Chat, `{"tools":[{}],"tool_choice":"any"}`, "tools tool_call"},
		{wire.Chat, `{"tools":[{}],"tool_choice":{"type":"function","function":{"name":"f"}}}`, "tools tool_call"},
		{wire.Chat, `{"tools":[{}],"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[]}}}`, "tools"},
		{wire.Chat, `{"tools":[{}],"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"required"}}}`, "tools tool_call"},
		{wire.Responses, `{"tools":[{}],"tool_choice":{"type":"allowed_tools","mode":"required"}}`, "tools tool_call"},
		{wire.Chat, `{"functions":[{"name":"f"}]}`, "tools"},
		{wire.Chat, `{"functions":[{"name":"f"}],"function_call":"none"}`, "-"},
		{wire.Chat, `{"functions":[{"name":"f"}],"function_call":{"name":"f"}}`, "tools tool_call"},
		{wire.Chat, `{"tool\u0073":[{}]}`, "tools"},
		{wire.Chat, `{"tools":[{}],"tools":null}`, "-"},
		{wire.Chat, `{"response_format":{"type":"text"}}`, "-"},
		{wire.Chat, `{"response_format":null}`, "-"},
		{wire.Chat, `{"response_format":{"type":"json_object"}}`, "json"},
		{wire.Chat, `{"response_format":{"json_schema":{"type":"text"},"type":"json_schema"}}`, "json"},
		{wire.Chat, `{"response_format":{"type":"json","value":{}}}`, "json"},
		{wire.Chat, `{"response_format":{"type":"structural_tag"}}`, "-"},
		{wire.Chat, `{"guided_json":{"type":"object"}}`, "json"},
		{wire.Chat, `{"guided_json":null,"guided_regex":"a+"}`, "-"},
		{wire.Chat, `{"structured_outputs":{"json":{}}}`, "json"},
		{wire.Chat, `{"structured_outputs":{"json_object":true}}`, "json"},
		{wire.Chat, `{"structured_outputs":{"json_object":false,"json":null}}`, "-"},
		{wire.Chat, `{"structured_outputs":{"choice":["json"]}}`, "-"},
		{wire.Completions, `{"prompt":"x","json_schema":{"type":"object"}}`, "json"},
		{wire.Responses, `{"input":"x","text":{"format":{"type":"json_schema","schema":{}}}}`, "json"},
		{wire.Responses, `{"input":"x","text":{"format":{"type":"text"}}}`, "-"},
		{wire.Chat, `{"messages":[{"role":"system","content":"be brief"}]}`, "system"},
		{wire.Chat, `{"messages":[{"content":[{"type":"text","text":"x"}],"role":"developer"}]}`, "system"},
		{wire.Chat, `{"messages":[{"role":"user","content":"x"},{"role":"system","content":"late"}]}`, "system"},
		{wire.Chat, `{"messages":[{"role":"system","content":""},{"role":"user","content":"\"role\":\"system\""}]}`, "-"},
		{wire.Responses, `{"instructions":"be brief","input":"x"}`, "system"},
		{wire.Responses, `{"instructions":"","input":[{"role":"developer","content":"x"}]}`, "system"},
		{wire.Responses, `{"instructions":null,"input":"x"}`, "-"},
		{wire.Chat, `{"n":2}`, "choices"},
		{wire.Chat, `{"n":1}`, "-"},
		{wire.Chat, `{"logprobs":true}`, "logprobs"},
		{wire.Chat, `{"logprobs":false,"top_logprobs":null}`, "-"},
		{wire.Chat, `{"top_logprobs":5}`, "logprobs"},
		{wire.Completions, `{"prompt":"x","logprobs":0}`, "logprobs"},
		{wire.Responses, `{"input":"x","include":["message.output_text.logprobs"]}`, "logprobs"},
		{wire.Chat, `{"stop":"\n"}`, "stop"},
		{wire.Chat, `{"stop":[]}`, "-"},
		{wire.Chat, `{"stop":["a"]}`, "stop"},
		{wire.Chat, `{"stop":""}`, "-"},
		{wire.Chat, `{"messages":[{"role":"user","content":[{"type":"text","text":"x"},{"type":"image_url","image_url":{"url":"http://i/"}}]}]}`, "image"},
		{wire.Responses, `{"input":[{"role":"user","content":[{"type":"input_image","image_url":"data:"}]}]}`, "image"},
		{wire.Chat, `{"messages":[{"role":"user","content":"\"type\":\"image_url\" image"}]}`, "-"},
		{wire.Chat, `{"messages":[{"role":"user","content":"` + strings.Repeat("word ", 3300) + `"}]}`, "long"},
		{wire.Chat, `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,` + strings.Repeat("A", 1<<20) + `"}}]}]}`, "image"},
		{wire.Chat, `{"messages":"x","tools":3,"response_format":"json_object","stop":1,"n":2,"text":7}`, "choices"},
		{wire.Embeddings, `{"input":"x","tools":[{}],"response_format":{"type":"json_object"}}`, "-"},
	} {
		h, err := wire.Scan([]byte(c.body), c.api)
		if err != nil {
			t.Errorf("%.100s: %v", c.body, err)
			continue
		}
		if a, _ := h.Asks([]byte(c.body)); askNames(a) != c.want {
			t.Errorf("%v %.120s asks for %q, want %q", c.api, c.body, askNames(a), c.want)
		}
	}
}

func TestAsksBeyondTheRememberedMembers(t *testing.T) {
	var b strings.Builder
	b.WriteString(`{"a":0`)
	for i := range 400 {
		fmt.Fprintf(&b, `,"x%d":[1,"]"]`, i)
	}
	b.WriteString(`,"tools":[{}],"stop":["x"]}`)
	body := []byte(b.String())
	h, err := wire.Scan(body, wire.Chat)
	if err != nil {
		t.Fatal(err)
	}
	if a, _ := h.Asks(body); a != wire.AskTools|wire.AskStop {
		t.Errorf("asks for %q", askNames(a))
	}
}

func TestPromptEstimate(t *testing.T) {
	for body, want := range map[string]int64{
		`{"model":"m"}`: 0,
		`{"messages":[{"role":"user","content":"` + strings.Repeat("x", 4000) + `"}],"user":"` + strings.Repeat("y", 4000) + `"}`: 1009,
		`{"tools":["` + strings.Repeat("x", 4000) + `"]}`:                                                                         1001,
	} {
		h, err := wire.Scan([]byte(body), wire.Chat)
		if err != nil {
			t.Fatal(err)
		}
		if _, got := h.Asks([]byte(body)); got < want-1 || got > want+1 {
			t.Errorf("%.40s: %d tokens, want about %d", body, got, want)
		}
	}
}

func BenchmarkAsks(b *testing.B) {
	for _, size := range sizes {
		b.Run(size.name, func(b *testing.B) {
			body := prompt(size.n)
			h, err := wire.Scan(body, wire.Chat)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				h.Asks(body)
			}
		})
	}
}
