package h1

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// What is written is exactly this.
func TestRequestBytes(t *testing.T) {
	u := func(s string) *url.URL {
		u, err := url.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	tests := []struct {
		name string
		r    Request
		want string
	}{
		{"post", Request{Method: "POST", URL: u("http://h:8000/v1/chat"), Body: []byte("{}"), Fields: []Field{{"X-A", "b\tc"}, {"x-a", "d"}}},
			"POST /v1/chat HTTP/1.1\r\nHost: h:8000\r\nX-A: b\tc\r\nx-a: d\r\nContent-Length: 2\r\n\r\n{}"},
		{"empty post", Request{Method: "POST", URL: u("http://h/")}, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n"},
		{"get", Request{Method: "GET", URL: u("http://h/a%2Fb?c=d")}, "GET /a%2Fb?c=d HTTP/1.1\r\nHost: h\r\n\r\n"},
		{"no path", Request{Method: "GET", URL: u("http://h")}, "GET / HTTP/1.1\r\nHost: h\r\n\r\n"},
		{"target", Request{Method: "GET", URL: u("http://h/x"), Target: "/y"}, "GET /y HTTP/1.1\r\nHost: h\r\n\r\n"},
		{"zone", Request{Method: "GET", URL: u("http://[fe80::1%25eth0]:80/")}, "GET / HTTP/1.1\r\nHost: [fe80::1]:80\r\n\r\n"},
		{"high bytes", Request{Method: "GET", URL: u("http://h/"), Fields: []Field{{"A", "\xc3\xa4"}}}, "GET / HTTP/1.1\r\nHost: h\r\nA: \xc3\xa4\r\n\r\n"},
		{"large", Request{Method: "POST", URL: u("http://h/"), Body: []byte(strings.Repeat("x", 100<<10))},
			"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 102400\r\n\r\n" + strings.Repeat("x", 100<<10)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := make(chan string, 1)
			c := New(Options{Dial: func(context.Context, string, string) (net.Conn, error) {
				a, b := net.Pipe()
				go func() {
					p := make([]byte, len(tt.want))
					n, _ := io.ReadFull(b, p)
					got <- string(p[:n])
					io.WriteString(b, ok+"Content-Length: 0\r\n\r\n")
					b.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
					if n, _ := b.Read(p); n > 0 {
						t.Errorf("%d bytes too many", n)
					}
					b.Close()
				}()
				return a, nil
			}})
			defer c.Close()
			sent := 0
			tt.r.Sent = func() { sent++ }
			if _, _, err := call(c, &tt.r); err != nil {
				t.Fatal(err)
			}
			if g := <-got; g != tt.want || sent != 1 {
				t.Errorf("sent %d times\n%.300q\nwant\n%.300q", sent, g, tt.want)
			}
		})
	}
}

func TestAddress(t *testing.T) {
	for in, want := range map[string]string{"h": "h:80", "h:1": "h:1", "[::1]": "[::1]:80", "[::1]:2": "[::1]:2", "1.2.3.4": "1.2.3.4:80"} {
		if got := address(&url.URL{Host: in}); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}

// Nothing is sent that could be read as another request.
func TestRequestsRefused(t *testing.T) {
	at := func(change func(*Request)) *Request {
		r := &Request{Method: "POST", URL: &url.URL{Host: "h", Path: "/"}}
		change(r)
		return r
	}
	c := New(Options{Dial: func(context.Context, string, string) (net.Conn, error) {
		t.Error("a connection was made")
		return nil, errGone
	}})
	for name, r := range map[string]*Request{
		"line break in a value": at(func(r *Request) { r.Fields = []Field{{"A", "b\r\nC: d"}} }),
		"line feed in a value":  at(func(r *Request) { r.Fields = []Field{{"A", "b\nC: d"}} }),
		"NUL in a value":        at(func(r *Request) { r.Fields = []Field{{"A", "\x00"}} }),
		"line break in a name":  at(func(r *Request) { r.Fields = []Field{{"A\r\nB", "c"}} }),
		"blank in a name":       at(func(r *Request) { r.Fields = []Field{{"A ", "c"}} }),
		"empty name":            at(func(r *Request) { r.Fields = []Field{{"", "c"}} }),
		"length":                at(func(r *Request) { r.Fields = []Field{{"content-length", "3"}} }),
		"transfer encoding":     at(func(r *Request) { r.Fields = []Field{{"Transfer-Encoding", "chunked"}} }),
		"host":                  at(func(r *Request) { r.Fields = []Field{{"HOST", "x"}} }),
		"method":                at(func(r *Request) { r.Method = "GET /x" }),
		"no method":             at(func(r *Request) { r.Method = "" }),
		"blank in the target":   at(func(r *Request) { r.Target = "/a b" }),
		"line break in target":  at(func(r *Request) { r.Target = "/a\r\nb" }),
		"no host":               at(func(r *Request) { r.URL.Host = "" }),
		"host outside of ASCII": at(func(r *Request) { r.URL.Host = "b\u00fccher" }),
		"blank in the host":     at(func(r *Request) { r.URL.Host = "a b" }),
	} {
		_, err := c.Do(context.Background(), r)
		var de *DialError
		if !errors.As(err, &de) {
			t.Errorf("%s: %T %v", name, err, err)
		}
	}
}

// A server may answer, and stop reading, before it has the whole request.
func TestEarlyAnswer(t *testing.T) {
	const refusal = "HTTP/1.1 413 Too Large\r\nContent-Length: 5\r\nConnection: close\r\n\r\nlarge"
	for _, tt := range []struct {
		name  string
		size  int
		serve func(*turn)
	}{
		{"closed, nothing read", 8 << 20, func(tn *turn) { tn.br.Peek(1); tn.send(refusal) }},
		{"closed, some read", 8 << 20, func(tn *turn) { io.CopyN(io.Discard, tn.br, 64<<10); tn.send(refusal) }},
		{"open, nothing read any more", 32 << 20, func(tn *turn) {
			tn.br.Peek(1)
			tn.send(refusal)
			var gone [1]byte
			for { // look for the close without reading the request
				time.Sleep(5 * time.Millisecond)
				if _, err := tn.Conn.Write(gone[:]); err != nil {
					return
				}
			}
		}},
		{"open, kept alive by the head", 32 << 20, func(tn *turn) {
			tn.br.Peek(1)
			tn.send(strings.Replace(refusal, "Connection: close\r\n", "", 1))
			time.Sleep(200 * time.Millisecond)
			tn.hang()
		}},
		{"half closed", 8 << 20, func(tn *turn) {
			tn.br.Peek(1)
			tn.send(refusal)
			tn.Conn.(*net.TCPConn).CloseWrite()
			tn.hang()
		}},
		{"small request", 100, func(tn *turn) { tn.br.Peek(1); tn.send(refusal) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newRawServer(t, tt.serve)
			c := newClient(t)
			r := s.request()
			r.Body = make([]byte, tt.size)
			resp, body, err := call(c, r)
			if err != nil || resp.Status != 413 || body != "large" {
				t.Errorf("%+v %q %v", resp, body, err)
			}
			if ready, ending := c.idle(); tt.size > 100 && ready+ending != 0 {
				t.Error("the connection was kept")
			}
		})
	}
}

// A server that is slow to read gets everything, and interim answers meanwhile
// do not end the sending.
func TestSlowReader(t *testing.T) {
	const size = 16 << 20
	var got atomic.Int64
	s := newRawServer(t, func(tn *turn) {
		tn.br.Peek(1)
		tn.send("HTTP/1.1 102 Processing\r\n\r\n")
		time.Sleep(3 * lookEvery)
		r, err := http.ReadRequest(tn.br)
		if err != nil {
			t.Error(err)
			return
		}
		n, err := io.Copy(io.Discard, r.Body)
		got.Store(n)
		if err != nil {
			t.Error(err)
		}
		answer(tn)
		tn.br.Peek(1)
	})
	c := newClient(t)
	r := s.request()
	r.Body = make([]byte, size)
	mustCall(t, c, r)
	if got.Load() != size {
		t.Errorf("%d of %d bytes arrived", got.Load(), size)
	}
	if ready, _ := c.idle(); ready != 1 {
		t.Error("the connection was not kept")
	}
}

// A body is sent whole whatever its size is, around the one-write limit too.
func TestBodySizes(t *testing.T) {
	s := newRawServer(t, func(tn *turn) {
		for {
			r, err := http.ReadRequest(tn.br)
			if err != nil {
				return
			}
			b, err := io.ReadAll(r.Body)
			if err != nil {
				return
			}
			sum := 0
			for i, x := range b {
				sum = (sum*31 + int(x) + i) % 1000003
			}
			a := fmt.Sprintf("%d %d", len(b), sum)
			tn.send(fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", ok, len(a), a))
		}
	})
	c := newClient(t)
	for _, n := range []int{0, 1, 4096, oneWrite - 200, oneWrite - 100, oneWrite - 1, oneWrite, oneWrite + 1, 100_000, 5 << 20} {
		b := make([]byte, n)
		sum := 0
		for i := range b {
			b[i] = byte(i * 7)
			sum = (sum*31 + int(b[i]) + i) % 1000003
		}
		r := s.request()
		r.Body = b
		if _, got, err := call(c, r); err != nil || got != fmt.Sprintf("%d %d", n, sum) {
			t.Errorf("%d bytes: %q %v", n, got, err)
		}
	}
	if conns, _ := s.count(); conns != 1 {
		t.Errorf("%d connections", conns)
	}
}
