package preflight

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"
)

// The checks judge an answer that HTTP calls a success. An answer that was cut
// by its limit, in the middle of reasoning, of JSON or of a tool call, is no
// failure: the limit is ours.

const cut = "length"

// says wants some words, or reasoning, or a tool call.
func says(r *reply) string {
	if r.malformed != "" {
		return r.malformed
	}
	if len(r.choices) == 0 {
		return "the answer has no choice"
	}
	c := &r.choices[0]
	if strings.TrimSpace(c.text) == "" && c.reasoning == "" && len(c.calls) == 0 {
		return "the answer is empty"
	}
	if c.finish == "" {
		return "the answer has no finish_reason"
	}
	return ""
}

// streams wants events that end with [DONE], and usage.
func streams(r *reply) string {
	switch why := says(r); {
	case why != "":
		return why
	case !r.stream:
		return "the answer is no event stream"
	case !r.complete:
		return "the stream has no [DONE]"
	case r.usage == nil:
		return "the stream has no usage, though it was asked for"
	case r.usage.Completion <= 0:
		return "the usage says that nothing was generated"
	}
	return ""
}

// mayCall wants words or a call that can be made.
func mayCall(r *reply) string {
	if why := says(r); why != "" {
		return why
	}
	return callable(&r.choices[0])
}

// callable judges the calls of a choice.
func callable(c *choice) string {
	for _, t := range c.calls {
		switch {
		case c.finish == cut:
		case t.name != "lookup":
			return fmt.Sprintf("it calls %q, which nobody offered", tidy(t.name))
		case !json.Valid([]byte(t.arguments)):
			return "the arguments of its tool call are no JSON"
		}
	}
	return ""
}

func mustCall(r *reply) string {
	if why := says(r); why != "" {
		return why
	}
	c := &r.choices[0]
	if len(c.calls) == 0 && c.finish != cut {
		return "it calls no tool, though it must"
	}
	return callable(c)
}

func isObject(r *reply) string {
	var m map[string]any
	return object(r, &m)
}

func obeysSchema(r *reply) string {
	var m map[string]any
	if why := object(r, &m); why != "" || m == nil {
		return why
	}
	if _, ok := m["ok"].(bool); !ok || len(m) != 1 {
		return "the JSON is not of the schema"
	}
	return ""
}

// object reads the answer into m; m stays nil if it was cut.
func object(r *reply, m *map[string]any) string {
	if why := says(r); why != "" {
		return why
	}
	c := &r.choices[0]
	text := strings.TrimSpace(c.text)
	if json.Unmarshal([]byte(text), m) == nil && *m != nil {
		return ""
	}
	*m = nil
	if c.finish == cut && (text == "" || text[0] == '{') {
		return ""
	}
	return "it answers with words where JSON was demanded"
}

func twoChoices(r *reply) string {
	if why := says(r); why != "" {
		return why
	}
	if n := len(r.choices); n != 2 {
		return fmt.Sprintf("%d choices came where 2 were asked for", n)
	}
	return ""
}

func hasLogprobs(r *reply) string {
	if why := says(r); why != "" {
		return why
	}
	if !r.choices[0].logprobs {
		return "no logprobs came"
	}
	return ""
}

// stops wants nothing behind the stop sequence; an answer may end before its
// first word.
func stops(r *reply) string {
	switch {
	case r.malformed != "":
		return r.malformed
	case len(r.choices) == 0:
		return "the answer has no choice"
	case strings.Contains(r.choices[0].text, ","):
		return "it goes on behind the stop sequence"
	}
	return ""
}

func isShort(r *reply) string {
	switch {
	case r.malformed != "":
		return r.malformed
	case len(r.choices) == 0:
		return "the answer has no choice"
	case r.usage != nil && r.usage.Completion > 2*fewTokens:
		return fmt.Sprintf("%d tokens came where %d were allowed", r.usage.Completion, shortTokens)
	case r.choices[0].finish != cut:
		return fmt.Sprintf("an answer that was cut by max_tokens ends with finish_reason %q, not %q", tidy(r.choices[0].finish), cut)
	}
	return ""
}

// intact wants letters, not what broken ones are replaced by; the last may be
// cut by the limit.
func intact(r *reply) string {
	if why := says(r); why != "" {
		return why
	}
	c := &r.choices[0]
	text := c.text
	if c.finish == cut {
		text = strings.TrimRight(text, string(utf8.RuneError))
	}
	if !utf8.ValidString(text) || strings.ContainsRune(text, utf8.RuneError) {
		return "letters beyond ASCII come back broken"
	}
	return ""
}

// remembers wants the engine to have read all of a long prompt of so many words,
// each about one token.
func remembers(r *reply, words int) string {
	if why := says(r); why != "" {
		return why
	}
	if r.usage != nil && r.usage.Prompt > 0 && r.usage.Prompt < int64(words)/2 {
		return fmt.Sprintf("it read %d tokens of a prompt of about %d: it cuts long prompts without saying so", r.usage.Prompt, words)
	}
	return ""
}
