package wire_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"sluice/upstream/wire"
)

// everything judges all that can be judged but for leaks.
var everything = wire.Judging{
	Asks: wire.AskJSON | wire.AskTools | wire.AskToolCall | wire.AskSystem, Checks: wire.CheckJSON | wire.CheckTools | wire.CheckPrompt,
}

// names are flaws in words, "-" for none.
func names(f wire.Flaws) string {
	var list []string
	for i, n := range wire.FlawNames {
		if f&(1<<i) != 0 {
			list = append(list, n)
		}
	}
	if len(list) == 0 {
		return "-"
	}
	return strings.Join(list, " ")
}

// say is one choice of an answer, piece by piece.
type say struct {
	pieces []string // of content, or raw deltas when they begin with {
	finish string
	null   bool // content is null
}

func text(s string) say { return say{pieces: []string{s}, finish: "stop"} }

func js(v any) string { b, _ := json.Marshal(v); return string(b) }

// quote writes a piece of text as engines do: escaped where it has to be, also
// with half a character.
func quote(s string) string {
	if utf8.ValidString(s) && len(s)%2 == 0 {
		return js(s) // escapes < as well
	}
	b := []byte{'"'}
	for _, c := range []byte(s) {
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < ' ':
			b = fmt.Appendf(b, `\u%04x`, c)
		default:
			b = append(b, c)
		}
	}
	return string(append(b, '"'))
}

func isDelta(p string) bool {
	return strings.HasPrefix(p, `{"tool_calls"`) || strings.HasPrefix(p, `{"re`)
}

// whole is the answer as one JSON body; deltas are merged as a client does.
func (a say) whole() string {
	var content strings.Builder
	calls := map[int]map[string]any{}
	has, refusal, reasoning := false, "", ""
	for _, p := range a.pieces {
		if !isDelta(p) {
			content.WriteString(p)
			has = true
			continue
		}
		var d struct {
			Refusal   string
			Reasoning string `json:"reasoning_content"`
			Tools     []struct {
				Index    int
				Function struct{ Name, Arguments string }
			} `json:"tool_calls"`
		}
		json.Unmarshal([]byte(p), &d)
		refusal += d.Refusal
		reasoning += d.Reasoning
		for _, c := range d.Tools {
			f := calls[c.Index]
			if f == nil {
				f = map[string]any{"name": "", "arguments": ""}
				calls[c.Index] = f
			}
			f["name"] = f["name"].(string) + c.Function.Name
			f["arguments"] = f["arguments"].(string) + c.Function.Arguments
		}
	}
	m := map[string]any{"role": "assistant", "content": nil}
	if has && !a.null {
		m["content"] = content.String()
	}
	if refusal != "" {
		m["refusal"] = refusal
	}
	if reasoning != "" {
		m["reasoning_content"] = reasoning
	}
	if len(calls) > 0 {
		var list []any
		for i := range len(calls) {
			list = append(list, map[string]any{"id": "c", "type": "function", "function": calls[i]})
		}
		m["tool_calls"] = list
	}
	return `{"id":"x","object":"chat.completion","choices":[{"index":0,"message":` + js(m) + `,"finish_reason":` + js(a.finish) + `}]}`
}

// stream is the answer as events.
func (a say) stream() []byte {
	b := []byte(`data: {"id":"x","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}` + "\n\n")
	for _, p := range a.pieces {
		d := p
		if !isDelta(p) {
			d = `{"content":` + quote(p) + `}`
		}
		b = fmt.Appendf(b, `data: {"id":"x","choices":[{"index":0,"delta":%s,"finish_reason":null}]}`+"\n\n", d)
	}
	b = fmt.Appendf(b, `data: {"id":"x","choices":[{"index":0,"delta":{},"finish_reason":%q}]}`+"\n\n", a.finish)
	return append(b, doneEvent...)
}

// facts are what does not depend on how an answer is delivered.
func facts(a wire.Answer) wire.Answer {
	a.Events = 0
	return a
}

