package wire_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/upstream/wire"
)

func TestSniff(t *testing.T) {
	for in, want := range map[string]wire.Kind{
		"":                      wire.KindEmpty,
		" \r\n":                 wire.KindEmpty,
		` {"a":1}`:              wire.KindJSON,
		"\xef\xbb\xbf{":         wire.KindJSON,
		"data: {}":              wire.KindEvents,
		"\n\ndata:{}":           wire.KindEvents,
		"\xef\xbb\xbfdata: x":   wire.KindEvents,
		": ping":                wire.KindEvents,
		"event: x":              wire.KindEvents,
		"id: 1":                 wire.KindEvents,
		"retry: 1":              wire.KindEvents,
		"data\n":                wire.KindEvents,
		"dat":                   wire.KindEmpty,
		"data":                  wire.KindEmpty,
		"database":              wire.KindOther,
		"<html>":                wire.KindOther,
		"[1]":                   wire.KindOther,
		"Internal Server Error": wire.KindOther,
	} {
		if got := wire.Sniff([]byte(in)); got != want {
			t.Errorf("Sniff(%q) = %d, want %d", in, got, want)
		}
	}
}

// answers are whole unary bodies and what they say.
var answers = map[string]struct {
	api  wire.API
	body string
	want wire.Unary
}{
	"chat": {wire.Chat, `{"id":"x","choices":[{"index":0,"message":{"role":"assistant","content":"Hé\n","tool_calls":[]},"logprobs":{"content":[{"token":"He"}]},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12}}`,
		wire.Unary{Usage: wire.Usage{Input: 9, Output: 3}, HasUsage: true, Choices: 1, Finish: "stop", Chars: 3}},
	"two choices": {wire.Chat, `{"usage":{"completion_tokens":3,"prompt_tokens":9}, "choices":[{"finish_reason":"length","index":0,"message":{"content":"a"}},{"index":1,"message":{"content":"b"},"finish_reason":"stop"}]}`,
		wire.Unary{Usage: wire.Usage{Input: 9, Output: 3}, HasUsage: true, Choices: 2, Finish: "length", Chars: 2}},
	"the text lies": {wire.Chat, `{"choices":[{"index":0,"message":{"content":"},\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}}\\","usage":{"prompt_tokens":7,"completion_tokens":7},"finish_reason":"no"},"finish_reason":"stop"}],"x":{"usage":{"prompt_tokens":5}}}`,
		wire.Unary{Choices: 1, Finish: "stop", Chars: 53}},
	"null usage": {wire.Chat, `{"choices":[{"index":0,"finish_reason":null}],"usage":null}`, wire.Unary{Choices: 1}},
	"details": {wire.Chat, `{"choices":[],"usage":{"prompt_tokens":16111,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":15872},"completion_tokens_details":{"reasoning_tokens":1}}}`,
		wire.Unary{Usage: wire.Usage{Input: 16111, Cached: 15872, Output: 2, Reasoning: 1}, HasUsage: true}},
	"timings": {wire.Chat, `{"choices":[{"index":0,"message":{"content":""}}],"timings":{"cache_n":1,"prompt_n":2,"predicted_n":3}}`,
		wire.Unary{Usage: wire.Usage{Input: 3, Cached: 1, Output: 3}, HasUsage: true, Choices: 1}},
	"completions": {wire.Completions, `{"choices":[{"index":0,"text":"abc","finish_reason":"eos_token"}],"usage":{"prompt_tokens":1,"completion_tokens":1}}`,
		wire.Unary{Usage: wire.Usage{Input: 1, Output: 1}, HasUsage: true, Choices: 1, Finish: "eos_token", Chars: 3}},
	"embeddings": {wire.Embeddings, `{"object":"list","data":[{"embedding":[0.1,-2e3],"index":0},{"embedding":"AAAA"}],"usage":{"prompt_tokens":4,"total_tokens":4}}`,
		wire.Unary{Usage: wire.Usage{Input: 4}, HasUsage: true, Choices: 2}},
	"responses": {wire.Responses, `{"object":"response","status":"completed","error":null,"output":[{"type":"message","role":"assistant","content":[{"type":"output_text","text":"hi"}]}],"usage":{"input_tokens":4,"output_tokens":1,"input_tokens_details":{"cached_tokens":2}}}`,
		wire.Unary{Usage: wire.Usage{Input: 4, Cached: 2, Output: 1}, HasUsage: true, Choices: 1, Finish: "completed", Chars: 2}},
	"clamped":         {wire.Chat, `{"usage":{"prompt_tokens":-1,"completion_tokens":2}}`, wire.Unary{Usage: wire.Usage{Output: 2}, HasUsage: true, Clamped: 1}},
	"exponents":       {wire.Chat, `{"usage":{"prompt_tokens":1.5e3,"completion_tokens":2.0}}`, wire.Unary{Usage: wire.Usage{Input: 1500, Output: 2}, HasUsage: true}},
	"beyond numbers":  {wire.Chat, `{"usage":{"prompt_tokens":1e400,"completion_tokens":-1e-9}}`, wire.Unary{Usage: wire.Usage{Input: 1 << 40}, HasUsage: true, Clamped: 1}},
	"byte order mark": {wire.Chat, "\xef\xbb\xbf{\"usage\":{\"prompt_tokens\":1}}", wire.Unary{Usage: wire.Usage{Input: 1}, HasUsage: true}},
	"empty":           {wire.Chat, ` { } `, wire.Unary{}},
	"not object":      {wire.Chat, `[{"usage":{"prompt_tokens":1}}]`, wire.Unary{}},
}

