package wire_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/upstream/wire"
)

// TestStreamMoved: what engines write into the usage event, when they are asked
// for one, and into the event with the finish reason else.
func TestStreamMoved(t *testing.T) {
	const print, took = `,"system_fingerprint":"vllm-1"`, `,"timings":{"prompt_n":9,"predicted_n":3}`
	in := func(event, member string) string { return event[:len(event)-1] + member + "}" }
	second := strings.Replace(stop, `"index":0`, `"index":1`, 1)
	for name, tc := range map[string]struct {
		o          wire.StreamOptions
		body, want string
	}{
		"vllm":               {wire.StreamOptions{Dialect: wire.VLLM}, sse(hel, stop, in(last, print), "[DONE]"), sse(hel, in(stop, print), "[DONE]")},
		"vllm, unknown":      {wire.StreamOptions{}, sse(hel, stop, in(last, print), "[DONE]"), sse(hel, in(stop, print), "[DONE]")},
		"vllm, exact":        {wire.StreamOptions{Dialect: wire.VLLM, StripChunkUsage: true}, sse(in(hel, ","+counts), in(stop, ","+counts), in(last, print), "[DONE]"), sse(hel, in(stop, print), "[DONE]")},
		"vllm, completions":  {wire.StreamOptions{API: wire.Completions, Dialect: wire.VLLM}, sse(`{"choices":[{"index":0,"text":"a","finish_reason":"stop"}]}`, in(last, print), "[DONE]"), sse(`{"choices":[{"index":0,"text":"a","finish_reason":"stop"}]`+print+`}`, "[DONE]")},
		"vllm, metrics":      {wire.StreamOptions{Dialect: wire.VLLM}, sse(hel, stop, in(last, print+`,"metrics":{"queue_time_ms":1}`), "[DONE]"), sse(hel, in(stop, print), "[DONE]")},
		"vllm, alias":        {wire.StreamOptions{Dialect: wire.VLLM, EchoModel: "a"}, sse(hel, in(stop, `,"model":"m"`), in(last, print), "[DONE]"), sse(hel, in(in(stop, `,"model":"a"`), print), "[DONE]")},
		"both at once":       {wire.StreamOptions{Dialect: wire.VLLM}, sse(hel, stop, second, in(last, print), "[DONE]"), sse(hel, in(stop, print), in(second, print), "[DONE]")},
		"one after another":  {wire.StreamOptions{Dialect: wire.VLLM}, sse(hel, stop, strings.Replace(hel, `"index":0`, `"index":1`, 1), second, in(last, print), "[DONE]"), sse(hel, stop, strings.Replace(hel, `"index":0`, `"index":1`, 1), in(second, print), "[DONE]")},
		"both in one event":  {wire.StreamOptions{}, sse(hel, `{"choices":[{"index":0,"finish_reason":"stop"},{"index":1,"finish_reason":"stop"}]}`, in(last, print), "[DONE]"), sse(hel, `{"choices":[{"index":0,"finish_reason":"stop"},{"index":1,"finish_reason":"stop"}]`+print+`}`, "[DONE]")},
		"it has one":         {wire.StreamOptions{Dialect: wire.VLLM}, sse(hel, in(stop, `,"system_fingerprint":null`), in(last, print), "[DONE]"), sse(hel, in(stop, `,"system_fingerprint":null`), "[DONE]")},
		"llamacpp":           {wire.StreamOptions{Dialect: wire.LlamaCPP}, sse(hel, stop, in(last, took), "[DONE]"), sse(hel, in(stop, took), "[DONE]")},
		"llamacpp, unknown":  {wire.StreamOptions{}, sse(hel, stop, in(last, took), "[DONE]"), sse(hel, in(stop, took), "[DONE]")},
		"llamacpp, two":      {wire.StreamOptions{Dialect: wire.LlamaCPP}, sse(hel, second, in(last, took), stop, in(last, `,"timings":{}`), "[DONE]"), sse(hel, in(second, took), in(stop, `,"timings":{}`), "[DONE]")},
		"spaces":             {wire.StreamOptions{}, sse(hel, "{ \"choices\": [{\"index\": 0, \"finish_reason\": \"stop\"}] } ", in(last, `, "system_fingerprint": "x"`), "[DONE]"), sse(hel, "{ \"choices\": [{\"index\": 0, \"finish_reason\": \"stop\"}] , \"system_fingerprint\": \"x\"} ", "[DONE]")},
		"first member":       {wire.StreamOptions{}, sse(hel, stop, `{"system_fingerprint":"x","choices":[],`+counts+`}`, "[DONE]"), sse(hel, in(stop, `,"system_fingerprint":"x"`), "[DONE]")},
		"more lines":         {wire.StreamOptions{}, sse(hel) + "id: 1\ndata: " + stop + "\nid: }\n\n" + sse(in(last, print), "[DONE]"), sse(hel) + "id: 1\ndata: " + in(stop, print) + "\nid: }\n\n" + sse("[DONE]")},
		"several data lines": {wire.StreamOptions{}, sse(hel) + "data: {\"choices\":\ndata: [{\"finish_reason\":\"stop\"}]}\n\n" + sse(in(last, print), "[DONE]"), sse(hel) + "data: {\"choices\":\ndata: [{\"finish_reason\":\"stop\"}]}\n\n" + sse("[DONE]")},
		"comment between":    {wire.StreamOptions{}, sse(hel, stop, ": ping", in(last, print), "[DONE]"), sse(hel, ": ping", in(stop, print), "[DONE]")},
		"no usage event":     {wire.StreamOptions{}, sse(hel, stop, "[DONE]"), sse(hel, stop, "[DONE]")},
		"end":                {wire.StreamOptions{}, sse(hel, stop), sse(hel, stop, "[DONE]")},
		"end, cut":           {wire.StreamOptions{}, sse(hel, stop) + "data: " + in(last, print), sse(hel, in(stop, print), "[DONE]")},
		"an error":           {wire.StreamOptions{}, sse(hel, stop, `{"error":{"message":"m","code":500}}`), sse(hel, stop, `{"error":{"message":"m","code":500}}`)},
		"not json":           {wire.StreamOptions{}, sse(hel, stop, "x", "[DONE]"), sse(hel, stop, "x", "[DONE]")},
		"cr":                 {wire.StreamOptions{}, strings.ReplaceAll(sse(hel, stop, in(last, print), "[DONE]"), "\n", "\r"), strings.ReplaceAll(sse(hel, in(stop, print), "[DONE]"), "\n", "\r")},
		"crlf":               {wire.StreamOptions{}, strings.ReplaceAll(sse(hel, stop, in(last, print), "[DONE]"), "\n", "\r\n"), strings.ReplaceAll(sse(hel, in(stop, print), "[DONE]"), "\n", "\r\n")},
		"cr, then crlf":      {wire.StreamOptions{}, "data: " + hel + "\r\rdata: " + stop + "\r\n\r\n" + sse(in(last, print)), "data: " + hel + "\r\rdata: " + in(stop, print) + "\r\n\r\n" + sse("[DONE]")},
		"without content":    {wire.StreamOptions{}, sse(role, stop, in(last, print), "[DONE]"), sse(role, in(stop, print), "[DONE]")},
	} {
		t.Run(name, func(t *testing.T) {
			tc.o.StripUsage = true
			st := bothWays(t, tc.o, tc.body)
			if diff := cmp.Diff(tc.want, st.Client); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// What waits for the next event is neither lost when the upstream breaks, nor
// kept for more than one.
func TestStreamMovedWaits(t *testing.T) {
	s := wire.NewStream(wire.StreamOptions{StripUsage: true})
	if got := string(s.Feed([]byte(sse(hel, stop)))); got != sse(hel) {
		t.Fatalf("got %q", got)
	}
	if s.Held() != len(sse(stop)) || !s.Boundary() {
		t.Errorf("held = %d, boundary = %v", s.Held(), s.Boundary())
	}
	s.Feed([]byte("data: {"))
	if got := string(s.Interrupt()); got != sse(stop) {
		t.Errorf("the upstream broke: %q", got)
	}
	if got := s.Interrupt(); len(got) != 0 {
		t.Errorf("again: %q", got)
	}
	big := wire.NewStream(wire.StreamOptions{StripUsage: true})
	out := append([]byte{}, big.Feed([]byte(sse(hel, stop)))...)
	out = append(out, big.Feed([]byte("data: "+strings.Repeat("x", 5<<20)))...)
	if want := sse(hel, stop) + "data: x"; !strings.HasPrefix(string(out), want) {
		t.Errorf("before an oversize event: %q", out[:len(want)])
	}
	many := wire.NewStream(wire.StreamOptions{StripUsage: true})
	many.Feed([]byte(sse(hel)))
	for range 1000 {
		many.Feed([]byte(sse(stop)))
	}
	if n := many.Held(); n > 17<<10 {
		t.Errorf("%d bytes wait", n)
	}
}
