package h1

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is a scripted upstream on a raw loopback socket.
type server struct {
	ln    net.Listener
	serve func(*turn)
	wg    sync.WaitGroup

	mu    sync.Mutex
	conns int // accepted
	turns int
	open  map[net.Conn]bool
}

// turn is one request of a connection.
type turn struct {
	net.Conn
	br   *bufio.Reader
	n    int  // requests of the server so far, from 1
	used bool // not the first of its connection
	stop bool // close the connection after this turn
}

// newServer answers each request with serve.
func newServer(t testing.TB, serve func(*turn)) *server {
	t.Helper()
	return startServer(t, false, serve)
}

// newRawServer leaves reading the request to serve, which is called once for
// each connection.
func newRawServer(t testing.TB, serve func(*turn)) *server {
	t.Helper()
	return startServer(t, true, serve)
}

func startServer(t testing.TB, raw bool, serve func(*turn)) *server {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{ln: ln, serve: serve, open: map[net.Conn]bool{}}
	s.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns++
			s.open[c] = true
			s.mu.Unlock()
			s.wg.Go(func() {
				s.conn(c, raw)
				c.Close()
				s.mu.Lock()
				delete(s.open, c)
				s.mu.Unlock()
			})
		}
	})
	t.Cleanup(s.close)
	return s
}

func (s *server) close() {
	s.ln.Close()
	s.mu.Lock()
	for c := range s.open {
		c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

func (s *server) conn(c net.Conn, raw bool) {
	br := bufio.NewReader(c)
	for used := false; ; used = true {
		tn := &turn{Conn: c, br: br, used: used}
		if !raw && tn.request() == nil {
			return
		}
		s.mu.Lock()
		s.turns++
		tn.n = s.turns
		s.mu.Unlock()
		s.serve(tn)
		if tn.stop || raw {
			return
		}
	}
}

// request reads a request with its body; nil: there is none.
func (tn *turn) request() *http.Request {
	r, err := http.ReadRequest(tn.br)
	if err != nil {
		return nil
	}
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return nil
	}
	return r
}

func (tn *turn) send(s string) { io.WriteString(tn.Conn, s) }

// hang waits for the client to close.
func (tn *turn) hang() {
	io.Copy(io.Discard, tn.br)
	tn.stop = true
}

func (tn *turn) rst() {
	tn.Conn.(*net.TCPConn).SetLinger(0)
	tn.stop = true
}

func (s *server) count() (conns, turns int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conns, s.turns
}

func (s *server) request() *Request {
	return &Request{Method: "POST", URL: &url.URL{Scheme: "http", Host: s.ln.Addr().String(), Path: "/v1/x"}, Body: []byte(`{}`)}
}

func newClient(t testing.TB) *Client {
	t.Helper()
	c := New(Options{Connect: 5 * time.Second})
	t.Cleanup(c.Close)
	return c
}

// call makes one call and reads the whole answer.
func call(c *Client, r *Request) (resp *Response, body string, err error) {
	resp, err = c.Do(context.Background(), r)
	if err != nil {
		return nil, "", err
	}
	b, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	return resp, string(b), err
}

// idle is the number of connections kept, ready or ending.
func (c *Client) idle() (ready, ending int) {
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	for _, s := range c.pool.idle {
		ready += len(s.ready)
		ending += len(s.ending)
	}
	return ready, ending
}

// waitFor polls a condition that another goroutine brings about.
func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for range 2000 {
		if ok() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("timed out waiting for %s", what)
}

func (s *server) closed(t testing.TB) {
	t.Helper()
	waitFor(t, "the connections to be closed", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.open) == 0
	})
}

var errGone = errors.New("the client has gone")