func TestReadUnary(t *testing.T) {
	for name, tc := range answers {
		t.Run(name, func(t *testing.T) {
			got := wire.ReadUnary([]byte(tc.body), tc.api, wire.Judging{})
			got.Answer = wire.Answer{} // of which there are other tests
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestTail: the follower finds what the scan of the whole finds, cut anywhere.
func TestTail(t *testing.T) {
	for name, tc := range answers {
		t.Run(name, func(t *testing.T) {
			want := tc.want
			want.Chars = 0
			whole := wire.ReadUnary([]byte(tc.body), tc.api, wire.Judging{})
			result := func(tail *wire.Tail) wire.Unary {
				u := tail.Result()
				if u.Answer.Finish != whole.Answer.Finish && u.Choices < 2 && tc.api != wire.Responses {
					t.Errorf("finish reasons %v, want %v", u.Answer.Finish, whole.Answer.Finish)
				}
				u.Answer = wire.Answer{}
				return u
			}
			object := name != "not object"
			for cut := range tc.body {
				var tail wire.Tail
				tail.Feed([]byte(tc.body[:cut]))
				tail.Feed([]byte(tc.body[cut:]))
				if diff := cmp.Diff(want, result(&tail)); diff != "" {
					t.Fatalf("cut at %d (-want +got):\n%s", cut, diff)
				}
				if tail.Complete() != object {
					t.Fatalf("cut at %d: complete = %v", cut, tail.Complete())
				}
			}
			var tail wire.Tail
			for i := range tc.body {
				tail.Feed([]byte{tc.body[i]})
			}
			if diff := cmp.Diff(want, result(&tail)); diff != "" {
				t.Errorf("bytewise (-want +got):\n%s", diff)
			}
		})
	}
}

func TestTailBounded(t *testing.T) {
	var tail wire.Tail
	tail.Feed([]byte(`{"` + strings.Repeat("k", 1<<20) + `":1,"usage":{"x":"` + strings.Repeat("y", 1<<20) + `","prompt_tokens":1}`))
	if tail.Complete() || tail.Result().HasUsage {
		t.Errorf("complete = %v, usage = %v", tail.Complete(), tail.Result().HasUsage)
	}
	tail.Feed([]byte(`}`))
	if !tail.Complete() {
		t.Error("not complete")
	}
}

func TestUnaryVerdict(t *testing.T) {
	for name, tc := range map[string]struct {
		body   string
		want   wire.Verdict
		status int
	}{
		"answer":          {`{"choices":[]}`, wire.VerdictOK, 0},
		"embeddings":      {`{"data":[]}`, wire.VerdictOK, 0},
		"failed response": {`{"error":{"message":"x"},"output":[]}`, wire.VerdictOK, 0},
		"other object":    {`{"x":1}`, wire.VerdictOK, 0},
		"null error":      {`{"error":null}`, wire.VerdictOK, 0},
		"error":           {`{"error":{"message":"worker limit reached","code":502}}`, wire.VerdictError, 502},
		"error, no code":  {`{"error":"x"}`, wire.VerdictError, 502},
		"error, flat":     {`{"object":"error","message":"x","code":400}`, wire.VerdictError, 400},
		"beside nothing":  {`{"choices":[ ],"error":{"message":"x","code":503}}`, wire.VerdictError, 503},
		"beside null":     {`{"choices":null,"data":null,"error":{"message":"x","code":503}}`, wire.VerdictError, 503},
		"beside a choice": {`{"choices":[{"index":0}],"error":{"message":"x","code":503}}`, wire.VerdictOK, 0},
		"list":            {`[]`, wire.VerdictInvalid, 0},
		"list of errors":  {`[{"error":{"message":"x"}}]`, wire.VerdictInvalid, 0},
		"string":          {`"ok"`, wire.VerdictInvalid, 0},
		"null":            {`null`, wire.VerdictInvalid, 0},
		"number":          {`0`, wire.VerdictInvalid, 0},
		"byte order mark": {"\xef\xbb\xbf{\"choices\":[]}", wire.VerdictOK, 0},
		"empty":           {``, wire.VerdictInvalid, 0},
		"space":           {" \n", wire.VerdictInvalid, 0},
		"text":            {`OK`, wire.VerdictInvalid, 0},
		"html":            {`<html></html>`, wire.VerdictInvalid, 0},
		"cut":             {`{"choices":[{"index":0`, wire.VerdictInvalid, 0},
		"two":             {`{"choices":[]}{}`, wire.VerdictInvalid, 0},
		"events":          {"data: {}\n\n", wire.VerdictEvents, 0},
		"comment":         {": x\n\n", wire.VerdictEvents, 0},
	} {
		t.Run(name, func(t *testing.T) {
			got, info := wire.UnaryVerdict([]byte(tc.body), wire.Chat, wire.OpenAI)
			if got != tc.want || info.Status != tc.status {
				t.Errorf("verdict %d, status %d; want %d, %d", got, info.Status, tc.want, tc.status)
			}
		})
	}
}

func TestEstimate(t *testing.T) {
	for _, tc := range []struct{ chars, events, want int64 }{
		{0, 0, 0}, {1, 1, 1}, {9, 1, 3}, {9, 5, 5}, {-4, 0, 0},
	} {
		if got := wire.Estimate(tc.chars, tc.events); got != tc.want {
			t.Errorf("Estimate(%d, %d) = %d, want %d", tc.chars, tc.events, got, tc.want)
		}
	}
	if got := wire.EstimateInput(10); got != 3 {
		t.Errorf("EstimateInput(10) = %d, want 3", got)
	}
}
