package wire_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"sluice/upstream/wire"
)

// depth is how deep the brackets of a text nest, strings apart.
func depth(s string) (most int) {
	d, in, esc := 0, false, false
	for _, c := range []byte(s) {
		switch {
		case esc:
			esc = false
		case in:
			esc, in = c == '\\', c != '"'
		case c == '"':
			in = true
		case c == '{' || c == '[':
			d++
			most = max(most, d)
		case c == '}' || c == ']':
			d--
		}
	}
	return most
}

// FuzzAnswer: however an answer is cut into events and reads, it is judged the
// same; what is JSON is as encoding/json says, and a mark is where it stands.
func FuzzAnswer(f *testing.F) {
	for _, s := range []string{
		`{"a":[1,-2.5e+3,true,null,{"b":"\u00e9\\\"\n"}]}`, "```json\n{}\n```", `{"a":"` + "\n" + `"}`, `"\ud83d\ude00"`, "[[[[]]]", "-", "01", "1.", "1e", "nul", "<think>x</think>", "a◁think▷",
		strings.Repeat("[", 600), strings.Repeat("[", 500) + strings.Repeat("]", 500), "{\"a\":1}\x00", "I’m sorry, but I can’t.", "\xff<thi", " ", `{"\u12":1}`, `{"a" : 1 , "b":[ ] }`, "\ufeff{}",
	} {
		f.Add(s, uint8(1), uint8(3))
	}
	f.Fuzz(func(t *testing.T, content string, piece, read uint8) {
		by := wire.Judging{Asks: wire.AskJSON | wire.AskTools, Checks: wire.CheckJSON | wire.CheckTools}
		a := text(content)
		if isDelta(content) || !utf8.ValidString(content) {
			return
		}
		whole := wire.ReadUnary([]byte(a.whole()), wire.Chat, by).Answer
		if valid := whole.Flaws&wire.FlawJSON == 0; valid != json.Valid([]byte(content)) && depth(content) <= 512 {
			t.Fatalf("%q: valid = %v", content, valid)
		}
		low := strings.ToLower(content)
		if strings.Contains(low, "<think>") && len(low) == len(content) && whole.Flaws&wire.FlawReasoning == 0 {
			t.Fatalf("%q: the mark was not found", content)
		}
		if empty := whole.Flaws&wire.FlawEmpty != 0; empty != (strings.Trim(content, " \t\r\n") == "") {
			t.Fatalf("%q: empty = %v", content, empty)
		}
		b := a
		b.pieces = nil
		for rest := content; rest != ""; {
			n := min(int(piece)+1, len(rest))
			if isDelta(rest[:n]) {
				return
			}
			b.pieces = append(b.pieces, rest[:n])
			rest = rest[n:]
		}
		raw := b.stream()
		s := wire.NewStream(wire.StreamOptions{Judging: by})
		for i := 0; i < len(raw); i += int(read) + 1 {
			s.Feed(raw[i:min(i+int(read)+1, len(raw))])
		}
		if diff := cmp.Diff(facts(whole), facts(s.Answer())); diff != "" {
			t.Fatalf("%q (-whole +stream):\n%s", b.pieces, diff)
		}
	})
}

// FuzzToolArguments: arguments are valid when encoding/json says that they are
// an object, however they are cut.
func FuzzToolArguments(f *testing.F) {
	for _, s := range []string{`{}`, `{"a":"\"}"}`, `[]`, ` {"a":{}} `, `{"a":1}}`, ``, `null`, "{\"a\":\"\x01\"}"} {
		f.Add(s, uint8(1))
	}
	f.Fuzz(func(t *testing.T, args string, piece uint8) {
		if !utf8.ValidString(args) || depth(args) > 512 {
			return
		}
		by := wire.Judging{Asks: wire.AskTools, Checks: wire.CheckTools}
		pieces := []string{`{"tool_calls":[{"index":0,"id":"c","function":{"name":"f"}}]}`}
		for rest := args; rest != ""; {
			n := min(int(piece)+1, len(rest))
			pieces = append(pieces, `{"tool_calls":[{"index":0,"function":{"arguments":`+quote(rest[:n])+`}}]}`)
			rest = rest[n:]
		}
		s := wire.NewStream(wire.StreamOptions{Judging: by})
		s.Feed(say{pieces: pieces, finish: "tool_calls"}.stream())
		valid := json.Valid([]byte(args)) && strings.HasPrefix(strings.TrimLeft(args, " \t\r\n"), "{")
		if got := s.Answer().Flaws&wire.FlawToolCall == 0; got != valid {
			t.Fatalf("%q: valid = %v", args, got)
		}
	})
}

// TestBinaryGarbage: bytes that are no answer are judged without harm, the same
// in any reads.
func TestBinaryGarbage(t *testing.T) {
	prefix := `data: {"choices":[{"index":0,"delta":{"content":"`
	for _, inside := range []string{
		"\xff\xfe\x80\x80", "\xe2\x97", "\xe2\x97\x81think\xe2\x96", `\ud83d`, `\ude00\ud83d`, `\u`, `\x`, `\u00`, `\`, "\x00\x01\x02", "<think", strings.Repeat("\xe2", 5000), strings.Repeat(`\ud800`, 2000),
	} {
		raw := []byte(strings.Repeat(prefix+inside+`"}}]}`+"\n\n", 3))
		var want wire.Answer
		for step := 1; step < 70; step++ {
			s := wire.NewStream(wire.StreamOptions{Judging: everything})
			for i := 0; i < len(raw); i += step {
				s.Feed(raw[i:min(i+step, len(raw))])
			}
			s.EOF()
			got := s.Answer()
			if step == 1 {
				want = got
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("%.40q in reads of %d (-of 1 +got):\n%s", inside, step, diff)
			}
		}
	}
}

// TestHugeAnswer: nothing grows with the content.
func TestHugeAnswer(t *testing.T) {
	event := []byte(`data: {"choices":[{"index":0,"delta":{"content":"[1, {\"a\": \"` + strings.Repeat("x", 4000) + `\"}], "}}]}` + "\n\n")
	s := wire.NewStream(wire.StreamOptions{Judging: everything})
	s.Feed([]byte(`data: {"choices":[{"index":0,"delta":{"content":"["}}]}` + "\n\n"))
	for range 10 {
		s.Feed(event)
	}
	if n := testing.AllocsPerRun(1000, func() { s.Feed(event) }); n > 0 {
		t.Errorf("%v allocations an event", n)
	}
	s.Feed([]byte(`data: {"choices":[{"index":0,"delta":{"content":"0]"},"finish_reason":"stop"}]}` + "\n\n" + doneEvent))
	if a := s.Answer(); a.Flaws != wire.FlawToolCall || a.Chars < 4_000_000 { // a call was demanded
		t.Errorf("%+v, flaws %s", a, names(a.Flaws))
	}
	// Tool calls are kept apart up to a bound.
	s.Reset(wire.StreamOptions{Judging: everything})
	for i := range 5000 {
		s.Feed([]byte(strings.ReplaceAll(`data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":N,"function":{"name":"f","arguments":"{}"}}]}}]}`+"\n\n", "N", js(i))))
	}
	if a := s.Answer(); a.Flaws != 0 {
		t.Errorf("5,000 calls: flaws %s", names(a.Flaws))
	}
}
