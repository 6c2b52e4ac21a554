package h1

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

// oneWrite is the size up to which head and body are copied together and sent
// in one write; above it they are gathered by the kernel.
const oneWrite = 16 << 10

const (
	// lookEvery is how often a write that is stuck looks for an early answer.
	lookEvery = 100 * time.Millisecond
	// afterWriteError is how long an answer is waited for once the server has
	// refused to read on. What it said is there already, or never comes.
	afterWriteError = time.Second
)

// appendHead appends the request line and the header of r, or says why r cannot
// be sent.
func appendHead(b []byte, r *Request) ([]byte, error) {
	target := r.Target
	if target == "" {
		target = r.URL.RequestURI()
	}
	host := hostHeader(r.URL.Host)
	if !validName(r.Method) || !validPart(target) || !validPart(host) {
		return b, fmt.Errorf("the request line or host cannot be sent; write a URL without spaces and a host name in its ASCII (xn--) form")
	}
	b = append(b, r.Method...)
	b = append(b, ' ')
	b = append(b, target...)
	b = append(b, " HTTP/1.1\r\nHost: "...)
	b = append(b, host...)
	b = append(b, "\r\n"...)
	for i := range r.Fields {
		f := &r.Fields[i]
		if !validName(f.Name) || !validValue(f.Value) {
			return b, fmt.Errorf("header field %q cannot be sent: its name is not a token or its value has a control character", f.Name)
		}
		if reserved(f.Name) {
			return b, fmt.Errorf("header field %q is set by the client", f.Name)
		}
		b = append(b, f.Name...)
		b = append(b, ": "...)
		b = append(b, f.Value...)
		b = append(b, "\r\n"...)
	}
	if r.Body != nil || (r.Method != http.MethodGet && r.Method != http.MethodHead) {
		b = append(b, "Content-Length: "...)
		b = strconv.AppendInt(b, int64(len(r.Body)), 10)
		b = append(b, "\r\n"...)
	}
	return append(b, "\r\n"...), nil
}

// reserved tells whether name is one that frames the message.
func reserved(name string) bool {
	switch len(name) {
	case len("Host"):
		return strings.EqualFold(name, "Host")
	case len("Content-Length"):
		return strings.EqualFold(name, "Content-Length")
	case len("Transfer-Encoding"):
		return strings.EqualFold(name, "Transfer-Encoding")
	}
	return false
}

// hostHeader is the Host of a URL's host: an IPv6 zone is this machine's own.
func hostHeader(host string) string {
	if i := strings.IndexByte(host, '%'); i >= 0 && strings.HasPrefix(host, "[") {
		if j := strings.LastIndexByte(host, ']'); j > i {
			return host[:i] + host[j:]
		}
	}
	return host
}

// validPart tells whether s may be a part of the request line.
func validPart(s string) bool {
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c >= 0x7f {
			return false
		}
	}
	return s != ""
}

// sending is what is left to be written of a request.
type sending struct {
	bufs net.Buffers // nil: nothing
	err  error       // of writing: the rest cannot be sent
}

// roundTrip writes the request, whose head is in buf, and reads the head of the
// answer.
func (e *exchange) roundTrip(r *Request, buf *[]byte) error {
	s := &e.out
	if len(*buf)+len(r.Body) <= oneWrite {
		*buf = append(*buf, r.Body...)
		_, s.err = e.c.Write(*buf)
	} else {
		s.bufs = net.Buffers{*buf, r.Body}
		s.err = e.write(s)
	}
	reused := e.c.used
	if s.err != nil {
		// The server may have answered before it stopped reading.
		e.c.SetReadDeadline(time.Now().Add(afterWriteError))
	}
	empty, err := e.readHead(r.Method)
	if err == nil {
		return nil
	}
	if bad := (*ProtocolError)(nil); errors.As(err, &bad) {
		return err
	}
	if s.err != nil {
		err = s.err
	}
	return &CallError{Reused: reused, Empty: empty, Err: err}
}

// write writes what is left. It stops without an error, leaving the rest, when
// the server has something to say before it has read everything.
func (e *exchange) write(s *sending) error {
	for {
		e.c.SetWriteDeadline(time.Now().Add(lookEvery))
		_, err := s.bufs.WriteTo(e.c.Conn)
		switch {
		case err == nil:
			s.bufs = nil
			return e.c.SetWriteDeadline(time.Time{})
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return err
		case e.c.peek() != peekNothing:
			return nil
		}
	}
}

// readHead reads the head of the final answer. empty tells that not one byte of
// any came.
func (e *exchange) readHead(method string) (empty bool, err error) {
	s := &e.out
	for range maxInformational {
		n, none, err := e.awaitHead()
		if err != nil {
			return none && !e.began, err
		}
		e.began = true
		h, err := parseHead(e.in.b[e.in.r:e.in.r+n], &e.resp)
		if err != nil {
			return false, err
		}
		e.in.r += n
		switch st := e.resp.Status; {
		case st == http.StatusSwitchingProtocols:
			return false, malformed("it switches protocols")
		case st >= 200:
			if s.err != nil {
				e.c.SetReadDeadline(time.Time{})
			}
			e.frame(h, method, s.err == nil && s.bufs == nil)
			return false, nil
		}
		if s.bufs != nil && s.err == nil {
			s.err = e.write(s)
		}
	}
	return false, malformed("it has more than %d interim answers", maxInformational)
}

// awaitHead waits until a whole head is in the buffer and returns its length;
// none tells that nothing came.
func (e *exchange) awaitHead() (n int, none bool, err error) {
	seen, line := 0, 0
	for {
		if e.in.len() > 0 {
			n, err := findHead(e.in.b[e.in.r:min(e.in.w, e.in.r+maxHead)], &seen, &line)
			if n > 0 || err != nil {
				return n, false, err
			}
			if e.in.len() >= maxHead {
				return 0, false, malformed("its header is larger than %d bytes", maxHead)
			}
		}
		if err := e.c.fill(&e.in); err != nil {
			return 0, e.in.len() == 0, err
		}
	}
}

// frame sets how the body ends, and whether the connection can be used after
// it: not when the request has not been read whole.
func (e *exchange) frame(h parsed, method string, whole bool) {
	e.resp.Body = e
	e.keep = whole && !h.close && (h.minor == 1 || h.keep)
	st := e.resp.Status
	switch {
	case method == http.MethodHead, st == http.StatusNoContent, st == http.StatusNotModified:
		e.f, e.resp.Length = framing{kind: byLength}, 0
		if st == http.StatusNoContent && (h.chunked || h.length > 0) {
			e.keep = false // a body may follow nevertheless
		}
	case h.chunked:
		e.f, e.resp.Length = framing{kind: byChunks}, -1
	case h.length >= 0:
		e.f, e.resp.Length = framing{kind: byLength, left: h.length}, h.length
	default:
		e.f, e.resp.Length = framing{kind: byClose}, -1
		e.keep = false
	}
	if e.f.kind == byLength && e.f.left == 0 {
		e.complete()
	}
}
