package wire_test

import (
	"fmt"
	"strings"
	"testing"

	"sluice/upstream/wire"
)

func TestStreamUsage(t *testing.T) {
	for name, tc := range map[string]struct {
		api  wire.API
		body string
		want wire.Usage
		ok   bool
		bad  int64
	}{
		"none": {0, sse(hel, stop), wire.Usage{}, false, 0},
		"with choices": {0, sse(`{"choices":[{"index":0,"delta":{}}],"usage":{"prompt_tokens":16111,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":15872}}}`),
			wire.Usage{Input: 16111, Cached: 15872, Output: 2}, true, 0},
		"cumulative": {0, sse(`{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":1}}`, `{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2}}`, `{"choices":[],"usage":null}`),
			wire.Usage{Input: 9, Output: 2}, true, 0},
		"details": {0, sse(`{"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":4,"cache_write_tokens":3},"completion_tokens_details":{"reasoning_tokens":5}}}`),
			wire.Usage{Input: 10, Cached: 4, CacheWrite: 3, Output: 7, Reasoning: 5}, true, 0},
		"vllm details":        {0, sse(`{"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":4,"created_cache_tokens":1}}}`), wire.Usage{Input: 10, Cached: 4, CacheWrite: 1, Output: 7}, true, 0},
		"null details":        {0, sse(`{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2,"prompt_tokens_details":null,"completion_tokens_details":null,"reasoning_tokens":1}}`), wire.Usage{Input: 1, Output: 2, Reasoning: 1}, true, 0},
		"clamped":             {0, sse(`{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":-2,"prompt_tokens_details":{"cached_tokens":9},"reasoning_tokens":1}}`), wire.Usage{Input: 3, Cached: 3}, true, 3},
		"empty object":        {0, sse(`{"choices":[],"usage":{}}`), wire.Usage{}, false, 0},
		"strings":             {0, sse(`{"choices":[],"usage":{"prompt_tokens":"9","completion_tokens":null}}`), wire.Usage{}, false, 0},
		"timings":             {0, sse(stop[:len(stop)-1] + `,"timings":{"cache_n":4,"prompt_n":9,"predicted_n":2,"prompt_ms":1.5}}`), wire.Usage{Input: 13, Cached: 4, Output: 2}, true, 0},
		"usage beats timings": {0, sse(`{"choices":[],"usage":{"prompt_tokens":13,"completion_tokens":2},"timings":{"prompt_n":9,"predicted_n":2}}`), wire.Usage{Input: 13, Output: 2}, true, 0},
		"responses": {wire.Responses, sse(`{"type":"response.completed","response":{"status":"completed","usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":1},"output_tokens":3,"output_tokens_details":{"reasoning_tokens":2}}}}`),
			wire.Usage{Input: 9, Cached: 1, Output: 3, Reasoning: 2}, true, 0},
		"in the text":            {0, sse(`{"choices":[{"index":0,"delta":{"content":"\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}"}}]}`), wire.Usage{}, false, 0},
		"in several lines":       {0, "data: {\"choices\":[],\ndata: \"usage\":{\"prompt_tokens\":1,\ndata\ndata: \"completion_tokens\":2}}\n\n", wire.Usage{Input: 1, Output: 2}, true, 0},
		"at the end of the file": {0, sse(hel, stop) + "data: " + last, wire.Usage{Input: 9, Output: 3}, true, 0},
		"in a broken event":      {0, sse(`{"choices":[],` + counts), wire.Usage{}, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			st := bothWays(t, wire.StreamOptions{API: tc.api}, tc.body)
			if st.Usage != tc.want || st.HasUsage != tc.ok || st.Stats.Clamped != tc.bad {
				t.Errorf("usage = %+v, %v, %d clamped; want %+v, %v, %d", st.Usage, st.HasUsage, st.Stats.Clamped, tc.want, tc.ok, tc.bad)
			}
		})
	}
}

