package upstream

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"sluice/upstream/h1"
)

// transport is the carrier over net/http, for TLS and HTTP/2.
type transport struct {
	rt     idleCloser
	inline bool // small bodies may go out with the header: plain HTTP/1.1

	mu     sync.Mutex
	closed bool
	drains sync.WaitGroup  // added to under mu while not closed
	ctx    context.Context // of the drains
	stop   context.CancelFunc
}

func overNetHTTP(rt idleCloser, inline bool) *transport {
	t := &transport{rt: rt, inline: inline}
	t.ctx, t.stop = context.WithCancel(context.Background())
	return t
}

// idleCloser is what is used of http.Transport.
type idleCloser interface {
	http.RoundTripper
	CloseIdleConnections()
}

// Do implements carrier.
func (t *transport) Do(ctx context.Context, r *h1.Request) (*h1.Response, error) {
	if r.Fresh {
		t.rt.CloseIdleConnections()
	}
	b := &transportBody{t: t, src: source{data: r.Body}}
	header := make(http.Header, len(r.Fields)+1)
	header["User-Agent"] = nil // present without a value: net/http then sends none of its own
	size := len(r.URL.Path)
	for _, f := range r.Fields {
		header[f.Name] = append(header[f.Name], f.Value)
		size += len(f.Name) + len(f.Value) + 4
	}
	b.src.inline = t.inline && size+len(r.Body) <= inlineBytes
	var reused atomic.Bool
	var once sync.Once // a request may get a connection twice
	trace := &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) {
		reused.Store(i.Reused)
		if r.Sent != nil {
			once.Do(r.Sent)
		}
	}}
	// Cut from ctx by hand, so that Finish can read on after its end.
	parent := ctx
	ctx, b.cancel = context.WithCancelCause(context.WithoutCancel(parent))
	b.unlink = context.AfterFunc(parent, func() { b.cancel(context.Cause(parent)) })
	req := (&http.Request{
		Method: r.Method, URL: r.URL, Host: r.URL.Host,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: header,
	}).WithContext(httptrace.WithClientTrace(ctx, trace))
	if r.Body != nil {
		req.Body, req.GetBody, req.ContentLength = b.src.open(), b.src.rewind, int64(len(r.Body))
	}
	resp, err := t.rt.RoundTrip(req) //nolint:bodyclose // the body is the answer's to close
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		} else {
			err = callError(err, reused.Load())
		}
		b.done()
		b.cancel(errOver)
		return nil, err
	}
	b.rc = resp.Body
	out := &h1.Response{Status: resp.StatusCode, Length: resp.ContentLength, Body: b}
	out.Fields = make([]h1.Field, 0, len(resp.Header))
	for k, vv := range resp.Header {
		for _, v := range vv {
			out.Fields = append(out.Fields, h1.Field{Name: k, Value: v})
		}
	}
	return out, nil
}

// callError gives an error of net/http, which has no types for most, its class.
func callError(err error, reused bool) error {
	var d *h1.DialError
	switch {
	case errors.As(err, &d):
		return err
	case malformed(err):
		return &h1.ProtocolError{What: "net/http cannot read it"}
	}
	return &h1.CallError{Reused: reused, Empty: true, Err: err}
}

// malformed recognises an answer that is not HTTP. net/http has no types for
// it; the text only chooses between two codes of the same status.
func malformed(err error) bool {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return false
	}
	s := err.Error()
	return strings.Contains(s, "malformed") || strings.Contains(s, "response headers exceeded") || strings.Contains(s, "invalid Content-Length")
}

// CloseIdleConnections implements carrier.
func (t *transport) CloseIdleConnections() { t.rt.CloseIdleConnections() }

// Close implements carrier.
func (t *transport) Close() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.stop()
	t.drains.Wait()
	t.rt.CloseIdleConnections()
}

// transportBody is h1.Body over a body of net/http.
type transportBody struct {
	t      *transport
	rc     io.ReadCloser
	src    source
	buf    *[readSize]byte // of Next
	cancel context.CancelCauseFunc
	unlink func() bool // from the caller's context
	over   bool
}

