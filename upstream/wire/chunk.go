package wire

import "math/bits"

// content is what the choices of an answer carry.
type content struct {
	any      bool  // something a client can see: ends the hold before the commit point
	output   bool  // generated text, reasoning or tool call
	answered bool  // generated text or tool call
	chars    int64 // characters of output
	choices  int   // elements of the array
	texts    int   // generated values
	zero     bool  // the finish reason found is that of choice 0
	only     span  // the last of them when it is a non-empty string
	special  bool  // a mark may begin in one of them
	one      parts // of the last choice
}

// choiceSet remembers which choices started and which finished. Indexes above
// 255 share the last place.
type choiceSet struct {
	seen, finished [4]uint64
	count          int
}

func (c *choiceSet) start(index int64) {
	i := uint64(min(max(index, 0), 255))
	if c.seen[i>>6]&(1<<(i&63)) == 0 {
		c.seen[i>>6] |= 1 << (i & 63)
		c.count++
	}
}

func (c *choiceSet) finish(index int64) {
	i := uint64(min(max(index, 0), 255))
	c.finished[i>>6] |= 1 << (i & 63)
}

// done is the number of choices that finished.
func (c *choiceSet) done() (n int) {
	for _, w := range c.finished {
		n += bits.OnesCount64(w)
	}
	return n
}

// complete tells that at least one choice started and all of them finished.
func (c *choiceSet) complete() bool { return c.count > 0 && c.seen == c.finished }

// walk reads the array of choices at i and returns where the finish reason of
// choice 0 is, or of the first that has one (end 0 when none has), and the
// offset behind the array, -1 when it is malformed.
func (c *content) walk(b []byte, i int, set *choiceSet) (finish span, end int) {
	a := arrayAt(b, i)
	for a.next() {
		if c.choices++; c.choices > 1 {
			c.one = parts{}
		}
		if b[a.val] != '{' {
			continue
		}
		o := objectAt(b, a.val)
		for o.next() {
			switch string(b[o.key.start:o.key.end]) {
			case "index":
				c.one.index, _ = number(b, o.val, o.end(), 0, false)
			case "finish_reason":
				if c.one.reason(b, o.value()); c.one.finish.end > 0 {
					c.any = true
				}
			case "delta", "message":
				o.walked(c.delta(b, o.val))
			case "text":
				c.text(b, o.val, o.end(), true)
				c.one.content = o.value()
			default:
				c.any = c.any || carries(b, o.val, o.end())
			}
		}
		a.walked(o.close())
		set.start(c.one.index)
		if reason := c.one.finish; reason.end > 0 {
			set.finish(c.one.index)
			if c.one.index == 0 || finish.end == 0 {
				finish, c.zero = reason, c.one.index == 0
			}
		}
	}
	return finish, a.close()
}

// delta reads the part of a choice that the model wrote, and returns its end.
func (c *content) delta(b []byte, i int) (end int) {
	if b[i] != '{' {
		if end = skipValue(b, i); end > 0 {
			c.text(b, i, end, true)
		}
		return end
	}
	o := objectAt(b, i)
	for o.next() {
		switch string(b[o.key.start:o.key.end]) {
		case "role":
		case "content", "tool_calls", "function_call", "refusal", "audio":
			c.text(b, o.val, o.end(), true)
			c.one.member(b, &o)
		case "reasoning", "reasoning_content":
			c.text(b, o.val, o.end(), false)
		default: // nothing the model wrote, but the client's to see
			c.any = c.any || carries(b, o.val, o.end())
		}
	}
	return o.close()
}

// text notes one generated value.
func (c *content) text(b []byte, i, end int, answer bool) {
	c.only = span{}
	if b[i] == '"' { // nearly always
		if end-i > 2 {
			c.texts++
			c.only = span{i, end}
			c.any, c.output = true, true
			c.answered = c.answered || answer
			n, special := scanText(b[i+1 : end-1])
			c.chars += n
			c.special = c.special || special
		}
		return
	}
	if carries(b, i, end) {
		c.texts++
		c.any, c.output = true, true
		c.answered = c.answered || answer
		c.chars += deepTextLen(b[i:end])
	}
}

// carries tells whether a value holds anything but null, empty strings and
// empty arrays (however nested). It looks only for the first byte that does.
func carries(b []byte, i, end int) bool {
	switch b[i] {
	case 'n':
		return false
	case '"':
		return end-i > 2
	case '[', '{':
	default:
		return true
	}
	for ; i < end; i++ {
		switch b[i] {
		case '"':
			j := skipString(b, i)
			if j < 0 {
				return true
			}
			if k := skipSpace(b, j); k < end && b[k] == ':' {
				i = k // a key
				continue
			}
			if j-i > 2 {
				return true
			}
			i = j - 1
		case 'n': // null
			i += 3
		case '[', ']', '{', '}', ',', ' ', '\n', '\r', '\t':
		default: // a number, true, false
			return true
		}
	}
	return false
}

// The classes of bytes inside a JSON string. From classMark on they are special.
const (
	classPlain = iota
	classRest  // goes on with a character
	classMark  // may begin a mark
	classSlash // begins an escape
)

var textClass = func() (t [256]uint8) {
	for c := range t {
		switch {
		case c == '\\':
			t[c] = classSlash
		case isMark(byte(c)):
			t[c] = classMark
		case c&0xC0 == 0x80:
			t[c] = classRest
		}
	}
	return t
}()

// scanText counts the characters of a JSON string's inside: an escape is one, a
// surrogate pair is one. special tells that a mark may begin in it.
func scanText(raw []byte) (n int64, special bool) {
	n = int64(len(raw))
	for i := 0; i < len(raw); i++ {
		class := textClass[raw[i]]
		if class == classPlain {
			continue
		}
		switch class {
		case classRest:
			n--
		case classMark:
			special = special || mayMark(raw, i)
		case classSlash:
			i++
			if n--; i == len(raw) {
				n++
			} else if raw[i] == 'u' {
				special = true
				end := min(i+4, len(raw)-1)
				n -= int64(end - i)
				if i+2 < len(raw) && raw[i+1]|0x20 == 'd' && raw[i+2]|0x20 >= 'c' && raw[i+2]|0x20 <= 'f' {
					n-- // the second half of a pair
				}
				i = end
			}
		}
	}
	return n, special
}

func textLen(raw []byte) int64 {
	n, _ := scanText(raw)
	return n
}

// deepTextLen counts the characters of all strings in b that are neither keys
// nor labels (id, type, role).
func deepTextLen(b []byte) (n int64) {
	label := false
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			j := skipString(b, i)
			if j < 0 {
				return n
			}
			inside := b[i+1 : j-1]
			i = j - 1
			if k := skipSpace(b, j); k < len(b) && b[k] == ':' {
				i = k
				switch string(inside) {
				case "id", "type", "role":
					label = true
				default:
					label = false
				}
				continue
			}
			if !label {
				n += textLen(inside)
			}
			label = false
		case ',', '{', '[':
			label = false
		}
	}
	return n
}