// judgeAll judges the answer whole and streamed, cut at every character of its
// content and in every read, and returns the one result.
func judgeAll(t *testing.T, a say, by wire.Judging) wire.Answer {
	t.Helper()
	want := facts(wire.ReadUnary([]byte(a.whole()), wire.Chat, by).Answer)
	check := func(how string, a say) {
		t.Helper()
		s := wire.NewStream(wire.StreamOptions{Judging: by})
		s.Feed(a.stream())
		if diff := cmp.Diff(want, facts(s.Answer())); diff != "" {
			t.Fatalf("%s %q (-whole +stream):\n%s", how, a.pieces, diff)
		}
	}
	check("as it is", a)
	split := func(n int) {
		b := a
		b.pieces = nil
		for _, p := range a.pieces {
			if isDelta(p) {
				b.pieces = append(b.pieces, p)
				continue
			}
			for rest := p; rest != ""; {
				cut := 0
				for k := 0; k < n && cut < len(rest); k++ {
					_, size := utf8.DecodeRuneInString(rest[cut:])
					cut += size
				}
				b.pieces = append(b.pieces, rest[:cut])
				rest = rest[cut:]
			}
		}
		check(fmt.Sprintf("in pieces of %d", n), b)
	}
	for _, n := range []int{1, 2, 3, 5, 7, 16} {
		split(n)
	}
	if len(a.pieces) == 1 && !isDelta(a.pieces[0]) && len(a.pieces[0]) < 400 {
		for i := range a.pieces[0] {
			b := a
			b.pieces = []string{a.pieces[0][:i], a.pieces[0][i:]}
			check(fmt.Sprintf("cut at %d", i), b)
		}
	}
	raw := a.stream()
	for _, step := range []int{1, 7, 64} {
		s := wire.NewStream(wire.StreamOptions{Judging: by})
		for i := 0; i < len(raw); i += step {
			s.Feed(raw[i:min(i+step, len(raw))])
		}
		if diff := cmp.Diff(want, facts(s.Answer())); diff != "" {
			t.Fatalf("reads of %d bytes (-whole +stream):\n%s", step, diff)
		}
	}
	return want
}

func TestAnswerFlaws(t *testing.T) {
	plain := wire.Judging{}
	asJSON := wire.Judging{Asks: wire.AskJSON, Checks: wire.CheckJSON}
	unasked := wire.Judging{Checks: wire.CheckJSON | wire.CheckTools}
	for _, c := range []struct {
		a    say
		by   wire.Judging
		want string
	}{
		{text("Hello, world."), plain, "-"},
		{text(""), plain, "empty"},
		{text(" \n\t "), plain, "empty"},
		{say{finish: "stop", null: true}, plain, "empty"},
		{say{finish: "length"}, plain, "empty"},
		{say{pieces: []string{`{"reasoning_content":"hm"}`}, finish: "stop"}, plain, "empty"},
		{say{pieces: []string{`{"refusal":"No."}`}, finish: "stop"}, plain, "-"},
		{say{pieces: []string{`{"tool_calls":[{"index":0,"function":{"name":"f","arguments":"{}"}}]}`}, finish: "tool_calls"}, plain, "-"},

		{text(`{"a":1}`), asJSON, "-"},
		{text(`{"a":1`), asJSON, "invalid_json"},
		{text(`{"a":1`), unasked, "-"},
		{text(`{"a":1`), plain, "-"},
		{text("```json\n{\"a\":1}\n```"), asJSON, "invalid_json"},
		{text("Sure! {\"a\":1}"), asJSON, "invalid_json"},
		{text(""), asJSON, "empty invalid_json"},
		{say{pieces: []string{`{"refusal":"No."}`}, finish: "stop"}, asJSON, "-"},
		{say{pieces: []string{`{"tool_calls":[{"index":0,"function":{"name":"f","arguments":"x"}}]}`}, finish: "tool_calls"}, asJSON, "-"},

		{text("<think>hm</think>yes"), plain, "reasoning_leak"},
		{text("hm\n</think>\n\nyes"), plain, "reasoning_leak"},
		{text("yes <THINK>"), plain, "reasoning_leak"},
		{text("a < b, <thin ice>, <<think"), plain, "-"},
		{text("<<think>"), plain, "reasoning_leak"},
		{text("<thi<think>"), plain, "reasoning_leak"},
		{text("◁think▷hm"), plain, "reasoning_leak"},
		{text("“quoted” – ◁ thing ▷"), plain, "-"},
		{text("<|channel|>analysis<|message|>We need"), plain, "reasoning_leak"},
		{text("analysisWe need to answer.assistantfinalYes"), plain, "reasoning_leak"},
		{text("analysis of the text"), plain, "-"},
		{text("[THINK]hm[/THINK]"), plain, "reasoning_leak"},
		{text("<reasoning>hm</reasoning>"), plain, "reasoning_leak"},
		{say{pieces: []string{`{"reasoning_content":"<think>hm</think>"}`, "yes"}, finish: "stop"}, plain, "-"},
		{text("😀 <think> 😀"), plain, "reasoning_leak"},
	} {
		got := judgeAll(t, c.a, c.by)
		if names(got.Flaws) != c.want || !got.Seen {
			t.Errorf("%q, %q: flaws %s, want %s", c.a.pieces, c.a.finish, names(got.Flaws), c.want)
		}
	}
}

