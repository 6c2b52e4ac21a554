package h1

import (
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// B054: the context ends a call in every phase, with its own cause, and the
// server sees its connection closed.
func TestCancel(t *testing.T) {
	large := strings.Repeat("x", 32<<20)
	for _, tt := range []struct {
		name  string
		body  string
		serve func(tn *turn, cancel func())
		read  bool // the head comes; the body does not
	}{
		{name: "while writing", body: large, serve: func(tn *turn, cancel func()) {
			time.AfterFunc(20*time.Millisecond, cancel) // the socket buffers fill
			time.Sleep(40 * time.Millisecond)
			if n, _ := io.Copy(io.Discard, tn.br); n >= int64(len(large)) {
				t.Error("the whole body was sent")
			}
		}},
		{name: "before the head", serve: func(tn *turn, cancel func()) { tn.request(); cancel(); tn.hang() }},
		{name: "in the head", serve: func(tn *turn, cancel func()) { tn.request(); tn.send(ok + "A: b"); cancel(); tn.hang() }},
		{name: "after an interim answer", serve: func(tn *turn, cancel func()) {
			tn.request()
			tn.send("HTTP/1.1 100 C\r\n\r\n")
			cancel()
			tn.hang()
		}},
		{name: "in a chunked body", read: true, serve: func(tn *turn, cancel func()) {
			tn.request()
			tn.send(chunked("5\r\nhello\r\n"))
			time.AfterFunc(10*time.Millisecond, cancel)
			tn.hang()
		}},
		{name: "in a body with a length", read: true, serve: func(tn *turn, cancel func()) {
			tn.request()
			tn.send(ok + "Content-Length: 50\r\n\r\nhello")
			time.AfterFunc(10*time.Millisecond, cancel)
			tn.hang()
		}},
		{name: "in a body until the close", read: true, serve: func(tn *turn, cancel func()) {
			tn.request()
			tn.send(ok + "\r\nhello")
			time.AfterFunc(10*time.Millisecond, cancel)
			tn.hang()
		}},
	} {
		for _, direct := range []bool{false, true} { // Read into a large slice, or Next
			t.Run(tt.name, func(t *testing.T) {
				t.Parallel()
				ctx, stop := context.WithCancelCause(context.Background())
				defer stop(nil)
				s := newRawServer(t, func(tn *turn) { tt.serve(tn, func() { stop(errGone) }) })
				c := newClient(t)
				r := s.request()
				r.Body = []byte(tt.body)
				resp, err := c.Do(ctx, r)
				if tt.read {
					if err != nil {
						t.Fatal(err)
					}
					for err == nil {
						if direct {
							_, err = resp.Body.Read(make([]byte, 64<<10))
						} else {
							_, err = resp.Body.Next()
						}
					}
					defer resp.Body.Close()
				}
				if err != errGone {
					t.Errorf("%v, want the context's cause", err)
				}
				s.closed(t)
				if ready, ending := c.idle(); ready+ending != 0 {
					t.Errorf("%d ready, %d ending", ready, ending)
				}
			})
		}
	}
}

func TestCancelDial(t *testing.T) {
	ctx, stop := context.WithCancelCause(context.Background())
	c := New(Options{Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		stop(errGone)
		<-ctx.Done()
		return nil, ctx.Err()
	}})
	r := &Request{Method: "GET", URL: &url.URL{Host: "h"}, Sent: func() { t.Error("something was sent") }}
	if _, err := c.Do(ctx, r); err != errGone {
		t.Errorf("%v", err)
	}
	// A dialer that succeeds nevertheless must not leak what it made.
	closed := make(chan struct{})
	ctx, stop = context.WithCancelCause(context.Background())
	c = New(Options{Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		a, b := net.Pipe()
		go func() { b.Read(make([]byte, 1)); close(closed) }()
		stop(errGone)
		<-ctx.Done()
		time.Sleep(10 * time.Millisecond) // the watch runs in a goroutine of its own
		return a, nil
	}})
	if _, err := c.Do(ctx, r2()); err != errGone {
		t.Errorf("%v", err)
	}
	<-closed
	if _, err := c.Do(ctx, r2()); err != errGone {
		t.Errorf("ended before: %v", err)
	}
}

func r2() *Request { return &Request{Method: "GET", URL: &url.URL{Host: "h"}} }

func TestDialErrors(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	ln.Close()
	c := New(Options{Connect: time.Second})
	_, err = c.Do(context.Background(), &Request{Method: "GET", URL: &url.URL{Host: addr}})
	var de *DialError
	if !errors.As(err, &de) {
		t.Errorf("%T %v", err, err)
	}
	c = New(Options{Dial: func(context.Context, string, string) (net.Conn, error) { return nil, os.ErrDeadlineExceeded }})
	if _, err = c.Do(context.Background(), r2()); !errors.As(err, &de) || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%T %v", err, err)
	}
}

// The end of the context after the end of the body must not touch a connection
// that has become somebody else's. Run with -race.
func TestCancelRacesWithTheEnd(t *testing.T) {
	s := newServer(t, answer)
	c := newClient(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				ctx, cancel := context.WithCancelCause(context.Background())
				done := make(chan struct{})
				go func() { cancel(errGone); close(done) }()
				resp, err := c.Do(ctx, s.request())
				if err == nil {
					_, err = io.ReadAll(resp.Body)
					resp.Body.Close()
				}
				if err != nil && err != errGone {
					t.Errorf("a canceled call got %v", err)
				}
				<-done
				// This one is not canceled, and takes the same connection if it was kept.
				mustCall(t, c, s.request())
			}
		})
	}
	wg.Wait()
}

// A context with an AfterFunc of its own is asked directly.
func TestOwnAfterFunc(t *testing.T) {
	s := newServer(t, func(tn *turn) { tn.hang() })
	ctx := &ownContext{Context: context.Background(), done: make(chan struct{}), sees: make(chan struct{})}
	go func() { <-ctx.sees; time.Sleep(10 * time.Millisecond); ctx.end() }()
	if _, err := newClient(t).Do(ctx, s.request()); err != errGone {
		t.Errorf("%v", err)
	}
	s.closed(t)
}

type ownContext struct {
	context.Context
	mu      sync.Mutex
	err     error
	done    chan struct{}
	fs      []func()
	watched sync.Once
	sees    chan struct{} // closed when watched
}

func (c *ownContext) Done() <-chan struct{} { return c.done }

func (c *ownContext) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

func (c *ownContext) AfterFunc(f func()) func() bool {
	c.mu.Lock()
	c.fs = append(c.fs, f)
	c.mu.Unlock()
	c.watched.Do(func() { close(c.sees) })
	return func() bool { return true }
}

func (c *ownContext) end() {
	c.mu.Lock()
	c.err = errGone
	fs := c.fs
	close(c.done)
	c.mu.Unlock()
	for _, f := range fs {
		f()
	}
}
