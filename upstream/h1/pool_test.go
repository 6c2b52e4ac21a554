package h1

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func answer(tn *turn) { tn.send(ok + "Content-Length: 2\r\n\r\nok") }

func mustCall(t testing.TB, c *Client, r *Request) {
	t.Helper()
	if _, body, err := call(c, r); err != nil || body != "ok" {
		t.Fatalf("%q %v", body, err)
	}
}

// B056: what a server closed, or spoke into, while it was idle is not used.
func TestDeadIdleConnection(t *testing.T) {
	for name, end := range map[string]func(*turn){
		"FIN":          func(tn *turn) { answer(tn); tn.stop = true },
		"RST":          func(tn *turn) { answer(tn); time.Sleep(5 * time.Millisecond); tn.rst() },
		"speaks first": func(tn *turn) { answer(tn); time.Sleep(5 * time.Millisecond); answer(tn) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			over := make(chan struct{}, 8)
			s := newServer(t, func(tn *turn) { end(tn); over <- struct{}{} })
			c := newClient(t)
			for range 3 {
				mustCall(t, c, s.request())
				<-over
				if name != "speaks first" {
					s.closed(t)
				}
			}
			if conns, _ := s.count(); conns != 3 {
				t.Errorf("%d connections, want 3", conns)
			}
		})
	}
}

// B056: the server closes as the next request is on its way.
func TestStale(t *testing.T) {
	for _, tt := range []struct {
		name  string
		end   func(*turn)
		stale bool
		body  int
	}{
		{"FIN", func(tn *turn) { tn.stop = true }, true, 10},
		{"RST", (*turn).rst, true, 10},
		{"FIN, large request", func(tn *turn) { tn.stop = true }, true, 1 << 20},
		{"one byte", func(tn *turn) { tn.send("H"); tn.stop = true }, false, 10},
		{"interim answer", func(tn *turn) { tn.send("HTTP/1.1 100 C\r\n\r\n"); tn.stop = true }, false, 10},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t, func(tn *turn) {
				if tn.used {
					tt.end(tn)
					return
				}
				answer(tn)
			})
			c := newClient(t)
			mustCall(t, c, s.request())
			r := s.request()
			r.Body = []byte(strings.Repeat("x", tt.body))
			_, _, err := call(c, r)
			var ce *CallError
			if !errors.As(err, &ce) || !ce.Reused || ce.Empty != tt.stale || Stale(err) != tt.stale {
				t.Fatalf("%+v", err)
			}
			r.Fresh = true
			mustCall(t, c, r)
		})
	}
	t.Run("new connection", func(t *testing.T) {
		s := newServer(t, func(tn *turn) { tn.stop = true })
		_, _, err := call(newClient(t), s.request())
		var ce *CallError
		if !errors.As(err, &ce) || ce.Reused || !ce.Empty || Stale(err) || !errors.Is(err, io.EOF) {
			t.Errorf("%+v", err)
		}
	})
}

func TestFreshDropsTheIdle(t *testing.T) {
	s := newServer(t, answer)
	c := newClient(t)
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() { call(c, s.request()) })
	}
	wg.Wait()
	before, _ := s.count()
	r := s.request()
	r.Fresh = true
	mustCall(t, c, r)
	if after, _ := s.count(); after != before+1 {
		t.Errorf("%d connections after %d", after, before)
	}
	waitFor(t, "the old connections to be closed", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.open) == 1
	})
}

// The latest is used again first, and nothing limits how many there are.
func TestLatestFirst(t *testing.T) {
	const n = 50
	all := make(chan struct{})
	var mu sync.Mutex
	arrived, ports := 0, map[string]int{}
	s := newServer(t, func(tn *turn) {
		mu.Lock()
		ports[tn.RemoteAddr().String()]++
		if arrived++; arrived == n {
			close(all)
		}
		mu.Unlock()
		<-all
		answer(tn)
	})
	c := newClient(t)
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() { mustCall(t, c, s.request()) })
	}
	wg.Wait()
	if ready, _ := c.idle(); ready != n {
		t.Fatalf("%d of %d kept", ready, n)
	}
	for range n {
		mustCall(t, c, s.request())
	}
	most := 0
	for _, k := range ports {
		most = max(most, k)
	}
	if conns, _ := s.count(); conns != n || most != n+1 {
		t.Errorf("%d connections, the busiest served %d", conns, most)
	}
}

