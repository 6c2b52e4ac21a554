package wire

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
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

// textIs compares the inside of a JSON string with a name that needs no
// escapes, without allocating.
func textIs(raw []byte, name string) bool {
	if string(raw) == name {
		return true
	}
	if len(raw) <= len(name) || bytes.IndexByte(raw, '\\') < 0 {
		return false
	}
	var buf [128]byte
	if len(raw) > 6*len(name) || len(name) > len(buf)-utf8.UTFMax {
		return false
	}
	got, ok := appendUnescaped(buf[:0], raw)
	return ok && string(got) == name
}

// stringIs tells whether the value b[val:end] is a string that reads name.
func stringIs(b []byte, val, end int, name string) bool {
	return isString(b, val, end) && textIs(b[val+1:end-1], name)
}

func isString(b []byte, val, end int) bool { return end-val >= 2 && b[val] == '"' }

// stringValue unescapes a string value; ok is false for other values and for
// escapes that JSON does not have.
func stringValue(b []byte, val, end int) (s string, ok bool) {
	if !isString(b, val, end) {
		return "", false
	}
	raw := b[val+1 : end-1]
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw), true
	}
	out, ok := appendUnescaped(make([]byte, 0, len(raw)), raw)
	return string(out), ok
}

// appendUnescaped appends the inside of a JSON string with its escapes undone.
// Half a surrogate pair becomes U+FFFD; ok is false at an unknown escape.
func appendUnescaped(dst, raw []byte) (out []byte, ok bool) {
	for len(raw) > 0 {
		k := bytes.IndexByte(raw, '\\')
		if k < 0 {
			return append(dst, raw...), true
		}
		dst = append(dst, raw[:k]...)
		raw = raw[k:]
		if len(raw) < 2 {
			return dst, false
		}
		c, size := unescape(raw)
		if size == 0 {
			return dst, false
		}
		dst = utf8.AppendRune(dst, c)
		raw = raw[size:]
	}
	return dst, true
}

// unescape reads the escape at the start of raw (at least two bytes); size is 0
// when it is none.
func unescape(raw []byte) (c rune, size int) {
	switch raw[1] {
	case '"', '\\', '/':
		return rune(raw[1]), 2
	case 'b':
		return '\b', 2
	case 'f':
		return '\f', 2
	case 'n':
		return '\n', 2
	case 'r':
		return '\r', 2
	case 't':
		return '\t', 2
	case 'u':
		c = hex4(raw)
		if c < 0 {
			return 0, 0
		}
		if utf16.IsSurrogate(c) {
			if len(raw) >= 12 && raw[6] == '\\' && raw[7] == 'u' {
				if pair := utf16.DecodeRune(c, hex4(raw[6:])); pair != utf8.RuneError {
					return pair, 12
				}
			}
			return utf8.RuneError, 6
		}
		return c, 6
	}
	return 0, 0
}

// hex4 reads \uXXXX, -1 when it is not.
func hex4(raw []byte) rune {
	if len(raw) < 6 {
		return -1
	}
	var v rune
	for _, d := range raw[2:6] {
		switch {
		case d >= '0' && d <= '9':
			d -= '0'
		case d >= 'a' && d <= 'f':
			d -= 'a' - 10
		case d >= 'A' && d <= 'F':
			d -= 'A' - 10
		default:
			return -1
		}
		v = v<<4 | rune(d)
	}
	return v
}

const hexDigits = "0123456789abcdef"

// appendQuoted appends s as a JSON string: no HTML escaping, always valid UTF-8.
func appendQuoted(dst []byte, s string) []byte {
	dst = append(dst, '"')
	dst = appendEscaped(dst, s)
	return append(dst, '"')
}

// appendEscaped is appendQuoted without the quotes.
func appendEscaped(dst []byte, s string) []byte {
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c < utf8.RuneSelf && c != '"' && c != '\\' {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && size == 1 {
				dst = append(append(dst, s[from:i]...), "\uFFFD"...)
				from = i + 1
			}
			i += size
			continue
		}
		dst = append(dst, s[from:i]...)
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
		i++
		from = i
	}
	return append(dst, s[from:]...)
}