func TestToolCalls(t *testing.T) {
	body := []byte(`{"tools":[{"type":"function","function":{"name":"look\u0075p"}},{"type":"function","function":{"name":"füge"}}],"messages":[]}`)
	h, err := wire.Scan(body, wire.Chat)
	if err != nil {
		t.Fatal(err)
	}
	by := wire.Judging{Asks: wire.AskTools, Checks: wire.CheckTools, Tools: h.Tools(body, nil)}
	required := by
	required.Asks |= wire.AskToolCall
	foreign := by
	foreign.Tools = h.Tools(body, &wire.Patch{Force: []wire.Field{{Name: "tools", Value: []byte(`[]`)}}})
	call := func(index int, name, args string) string {
		return `{"tool_calls":[{"index":` + fmt.Sprint(index) + `,"id":"c","function":{"name":` + js(name) + `,"arguments":` + js(args) + `}}]}`
	}
	args := func(index int, args string) string {
		return `{"tool_calls":[{"index":` + fmt.Sprint(index) + `,"function":{"arguments":` + js(args) + `}}]}`
	}
	for _, c := range []struct {
		pieces []string
		by     wire.Judging
		want   string
	}{
		{[]string{call(0, "lookup", `{"q":"x"}`)}, by, "-"},
		{[]string{call(0, "füge", `{"q":"x"}`)}, by, "-"},
		{[]string{call(0, "lookup", ""), args(0, `{"q`), args(0, `":"a\"b`), args(0, `\u00e4\n"}`)}, by, "-"},
		{[]string{call(0, "lookup", ""), call(1, "lookup", ""), args(0, `{"q":`), args(1, `{}`), args(0, `1}`)}, by, "-"},
		{[]string{call(0, "lookup", ""), call(1, "lookup", ""), args(0, `{"q":`), args(1, `{}`), args(0, `1`)}, by, "invalid_tool_call"},
		{[]string{call(0, "lookup", `{"q":"x"`)}, by, "invalid_tool_call"},
		{[]string{call(0, "lookup", ``)}, by, "invalid_tool_call"},
		{[]string{call(0, "lookup", `[]`)}, by, "invalid_tool_call"},
		{[]string{call(0, "lookup", `null`)}, by, "invalid_tool_call"},
		{[]string{call(0, "lookup", `{} {}`)}, by, "invalid_tool_call"},
		{[]string{call(0, "", `{}`)}, by, "invalid_tool_call"},
		{[]string{call(0, "search", `{}`)}, by, "invalid_tool_call"},
		{[]string{call(0, "search", `{}`)}, foreign, "-"},
		{[]string{call(0, "search", `{`)}, wire.Judging{Checks: wire.CheckTools}, "-"},
		{[]string{call(0, "search", `{`)}, wire.Judging{Asks: wire.AskTools}, "-"},
		{[]string{"No tool is needed."}, by, "-"},
		{[]string{"No tool is needed."}, required, "invalid_tool_call"},
		{[]string{"<tool_call>\n{\"name\": \"lookup\"}\n</tool_call>"}, by, "invalid_tool_call"},
		{[]string{"<tool_call>\n{\"name\": \"lookup\"}\n</tool_call>"}, wire.Judging{}, "-"},
	} {
		got := judgeAll(t, say{pieces: c.pieces, finish: "tool_calls"}, c.by)
		if names(got.Flaws) != c.want {
			t.Errorf("%q: flaws %s, want %s", c.pieces, names(got.Flaws), c.want)
		}
	}
	legacy := `{"choices":[{"index":0,"message":{"content":null,"function_call":{"name":"lookup","arguments":"{"}},"finish_reason":"function_call"}]}`
	if got := wire.ReadUnary([]byte(legacy), wire.Chat, by).Answer; got.Flaws != wire.FlawToolCall || got.Finish[wire.FinishToolCalls] != 1 {
		t.Errorf("function_call: %+v", got)
	}
	object := `{"choices":[{"message":{"tool_calls":[{"function":{"name":"lookup","arguments":{"q":1}}}]},"finish_reason":"tool_calls"}]}`
	if got := wire.ReadUnary([]byte(object), wire.Chat, by).Answer; got.Flaws != wire.FlawToolCall {
		t.Errorf("arguments that are no string: %+v", got)
	}
}