func TestAddressesAreKeptApart(t *testing.T) {
	a, b := newServer(t, answer), newServer(t, answer)
	c := newClient(t)
	for range 3 {
		mustCall(t, c, a.request())
		mustCall(t, c, b.request())
	}
	for _, s := range []*server{a, b} {
		if conns, turns := s.count(); conns != 1 || turns != 3 {
			t.Errorf("%d connections, %d requests", conns, turns)
		}
	}
}

func TestMaxIdle(t *testing.T) {
	const n = 6
	all := make(chan struct{})
	s := newServer(t, func(tn *turn) {
		if tn.n == n {
			close(all)
		}
		<-all
		answer(tn)
	})
	c := New(Options{MaxIdle: 2})
	defer c.Close()
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() { mustCall(t, c, s.request()) })
	}
	wg.Wait()
	if ready, _ := c.idle(); ready != 2 {
		t.Errorf("%d kept", ready)
	}
}

func TestCloseIdleConnections(t *testing.T) {
	s := newServer(t, func(tn *turn) { tn.send(ok + "Content-Length: 2\r\n\r\n"); answer2(tn) })
	c := newClient(t)
	hold := func() *Response {
		resp, err := c.Do(context.Background(), s.request())
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	a := hold()
	c.CloseIdleConnections()
	io.Copy(io.Discard, a.Body)
	a.Body.Close()
	if ready, _ := c.idle(); ready != 0 {
		t.Error("a connection was kept that was in use")
	}
	mustCall(t, c, s.request())
	if ready, _ := c.idle(); ready != 1 {
		t.Error("nothing is kept after the next call")
	}
	c.Close()
	mustCall(t, c, s.request())
	if ready, _ := c.idle(); ready != 0 {
		t.Error("a connection was kept after Close")
	}
	s.closed(t)
}

// answer2 sends a body of two bytes.
func answer2(tn *turn) { tn.send("ok") }

// pipes is a dialer without sockets, for virtual time: each connection answers
// everything until it is closed.
type pipes struct {
	mu     sync.Mutex
	dialed int
	closed []time.Duration // since start
	start  time.Time
	wg     sync.WaitGroup
}

func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	a, b := net.Pipe()
	p.mu.Lock()
	p.dialed++
	p.mu.Unlock()
	p.wg.Go(func() {
		buf := make([]byte, 1<<10)
		for {
			if _, err := b.Read(buf); err != nil {
				p.mu.Lock()
				p.closed = append(p.closed, time.Since(p.start))
				p.mu.Unlock()
				b.Close()
				return
			}
			io.WriteString(b, ok+"Content-Length: 2\r\n\r\nok")
		}
	})
	return a, nil
}

func (p *pipes) ends() []time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.closed)
}

func TestIdleTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pipes{start: time.Now()}
		c := New(Options{Dial: p.dial})
		defer c.Close()
		s := &server{ln: noListener{}}
		mustCall(t, c, s.request())
		time.Sleep(3 * time.Second)
		mustCall(t, c, s.request()) // the same connection, at 3 s
		time.Sleep(3999 * time.Millisecond)
		synctest.Wait()
		if closed := p.ends(); len(closed) != 0 || p.dialed != 1 {
			t.Errorf("dialed %d, closed at %v", p.dialed, closed)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if closed := p.ends(); len(closed) != 1 || closed[0] != 7*time.Second {
			t.Errorf("closed at %v, want 7s: 4 s after its last use", closed)
		}
		mustCall(t, c, s.request())
		if p.dialed != 2 {
			t.Errorf("dialed %d", p.dialed)
		}
		c.Close()
		p.wg.Wait()
	})
}

// Of many, those are closed that are not needed, and each in time.
func TestIdleTimeoutOfMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pipes{start: time.Now()}
		c := New(Options{Dial: p.dial, Idle: 10 * time.Second})
		s := &server{ln: noListener{}}
		var bodies []Body
		for range 4 {
			resp, err := c.Do(t.Context(), s.request())
			if err != nil {
				t.Fatal(err)
			}
			bodies = append(bodies, resp.Body)
		}
		for _, b := range bodies {
			time.Sleep(time.Second)
			io.Copy(io.Discard, b)
			b.Close()
		}
		for range 20 { // keeps one alive
			time.Sleep(time.Second)
			mustCall(t, c, s.request())
		}
		synctest.Wait()
		want := []time.Duration{11 * time.Second, 12 * time.Second, 13 * time.Second}
		if closed := p.ends(); !slices.Equal(closed, want) {
			t.Errorf("closed at %v, want %v", closed, want)
		}
		if p.dialed != 4 {
			t.Errorf("dialed %d", p.dialed)
		}
		c.Close()
		p.wg.Wait()
	})
}

