package wire

// jsonText checks that bytes which come in pieces are one JSON value, as strict
// as encoding/json but for the depth, which is that of a request: it knows only
// where in the grammar it is. The zero jsonText stands before the value.
type jsonText struct {
	nest   nesting
	state  jsonState
	key    bool   // the string at hand is a key
	object bool   // the value is an object
	hex    uint8  // hex digits of an escape still to come
	rest   string // of the literal at hand
}

type jsonState uint8

const (
	jsonStart jsonState = iota // before the value; then before any other
	jsonValue
	jsonFirst // behind [
	jsonOpen  // behind {
	jsonKey   // behind a comma in an object
	jsonColon
	jsonAfter // behind a value
	jsonString
	jsonEscape
	jsonHex
	jsonLiteral
	jsonMinus
	jsonZero
	jsonInt
	jsonDot
	jsonFrac
	jsonE
	jsonSign
	jsonExp
	jsonBad
)

// complete tells that the value has ended, as far as one can tell.
func (j *jsonText) complete() bool {
	switch j.state {
	case jsonAfter, jsonZero, jsonInt, jsonFrac, jsonExp:
		return j.nest.depth == 0
	}
	return false
}

// text takes the inside of a JSON string: the value as it is written there.
func (j *jsonText) text(raw []byte) {
	for i := 0; i < len(raw) && j.state != jsonBad; {
		c := raw[i]
		if c != '\\' {
			j.byte(c)
			i++
			continue
		}
		if i+1 >= len(raw) {
			j.state = jsonBad
			return
		}
		r, size := unescape(raw[i:])
		if size == 0 {
			j.state = jsonBad
			return
		}
		j.byte(byte(min(r, 0x80))) // beyond ASCII all are alike
		i += size
	}
}

// byte takes one byte of the value.
func (j *jsonText) byte(c byte) {
	switch j.state {
	case jsonString:
		switch {
		case c == '"':
			j.state = jsonAfter
			if j.key {
				j.state = jsonColon
			}
		case c == '\\':
			j.state = jsonEscape
		case c < ' ':
			j.state = jsonBad
		}
		return
	case jsonEscape:
		j.escape(c)
		return
	case jsonHex:
		if !isHex(c) {
			j.state = jsonBad
		} else if j.hex--; j.hex == 0 {
			j.state = jsonString
		}
		return
	case jsonLiteral:
		if c != j.rest[0] {
			j.state = jsonBad
		} else if j.rest = j.rest[1:]; j.rest == "" {
			j.state = jsonAfter
		}
		return
	case jsonMinus, jsonZero, jsonInt, jsonDot, jsonFrac, jsonE, jsonSign, jsonExp:
		if j.number(c) {
			return
		}
	}
	if c == ' ' || c == '\n' || c == '\r' || c == '\t' {
		return
	}
	j.token(c)
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'f'
}

func (j *jsonText) escape(c byte) {
	switch c {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		j.state = jsonString
	case 'u':
		j.state, j.hex = jsonHex, 4
	default:
		j.state = jsonBad
	}
}

// number takes a byte of a number; false when the number ended before it.
func (j *jsonText) number(c byte) bool {
	digit := c >= '0' && c <= '9'
	switch j.state {
	case jsonMinus:
		j.state = jsonBad
		if c == '0' {
			j.state = jsonZero
		} else if digit {
			j.state = jsonInt
		}
		return true
	case jsonDot, jsonE, jsonSign:
		sign := j.state == jsonE && (c == '+' || c == '-')
		switch {
		case sign:
			j.state = jsonSign
		case !digit:
			j.state = jsonBad
		case j.state == jsonDot:
			j.state = jsonFrac
		default:
			j.state = jsonExp
		}
		return true
	}
	switch {
	case digit && j.state != jsonZero:
	case c == '.' && (j.state == jsonZero || j.state == jsonInt):
		j.state = jsonDot
	case c|0x20 == 'e' && j.state != jsonExp:
		j.state = jsonE
	default:
		j.state = jsonAfter
		return false
	}
	return true
}

// token takes a byte outside strings, literals and numbers that is no space.
func (j *jsonText) token(c byte) {
	switch j.state {
	case jsonStart:
		j.object = c == '{'
		j.value(c)
	case jsonValue:
		j.value(c)
	case jsonFirst:
		if c == ']' {
			j.pop()
			return
		}
		j.value(c)
	case jsonOpen, jsonKey:
		switch {
		case c == '"':
			j.state, j.key = jsonString, true
		case c == '}' && j.state == jsonOpen:
			j.pop()
		default:
			j.state = jsonBad
		}
	case jsonColon:
		if j.state = jsonBad; c == ':' {
			j.state = jsonValue
		}
	case jsonAfter:
		j.after(c)
	}
}

// after takes what stands behind a value.
func (j *jsonText) after(c byte) {
	if j.nest.depth == 0 {
		j.state = jsonBad
		return
	}
	object := j.nest.inObject()
	switch {
	case c == ',' && object:
		j.state = jsonKey
	case c == ',':
		j.state = jsonValue
	case c == '}' && object, c == ']' && !object:
		j.pop()
	default:
		j.state = jsonBad
	}
}

func (j *jsonText) pop() {
	j.nest.depth--
	j.state = jsonAfter
}

// value takes the first byte of a value.
func (j *jsonText) value(c byte) {
	switch {
	case c == '"':
		j.state, j.key = jsonString, false
	case c == '{' || c == '[':
		if j.nest.depth >= maxDepth {
			j.state = jsonBad
			return
		}
		j.nest.push(c == '{')
		j.state = jsonFirst
		if c == '{' {
			j.state = jsonOpen
		}
	case c == '-':
		j.state = jsonMinus
	case c == '0':
		j.state = jsonZero
	case c >= '1' && c <= '9':
		j.state = jsonInt
	case c == 't':
		j.state, j.rest = jsonLiteral, "rue"
	case c == 'f':
		j.state, j.rest = jsonLiteral, "alse"
	case c == 'n':
		j.state, j.rest = jsonLiteral, "ull"
	default:
		j.state = jsonBad
	}
}