// llama.cpp counts each choice of an answer by itself.
func TestStreamUsageByChoice(t *testing.T) {
	end := func(index int, more string) string {
		return fmt.Sprintf(`{"choices":[{"index":%d,"delta":{},"finish_reason":"stop"}]%s}`, index, more)
	}
	for name, body := range map[string]string{
		"usage":       sse(end(1, ""), `{"choices":[],"usage":{"prompt_tokens":30,"completion_tokens":6,"prompt_tokens_details":{"cached_tokens":25}},"timings":{"cache_n":25,"prompt_n":5,"predicted_n":6}}`, end(0, ""), `{"choices":[],"usage":{"prompt_tokens":30,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":25}}}`),
		"with chunks": sse(end(1, `,"usage":{"prompt_tokens":30,"completion_tokens":6,"prompt_tokens_details":{"cached_tokens":25}}`), end(0, `,"usage":{"prompt_tokens":30,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":25}}`)),
		"timings":     sse(end(1, `,"timings":{"cache_n":25,"prompt_n":5,"predicted_n":6}`), end(0, `,"timings":{"cache_n":25,"prompt_n":5,"predicted_n":5}`)),
		"per token": sse(`{"choices":[{"index":0,"delta":{"content":"a"}}],"timings":{"cache_n":25,"prompt_n":5,"predicted_n":1}}`, end(0, `,"timings":{"cache_n":25,"prompt_n":5,"predicted_n":5}`),
			`{"choices":[{"index":1,"delta":{"content":"a"}}],"timings":{"cache_n":25,"prompt_n":5,"predicted_n":1}}`, end(1, `,"timings":{"cache_n":25,"prompt_n":5,"predicted_n":6}`)),
	} {
		t.Run(name, func(t *testing.T) {
			want := wire.Usage{Input: 30, Cached: 25, Output: 11}
			if st := bothWays(t, wire.StreamOptions{Dialect: wire.LlamaCPP}, body); st.Usage != want {
				t.Errorf("got %+v, want %+v", st.Usage, want)
			}
		})
	}
}

func TestStreamCounts(t *testing.T) {
	body := sse(": ping", role,
		`{"choices":[{"index":0,"delta":{"reasoning_content":"hm"}}]}`,
		`{"choices":[{"index":0,"delta":{"content":"a\n\ud83e\udd80é"}}]}`,
		`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"ab","arguments":"{\"x\""}}]},"logprobs":{"content":[{"token":"tok"}]}}]}`,
		`not json`, `[1]`, stop, last, "[DONE]")
	st := bothWays(t, wire.StreamOptions{}, body)
	want := wire.StreamStats{Events: 6, ContentEvents: 3, Chars: 2 + 4 + 2 + 4, Malformed: 2}
	if st.Stats != want {
		t.Errorf("got %+v, want %+v", st.Stats, want)
	}
	if st.Empty || !st.Answered || st.Client != body {
		t.Errorf("empty = %v, answered = %v", st.Empty, st.Answered)
	}
	if run(wire.StreamOptions{}, sse(role, `{"choices":[{"index":0,"delta":{"reasoning":"x"}}]}`)).Answered {
		t.Error("reasoning counts as an answer")
	}
	for _, nothing := range []string{"", ": x\n\n", sse("[DONE]"), sse("hello"), sse("data:")} {
		if !run(wire.StreamOptions{}, nothing).Empty {
			t.Errorf("%q is not empty", nothing)
		}
	}
}

