package wire

import "testing"

func TestMaxTokens(t *testing.T) {
	force := func(name, value string) *Patch { return &Patch{Force: []Field{{name, []byte(value)}}} }
	for _, tt := range []struct {
		api   API
		body  string
		patch *Patch
		want  int64
	}{
		{Chat, `{"model":"m","messages":[]}`, nil, 0},
		{Chat, `{"model":"m","messages":[],"max_tokens":100}`, nil, 100},
		{Chat, `{"model":"m","messages":[],"max_tokens":100,"n":3}`, nil, 300},
		{Chat, `{"model":"m","messages":[],"max_tokens":100,"max_completion_tokens":200}`, nil, 200},
		{Responses, `{"model":"m","input":"x","max_output_tokens":70}`, nil, 70},
		{Chat, `{"model":"m","messages":[],"max_tokens":null}`, nil, 0},
		{Chat, `{"model":"m","messages":[],"max_tokens":"100"}`, nil, 0},
		{Chat, `{"model":"m","messages":[],"max_tokens":-5}`, nil, 0},
		{Chat, `{"model":"m","messages":[],"metadata":{"max_tokens":5}}`, nil, 0},
		{Chat, `{"model":"m","messages":[],"max_tokens":100}`, force("max_tokens", "50"), 50},
		{Chat, `{"model":"m","messages":[],"max_tokens":100}`, &Patch{Remove: []string{"max_tokens"}}, 0},
		{Chat, `{"model":"m","messages":[]}`, &Patch{Default: []Field{{"max_tokens", []byte("40")}}}, 40},
		{Chat, `{"model":"m","messages":[],"max_tokens":100}`, &Patch{Default: []Field{{"max_tokens", []byte("40")}}}, 100},
		{Chat, `{"model":"m","messages":[],"max_tokens":100}`, force("temperature", "1"), 100},
	} {
		h, err := Scan([]byte(tt.body), tt.api)
		if err != nil {
			t.Fatalf("%s: %v", tt.body, err)
		}
		if got := h.MaxTokens([]byte(tt.body), tt.patch); got != tt.want {
			t.Errorf("%s with %+v: %d, want %d", tt.body, tt.patch, got, tt.want)
		}
	}
}
