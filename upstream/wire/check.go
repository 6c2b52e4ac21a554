package wire

// nesting is the stack of open brackets: one bit a level, 1 is an object.
type nesting struct {
	object [maxDepth / 64]uint64
	depth  int
}

func (n *nesting) push(object bool) {
	bit := uint64(1) << (n.depth & 63)
	if object {
		n.object[n.depth>>6] |= bit
	} else {
		n.object[n.depth>>6] &^= bit
	}
	n.depth++
}

// inObject tells what the innermost open bracket is.
func (n *nesting) inObject() bool {
	return n.object[(n.depth-1)>>6]>>((n.depth-1)&63)&1 == 1
}

// checkValue validates the structure of the value at i: brackets, commas, keys,
// literals and numbers, ends of strings; not the inside of strings. depth is
// how deep i already is. It returns the offset behind the value, or the offset
// of the fault and why. It does not recurse.
func checkValue(b []byte, i, depth int) (end int, fault string) {
	n := nesting{depth: depth}
	key := false // a key is expected, then a value
	for {
		if i = skipSpace(b, i); i >= len(b) {
			return i, faultEnd
		}
		if key {
			if i, fault = checkKey(b, i); fault != "" {
				return i, fault
			}
		}
		switch c := b[i]; c {
		case '"':
			j := skipString(b, i)
			if j < 0 {
				return i, faultString
			}
			i = j
		case '{', '[':
			if n.depth >= maxDepth {
				return i, faultDepth
			}
			if i = skipSpace(b, i+1); i >= len(b) {
				return i, faultEnd
			}
			if b[i] != c+2 { // '}' and ']' are two behind their openers
				key = c == '{'
				n.push(key)
				continue
			}
			i++
		default:
			if i, fault = checkScalar(b, i); fault != "" {
				return i, fault
			}
		}
		var done bool
		if i, done, fault = n.closeUp(b, i, depth); done || fault != "" {
			return i, fault
		}
		key = n.inObject()
	}
}

// closeUp passes the brackets that close behind a value, and the comma behind
// them; done tells that the level base is reached.
func (n *nesting) closeUp(b []byte, i, base int) (end int, done bool, fault string) {
	for n.depth > base {
		if i = skipSpace(b, i); i >= len(b) {
			return i, false, faultEnd
		}
		closer := byte(']')
		if n.inObject() {
			closer = '}'
		}
		switch b[i] {
		case ',':
			return i + 1, false, ""
		case closer:
			n.depth--
			i++
		default:
			return i, false, faultByte
		}
	}
	return i, true, ""
}

const (
	faultEnd    = "it ends too early"
	faultString = "a string does not end"
	faultByte   = "unexpected character"
	faultDepth  = "it is nested more than 512 levels deep"
	faultNumber = "malformed number"
)

// checkKey passes a key, its colon and the space around it; the returned offset
// is that of a value's first byte.
func checkKey(b []byte, i int) (int, string) {
	if b[i] != '"' {
		return i, faultByte
	}
	j := skipString(b, i)
	if j < 0 {
		return i, faultString
	}
	if i = skipSpace(b, j); i >= len(b) {
		return i, faultEnd
	}
	if b[i] != ':' {
		return i, faultByte
	}
	if i = skipSpace(b, i+1); i >= len(b) {
		return i, faultEnd
	}
	return i, ""
}

func checkScalar(b []byte, i int) (int, string) {
	want := ""
	switch c := b[i]; {
	case c == 't':
		want = "true"
	case c == 'f':
		want = "false"
	case c == 'n':
		want = "null"
	case c == '-' || c >= '0' && c <= '9':
		return checkNumber(b, i)
	default:
		return i, faultByte
	}
	if len(b)-i < len(want) || string(b[i:i+len(want)]) != want {
		return i, faultByte
	}
	return i + len(want), ""
}

func checkNumber(b []byte, i int) (int, string) {
	at := i
	if b[i] == '-' {
		i++
	}
	digits := func() bool {
		from := i
		for i < len(b) && b[i] >= '0' && b[i] <= '9' {
			i++
		}
		return i > from
	}
	if i < len(b) && b[i] == '0' {
		i++
	} else if !digits() {
		return at, faultNumber
	}
	if i < len(b) && b[i] == '.' {
		if i++; !digits() {
			return at, faultNumber
		}
	}
	if i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		if i++; i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		if !digits() {
			return at, faultNumber
		}
	}
	return i, ""
}
