package wire_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/upstream/wire"
)

func response(status string, items ...string) string {
	return `{"id":"r","object":"response","status":` + js(status) + `,"output":[` + strings.Join(items, ",") + `],"usage":{"input_tokens":1,"output_tokens":2}}`
}

func message(text string) string {
	return `{"type":"message","id":"m","role":"assistant","status":"completed","content":[{"type":"output_text","text":` + js(text) + `,"annotations":[{"url":"x"}]}]}`
}

func functionCall(name, args string) string {
	return `{"type":"function_call","id":"f","call_id":"c","name":` + js(name) + `,"arguments":` + js(args) + `,"status":"completed"}`
}

// typed is a stream of the Responses API of these events, each a type and the
// members behind it.
func typed(events ...string) []byte {
	var b []byte
	for _, e := range events {
		typ, rest, _ := strings.Cut(e, " ")
		b = fmt.Appendf(b, "event: %s\ndata: {\"type\":%q%s}\n\n", typ, typ, rest)
	}
	return b
}

func deltas(typ string, output int, text string, n int) (events []string) {
	for rest := text; rest != ""; {
		k := min(n, len(rest))
		events = append(events, fmt.Sprintf(`%s ,"output_index":%d,"delta":%s`, typ, output, js(rest[:k])))
		rest = rest[k:]
	}
	return events
}

// TestResponses: an answer of the Responses API is judged the same as a stream
// and whole, and as a chat answer is.
func TestResponses(t *testing.T) {
	by := wire.Judging{Asks: wire.AskJSON, Checks: wire.CheckJSON | wire.CheckTools}
	tools := wire.Judging{Asks: wire.AskTools, Checks: wire.CheckJSON | wire.CheckTools, Tools: wire.ToolNames{}}
	const created = `response.created ,"response":{"status":"in_progress","output":[]}`
	added := func(i int, item string) string {
		return fmt.Sprintf(`response.output_item.added ,"output_index":%d,"item":%s`, i, item)
	}
	done := func(i int, item string) string {
		return fmt.Sprintf(`response.output_item.done ,"output_index":%d,"item":%s`, i, item)
	}
	join := func(lists ...[]string) (all []string) {
		for _, l := range lists {
			all = append(all, l...)
		}
		return all
	}
	reasoning := `{"type":"reasoning","id":"r","summary":[{"type":"summary_text","text":"hm"}]}`
	for _, c := range []struct {
		name   string
		by     wire.Judging
		events []string
		whole  string
		flaws  string
		finish wire.Finish
	}{
		{"JSON", by, join([]string{created, added(0, message(""))}, deltas("response.output_text.delta", 0, `{"a":"b"}`, 2), []string{done(0, message(`{"a":"b"}`))}),
			response("completed", message(`{"a":"b"}`)), "-", wire.FinishStop},
		{"no JSON", by, join([]string{created, added(0, message(""))}, deltas("response.output_text.delta", 0, `{"a":"b"`, 3)),
			response("completed", message(`{"a":"b"`)), "invalid_json", wire.FinishStop},
		{"reasoning only", wire.Judging{}, join([]string{created, added(0, reasoning)}, deltas("response.reasoning_summary_text.delta", 0, "hm", 1)),
			response("completed", reasoning), "empty", wire.FinishStop},
		{"reasoning in the content", wire.Judging{}, join([]string{created}, deltas("response.output_text.delta", 0, "a<think>b", 1)),
			response("completed", message("a<think>b")), "reasoning_leak", wire.FinishStop},
		{"a call", tools, join([]string{created, added(0, functionCall("f", ""))}, deltas("response.function_call_arguments.delta", 0, `{"q":1}`, 2), []string{done(0, functionCall("f", `{"q":1}`))}),
			response("completed", functionCall("f", `{"q":1}`)), "-", wire.FinishToolCalls},
		{"two calls, one broken", tools, join([]string{created, added(0, functionCall("f", "")), added(1, functionCall("g", ""))},
			deltas("response.function_call_arguments.delta", 0, `{"q":1`, 2), deltas("response.function_call_arguments.delta", 1, `{}`, 2)),
			response("completed", functionCall("f", `{"q":1`), functionCall("g", `{}`)), "invalid_tool_call", wire.FinishToolCalls},
		{"a refusal", by, join([]string{created}, deltas("response.refusal.delta", 0, "No.", 2)),
			response("completed", `{"type":"message","content":[{"type":"refusal","refusal":"No."}]}`), "-", wire.FinishStop},
	} {
		end := `response.completed ,"response":` + c.whole
		raw := typed(append(c.events, end)...)
		want := facts(wire.ReadUnary([]byte(c.whole), wire.Responses, c.by).Answer)
		if names(want.Flaws) != c.flaws || want.Finish[c.finish] != 1 || !want.Seen || c.name == "a refusal" != want.Refusal {
			t.Errorf("%s: whole %+v, flaws %s", c.name, want, names(want.Flaws))
		}
		for _, step := range []int{1, 50, len(raw)} {
			s := wire.NewStream(wire.StreamOptions{API: wire.Responses, Judging: c.by})
			for i := 0; i < len(raw); i += step {
				s.Feed(raw[i:min(i+step, len(raw))])
			}
			if diff := cmp.Diff(want, facts(s.Answer())); diff != "" {
				t.Errorf("%s, reads of %d (-whole +stream):\n%s", c.name, step, diff)
			}
		}
	}
}

func TestResponsesThatEndEarly(t *testing.T) {
	whole := strings.Replace(response("incomplete", message("a")), `"output":`, `"incomplete_details":{"reason":"max_output_tokens"},"output":`, 1)
	want := wire.Answer{Seen: true, Judged: wire.FlawEmpty | wire.FlawTruncated | wire.FlawReasoning, Chars: 1, Events: 1,
		Finish: [wire.FinishKinds]uint16{wire.FinishLength: 1}}
	if diff := cmp.Diff(want, wire.ReadUnary([]byte(whole), wire.Responses, wire.Judging{}).Answer); diff != "" {
		t.Errorf("incomplete (-want +got):\n%s", diff)
	}
	s := wire.NewStream(wire.StreamOptions{API: wire.Responses})
	s.Feed(typed(`response.output_text.delta ,"output_index":0,"delta":"a"`, `response.incomplete ,"response":`+whole))
	if diff := cmp.Diff(want, s.Answer()); diff != "" {
		t.Errorf("incomplete stream (-want +got):\n%s", diff)
	}
	for _, status := range []string{"queued", "in_progress", "failed", "cancelled"} {
		got := wire.ReadUnary([]byte(response(status)), wire.Responses, wire.Judging{}).Answer
		if got.Flaws != 0 || got.Judged&wire.FlawEmpty != 0 {
			t.Errorf("%s: %+v", status, got)
		}
	}
}
