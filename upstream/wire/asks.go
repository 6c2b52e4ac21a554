package wire

import "bytes"

// Asks is what a request asks for: known from its body, before any variant has
// changed it, so that both arms of an experiment are divided by the same rule.
type Asks uint16

// The asks.
const (
	AskStream   Asks = 1 << iota
	AskTools         // offers at least one tool, and does not forbid their use
	AskToolCall      // and demands that one is called
	AskJSON          // demands an answer that is JSON
	AskSystem        // has a system prompt
	AskChoices       // n > 1
	AskLogprobs      // wants logprobs
	AskImage         // has an image
	AskStop          // has stop sequences
	AskLong          // has a prompt of LongPrompt tokens or more, as estimated
)

// AskNames are the names of the asks in the order of their bits: label values.
var AskNames = [...]string{"stream", "tools", "tool_call", "json", "system", "choices", "logprobs", "image", "stop", "long"}

// LongPrompt is how many estimated tokens make a prompt long.
const LongPrompt = 4000

// Has tells whether all of b are asked for.
func (a Asks) Has(b Asks) bool { return a&b == b }

const imageTokens = 1000 // of an image, however it is given: about what a picture of a megapixel takes

// asked are the members that Asks looks at; end is 0 when absent or null.
type asked struct {
	tools, functions, toolChoice, functionCall   span
	format, text, guided, structured, jsonSchema span
	logprobs, topLogprobs, include, stop         span
}

// Asks reads what the request asks for, and estimates its prompt in tokens from
// the size of the members that engines make a prompt of: four bytes a token and
// a fixed number for an image. It is one estimate for every variant, and of
// what a cache may have of the prompt it knows nothing.
func (h *Head) Asks(body []byte) (a Asks, prompt int64) {
	var m asked
	h.each(body, func(f member) bool {
		m.note(body, f)
		return true
	})
	size := m.tools.size() + m.functions.size() + h.messages.size() + h.prompt.size() + h.instructions.size() + h.input.size()
	set := func(on bool, bit Asks) {
		if on {
			a |= bit
		}
	}
	set(h.Stream, AskStream)
	set(h.N > 1, AskChoices)
	if h.API != Embeddings {
		m.demands(body, set)
		system, images, data := h.turns(body)
		set(system, AskSystem)
		set(images > 0, AskImage)
		size += images*imageTokens*4 - data
	}
	prompt = EstimateInput(size)
	set(prompt >= LongPrompt, AskLong)
	if !a.Has(AskTools) {
		a &^= AskToolCall
	}
	return a, prompt
}

func (v span) size() int { return v.end - v.start }

// note keeps a member that counts; the last of a name does.
func (m *asked) note(b []byte, f member) {
	key := b[f.key.start:f.key.end]
	if bytes.IndexByte(key, '\\') >= 0 {
		if len(key) > 128 {
			return
		}
		key, _ = appendUnescaped(nil, key)
	}
	var to *span
	switch string(key) {
	case "tools":
		to = &m.tools
	case "functions":
		to = &m.functions
	case "tool_choice":
		to = &m.toolChoice
	case "function_call":
		to = &m.functionCall
	case "response_format":
		to = &m.format
	case "text":
		to = &m.text
	case "guided_json":
		to = &m.guided
	case "structured_outputs":
		to = &m.structured
	case "json_schema":
		to = &m.jsonSchema
	case "logprobs":
		to = &m.logprobs
	case "top_logprobs":
		to = &m.topLogprobs
	case "include":
		to = &m.include
	case "stop":
		to = &m.stop
	default:
		return
	}
	if *to = f.val; b[f.val.start] == 'n' {
		*to = span{}
	}
}

