package wire

import (
	"bytes"
	"encoding/binary"
	"math/bits"
)

// The helpers below walk JSON text by offset. All of them are safe on any
// bytes: -1 means that the text ended or was malformed.

// maxDepth is how deep a request may nest; engines give up far earlier or
// crash far later, and nothing real comes near.
const maxDepth = 512

func skipSpace(b []byte, i int) int {
	for i < len(b) && b[i] <= ' ' && (b[i] == ' ' || b[i] == '\n' || b[i] == '\r' || b[i] == '\t') {
		i++
	}
	return i
}

const (
	lowBits  = 0x0101010101010101
	highBits = 0x8080808080808080
	quotes   = lowBits * '"'
	slashes  = lowBits * '\\'
)

// skipString returns the offset behind the string that begins with the quote at
// i. Short strings, keys above all, are read eight bytes at a time; a long one
// by the quote, which is then judged by the backslashes before it.
func skipString(b []byte, i int) int {
	j := i + 1
	for far := j + 40; j < far && j+8 <= len(b); {
		w := binary.LittleEndian.Uint64(b[j:])
		q, s := w^quotes, w^slashes
		m := ((q-lowBits)&^q | (s-lowBits)&^s) & highBits
		if m == 0 {
			j += 8
			continue
		}
		j += bits.TrailingZeros64(m) >> 3
		if b[j] == '"' {
			return j + 1
		}
		j += 2 // a backslash and what it escapes
	}
	return skipLong(b, j)
}

// skipLong goes on inside a string, at a byte that is not escaped.
func skipLong(b []byte, start int) int {
	for j := start; j < len(b); j++ {
		k := bytes.IndexByte(b[j:], '"')
		if k < 0 {
			return -1
		}
		j += k
		n := 0
		for p := j - 1; p >= start && b[p] == '\\'; p-- {
			n++
		}
		if n&1 == 0 {
			return j + 1
		}
	}
	return -1
}

// skipValue returns the offset behind the value at i. Brackets are counted, not
// matched by kind: it is for text that was checked, or that is only forwarded.
func skipValue(b []byte, i int) int {
	if i >= len(b) {
		return -1
	}
	switch b[i] {
	case '"':
		return skipString(b, i)
	case '{', '[':
		return skipContainer(b, i)
	}
	start := i
	for ; i < len(b); i++ {
		switch b[i] {
		case ',', '}', ']', ' ', '\n', '\r', '\t':
			if i == start {
				return -1
			}
			return i
		case '"', ':', '{', '[':
			return -1
		}
	}
	if i == start {
		return -1
	}
	return i
}

func skipContainer(b []byte, i int) int {
	depth := 0
	for i < len(b) {
		switch b[i] {
		case '"':
			if i = skipString(b, i); i < 0 {
				return -1
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		}
		i++
	}
	return -1
}

// object iterates over the members of one object. A value is skipped only when
// its end is asked for, so that a caller who walks it reads it once.
type object struct {
	b    []byte
	key  span // without quotes
	val  int  // the value
	prev int  // behind the value before, 0 for the first
	stop int  // behind the value, 0 when not known yet
	i    int  // behind the opening brace; when it ended, behind the closing one
	bad  bool // the text was malformed or ended
}

// objectAt starts at the brace at i; next fails at once when there is none.
func objectAt(b []byte, i int) object {
	if i < 0 || i >= len(b) || b[i] != '{' {
		return object{b: b, bad: true}
	}
	return object{b: b, i: i + 1}
}

func (o *object) next() bool {
	if o.bad {
		return false
	}
	b := o.b
	i := o.i
	if o.val > 0 {
		i = o.end()
		if o.bad {
			return false
		}
	}
	if i < len(b) && b[i] <= ' ' {
		i = skipSpace(b, i)
	}
	if i >= len(b) {
		return o.fail()
	}
	o.prev = o.stop
	switch {
	case b[i] == '}':
		o.i = i + 1
		return o.fail()
	case o.val > 0:
		if b[i] != ',' {
			return o.fail()
		}
		if i++; i < len(b) && b[i] <= ' ' {
			i = skipSpace(b, i)
		}
	}
	if i >= len(b) || b[i] != '"' {
		return o.fail()
	}
	k := skipString(b, i)
	if k < 0 {
		return o.fail()
	}
	o.key = span{i + 1, k - 1}
	if k < len(b) && b[k] <= ' ' {
		k = skipSpace(b, k)
	}
	if k >= len(b) || b[k] != ':' {
		return o.fail()
	}
	if k++; k < len(b) && b[k] <= ' ' {
		k = skipSpace(b, k)
	}
	if k >= len(b) {
		return o.fail()
	}
	o.val, o.stop = k, 0
	return true
}

// member is the current one, with the comma before it where it has one.
func (o *object) member() span {
	if o.prev > 0 {
		return span{o.prev, o.end()}
	}
	return span{o.key.start - 1, o.end()}
}

// fail ends the iteration; close tells whether well.
func (o *object) fail() bool {
	o.bad, o.val, o.stop = true, 0, 0
	return false
}

// end is the offset behind the value at hand; that of its first byte when it is
// malformed, which also ends the iteration.
func (o *object) end() int {
	if o.stop == 0 {
		if o.stop = skipValue(o.b, o.val); o.stop < 0 {
			o.stop, o.bad = o.val, true
		}
	}
	return o.stop
}

// walked tells where the value ended, by one who read it; -1 when malformed.
func (o *object) walked(end int) {
	if o.stop = end; end < 0 {
		o.stop, o.bad = o.val, true
	}
}

// value is the value at hand.
func (o *object) value() span { return span{o.val, o.end()} }

// close is the offset behind the closing brace once next returned false on
// well-formed text, otherwise -1.
func (o *object) close() int {
	if o.i == 0 || o.i > len(o.b) || o.b[o.i-1] != '}' {
		return -1
	}
	return o.i
}

// is compares the key, unescaped, with name.
func (o *object) is(name string) bool { return textIs(o.b[o.key.start:o.key.end], name) }

// array iterates over the elements of one array, as object does.
type array struct {
	b    []byte
	val  int
	stop int
	i    int
	n    int // elements so far
	bad  bool
}

func arrayAt(b []byte, i int) array {
	if i < 0 || i >= len(b) || b[i] != '[' {
		return array{b: b, bad: true}
	}
	return array{b: b, i: i + 1}
}

func (a *array) next() bool {
	if a.bad {
		return false
	}
	i := a.i
	if a.n > 0 {
		i = a.end()
		if a.bad {
			return false
		}
	}
	i = skipSpace(a.b, i)
	if i >= len(a.b) {
		return a.fail()
	}
	switch {
	case a.b[i] == ']':
		a.i = i + 1
		return a.fail()
	case a.n > 0:
		if a.b[i] != ',' {
			return a.fail()
		}
		i = skipSpace(a.b, i+1)
	}
	if i >= len(a.b) {
		return a.fail()
	}
	a.val, a.stop = i, 0
	a.n++
	return true
}

func (a *array) fail() bool {
	a.bad = true
	return false
}

func (a *array) end() int {
	if a.stop == 0 {
		if a.stop = skipValue(a.b, a.val); a.stop < 0 {
			a.stop, a.bad = a.val, true
		}
	}
	return a.stop
}

func (a *array) walked(end int) {
	if a.stop = end; end < 0 {
		a.stop, a.bad = a.val, true
	}
}

func (a *array) close() int {
	if a.i == 0 || a.i > len(a.b) || a.b[a.i-1] != ']' {
		return -1
	}
	return a.i
}
