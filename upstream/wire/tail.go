package wire

import "bytes"

// Tail follows a JSON answer that is too large to hold and finds its usage
// exactly, read by read: it knows at every byte how deep it is and under which
// top-level member, so no text can pass for a count. The zero Tail is ready.
type Tail struct {
	depth  int
	str    bool // inside a string
	slash  bool // the last byte was an odd backslash
	closed bool // the top-level object has ended
	other  bool // it is no object
	key    bool // at depth 1, or 3 below choices: the next string is a key
	field  tailField
	inner  bool // the key at depth 3 is finish_reason
	failed bool // it has a member error that is an object or a string
	keep   bool // bytes go into buf
	buf    []byte

	u          Unary
	timings    Usage
	hasTimings bool
}

// tailField is the top-level member at hand.
type tailField uint8

const (
	tailOther tailField = iota
	tailUsage
	tailTimings
	tailChoices
	tailItems
	tailStatus
	tailError
)

// tailLimit bounds what is kept of one key or value.
const tailLimit = 64 << 10

// Feed takes the next bytes.
func (t *Tail) Feed(p []byte) {
	for i := 0; i < len(p) && !t.closed && !t.other; {
		if t.str {
			i = t.text(p, i)
			continue
		}
		if !t.keep && t.depth > 1 && (t.depth > 3 || t.field != tailChoices) {
			if i = skipPlain(p, i); i == len(p) {
				return
			}
		}
		c := p[i]
		i++
		switch c {
		case ' ', '\n', '\r', '\t':
			continue
		}
		if t.depth == 0 && c != '{' {
			if bytes.IndexByte(bom, c) >= 0 {
				continue
			}
			t.other = true
			return
		}
		t.byte(c)
	}
}

// skipPlain is the offset of the next quote or bracket: between them nothing
// counts where no value is kept.
func skipPlain(p []byte, i int) int {
	for i < len(p) && !structural[p[i]] {
		i++
	}
	return i
}

var structural = [256]bool{'"': true, '{': true, '}': true, '[': true, ']': true}

// text passes the inside of a string, up to its end if that is in p.
func (t *Tail) text(p []byte, i int) int {
	from := i
	for i < len(p) {
		if t.slash {
			t.slash = false
			i++
			continue
		}
		k := bytes.IndexByte(p[i:], '"')
		end := i + k
		if k < 0 {
			end = len(p)
		}
		slashes := 0
		for j := end - 1; j >= i && p[j] == '\\'; j-- {
			slashes++
		}
		odd := slashes&1 == 1
		if k < 0 {
			t.slash = odd
			i = end
			break
		}
		i = end + 1
		if !odd {
			t.add(p[from:i])
			t.str = false
			t.endString()
			return i
		}
	}
	t.add(p[from:i])
	return i
}

func (t *Tail) add(p []byte) {
	if t.keep && len(t.buf)+len(p) <= tailLimit {
		t.buf = append(t.buf, p...)
	} else if t.keep {
		t.keep, t.buf = false, t.buf[:0]
	}
}

// byte takes one byte outside strings that is not white space.
func (t *Tail) byte(c byte) {
	switch c {
	case '"':
		t.str = true
		t.failed = t.failed || t.depth == 1 && !t.key && t.field == tailError
		if t.depth == 1 && t.key || t.depth == 3 && t.key && t.field == tailChoices ||
			t.depth == 1 && t.field == tailStatus || t.depth == 3 && t.inner {
			t.keep, t.buf = true, t.buf[:0]
		}
		t.add([]byte{c})
		return
	case '{', '[':
		t.depth++
		t.open(c)
		t.add([]byte{c})
		return
	case '}', ']':
		t.add([]byte{c})
		t.depth--
		t.shut()
		return
	case ',':
		if t.depth == 1 {
			t.key, t.field = true, tailOther
		} else if t.depth == 3 && t.field == tailChoices {
			t.key, t.inner = true, false
		}
	case ':':
		if t.depth == 1 && t.key {
			t.key = false
			return
		}
		if t.depth == 3 && t.key {
			t.key = false
			return
		}
	}
	t.add([]byte{c})
}

// open notes a container that begins; depth counts it already.
func (t *Tail) open(c byte) {
	switch t.depth {
	case 1:
		t.key = true
	case 2:
		t.failed = t.failed || t.field == tailError && c == '{'
		if t.field == tailUsage || t.field == tailTimings {
			t.keep, t.buf = true, t.buf[:0]
		}
	case 3:
		if t.field == tailChoices || t.field == tailItems {
			t.u.Choices++
		}
		t.key, t.inner = t.field == tailChoices && c == '{', false
	}
}

// shut notes a container that ended.
func (t *Tail) shut() {
	switch t.depth {
	case 0:
		t.closed = true
	case 1:
		if t.keep {
			t.value()
		}
		t.keep, t.key = false, false
	case 2:
		t.key, t.inner = false, false
	}
}

// value takes a whole usage or timings object.
func (t *Tail) value() {
	switch t.field {
	case tailUsage:
		if u, ok, n := parseUsage(t.buf, 0); ok {
			t.u.Usage, t.u.HasUsage = u, true
			t.u.Clamped += n
		}
	case tailTimings:
		t.timings, t.hasTimings, _ = parseTimings(t.buf, 0)
	}
}

// endString takes a key, or one of the two string values that count.
func (t *Tail) endString() {
	if !t.keep || t.depth != 1 && t.depth != 3 {
		return
	}
	if t.depth == 3 && t.field != tailChoices {
		return // inside usage
	}
	t.keep = false
	s, _ := stringValue(t.buf, 0, len(t.buf))
	switch {
	case t.depth == 3 && t.key:
		t.inner = s == "finish_reason"
	case t.depth == 3:
		if t.u.Finish == "" || t.u.Choices == 1 {
			t.u.Finish = s
		}
	case !t.key:
		t.u.Finish = s
	case s == "usage":
		t.field = tailUsage
	case s == "timings":
		t.field = tailTimings
	case s == "choices":
		t.field = tailChoices
	case s == "data" || s == "output":
		t.field = tailItems
	case s == "status":
		t.field = tailStatus
	case s == "error":
		t.field = tailError
	default:
		t.field = tailOther
	}
}

// Result is what ReadUnary would have found, but for the content: nothing is
// counted or judged of it.
func (t *Tail) Result() Unary {
	u := t.u
	u.Answer = Answer{Seen: true, Judged: FlawTruncated}
	if u.Finish != "" {
		u.Answer.Finish[finishOf([]byte(u.Finish))]++
	}
	if !u.HasUsage && t.hasTimings {
		u.Usage, u.HasUsage = t.timings, true
	}
	return u
}

// Failed tells whether it is an error and no answer, as UnaryVerdict would.
func (t *Tail) Failed() bool { return t.failed && t.u.Choices == 0 }

// Complete tells whether the top-level object has ended.
func (t *Tail) Complete() bool { return t.closed }