func TestStreamErrors(t *testing.T) {
	for name, tc := range map[string]struct {
		o      wire.StreamOptions
		event  string
		status int
		says   string
	}{
		"vllm":              {wire.StreamOptions{Dialect: wire.VLLM}, `{"error": {"message": "died", "type": "InternalServerError", "param": null, "code": 500}}`, 500, "died"},
		"vllm, 400":         {wire.StreamOptions{}, `{"error":{"message":"context","code":400}}`, 400, "context"},
		"tgi, busy":         {wire.StreamOptions{Dialect: wire.TGI}, `{"error":{"message":"Model is overloaded","http_status_code":422}}`, 429, "overloaded"},
		"tgi, input":        {wire.StreamOptions{Dialect: wire.TGI}, `{"error":{"message":"Input validation error: top_p","http_status_code":422}}`, 422, "top_p"},
		"tgi, engine":       {wire.StreamOptions{Dialect: wire.TGI}, `{"error":{"message":"Request failed during generation: x","http_status_code":422}}`, 500, "x"},
		"tgi, flat":         {wire.StreamOptions{Dialect: wire.TGI}, `{"error":"Model is overloaded","error_type":"overloaded"}`, 429, "overloaded"},
		"sglang":            {wire.StreamOptions{Dialect: wire.SGLang}, `{"error": {"object": "error", "message": "queue full", "type": "SERVICE_UNAVAILABLE", "param": null, "code": 503}}`, 503, "queue"},
		"sglang, flat":      {wire.StreamOptions{Dialect: wire.SGLang}, `{"object":"error","message":"bad","type":"BadRequest","code":400}`, 400, "bad"},
		"llama":             {wire.StreamOptions{Dialect: wire.LlamaCPP}, `{"error":{"code":500,"message":"oops","type":"server_error"}}`, 500, "oops"},
		"llama, old":        {wire.StreamOptions{Dialect: wire.LlamaCPP}, "error: {\"code\":500,\"message\":\"data: oops\"}", 500, "oops"},
		"named":             {wire.StreamOptions{}, "event: error\ndata: {\"message\":\"gone\",\"code\":429}", 429, "gone"},
		"named text":        {wire.StreamOptions{}, "event: error\ndata: gone", 502, "gone"},
		"code 599":          {wire.StreamOptions{}, `{"error":{"message":"m","code":599}}`, 503, "m"},
		"code 200":          {wire.StreamOptions{}, `{"error":{"message":"m","code":200}}`, 503, "m"},
		"code 429 as text":  {wire.StreamOptions{}, `{"error":{"message":"m","code":"429"}}`, 429, "m"},
		"no code":           {wire.StreamOptions{}, `{"error":{"message":"m"}}`, 502, "m"},
		"only a type":       {wire.StreamOptions{}, `{"error":{"message":"m","type":"invalid_request_error"}}`, 400, "m"},
		"a string":          {wire.StreamOptions{}, `{"error":"boom"}`, 502, "boom"},
		"beside choices":    {wire.StreamOptions{}, `{"choices":[],"error":{"message":"m","code":502}}`, 502, "m"},
		"no message":        {wire.StreamOptions{}, `{"error":{"code":500}}`, 500, "500"},
		"responses":         {wire.StreamOptions{API: wire.Responses}, `{"type":"error","code":"rate_limit_exceeded","message":"slow"}`, 429, "slow"},
		"responses, failed": {wire.StreamOptions{API: wire.Responses}, `{"type":"response.failed","response":{"status":"failed","error":{"code":"server_error","message":"fell"}}}`, 500, "fell"},
	} {
		t.Run(name, func(t *testing.T) {
			body := sse(tc.event, "[DONE]")
			st := bothWays(t, tc.o, body)
			if !st.Failed || !st.Early || st.Committed || st.Client != "" {
				t.Fatalf("failed = %v, early = %v, committed = %v, client %q", st.Failed, st.Early, st.Committed, st.Client)
			}
			if st.Error.Status != tc.status || !strings.Contains(st.Error.Message, tc.says) {
				t.Errorf("status %d, message %q; want %d, %q", st.Error.Status, st.Error.Message, tc.status, tc.says)
			}
			first := sse(hel)
			if tc.o.API == wire.Responses {
				first = sse(`{"type":"response.output_text.delta","delta":"x"}`)
			}
			late := bothWays(t, tc.o, first+body)
			if !late.Failed || late.Early || late.Client != first+body {
				t.Errorf("later: failed = %v, early = %v, client %q", late.Failed, late.Early, late.Client)
			}
		})
	}
	for _, ok := range []string{`"error":null`, `"error":false`, `"error":""`, `"error":{}`} {
		if st := run(wire.StreamOptions{}, sse(`{"choices":[{"index":0,"delta":{"content":"x"}}],`+ok+`}`)); st.Failed {
			t.Errorf("%s is read as an error", ok)
		}
	}
}

// TestStreamLikeEvents: an event that is only compared with the one before
// counts like one that is scanned.
func TestStreamLikeEvents(t *testing.T) {
	deltas := []string{
		`"delta":{"content":"a"}`, `"delta":{"content":"bé"}`, `"delta":{"content":"\"q\\"}`, `"delta":{"content":""}`,
		`"delta":{"content":"c"}`, `"delta":{"content":"\",\"finish_reason\":\"stop"}`, `"delta":{"content":null}`,
		`"delta":{"reasoning":"r"}`, `"delta":{"reasoning":"rr"}`, `"delta":{"content":"d"},"finish_reason":"stop"`,
		`"delta":{"content":"e"}`, `"delta":{"content":"f","x":"y"}`, `"delta":{"content":"gg","x":"y"}`, `"delta":{"content":"h","x":""}`,
	}
	for _, o := range everyOption() {
		var like, unlike string
		for i, d := range deltas {
			like += sse(`{"created":1000,"choices":[{"index":0,` + d + `}]}`)
			unlike += sse(fmt.Sprintf(`{"created":%d,"choices":[{"index":0,%s}]}`, 1000+i, d))
		}
		a, b := run(o, like), run(o, unlike)
		if len(a.Client) != len(b.Client) {
			t.Errorf("%+v: %d and %d bytes", o, len(a.Client), len(b.Client))
		}
		a.Client, b.Client = "", ""
		if a != b {
			t.Errorf("%+v: compared %+v, scanned %+v", o, a, b)
		}
	}
}
