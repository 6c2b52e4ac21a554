package wire

import "bytes"

// mark is a text that has no place in content.
type mark struct {
	text string // in lower case; only its first byte is one of those that isMark knows
	flaw Flaws
}

// marks are what reasoning models and chat templates write around what is not
// for the reader. A closing mark alone is the commonest case: the template has
// written the opening one into the prompt.
var marks = [...]mark{
	{"<think>", FlawReasoning}, {"</think>", FlawReasoning},
	{"<thinking>", FlawReasoning}, {"</thinking>", FlawReasoning},
	{"<thought>", FlawReasoning}, {"</thought>", FlawReasoning},
	{"<reasoning>", FlawReasoning}, {"</reasoning>", FlawReasoning},
	{"<|channel|>analysis", FlawReasoning}, {"<|channel|>commentary", FlawReasoning},
	{"<|start_thinking|>", FlawReasoning}, {"<|end_thinking|>", FlawReasoning},
	{"<|begin_of_thought|>", FlawReasoning}, {"<|end_of_thought|>", FlawReasoning},
	{"<|thinking|>", FlawReasoning}, {"<|reasoning|>", FlawReasoning},
	{"<seed:think>", FlawReasoning}, {"</seed:think>", FlawReasoning},
	{"◁think▷", FlawReasoning}, {"◁/think▷", FlawReasoning},
	{"[think]", FlawReasoning}, {"[/think]", FlawReasoning},
	// Tool calls that the server has not recognised as such.
	{"<tool_call>", FlawToolCall}, {"<|tool_call|>", FlawToolCall}, {"<function=", FlawToolCall},
	{"[tool_calls]", FlawToolCall}, {"<|tool_calls_section_begin|>", FlawToolCall}, {"<|python_tag|>", FlawToolCall},
}

const longestMark = 28

// isMark tells the first bytes of marks: '<', '[' and that of ◁ in UTF-8.
func isMark(c byte) bool { return c == '<' || c == '[' || c == 0xE2 }

// markFinder finds marks in text that comes byte by byte.
type markFinder struct {
	found Flaws
	n     int
	buf   [longestMark]byte // a beginning of some mark
}

// second are the bytes that come second in a mark.
var second = func() (t [256]bool) {
	for _, m := range marks {
		t[m.text[1]] = true
	}
	return t
}()

func (f *markFinder) byte(c byte) {
	if f.n == 1 && !second[lower(c)] {
		f.n = 0
	}
	if f.n == 0 {
		if isMark(c) {
			f.buf[0], f.n = c, 1
		}
		return
	}
	f.buf[f.n] = lower(c)
	f.n++
	begun := false
	for i := range marks {
		m := &marks[i]
		if len(m.text) < f.n || m.text[:f.n] != string(f.buf[:f.n]) {
			continue
		}
		if len(m.text) == f.n {
			f.found |= m.flaw
			f.n = 0
			return
		}
		begun = true
	}
	if !begun {
		f.n = 0
		if isMark(c) {
			f.buf[0], f.n = c, 1
		}
	}
}

func lower(c byte) byte {
	if c >= 'A' && c <= 'Z' {
		c |= 0x20
	}
	return c
}

// refusals are how answers begin that decline, in lower case and with a plain
// apostrophe.
var refusals = [...]string{
	"i'm sorry, but i", "i am sorry, but i", "i'm sorry, i can", "sorry, but i can", "sorry, i can't", "sorry, i cannot",
	"i can't help", "i can't assist", "i can't provide", "i can't comply", "i can't fulfill", "i can't do that",
	"i cannot help", "i cannot assist", "i cannot provide", "i cannot comply", "i cannot fulfill", "i cannot do that",
	"i'm unable to", "i am unable to", "i'm not able to", "i am not able to", "i won't be able to",
	"i must decline", "i have to decline", "i apologize, but", "unfortunately, i can", "as an ai",
}

// beginning keeps the first bytes of a text, without the space before them.
type beginning struct {
	n   int
	buf [48]byte
}

func (b *beginning) full() bool { return b.n == len(b.buf) }

func (b *beginning) byte(c byte) {
	if b.n == 0 && (c == ' ' || c == '\n' || c == '\r' || c == '\t') || b.full() {
		return
	}
	b.buf[b.n] = c
	b.n++
}

// refuses tells whether the text begins as a refusal.
func (b *beginning) refuses() bool {
	text := bytes.ToLower(bytes.ReplaceAll(b.buf[:b.n], []byte("’"), []byte("'")))
	for _, r := range refusals {
		if bytes.HasPrefix(text, []byte(r)) {
			return true
		}
	}
	return false
}

// channel tells gpt-oss's analysis channel whose marks were dropped: its name
// runs into the first word.
func (b *beginning) channel() bool {
	const name = "analysis"
	return b.n > len(name) && string(b.buf[:len(name)]) == name && b.buf[len(name)] >= 'A' && b.buf[len(name)] <= 'Z'
}
