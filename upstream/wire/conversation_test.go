package wire_test

import (
	"testing"

	"sluice/upstream/wire"
)

func TestAnswered(t *testing.T) {
	for name, tc := range map[string]struct {
		api  wire.API
		body string
		want bool
	}{
		"first turn":            {wire.Chat, `{"messages":[{"role":"system","content":"s"},{"role":"user","content":"hi"}]}`, false},
		"developer":             {wire.Chat, `{"messages":[{"role":"developer","content":"s"},{"role":"user","content":"hi"}]}`, false},
		"two users":             {wire.Chat, `{"messages":[{"role":"user","content":"a"},{"role":"user","content":"b"}]}`, false},
		"second turn":           {wire.Chat, `{"messages":[{"role":"user","content":"hi"},{"content":"x","role":"assistant"},{"role":"user","content":"more"}]}`, true},
		"escaped":               {wire.Chat, `{"messages":[{"role":"user","content":"hi"},{"role":"a\u0073sistant","content":"x"}]}`, true},
		"result of a tool":      {wire.Chat, `{"messages":[{"role":"user","content":"hi"},{"role":"tool","content":"1","tool_call_id":"c"}]}`, true},
		"text about assistants": {wire.Chat, `{"messages":[{"role":"user","content":"{\"role\":\"assistant\"}"}]}`, false},
		"nothing":               {wire.Chat, `{"model":"m"}`, false},
		"no list":               {wire.Chat, `{"messages":{"role":"assistant"}}`, false},
		"no messages":           {wire.Chat, `{"messages":[1,null,"x",[]]}`, false},
		"completion":            {wire.Completions, `{"prompt":"assistant"}`, false},
		"text input":            {wire.Responses, `{"input":"assistant"}`, false},
		"items":                 {wire.Responses, `{"input":[{"role":"user","content":"hi"}]}`, false},
		"answered items":        {wire.Responses, `{"input":[{"role":"user","content":"hi"},{"role":"assistant","content":"x"}]}`, true},
		"function call":         {wire.Responses, `{"input":[{"role":"user","content":"hi"},{"type":"function_call_output","call_id":"c","output":"1"}]}`, true},
		"refers to an answer":   {wire.Responses, `{"input":"more","previous_response_id":"resp_1"}`, true},
		"refers to nothing":     {wire.Responses, `{"input":"more","previous_response_id":null}`, false},
		"embeddings":            {wire.Embeddings, `{"input":["a"]}`, false},
	} {
		h, err := wire.Scan([]byte(tc.body), tc.api)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := h.Answered([]byte(tc.body)); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
		if n := testing.AllocsPerRun(10, func() { h.Answered([]byte(tc.body)) }); n > 1 { // the conversion
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
