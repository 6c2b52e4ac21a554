package h1

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"testing"
	"time"
)

// script is a connection that says what it is given, size bytes a read.
type script struct {
	data   []byte
	size   int
	closed bool
}

func (s *script) Read(p []byte) (int, error) {
	if s.closed {
		return 0, net.ErrClosed
	}
	if len(s.data) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), s.size)], s.data)
	s.data = s.data[n:]
	return n, nil
}

func (s *script) Write(p []byte) (int, error)      { return len(p), nil }
func (s *script) Close() error                     { s.closed = true; return nil }
func (s *script) LocalAddr() net.Addr              { return nil }
func (s *script) RemoteAddr() net.Addr             { return nil }
func (s *script) SetDeadline(time.Time) error      { return nil }
func (s *script) SetReadDeadline(time.Time) error  { return nil }
func (s *script) SetWriteDeadline(time.Time) error { return nil }

// FuzzResponse: whatever a server sends, there is no panic and an end; and what
// is taken for an answer, net/http takes for the same answer.
func FuzzResponse(f *testing.F) {
	for i, a := range answers {
		if len(a.raw) < 8<<10 {
			f.Add([]byte(a.raw), i%3 == 0, i%9)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte, next bool, size int) {
		size = max(1, size&0xfff)
		s := &script{data: data, size: size}
		c := New(Options{Dial: func(context.Context, string, string) (net.Conn, error) { return s, nil }})
		defer c.Close()
		resp, err := c.Do(context.Background(), r2())
		if err != nil {
			var pe *ProtocolError
			var ce *CallError
			if !errors.As(err, &pe) && !errors.As(err, &ce) {
				t.Fatalf("%T %v", err, err)
			}
			if !s.closed {
				t.Fatal("a failed call left its connection open")
			}
			return
		}
		body, err := drain(resp.Body, next)
		free := err == nil && !s.closed
		resp.Body.Close()
		if !free && !s.closed {
			t.Fatalf("the connection is neither kept nor closed after %v", err)
		}
		compare(t, data, resp, body, err)
	})
}

func drain(b Body, next bool) ([]byte, error) {
	if !next {
		return io.ReadAll(b)
	}
	var all []byte
	for {
		p, err := b.Next()
		all = append(all, p...)
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return all, err
		}
	}
}

// compare reads the same bytes with net/http.
func compare(t *testing.T, data []byte, resp *Response, body []byte, err error) {
	t.Helper()
	br := bufio.NewReader(bytes.NewReader(data))
	var want *http.Response
	for {
		var rerr error
		if want, rerr = http.ReadResponse(br, &http.Request{Method: "GET"}); rerr != nil {
			if resp.Get("Trailer") != "" {
				return // net/http has an opinion about what trailers are announced
			}
			t.Fatalf("net/http refuses it: %v", rerr)
		}
		if want.StatusCode >= 200 {
			break
		}
	}
	if want.StatusCode != resp.Status {
		t.Fatalf("status %d, net/http %d", resp.Status, want.StatusCode)
	}
	for _, f := range resp.Fields {
		switch f.Name {
		case "Transfer-Encoding", "Trailer", "Connection", "Content-Length", "Cache-Control":
			continue // net/http takes them out, or adds to them
		}
		if !slices.Contains(want.Header[f.Name], f.Value) {
			t.Fatalf("field %q, net/http has %q", f, want.Header[f.Name])
		}
	}
	if n := want.ContentLength; n != resp.Length && resp.Status != http.StatusNoContent && resp.Status != http.StatusNotModified {
		t.Fatalf("length %d, net/http %d", resp.Length, n)
	}
	wantBody, werr := io.ReadAll(want.Body)
	if err == nil && (werr != nil || !bytes.Equal(body, wantBody)) {
		t.Fatalf("body %.100q, net/http %.100q %v", body, wantBody, werr)
	}
	if !bytes.HasPrefix(wantBody, body) {
		t.Fatalf("the broken body %.100q does not begin net/http's %.100q", body, wantBody)
	}
}
