package h1

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
)

const ok = "HTTP/1.1 200 OK\r\n"

// What becomes of an answer.
const (
	good     = ""          // whole
	refused  = "protocol"  // not HTTP, or over a limit
	cut      = "truncated" // the head came, the body broke off
	unopened = "call"      // there was no head
	badBody  = "body"      // the head came, the body's framing is not HTTP
)

// answers are raw answers, one connection each. Each is sent whole, byte by byte
// and in two parts.
var answers = []struct {
	name   string
	raw    string
	end    bool // the server closes after it
	want   string
	status int
	body   string
	reuse  bool
}{
	{name: "length", raw: ok + "Content-Length: 5\r\n\r\nhello", status: 200, body: "hello", reuse: true},
	{name: "length 0", raw: ok + "Content-Length: 0\r\n\r\n", status: 200, reuse: true},
	{name: "no reason", raw: "HTTP/1.1 429\r\nContent-Length: 1\r\n\r\nx", status: 429, body: "x", reuse: true},
	{name: "empty reason", raw: "HTTP/1.1 503 \r\nContent-Length: 1\r\n\r\nx", status: 503, body: "x", reuse: true},
	{name: "lower case", raw: ok + "content-length:5\r\nconnection:keep-alive\r\n\r\nhello", status: 200, body: "hello", reuse: true},
	{name: "blanks around", raw: ok + "Content-Length: \t 5 \t\r\n\r\nhello", status: 200, body: "hello", reuse: true},
	{name: "same length twice", raw: ok + "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello", status: 200, body: "hello", reuse: true},
	{name: "high bytes in a value", raw: ok + "X-A: \xff\xe9\tb\r\nContent-Length: 1\r\n\r\nx", status: 200, body: "x", reuse: true},
	{name: "interim", raw: "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: x\r\n\r\n" + ok + "Content-Length: 1\r\n\r\nx", status: 200, body: "x", reuse: true},
	{name: "204", raw: "HTTP/1.1 204 None\r\n\r\n", status: 204, reuse: true},
	{name: "204 with a length", raw: "HTTP/1.1 204 None\r\nContent-Length: 4\r\n\r\n", status: 204},
	{name: "304 with a length", raw: "HTTP/1.1 304 Same\r\nContent-Length: 400\r\n\r\n", status: 304, reuse: true},
	{name: "connection close", raw: ok + "Connection: close\r\nContent-Length: 5\r\n\r\nhello", status: 200, body: "hello"},
	{name: "close in a list", raw: ok + "Connection: x, Close\r\nContent-Length: 5\r\n\r\nhello", status: 200, body: "hello"},
	{name: "close and keep-alive", raw: ok + "Connection: keep-alive, close\r\nContent-Length: 5\r\n\r\nhello", status: 200, body: "hello"},
	{name: "1.0", raw: "HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", status: 200, body: "hello"},
	{name: "1.0 keep-alive", raw: "HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 5\r\n\r\nhello", status: 200, body: "hello", reuse: true},
	{name: "1.0 to the end", raw: "HTTP/1.0 200 OK\r\n\r\nhello", end: true, status: 200, body: "hello"},
	{name: "to the end", raw: ok + "\r\nhello", end: true, status: 200, body: "hello"},
	{name: "to the end, empty", raw: ok + "\r\n", end: true, status: 200},

	{name: "chunks", raw: chunked("5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"), status: 200, body: "hello world", reuse: true},
	{name: "chunk extensions", raw: chunked("5;a=b;c=\"d\"\r\nhello\r\n0;x\r\n\r\n"), status: 200, body: "hello", reuse: true},
	{name: "blanks after a size", raw: chunked("5  \r\nhello\r\n0\r\n\r\n"), status: 200, body: "hello", reuse: true},
	{name: "leading zeros", raw: chunked("0005\r\nhello\r\n000\r\n\r\n"), status: 200, body: "hello", reuse: true},
	{name: "upper case hexadecimal", raw: chunked("A\r\n0123456789\r\n0\r\n\r\n"), status: 200, body: "0123456789", reuse: true},
	{name: "no content", raw: chunked("0\r\n\r\n"), status: 200, reuse: true},
	{name: "trailer", raw: chunked("5\r\nhello\r\n0\r\nX-Sum: 1\r\nX-B:\r\n\r\n"), status: 200, body: "hello", reuse: true},
	{name: "byte chunks", raw: chunked(strings.Repeat("1\r\nx\r\n", 5000) + "0\r\n\r\n"), status: 200, body: strings.Repeat("x", 5000), reuse: true},
	{name: "chunks around the buffer", raw: chunked(strings.Repeat("ffe\r\n"+strings.Repeat("y", 0xffe)+"\r\n", 5) + "0\r\n\r\n"), status: 200, body: strings.Repeat("y", 5*0xffe), reuse: true},
	{name: "large head", raw: ok + "X-Big: " + strings.Repeat("b", 60<<10) + "\r\nContent-Length: 5\r\n\r\nhello", status: 200, body: "hello", reuse: true},

	{name: "more after the body", raw: ok + "Content-Length: 5\r\n\r\nhello!", status: 200, body: "hello"},
	{name: "an answer nobody asked for", raw: ok + "Content-Length: 5\r\n\r\nhello" + ok + "Content-Length: 4\r\n\r\nevil", status: 200, body: "hello"},
	{name: "more after the last chunk", raw: chunked("0\r\n\r\n\r\n"), status: 200},
	{name: "a body with 204", raw: "HTTP/1.1 204 None\r\n\r\nevil", status: 204},

	{name: "nothing", end: true, want: unopened},
	{name: "half a head", raw: ok + "Content-Le", end: true, want: unopened},
	{name: "only interim", raw: "HTTP/1.1 100 Continue\r\n\r\n", end: true, want: unopened},
	{name: "half a body", raw: ok + "Content-Length: 50\r\n\r\nhello", end: true, want: cut, status: 200, body: "hello"},
	{name: "half a chunk", raw: chunked("50\r\nhello"), end: true, want: cut, status: 200, body: "hello"},
	{name: "no last chunk", raw: chunked("5\r\nhello\r\n"), end: true, want: cut, status: 200, body: "hello"},
	{name: "half the last chunk", raw: chunked("5\r\nhello\r\n0\r\n"), end: true, want: cut, status: 200, body: "hello"},

	{name: "garbage", raw: "\x00\x01\x02garbage", want: refused},
	{name: "another protocol", raw: "SSH-2.0-OpenSSH_9.2\r\n", want: refused},
	{name: "HTTP/2", raw: "HTTP/2.0 200 OK\r\n\r\n", want: refused},
	{name: "HTTP/1.2", raw: "HTTP/1.2 200 OK\r\n\r\n", want: refused},
	{name: "lower case protocol", raw: "http/1.1 200 OK\r\n\r\n", want: refused},
	{name: "blank line first", raw: "\r\n" + ok + "\r\n", want: refused},
	{name: "two blanks", raw: "HTTP/1.1  200 OK\r\n\r\n", want: refused},
	{name: "status of two digits", raw: "HTTP/1.1 20 OK\r\n\r\n", want: refused},
	{name: "status of four digits", raw: "HTTP/1.1 2000 OK\r\n\r\n", want: refused},
	{name: "status with a sign", raw: "HTTP/1.1 -20 OK\r\n\r\n", want: refused},
	{name: "status 000", raw: "HTTP/1.1 000 OK\r\n\r\n", want: refused},
	{name: "NUL in the reason", raw: "HTTP/1.1 200 O\x00K\r\n\r\n", want: refused},
	{name: "line feeds only", raw: "HTTP/1.1 200 OK\nContent-Length: 5\n\nhello", want: refused},
	{name: "one line feed only", raw: ok + "A: b\nContent-Length: 5\r\n\r\nhello", want: refused},
	{name: "carriage return in a value", raw: ok + "A: b\rC: d\r\nContent-Length: 5\r\n\r\nhello", want: refused},
	{name: "NUL in a value", raw: ok + "A: b\x00c\r\nContent-Length: 5\r\n\r\nhello", want: refused},
	{name: "NUL in a name", raw: ok + "A\x00: b\r\nContent-Length: 5\r\n\r\nhello", want: refused},
	{name: "no colon", raw: ok + "Content-Length 5\r\n\r\nhello", want: refused},
	{name: "no name", raw: ok + ": 5\r\n\r\nhello", want: refused},
	{name: "blank before the colon", raw: ok + "Content-Length : 5\r\n\r\nhello", want: refused},
	{name: "folded", raw: ok + "A: b\r\n c\r\nContent-Length: 5\r\n\r\nhello", want: refused},
	{name: "folded first", raw: ok + " A: b\r\nContent-Length: 5\r\n\r\nhello", want: refused},
	{name: "folded by a tabulator", raw: ok + "A: b\r\n\tTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\nhello", want: refused},
	{name: "name outside of ASCII", raw: ok + "\xc3\xa4: b\r\nContent-Length: 5\r\n\r\nhello", want: refused},
	{name: "head bomb of one line", raw: ok + "A: " + strings.Repeat("b", 70<<10), want: refused},
	{name: "head bomb of many lines", raw: ok + strings.Repeat("A: b\r\n", 12<<10), want: refused},
	{name: "too many fields", raw: ok + strings.Repeat("A: b\r\n", 300) + "\r\n", want: refused},
	{name: "endless interim", raw: strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 100), want: refused},
	{name: "switching protocols", raw: "HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n", want: refused},
	{name: "two lengths", raw: ok + "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!", want: refused},
	{name: "list of lengths", raw: ok + "Content-Length: 5, 5\r\n\r\nhello", want: refused},
	{name: "negative length", raw: ok + "Content-Length: -5\r\n\r\nhello", want: refused},
	{name: "length with a sign", raw: ok + "Content-Length: +5\r\n\r\nhello", want: refused},
	{name: "hexadecimal length", raw: ok + "Content-Length: 0x5\r\n\r\nhello", want: refused},
	{name: "length with an underscore", raw: ok + "Content-Length: 1_0\r\n\r\nhello", want: refused},
	{name: "empty length", raw: ok + "Content-Length:\r\n\r\nhello", want: refused},
	{name: "length too large", raw: ok + "Content-Length: 9223372036854775808\r\n\r\nhello", want: refused},
	{name: "length and chunks", raw: ok + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", want: refused},
	{name: "gzip, chunked", raw: ok + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", want: refused},
	{name: "chunked twice", raw: ok + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", want: refused},
	{name: "identity", raw: ok + "Transfer-Encoding: identity\r\n\r\nhello", want: refused},
	{name: "vertical tab chunked", raw: ok + "Transfer-Encoding: \vchunked\r\n\r\n0\r\n\r\n", want: refused},
	{name: "1.0 chunked", raw: "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", want: refused},

	{name: "size is no number", raw: chunked("5\r\nhello\r\nxyz\r\n"), want: badBody, status: 200, body: "hello"},
	{name: "empty size", raw: chunked("\r\nhello\r\n"), want: badBody, status: 200},
	{name: "negative size", raw: chunked("-5\r\nhello\r\n"), want: badBody, status: 200},
	{name: "size with 0x", raw: chunked("0x5\r\nhello\r\n"), want: badBody, status: 200},
	{name: "blank before the size", raw: chunked(" 5\r\nhello\r\n"), want: badBody, status: 200},
	{name: "size of 64 bits", raw: chunked("ffffffffffffffff\r\nhello\r\n"), want: badBody, status: 200},
	{name: "size that overflows", raw: chunked("10000000000000005\r\nhello\r\n"), want: badBody, status: 200},
	{name: "size too long", raw: chunked(strings.Repeat("0", 40) + "5\r\nhello\r\n"), want: badBody, status: 200},
	{name: "line feed after the size", raw: chunked("5\nhello\r\n0\r\n\r\n"), want: badBody, status: 200},
	{name: "line feed after a chunk", raw: chunked("5\r\nhello\n0\r\n\r\n"), want: badBody, status: 200, body: "hello"},
	{name: "chunk longer than its size", raw: chunked("5\r\nhello!\r\n0\r\n\r\n"), want: badBody, status: 200, body: "hello"},
	{name: "NUL in an extension", raw: chunked("5;\x00\r\nhello\r\n0\r\n\r\n"), want: badBody, status: 200},
	{name: "carriage return in an extension", raw: chunked("5;a\rb\r\nhello\r\n0\r\n\r\n"), want: badBody, status: 200},
	{name: "extension bomb", raw: chunked("5;" + strings.Repeat("e", 8<<10) + "\r\nhello\r\n0\r\n\r\n"), want: badBody, status: 200},
	{name: "extension in every chunk", raw: chunked(strings.Repeat("1;"+strings.Repeat("e", 1000)+"\r\nx\r\n", 100) + "0\r\n\r\n"), want: badBody, status: 200, body: strings.Repeat("x", 16)},
	{name: "trailer bomb", raw: chunked("0\r\n" + strings.Repeat("A: b\r\n", 5000) + "\r\n"), want: badBody, status: 200},
	{name: "trailer line bomb", raw: chunked("0\r\nA: " + strings.Repeat("b", 5000) + "\r\n\r\n"), want: badBody, status: 200},
	{name: "trailer folded", raw: chunked("0\r\nA: b\r\n c\r\n\r\n"), want: badBody, status: 200},
	{name: "trailer without a colon", raw: chunked("0\r\nA\r\n\r\n"), want: badBody, status: 200},
}

func chunked(s string) string { return ok + "Transfer-Encoding: chunked\r\n\r\n" + s }

func TestAnswers(t *testing.T) {
	for _, tt := range answers {
		for _, way := range []string{"whole", "bytes", "halves"} {
			if way == "bytes" && len(tt.raw) > 4000 {
				continue
			}
			t.Run(tt.name+"/"+way, func(t *testing.T) {
				t.Parallel()
				sent := make(chan struct{})
				s := newServer(t, func(tn *turn) {
					if tn.n > 1 {
						tn.send(ok + "Content-Length: 6\r\n\r\nsecond")
						return
					}
					deliver(tn, tt.raw, way)
					close(sent)
					tn.stop = tt.end
				})
				c := newClient(t)
				resp, body, err := call(c, s.request())
				status := 0
				if resp != nil {
					status = resp.Status
				}
				if got := kind(resp, err); got != tt.want || status != tt.status || body != tt.body {
					t.Fatalf("%q (%v), status %d, body %.80q", got, err, status, body)
				}
				if err == nil {
					<-sent // what is too much has come as well
				}
				if _, body, err = call(c, s.request()); body != "second" || err != nil {
					t.Fatalf("the next call got %q, %v", body, err)
				}
				if conns, _ := s.count(); conns == 1 != tt.reuse {
					t.Errorf("%d connections, want reuse %v", conns, tt.reuse)
				}
			})
		}
	}
}

func deliver(tn *turn, raw, way string) {
	switch way {
	case "whole":
		tn.send(raw)
	case "bytes":
		for i := range len(raw) {
			tn.send(raw[i : i+1])
		}
	default:
		tn.send(raw[:len(raw)/2])
		time.Sleep(time.Millisecond) // as two packets
		tn.send(raw[len(raw)/2:])
	}
}

// kind is the class of what a call came to.
func kind(resp *Response, err error) string {
	var bad *ProtocolError
	var lost *CallError
	switch {
	case err == nil:
		return good
	case errors.As(err, &bad) && resp == nil:
		return refused
	case errors.As(err, &bad):
		return badBody
	case errors.As(err, &lost) && resp == nil:
		return unopened
	case err == io.ErrUnexpectedEOF:
		return cut
	}
	return fmt.Sprintf("%T", err)
}

func TestFields(t *testing.T) {
	s := newServer(t, func(tn *turn) {
		tn.send(ok + "content-type: a\r\nX-RATELIMIT-limit:  b c \r\nx-a: 1\r\nX-A: 2\r\nx_y.z: d\r\nEmpty:\r\ncontent-length: 0\r\n" + strings.Repeat("Z: z\r\n", 20) + "\r\n")
	})
	resp, _, err := call(newClient(t), s.request())
	if err != nil {
		t.Fatal(err)
	}
	want := []Field{{"Content-Type", "a"}, {"X-Ratelimit-Limit", "b c"}, {"X-A", "1"}, {"X-A", "2"}, {"X_y.z", "d"}, {"Empty", ""}, {"Content-Length", "0"}, {"Z", "z"}}
	if len(resp.Fields) != 27 || fmt.Sprint(resp.Fields[:8]) != fmt.Sprint(want) {
		t.Errorf("%d fields: %q", len(resp.Fields), resp.Fields)
	}
	if resp.Get("X-A") != "1" || resp.Get("Empty") != "" || resp.Get("None") != "" || resp.Length != 0 {
		t.Errorf("get: %+v", resp)
	}
}

// HEAD has no body whatever the head says.
func TestHead(t *testing.T) {
	s := newServer(t, func(tn *turn) { tn.send(ok + "Content-Length: 500\r\n\r\n") })
	c := newClient(t)
	for range 2 {
		r := s.request()
		r.Method, r.Body = "HEAD", nil
		if resp, body, err := call(c, r); err != nil || body != "" || resp.Status != 200 {
			t.Fatalf("%+v %q %v", resp, body, err)
		}
	}
	if n, _ := s.count(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

// What has come is returned at once, joined and without being copied out.
func TestNextJoinsChunks(t *testing.T) {
	more := make(chan struct{})
	s := newServer(t, func(tn *turn) {
		tn.send(chunked("5\r\nhello\r\n1\r\n \r\n5\r\nworld\r\n3\r\nab"))
		<-more
		tn.send("c\r\n0\r\n\r\n")
	})
	resp, err := newClient(t).Do(context.Background(), s.request())
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	p, err := resp.Body.Next()
	if string(p) != "hello worldab" || err != nil {
		t.Errorf("first: %q %v", p, err)
	}
	close(more)
	if p, err = resp.Body.Next(); string(p) != "c" || err != nil && err != io.EOF {
		t.Errorf("second: %q %v", p, err)
	}
	if p, err = resp.Body.Next(); len(p) != 0 || err != io.EOF {
		t.Errorf("end: %q %v", p, err)
	}
}

// The end comes with the last content when both are there.
func TestNextWithEnd(t *testing.T) {
	for _, raw := range []string{chunked("5\r\nhello\r\n0\r\n\r\n"), ok + "Content-Length: 5\r\n\r\nhello"} {
		s := newServer(t, func(tn *turn) { tn.send(raw) })
		c := newClient(t)
		resp, err := c.Do(context.Background(), s.request())
		if err != nil {
			t.Fatal(err)
		}
		p, err := resp.Body.Next()
		if string(p) != "hello" || err != io.EOF {
			t.Errorf("%q %v", p, err)
		}
		if ready, _ := c.idle(); ready != 1 {
			t.Error("the connection is not free at the end of the body")
		}
		resp.Body.Close()
	}
}

func TestReadSizes(t *testing.T) {
	content := strings.Repeat("0123456789", 3000)
	for _, raw := range []string{
		ok + fmt.Sprintf("Content-Length: %d\r\n\r\n", len(content)) + content,
		chunked(fmt.Sprintf("%x\r\n%s\r\n3\r\nabc\r\n0\r\n\r\n", len(content), content)),
		ok + "\r\n" + content,
	} {
		want := content
		if strings.Contains(raw, "chunked") {
			want += "abc"
		}
		for _, size := range []int{1, 7, 4095, 4096, 10000, 1 << 20} {
			s := newServer(t, func(tn *turn) { tn.send(raw); tn.stop = true })
			resp, err := newClient(t).Do(context.Background(), s.request())
			if err != nil {
				t.Fatal(err)
			}
			var got strings.Builder
			for p := make([]byte, size); ; {
				n, err := resp.Body.Read(p)
				got.Write(p[:n])
				if err == io.EOF {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if got.String() != want {
				t.Errorf("size %d: %d bytes of %d", size, got.Len(), len(want))
			}
			if n, err := resp.Body.Read(nil); n != 0 || err != nil {
				t.Errorf("read of nothing: %d %v", n, err)
			}
			resp.Body.Close()
			if _, err := resp.Body.Read(make([]byte, 1)); err != errClosed {
				t.Errorf("read after close: %v", err)
			}
			if _, err := resp.Body.Next(); err != errClosed {
				t.Errorf("next after close: %v", err)
			}
		}
	}
}
