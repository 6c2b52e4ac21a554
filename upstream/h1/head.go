package h1

import (
	"bytes"
	"strconv"
	"strings"
)

const (
	// maxFields bounds the number of header fields of an answer.
	maxFields = 256
	// maxInformational bounds the 1xx answers before the final one.
	maxInformational = 16
)

// findHead returns the length of the head at the start of p, its final empty
// line included, or 0 when it is not complete. seen is how much of p was looked
// at before, line where the line began that was incomplete then.
func findHead(p []byte, seen, line *int) (int, error) {
	const start = "HTTP/1."
	if n := min(len(p), len(start)); string(p[:n]) != start[:n] {
		return 0, malformed("it does not begin with HTTP/1.")
	}
	for {
		i := bytes.IndexByte(p[*seen:], '\n')
		if i < 0 {
			*seen = len(p)
			return 0, nil
		}
		i += *seen
		*seen = i + 1
		if i == 0 || p[i-1] != '\r' {
			return 0, malformed("a header line ends without a carriage return")
		}
		if i-1 == *line {
			return i + 1, nil
		}
		*line = i + 1
	}
}

// parsed is what the client itself needs of a head.
type parsed struct {
	minor   byte // of HTTP/1.x
	chunked bool
	close   bool // Connection says so
	keep    bool
	length  int64 // -1: not given
}

// parseHead reads a whole head, as found by findHead, into r. It makes the names
// canonical in place.
func parseHead(head []byte, r *Response) (parsed, error) {
	h := parsed{length: -1}
	line, rest, _ := bytes.Cut(head, crlf)
	if err := h.statusLine(line, r); err != nil {
		return h, err
	}
	r.Fields = r.room[:0]
	// One copy holds all names and values; the buffer is used again.
	at := len(head) - len(rest)
	for p := rest; len(p) > len(crlf); {
		line, p, _ = bytes.Cut(p, crlf)
		if _, _, err := fieldLine(line); err != nil {
			return h, err
		}
		canonical(line)
	}
	text := string(head[at : len(head)-len(crlf)])
	for text != "" {
		var line string
		line, text, _ = strings.Cut(text, "\r\n")
		name, value, _ := strings.Cut(line, ":")
		if len(r.Fields) == maxFields {
			return h, malformed("it has more than %d header fields", maxFields)
		}
		r.Fields = append(r.Fields, Field{name, strings.Trim(value, " \t")})
	}
	return h, h.framing(r)
}

var crlf = []byte("\r\n")

// statusLine reads "HTTP/1.1 200 Reason".
func (h *parsed) statusLine(p []byte, r *Response) error {
	const proto = len("HTTP/1.1 ")
	if len(p) < proto+3 || p[proto-1] != ' ' || p[proto-2] != '0' && p[proto-2] != '1' {
		return malformed("its status line is not one of HTTP/1.0 or 1.1")
	}
	h.minor = p[proto-2] - '0'
	code := p[proto : proto+3]
	for _, c := range code {
		if c < '0' || c > '9' {
			return malformed("its status is not a number")
		}
	}
	r.Status = int(code[0]-'0')*100 + int(code[1]-'0')*10 + int(code[2]-'0')
	reason := p[proto+3:]
	if r.Status < 100 || len(reason) > 0 && reason[0] != ' ' || !validValue(reason) {
		return malformed("its status line is not valid")
	}
	return nil
}

// framing reads the fields that say where the message ends.
func (h *parsed) framing(r *Response) error {
	encodings := 0
	for _, f := range r.Fields {
		switch f.Name {
		case "Content-Length":
			n, err := contentLength(f.Value)
			if err != nil {
				return err
			}
			if h.length >= 0 && h.length != n {
				return malformed("it has two different content lengths")
			}
			h.length = n
		case "Transfer-Encoding":
			encodings++
			if !strings.EqualFold(f.Value, "chunked") || encodings > 1 {
				return malformed("its transfer encoding is not chunked alone")
			}
			h.chunked = true
		case "Connection":
			for name := range strings.SplitSeq(f.Value, ",") {
				name = strings.Trim(name, " \t")
				h.close = h.close || strings.EqualFold(name, "close")
				h.keep = h.keep || strings.EqualFold(name, "keep-alive")
			}
		}
	}
	switch {
	case h.chunked && h.length >= 0:
		return malformed("it has both a content length and a transfer encoding")
	case h.chunked && h.minor == 0:
		return malformed("it is HTTP/1.0 with a transfer encoding")
	}
	return nil
}

func contentLength(v string) (int64, error) {
	n, err := strconv.ParseUint(v, 10, 63)
	if err != nil || v[0] == '+' {
		return 0, malformed("its content length is not a number")
	}
	return int64(n), nil
}

// fieldLine splits and checks a header or trailer line.
func fieldLine(p []byte) (name, value []byte, err error) {
	if len(p) > 0 && (p[0] == ' ' || p[0] == '\t') {
		return nil, nil, malformed("it has a folded header line")
	}
	i := bytes.IndexByte(p, ':')
	if i <= 0 || !validName(p[:i]) {
		return nil, nil, malformed("it has a header line without a valid name")
	}
	if !validValue(p[i+1:]) {
		return nil, nil, malformed("it has a control character in a header")
	}
	return p[:i], p[i+1:], nil
}

// canonical changes the name of a header line to its canonical form.
func canonical(line []byte) {
	up := true
	for i, c := range line {
		switch {
		case c == ':':
			return
		case up && 'a' <= c && c <= 'z':
			line[i] = c - 'a' + 'A'
		case !up && 'A' <= c && c <= 'Z':
			line[i] = c - 'A' + 'a'
		}
		up = c == '-'
	}
}

// tokens are the bytes of a header's name.
var tokens = func() (t [256]bool) {
	for _, c := range []byte("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") {
		t[c] = true
	}
	return t
}()

func validName[T string | []byte](s T) bool {
	for i := range len(s) {
		if !tokens[s[i]] {
			return false
		}
	}
	return len(s) > 0
}

// validValue refuses control characters but for the tabulator.
func validValue[T string | []byte](s T) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}