type noListener struct{ net.Listener }

func (noListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

// Finish keeps a connection whose answer ends soon, at once or a little later,
// and no other.
func TestFinish(t *testing.T) {
	const start = ok + "Transfer-Encoding: chunked\r\n\r\n4\r\ndone\r\n"
	for _, tt := range []struct {
		name  string
		serve func(*turn)
		reuse bool
	}{
		{"the end is there", func(tn *turn) { tn.send(start + "0\r\n\r\n") }, true},
		{"the end is late", func(tn *turn) { tn.send(start); time.Sleep(20 * time.Millisecond); tn.send("0\r\n\r\n") }, true},
		{"the end comes in parts", func(tn *turn) {
			tn.send(start + "0")
			time.Sleep(5 * time.Millisecond)
			tn.send("\r\nX: y\r\n")
			time.Sleep(5 * time.Millisecond)
			tn.send("\r\n")
		}, true},
		{"more content, then the end", func(tn *turn) { tn.send(start); tn.send("3\r\n: x\r\n0\r\n\r\n") }, true},
		{"never", func(tn *turn) { tn.send(start); tn.hang() }, false},
		{"closed", func(tn *turn) { tn.send(start); tn.stop = true }, false},
		{"garbage", func(tn *turn) { tn.send(start + "xyz"); tn.hang() }, false},
		{"more after the end", func(tn *turn) { tn.send(start + "0\r\n\r\nevil") }, false},
		{"to be closed", func(tn *turn) {
			tn.send(strings.Replace(start, "\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1) + "0\r\n\r\n")
			tn.hang()
		}, false},
		{"until the close", func(tn *turn) { tn.send(ok + "\r\ndone"); tn.hang() }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			over := make(chan struct{}, 8)
			s := newServer(t, func(tn *turn) { tt.serve(tn); over <- struct{}{} })
			c := newClient(t)
			for range 2 {
				resp, err := c.Do(context.Background(), s.request())
				if err != nil {
					t.Fatal(err)
				}
				if p, _ := resp.Body.Next(); !strings.HasPrefix(string(p), "done") {
					t.Fatalf("%q", p)
				}
				resp.Body.Finish()
				if _, err := resp.Body.Next(); err != errClosed {
					t.Errorf("next after finish: %v", err)
				}
				resp.Body.Close()
				<-over // in the cases that hang: it is closed
			}
			if conns, _ := s.count(); conns == 1 != tt.reuse {
				t.Errorf("%d connections, want reuse %v", conns, tt.reuse)
			}
		})
	}
}

// An answer that goes on and on after Finish is cut, whether or not another
// call looks at it.
func TestFinishIsBounded(t *testing.T) {
	s := newServer(t, func(tn *turn) {
		tn.send(chunked("4\r\ndone\r\n"))
		for {
			if _, err := io.WriteString(tn.Conn, "400\r\n"+strings.Repeat("x", 1<<10)+"\r\n"); err != nil {
				tn.stop = true
				return
			}
			time.Sleep(time.Millisecond)
		}
	})
	resp, err := newClient(t).Do(context.Background(), s.request())
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Next()
	resp.Body.Finish()
	s.closed(t)
}

// Close drains nothing but what is there.
func TestCloseEarly(t *testing.T) {
	for _, tt := range []struct {
		name, raw string
		reuse     bool
	}{
		{"the rest is there", chunked("4\r\ndone\r\n0\r\n\r\n"), true},
		{"more is to come", ok + "Content-Length: 100\r\n\r\ndone", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newServer(t, func(tn *turn) {
				tn.send(tt.raw)
				if !tt.reuse {
					tn.hang()
				}
			})
			c := newClient(t)
			resp, err := c.Do(context.Background(), s.request())
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			resp.Body.Close() // twice does nothing
			if ready, ending := c.idle(); ready == 1 != tt.reuse || ending != 0 {
				t.Errorf("%d ready, %d ending", ready, ending)
			}
			if !tt.reuse {
				s.closed(t)
			}
		})
	}
}