func TestRefusalIsALabel(t *testing.T) {
	for content, want := range map[string]bool{
		"I'm sorry, but I can't help with that.":   true,
		"I’m sorry, but I can’t help with that.":   true,
		"\n\nI cannot assist with this request.":   true,
		"As an AI language model, I have no body.": true,
		"Sorry, I can't.":                          true,
		"I can help. I'm sorry, but I":             false,
		"I'm sorry to hear that. Let me…":          false,
		"":                                         false,
	} {
		got := judgeAll(t, text(content), wire.Judging{})
		if got.Refusal != want || got.Flaws&^wire.FlawEmpty != 0 {
			t.Errorf("%q: refusal %v, flaws %s", content, got.Refusal, names(got.Flaws))
		}
	}
	if got := judgeAll(t, say{pieces: []string{`{"refusal":"No."}`}, finish: "stop"}, wire.Judging{}); !got.Refusal {
		t.Error("a refusal by name is none")
	}
}

// TestChoices: every choice counts for the finish reasons and for what is empty.
func TestChoices(t *testing.T) {
	event := func(choices string) string { return `data: {"choices":[` + choices + `]}` + "\n\n" }
	body := event(`{"index":0,"delta":{"content":"a"}},{"delta":{"content":"<think>"},"index":1},{"index":2,"delta":{"role":"assistant"}}`) +
		event(`{"index":0,"delta":{},"finish_reason":"stop"},{"index":1,"finish_reason":"length"}`) +
		event(`{"index":2,"delta":{"content":""},"finish_reason":"eos_token"}`) + event(`{"index":2,"finish_reason":"eos_token"}`) + doneEvent
	s := wire.NewStream(wire.StreamOptions{})
	s.Feed([]byte(body))
	want := wire.Answer{
		Seen: true, Flaws: wire.FlawEmpty, Judged: wire.FlawEmpty | wire.FlawTruncated | wire.FlawReasoning, Chars: 8, Events: 1,
		Finish: [wire.FinishKinds]uint16{wire.FinishStop: 2, wire.FinishLength: 1},
	}
	if diff := cmp.Diff(want, s.Answer()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	unary := `{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"},{"message":{"content":"<think>"},"index":1,"finish_reason":"length"},` +
		`{"index":2,"message":{"role":"assistant","content":null},"finish_reason":"eos_token"}]}`
	if diff := cmp.Diff(want, wire.ReadUnary([]byte(unary), wire.Chat, wire.Judging{}).Answer); diff != "" {
		t.Errorf("whole (-want +got):\n%s", diff)
	}
}

// TestUnfinishedAnswer: what did not come is not judged.
func TestUnfinishedAnswer(t *testing.T) {
	for body, want := range map[string]wire.Answer{
		"":         {},
		": hi\n\n": {},
		`data: {"error":{"message":"x"}}` + "\n\n": {},
		`data: {"choices":[{"index":0,"delta":{"content":"{<think>"}}]}` + "\n\n": {
			Seen: true, Flaws: wire.FlawReasoning, Judged: wire.FlawTruncated | wire.FlawReasoning | wire.FlawPrompt, Chars: 8, Events: 1},
		`data: {"choices":[{"index":0,"delta":{"role":"assistant"}}]}` + "\n\n": {Seen: true, Judged: wire.FlawTruncated | wire.FlawReasoning | wire.FlawPrompt},
	} {
		s := wire.NewStream(wire.StreamOptions{Judging: everything})
		s.Feed([]byte(body))
		s.EOF()
		if diff := cmp.Diff(want, s.Answer()); diff != "" {
			t.Errorf("%q (-want +got):\n%s", body, diff)
		}
	}
}