// demands reads what the members other than the prompt ask for.
func (m *asked) demands(b []byte, set func(bool, Asks)) {
	set(filled(b, m.tools) && !reads(b, m.toolChoice, "none") ||
		filled(b, m.functions) && !reads(b, m.functionCall, "none"), AskTools)
	set(mustCall(b, m.toolChoice) || m.functionCall.end > 0 && b[m.functionCall.start] == '{', AskToolCall)
	set(jsonFormat(b, m.format) || jsonFormat(b, memberOf(b, m.text, "format")) ||
		m.guided.end > 0 || filled(b, m.jsonSchema) || structuredJSON(b, m.structured), AskJSON)
	set(m.logprobs.end > 0 && b[m.logprobs.start] != 'f' || m.topLogprobs.end > 0 && b[m.topLogprobs.start] != '0' ||
		m.include.end > 0 && bytes.Contains(b[m.include.start:m.include.end], []byte(".logprobs")), AskLogprobs)
	set(filled(b, m.stop), AskStop)
}

// filled tells a value that holds something from an empty string, list or object.
func filled(b []byte, v span) bool {
	if v.end == 0 {
		return false
	}
	switch b[v.start] {
	case '"', '[', '{':
		return skipSpace(b, v.start+1) < v.end-1
	}
	return false
}

func reads(b []byte, v span, name string) bool { return v.end > 0 && stringIs(b, v.start, v.end, name) }

// memberOf finds a member of an object, the last of that name; end is 0 when it
// is absent or null.
func memberOf(b []byte, v span, name string) (found span) {
	if v.end == 0 {
		return found
	}
	for o := objectAt(b, v.start); o.next(); {
		if o.is(name) {
			if found = o.value(); b[found.start] == 'n' {
				found = span{}
			}
		}
	}
	return found
}

// mustCall tells whether a tool_choice leaves no answer without a tool call: it
// says so, or names a tool.
func mustCall(b []byte, v span) bool {
	if v.end == 0 || b[v.start] != '{' {
		return reads(b, v, "required") || reads(b, v, "any")
	}
	if reads(b, memberOf(b, v, "type"), "allowed_tools") {
		return reads(b, memberOf(b, v, "mode"), "required") ||
			reads(b, memberOf(b, memberOf(b, v, "allowed_tools"), "mode"), "required")
	}
	return true
}

// jsonFormat tells the types that stand for JSON, TGI's own among them.
func jsonFormat(b []byte, v span) bool {
	t := memberOf(b, v, "type")
	return reads(b, t, "json_object") || reads(b, t, "json_schema") || reads(b, t, "json")
}

// structuredJSON tells vLLM's structured_outputs that stand for JSON from those
// for a choice, a pattern or a grammar.
func structuredJSON(b []byte, v span) bool {
	if memberOf(b, v, "json").end > 0 {
		return true
	}
	o := memberOf(b, v, "json_object")
	return o.end > 0 && b[o.start] == 't'
}

// turns walks the conversation: whether it has a system prompt, how many images,
// and how many bytes those take.
func (h *Head) turns(b []byte) (system bool, images, data int) {
	list := h.messages
	if h.API == Responses {
		list = h.input
		system = filled(b, h.instructions)
	}
	if list.end == 0 || h.API == Completions {
		return system, 0, 0
	}
	// Both types of image parts have an underscore, which text seldom has.
	raw := b[list.start:list.end]
	look := bytes.Contains(raw, []byte("_url")) || bytes.Contains(raw, []byte("_image"))
	if system && !look {
		return system, 0, 0
	}
	for a := arrayAt(b, list.start); a.next(); {
		role, content := turn(b, a.val)
		system = system || isSystem(b, role) && filled(b, content)
		if system && !look {
			break
		}
		if look && content.end > 0 {
			n, size := imageParts(b, content)
			images += n
			data += size
		}
	}
	return system, images, data
}

func isSystem(b []byte, role span) bool {
	return stringIs(b, role.start, role.end, "system") || stringIs(b, role.start, role.end, "developer")
}

// imageParts counts the images among the parts of a message.
func imageParts(b []byte, content span) (n, size int) {
	for a := arrayAt(b, content.start); a.next(); {
		t := memberOf(b, span{a.val, a.end()}, "type")
		if reads(b, t, "image_url") || reads(b, t, "input_image") {
			n++
			size += a.end() - a.val
		}
	}
	return n, size
}
