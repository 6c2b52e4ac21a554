package wire

import (
	"bytes"
	"unicode/utf16"
	"unicode/utf8"
)

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
