package wire

// checkValue validates the structure of the value at i: brackets, commas, keys,
// literals and numbers, ends of strings; not the inside of strings. depth is
// how deep i already is. It returns the offset behind the value, or the offset
// of the fault and why. It does not recurse.
func checkValue(b []byte, i, depth int) (end int, fault string) {
	var inObject [maxDepth / 64]uint64 // one bit a level: 1 is an object
	base := depth
	afterKey := true // a value is expected, not a key
	for {
		if i = skipSpace(b, i); i >= len(b) {
			return i, faultEnd
		}
		if !afterKey {
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
			if depth >= maxDepth {
				return i, faultDepth
			}
			bit := uint64(1) << (depth & 63)
			inObject[depth>>6] &^= bit
			if c == '{' {
				inObject[depth>>6] |= bit
			}
			depth++
			afterKey = c == '['
			j := skipSpace(b, i+1)
			if j >= len(b) {
				return j, faultEnd
			}
			if b[j] != c+2 { // ']' and '}' are two behind their openers
				i = j
				continue
			}
			depth--
			i = j + 1
		default:
			if i, fault = checkScalar(b, i); fault != "" {
				return i, fault
			}
		}
		// Behind a value: close what ends here, up to the next comma.
		for {
			if depth == base {
				return i, ""
			}
			if i = skipSpace(b, i); i >= len(b) {
				return i, faultEnd
			}
			isObject := inObject[(depth-1)>>6]>>((depth-1)&63)&1 == 1
			c := b[i]
			if c == ',' {
				i++
				afterKey = !isObject
				break
			}
			if isObject && c != '}' || !isObject && c != ']' {
				return i, faultByte
			}
			depth--
			i++
		}
	}
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