func (b *transportBody) Read(p []byte) (int, error) {
	if b.over {
		return 0, errUsedUp
	}
	return b.rc.Read(p)
}

func (b *transportBody) Next() ([]byte, error) {
	if b.buf == nil {
		b.buf = readPool.Get().(*[readSize]byte)
	}
	n, err := b.Read(b.buf[:])
	return b.buf[:n], err
}

// holds tells whether the request's body may still be read.
func (b *transportBody) holds() bool { return !b.src.consumed() }

func (b *transportBody) done() bool {
	was := b.over
	b.over = true
	b.unlink()
	b.src.release()
	if b.buf != nil {
		readPool.Put(b.buf)
		b.buf = nil
	}
	return !was
}

func (b *transportBody) Close() error {
	if b.done() {
		b.cancel(errOver) // first, so that closing does not wait for more
		return b.rc.Close()
	}
	return nil
}

// Finish reads to the end in the background, so that the connection can be used
// again; what does not end soon is cut.
func (b *transportBody) Finish() {
	if !b.done() {
		return
	}
	b.t.mu.Lock()
	if b.t.closed {
		b.t.mu.Unlock()
		b.cancel(errClosed)
		b.rc.Close()
		return
	}
	b.t.drains.Add(1)
	b.t.mu.Unlock()
	go b.drain()
}

// drainTime is how long an answer that has ended may take to end its
// connection's turn.
const drainTime = 250 * time.Millisecond

var errDrained = errors.New("the answer has ended")

func (b *transportBody) drain() {
	defer b.t.drains.Done()
	stop := context.AfterFunc(b.t.ctx, func() { b.cancel(errClosed) })
	defer stop()
	t := time.AfterFunc(drainTime, func() { b.cancel(errDrained) })
	defer t.Stop()
	buf := readPool.Get().(*[readSize]byte)
	for left := 64 << 10; left > 0; {
		n, err := b.rc.Read(buf[:])
		if left -= n; err != nil {
			break
		}
	}
	readPool.Put(buf)
	b.cancel(errDrained)
	b.rc.Close()
}

// errUsedUp answers reads of a body that was given back.
var errUsedUp = errors.New("the request's body is gone")

// source is the body of one attempt, in one of two forms.
//
// A small body of a plain HTTP request is inline: a reader that net/http knows
// to be in memory, so that header and body leave in one write. Both fit its
// write buffer, hence the body has been read before the first byte is sent, and
// after an error net/http waits for its writer: nobody reads it any more once
// RoundTrip has returned.
//
// Any other body may be read after RoundTrip returned, from a goroutine of
// net/http's own; release ends that, so that the bytes can be used for
// something else.
type source struct {
	mu     sync.Mutex
	data   []byte
	inline bool
	readTo int // furthest offset read
}

// inlineBytes is what header and body together may have to be sent inline,
// below writeBuffer by a margin for the request line.
const inlineBytes = writeBuffer - 512

// release ends all reading.
func (s *source) release() {
	s.mu.Lock()
	s.data = nil
	s.mu.Unlock()
}

// consumed tells whether the whole body has been read by the carrier.
func (s *source) consumed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inline || s.data == nil || s.readTo >= len(s.data)
}

func (s *source) open() io.ReadCloser {
	if s.inline {
		return io.NopCloser(bytes.NewReader(s.data))
	}
	return &sourceReader{s: s}
}

// rewind is http.Request.GetBody: net/http asks for it when it has a reused
// connection that failed before anything was written.
func (s *source) rewind() (io.ReadCloser, error) { return s.open(), nil }

// sourceReader is one pass over a source.
type sourceReader struct {
	s   *source
	off int
}

func (r *sourceReader) Read(p []byte) (int, error) {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	if r.s.data == nil {
		return 0, errUsedUp
	}
	if r.off >= len(r.s.data) {
		return 0, io.EOF
	}
	n := copy(p, r.s.data[r.off:])
	r.off += n
	r.s.readTo = max(r.s.readTo, r.off)
	return n, nil
}

func (r *sourceReader) Close() error { return nil }
