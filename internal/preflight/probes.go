package preflight

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"image"
	"image/color"
	"image/png"
	"strings"

	"sluice/upstream/wire"
)

// Tokens that a probe asks for. Tool calls are written with some overhead, and
// the one that is cancelled must not be over before.
const (
	fewTokens    = 16
	callTokens   = 48
	cancelTokens = 256
	shortTokens  = 3
)

// probe is one kind of request.
type probe struct {
	name string
	asks string    // completes "31 % of your requests …"
	live wire.Asks // what live requests of this kind ask for; 0: their share is not known
	// sets are the members that make the probe what it is: a variant whose params
	// change one of them cannot be judged by it.
	sets   []string
	tokens int // 0 = fewTokens
	body   func(b *body)
	check  func(r *reply) string // what is wrong with a success, "" nothing
}

// body is a request in the making.
type body struct {
	messages []any
	members  map[string]any
	long     int // tokens of the long prompt
}

func (b *body) say(role string, content any) {
	b.messages = append(b.messages, map[string]any{"role": role, "content": content})
}

func (b *body) user(text string) { b.say("user", text) }

func (b *body) set(name string, v any) { b.members[name] = v }

// encode writes the request; limit names the member for the number of tokens.
func (p *probe) encode(model, limit string, long int) []byte {
	b := &body{members: map[string]any{}, long: long}
	p.body(b)
	tokens := p.tokens
	if tokens == 0 {
		tokens = fewTokens
	}
	b.set("model", model)
	b.set("messages", b.messages)
	b.set(limit, tokens)
	return encode(b.members)
}

func encode(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		return nil // strings, numbers and maps always encode
	}
	return data
}

var tools = []any{map[string]any{"type": "function", "function": map[string]any{
	"name": "lookup", "description": "Looks up the weather in a city.",
	"parameters": map[string]any{"type": "object", "properties": map[string]any{"q": map[string]any{"type": "string"}}, "required": []string{"q"}},
}}}

var schema = map[string]any{"type": "json_schema", "json_schema": map[string]any{"name": "answer", "strict": true, "schema": map[string]any{
	"type": "object", "properties": map[string]any{"ok": map[string]any{"type": "boolean"}}, "required": []string{"ok"}, "additionalProperties": false,
}}}

// The members by which the number of tokens is limited.
const (
	maxTokens     = "max_tokens"
	maxCompletion = "max_completion_tokens"
)

// foreign is text of several scripts, with a letter of two code points and
// emoji of one and of several.
const foreign = "żółć ユーザー é 🎉 👩‍🚀"

// all are the probes in the order in which they are sent. The first decides
// whether the others are.
var all = []probe{
	{name: "chat", asks: "ask for an answer", body: func(b *body) { b.user("Say hello.") }, check: says},
	{name: "stream", asks: "are streamed", live: wire.AskStream, sets: []string{"stream", "stream_options"}, body: func(b *body) {
		b.user("Say hello.")
		b.set("stream", true)
		b.set("stream_options", map[string]any{"include_usage": true})
	}, check: streams},
	{name: "tools_auto", asks: "use tools", live: wire.AskTools, sets: []string{"tools", "tool_choice"}, tokens: callTokens, body: func(b *body) {
		b.user("What is the weather in Paris?")
		b.set("tools", tools)
		b.set("tool_choice", "auto")
	}, check: mayCall},
	{name: "tools_required", asks: "demand a tool call", live: wire.AskToolCall, sets: []string{"tools", "tool_choice"}, tokens: callTokens, body: func(b *body) {
		b.user("What is the weather in Paris?")
		b.set("tools", tools)
		b.set("tool_choice", "required")
	}, check: mustCall},
	{name: "json_schema", asks: "demand JSON", live: wire.AskJSON, sets: []string{"response_format"}, body: func(b *body) {
		b.user(`Answer with the JSON object {"ok": true}.`)
		b.set("response_format", schema)
	}, check: obeysSchema},
	{name: "json_object", asks: "demand JSON", live: wire.AskJSON, sets: []string{"response_format"}, body: func(b *body) {
		b.user(`Answer with the JSON object {"ok": true}.`)
		b.set("response_format", map[string]any{"type": "json_object"})
	}, check: isObject},
	{name: "choices", asks: "ask for several choices", live: wire.AskChoices, sets: []string{"n"}, body: func(b *body) {
		b.user("Say hello.")
		b.set("n", 2)
	}, check: twoChoices},
	{name: "logprobs", asks: "ask for logprobs", live: wire.AskLogprobs, sets: []string{"logprobs", "top_logprobs"}, body: func(b *body) {
		b.user("Say hello.")
		b.set("logprobs", true)
		b.set("top_logprobs", 2)
	}, check: hasLogprobs},
	{name: "image", asks: "have an image", live: wire.AskImage, body: func(b *body) {
		b.say("user", []any{
			map[string]any{"type": "text", "text": "What colour is this?"},
			map[string]any{"type": "image_url", "image_url": map[string]any{"url": picture}},
		})
	}, check: says},
	{name: longProbe, asks: "have a long prompt", live: wire.AskLong, body: func(b *body) {
		b.user(strings.Repeat("hello ", b.long) + "\nHow many words were that?")
	}, check: says},
	{name: "stop", asks: "have stop sequences", live: wire.AskStop, sets: []string{"stop"}, body: func(b *body) {
		b.user("Count from 1 to 20, with commas between.")
		b.set("stop", []string{","})
	}, check: stops},
	{name: cancelProbe, asks: "are cancelled", sets: []string{"stream", maxTokens, maxCompletion}, tokens: cancelTokens, body: func(b *body) {
		b.user("Tell a long story.")
		b.set("stream", true)
	}},
	{name: "system", asks: "have a system prompt", live: wire.AskSystem, body: func(b *body) {
		b.say("system", "You are brief.")
		b.user("Say hello.")
	}, check: says},
	{name: "developer", asks: "have a developer message", body: func(b *body) {
		b.say("developer", "You are brief.")
		b.user("Say hello.")
	}, check: says},
	{name: "max_tokens", asks: "limit the length", sets: []string{maxTokens, maxCompletion, "min_tokens"}, tokens: shortTokens, body: func(b *body) {
		b.user("Tell a long story.")
	}, check: isShort},
	{name: "unicode", asks: "have letters beyond ASCII", body: func(b *body) {
		b.user("Repeat this and nothing else: " + foreign)
		b.set("stream", true)
	}, check: intact},
}

// The probes that take more than a body and a check.
const (
	longProbe   = "long"
	cancelProbe = "cancel"
)

// picture is a small image as a data URL; models refuse those of few pixels.
var picture = func() string {
	m := image.NewPaletted(image.Rect(0, 0, 64, 64), color.Palette{color.RGBA{0xc0, 0x20, 0x20, 0xff}})
	var b bytes.Buffer
	if err := png.Encode(&b, m); err != nil {
		return "data:image/png;base64,"
	}
	return "data:image/png;base64," + base64.StdEncoding.EncodeToString(b.Bytes())
}()
