package h1

import "bytes"

const (
	// maxChunkLine bounds a chunk's size line with its extensions, and a line
	// of the trailer.
	maxChunkLine = 1 << 10
	// maxTrailer bounds the trailer.
	maxTrailer = 2 << 10
	// maxExcess bounds what chunking may cost beyond a fair overhead.
	maxExcess = 16 << 10
)

// The ways to tell where a body ends.
const (
	byLength = iota
	byChunks
	byClose
)

// The places in a chunked body.
const (
	atSize = iota
	inChunk
	afterChunk
	inTrailer
)

// framing finds the content in a body and the body's end.
type framing struct {
	kind    uint8
	place   uint8
	left    int64 // byLength: of the body; byChunks: of the chunk
	excess  int64
	trailer int
}

// take consumes what b holds of the body. p is the content of it, as a view into
// b that holds until b is touched again; done tells that the body has ended.
// Without content, end or error there is not enough in b.
func (f *framing) take(b *buffer) (p []byte, done bool, err error) {
	switch f.kind {
	case byLength:
		n := int(min(int64(b.len()), f.left))
		p = b.b[b.r : b.r+n]
		b.r += n
		f.left -= int64(n)
		return p, f.left == 0, nil
	case byClose:
		p = b.b[b.r:b.w]
		b.r = b.w
		return p, false, nil
	}
	return f.takeChunks(b)
}

// takeChunks joins the content of all the chunks that b holds, in place.
func (f *framing) takeChunks(b *buffer) (p []byte, done bool, err error) {
	start, end := b.r, b.r
	for {
		switch f.place {
		case inChunk:
			n := int(min(int64(b.len()), f.left))
			if start == end {
				start, end = b.r, b.r+n
			} else {
				end += copy(b.b[end:], b.b[b.r:b.r+n])
			}
			b.r += n
			f.left -= int64(n)
			if f.left > 0 {
				return b.b[start:end], false, nil
			}
			f.place = afterChunk
		case afterChunk:
			n := min(b.len(), len(crlf))
			if string(b.b[b.r:b.r+n]) != string(crlf[:n]) {
				return b.b[start:end], false, malformed("a chunk is longer than it says")
			}
			if n < len(crlf) {
				return b.b[start:end], false, nil
			}
			b.r += n
			f.place = atSize
		default:
			line, whole, err := b.line()
			if err == nil && whole {
				if f.place == atSize {
					err = f.size(line)
				} else {
					done, err = f.trailerLine(line)
				}
			}
			if err != nil || !whole || done {
				return b.b[start:end], done, err
			}
		}
	}
}

// line consumes a line of the chunked framing.
func (b *buffer) line() (line []byte, whole bool, err error) {
	p := b.b[b.r:b.w]
	i := bytes.IndexByte(p[:min(len(p), maxChunkLine)], '\n')
	switch {
	case i < 0 && len(p) >= maxChunkLine:
		return nil, false, malformed("a chunk's line is longer than %d bytes", maxChunkLine)
	case i < 0:
		return nil, false, nil
	case i == 0 || p[i-1] != '\r':
		return nil, false, malformed("a chunk's line ends without a carriage return")
	}
	b.r += i + 1
	return p[:i-1], true, nil
}

// size reads a chunk's first line: hexadecimal digits, then blanks or
// extensions, which mean nothing here.
func (f *framing) size(line []byte) error {
	i, n := 0, int64(0)
	for ; i < len(line); i++ {
		d := unhex(line[i])
		if d < 0 {
			break
		}
		if n >= 1<<(63-4) {
			return malformed("a chunk's size is too large")
		}
		n = n<<4 | int64(d)
	}
	ext := line[i:]
	if i == 0 || i > 16 || !validValue(ext) || len(ext) > 0 && ext[0] != ';' && len(bytes.Trim(ext, " \t")) > 0 {
		return malformed("a chunk's size is not a number")
	}
	f.excess = max(0, f.excess+int64(len(line))+4-16-2*min(n, 1<<32))
	if f.excess > maxExcess {
		return malformed("its chunks hold too little content")
	}
	if n == 0 {
		f.place = inTrailer
		return nil
	}
	f.place, f.left = inChunk, n
	return nil
}

func unhex(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

// trailerLine checks a line after the last chunk and forgets it.
func (f *framing) trailerLine(line []byte) (done bool, err error) {
	if len(line) == 0 {
		return true, nil
	}
	if f.trailer += len(line) + len(crlf); f.trailer > maxTrailer {
		return false, malformed("its trailer is larger than %d bytes", maxTrailer)
	}
	_, _, err = fieldLine(line)
	return false, err
}
