package wire

import "unicode/utf8"

// ToolNames are the names of the tools that a request offers, as bits of their
// hashes: a name that was not offered is told with a probability of four fifths
// among a hundred tools, and nearly always among ten. One that was offered is
// never taken for another.
type ToolNames struct {
	Known bool // false: no name is judged
	bits  [8]uint64
}

const (
	hashStart = 14695981039346656037 // FNV-1a
	hashPrime = 1099511628211
)

func (t *ToolNames) add(h uint64) {
	h = mix(h)
	t.bits[h>>6&7] |= 1 << (h & 63)
	t.bits[h>>38&7] |= 1 << (h >> 32 & 63)
}

func (t *ToolNames) has(h uint64) bool {
	h = mix(h)
	return t.bits[h>>6&7]>>(h&63)&1 == 1 && t.bits[h>>38&7]>>(h>>32&63)&1 == 1
}

// mix makes all bits of a hash depend on all others: MurmurHash3's finaliser.
func mix(h uint64) uint64 {
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// hashText goes on hashing with the inside of a JSON string, as what it says.
func hashText(h uint64, raw []byte) uint64 {
	var room [utf8.UTFMax]byte
	for i := 0; i < len(raw); {
		said, size := raw[i:i+1], 1
		if raw[i] == '\\' && i+1 < len(raw) {
			if r, n := unescape(raw[i:]); n > 0 {
				said, size = utf8.AppendRune(room[:0], r), n
			}
		}
		for _, c := range said {
			h = (h ^ uint64(c)) * hashPrime
		}
		i += size
	}
	return h
}

// Tools reads the names of the tools that the request offers. patch is the
// variant's: where it brings tools of its own no name is judged.
func (h *Head) Tools(body []byte, patch *Patch) (t ToolNames) {
	var m asked
	h.each(body, func(f member) bool {
		m.note(body, f)
		return true
	})
	if patch != nil {
		for _, f := range patch.Force {
			if f.Name == "tools" || f.Name == "functions" {
				return t
			}
		}
	}
	t.Known = true
	for _, list := range [...]span{m.tools, m.functions} {
		if list.end == 0 {
			continue
		}
		for a := arrayAt(body, list.start); a.next(); {
			tool := span{a.val, a.end()}
			name := memberOf(body, tool, "name")
			if f := memberOf(body, tool, "function"); f.end > 0 {
				name = memberOf(body, f, "name")
			}
			if isString(body, name.start, name.end) {
				t.add(hashText(hashStart, body[name.start+1:name.end-1]))
			}
		}
	}
	return t
}

// toolCall is one call as its deltas tell it.
type toolCall struct {
	choice, index int64
	named         bool
	name          uint64
	args          jsonText
	odd           bool // arguments that are no string
}

// maxCalls bounds how many calls of an answer are judged.
const maxCalls = 64

// valid tells whether a client can make the call.
func (c *toolCall) valid(t *ToolNames) bool {
	return c.named && !c.odd && c.args.object && c.args.complete() && (!t.Known || t.has(c.name))
}

// call finds the call at this place, or begins it; nil beyond maxCalls.
func (j *critic) call(choice, index int64) *toolCall {
	for i := len(j.calls) - 1; i >= 0; i-- {
		if c := &j.calls[i]; c.choice == choice && c.index == index {
			return c
		}
	}
	if len(j.calls) >= maxCalls {
		return nil
	}
	j.calls = append(j.calls, toolCall{choice: choice, index: index, name: hashStart})
	return &j.calls[len(j.calls)-1]
}

// toolCalls reads the list of calls at v, whole ones or deltas.
func (j *critic) toolCalls(b []byte, v span, choice int64) {
	position := int64(-1)
	for a := arrayAt(b, v.start); a.next(); {
		position++
		index, function := position, span{}
		for o := objectAt(b, a.val); o.next(); {
			switch string(b[o.key.start:o.key.end]) {
			case "index":
				index, _ = number(b, o.val, o.end(), position, false)
			case "function":
				function = o.value()
			}
		}
		if c := j.call(choice, index); c != nil && function.end > 0 {
			c.function(b, function)
		}
	}
}

// function reads the name and arguments of a function, or pieces of them.
func (c *toolCall) function(b []byte, v span) {
	for o := objectAt(b, v.start); o.next(); {
		switch string(b[o.key.start:o.key.end]) {
		case "name":
			c.setName(b, o.value())
		case "arguments":
			c.setArguments(b, o.value())
		}
	}
}

func (c *toolCall) setName(b []byte, v span) {
	if isString(b, v.start, v.end) && v.end-v.start > 2 {
		c.named = true
		c.name = hashText(c.name, b[v.start+1:v.end-1])
	}
}

func (c *toolCall) setArguments(b []byte, v span) {
	switch b[v.start] {
	case '"':
		c.args.text(b[v.start+1 : v.end-1])
	case 'n':
	default:
		c.odd = true
	}
}
