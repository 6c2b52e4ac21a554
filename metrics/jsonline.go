package metrics

import (
	"strconv"
	"time"
	"unicode/utf8"
)

func appendUint(b []byte, u uint64) []byte { return strconv.AppendUint(b, u, 10) }

func key(b []byte, name string) []byte {
	b = append(b, ',', '"')
	b = append(b, name...)
	return append(b, '"', ':')
}

// field appends a string member, null when empty.
func field(b []byte, name, v string) []byte {
	b = key(b, name)
	if v == "" {
		return append(b, "null"...)
	}
	return quote(b, v)
}

func number(b []byte, name string, v int64, known bool) []byte {
	b = key(b, name)
	if !known {
		return append(b, "null"...)
	}
	return strconv.AppendInt(b, v, 10)
}

func boolean(b []byte, name string, v bool) []byte {
	return strconv.AppendBool(key(b, name), v)
}

// words appends those of names whose bit is set as a list, null when they are
// not known.
func words(b []byte, name string, names []string, set uint64, known bool) []byte {
	b = key(b, name)
	if !known {
		return append(b, "null"...)
	}
	b = append(b, '[')
	for i, n := range names {
		if set>>i&1 == 0 {
			continue
		}
		if b[len(b)-1] != '[' {
			b = append(b, ',')
		}
		b = append(append(append(b, '"'), n...), '"')
	}
	return append(b, ']')
}

// millis appends a duration in milliseconds with three decimals.
func millis(b []byte, name string, d time.Duration, known bool) []byte {
	b = key(b, name)
	if !known {
		return append(b, "null"...)
	}
	us := max(d, 0).Microseconds()
	b = strconv.AppendInt(b, us/1000, 10)
	b = append(b, '.')
	return append(b, byte('0'+us/100%10), byte('0'+us/10%10), byte('0'+us%10))
}

// quote appends s as a JSON string on one line. Control characters, including
// the C1 set and the Unicode line separators that some log readers split at,
// are escaped; bytes that are not UTF-8 become U+FFFD.
func quote(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= 0x20 && c < 0x7f && c != '"' && c != '\\' {
			i++
			continue
		}
		b = append(b, s[start:i]...)
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
			i++
		case c < utf8.RuneSelf:
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
			i++
		default:
			r, n := utf8.DecodeRuneInString(s[i:])
			switch {
			case r == utf8.RuneError && n == 1:
				b = append(b, `\ufffd`...)
			case r < 0xa0 || r == 0x2028 || r == 0x2029:
				b = append(b, '\\', 'u', hex[r>>12&15], hex[r>>8&15], hex[r>>4&15], hex[r&15])
			default:
				b = append(b, s[i:i+n]...)
			}
			i += n
		}
		start = i
	}
	b = append(b, s[start:]...)
	return append(b, '"')
}
