package server

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"sluice/internal/fakellm"
	"sluice/upstream"
)

// dial opens a plain connection to the plane.
func (p *plane) dial() *net.TCPConn {
	p.t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { c.Close() })
	return c.(*net.TCPConn)
}

// TestStalledBodyEnds sends half a body and then nothing. Whatever the answer
// is, and whether or not a handler reads the body, the connection must end: net/http
// itself reads what is left of a body before it answers.
func TestStalledBodyEnds(t *testing.T) {
	p := newPlane(t, document(fake(t, fakellm.Options{}).URL()), func(c *Config) {
		c.ReadTimeout, c.WriteTimeout = 100*time.Millisecond, 100*time.Millisecond
		c.CORSOrigins = []string{"*"}
	})
	for _, tc := range []struct {
		name, request string
		status        int
	}{
		{"read", "POST /v1/chat/completions", 400},
		{"chunked", "POST /v1/chat/completions\nTransfer-Encoding: chunked", 400},
		{"refused unread", "POST /v1/chat/completions\nContent-Encoding: gzip", 415},
		{"no such path", "POST /v1/nothing", 404},
		{"no such method", "PUT /v1/models", 405},
		{"models", "GET /v1/models", 200},
		{"health", "GET /healthz", 200},
		{"preflight", "OPTIONS /v1/models\nOrigin: https://a.example\nAccess-Control-Request-Method: GET", 204},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := p.dial()
			line, headers, _ := strings.Cut(tc.request, "\n")
			fmt.Fprintf(c, "%s HTTP/1.1\r\nHost: x\r\n", line)
			if headers != "" {
				fmt.Fprintf(c, "%s\r\n", strings.ReplaceAll(headers, "\n", "\r\n"))
			}
			if strings.Contains(headers, "chunked") {
				io.WriteString(c, "\r\n32\r\n{")
			} else {
				io.WriteString(c, "Content-Length: 50\r\n\r\n{")
			}
			c.SetReadDeadline(time.Now().Add(20 * time.Second))
			r := bufio.NewReader(c)
			resp, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Fatal("no answer:", err)
			}
			if resp.StatusCode != tc.status {
				t.Errorf("status %d, want %d", resp.StatusCode, tc.status)
			}
			if _, err := io.Copy(io.Discard, resp.Body); err != nil {
				t.Error(err)
			}
			if _, err := r.ReadByte(); err != io.EOF {
				t.Errorf("the connection goes on: %v", err)
			}
		})
	}
}

// deadlines is a response writer that notes the read deadlines it is given.
type deadlines struct {
	*httptest.ResponseRecorder
	set []time.Time
}

func (d *deadlines) SetReadDeadline(t time.Time) error { d.set = append(d.set, t); return nil }

// TestStalledBodyWaitsOnce: a deadline is set before the handler runs, for
// requests with a body, and none after it: what net/http still reads of a body
// whose time is over must not get as long again.
func TestStalledBodyWaitsOnce(t *testing.T) {
	for length, want := range map[int64]int{0: 0, 50: 1, -1: 1} {
		w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
		during := -1
		h := BoundBody(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { during = len(w.set) }), time.Minute)
		h.ServeHTTP(w, &http.Request{ContentLength: length})
		if during != want || len(w.set) != want {
			t.Errorf("content length %d: %d deadlines before, %d in all, want %d", length, during, len(w.set), want)
		}
	}
}

// TestReadDeadlineEndsWithTheBody holds an answer back for longer than a request
// may take to be read.
func TestReadDeadlineEndsWithTheBody(t *testing.T) {
	up := fake(t, fakellm.Options{Default: fakellm.Behaviour{TTFT: 400 * time.Millisecond}})
	p := newPlane(t, document(up.URL()), func(c *Config) { c.ReadTimeout = 100 * time.Millisecond })
	for range 2 { // on a new connection and on a kept one
		if resp, body := p.post("/v1/chat/completions", ask("hi", true)); resp.StatusCode != 200 || !strings.HasSuffix(body, "data: [DONE]\n\n") {
			t.Errorf("%d %s", resp.StatusCode, body)
		}
	}
}

// TestHalfCloseGetsNoSuccess: a client that shuts its side down counts as gone.
// It may still be reading, and must not read an empty 200.
func TestHalfCloseGetsNoSuccess(t *testing.T) {
	up := fake(t, fakellm.Options{Default: fakellm.Behaviour{TTFT: time.Minute}})
	p := newPlane(t, document(up.URL()), nil)
	for _, stream := range []bool{false, true} {
		c := p.dial()
		body := ask("hi", stream)
		fmt.Fprintf(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		c.CloseWrite()
		c.SetReadDeadline(time.Now().Add(20 * time.Second))
		if got, err := io.ReadAll(c); len(got) > 0 || err != nil {
			t.Errorf("stream %v: %q, %v; want the end of the connection", stream, got, err)
		}
	}
	for _, ev := range p.rec.wait(t, 2) {
		if ev.Outcome != string(upstream.Canceled) || ev.Status != 499 {
			t.Errorf("outcome %s, status %d", ev.Outcome, ev.Status)
		}
	}
}

// TestUnreadErrorEnds answers a client that never reads with an error larger
// than the buffers of the connection.
func TestUnreadErrorEnds(t *testing.T) {
	text := strings.Repeat("x", 900<<10)
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			io.Copy(io.Discard, r.Body)
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(400)
			fmt.Fprintf(w, `{"error":{"message":%q,"type":"t","param":null,"code":null}}`, text)
		}
	}))
	t.Cleanup(up.Close)
	p := newPlane(t, document(up.URL+"/v1"), func(c *Config) {
		c.ReadTimeout, c.WriteTimeout = 100*time.Millisecond, 100*time.Millisecond
	})
	c := p.dial()
	c.SetReadBuffer(4 << 10)
	body := ask("hi", false)
	// As many answers as overrun what the kernel takes for a client that does not read.
	const n = 16
	request := fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	go io.WriteString(c, strings.Repeat(request, n))
	p.rec.wait(t, 1)
	deadline := time.Now().Add(20 * time.Second)
	for quiet := 0; quiet < 50; time.Sleep(10 * time.Millisecond) {
		if p.srv.InFlight() == 0 {
			quiet++
		} else {
			quiet = 0
		}
		if time.Now().After(deadline) {
			t.Fatal("a request is still in flight")
		}
	}
	if got := len(p.rec.wait(t, 1)); got >= n {
		t.Fatalf("all %d answers were taken: the test shows nothing", got)
	}
}

// panics is a Doer that fails in the middle of an answer.
type panics struct{ commit bool }

func (d panics) Do(_ context.Context, _ *upstream.Request, s upstream.Sink) upstream.Result {
	if d.commit {
		s.Commit(upstream.Meta{Status: 200, Header: http.Header{}, Stream: true, Length: -1})
		s.Write([]byte("data: {\"choices\":[]}\n\n"))
	}
	panic("a fault of the gateway's own")
}

// TestPanicAfterTheCommitPoint: an answer that has begun is cut, never continued
// with an error's body and a clean end.
func TestPanicAfterTheCommitPoint(t *testing.T) {
	up := fake(t, fakellm.Options{})
	for _, commit := range []bool{false, true} {
		p := newPlane(t, document(up.URL()), func(c *Config) { c.Doer = panics{commit} })
		resp, err := http.Post(p.url+"/v1/chat/completions", "application/json", strings.NewReader(ask("hi", true)))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if commit && (resp.StatusCode != 200 || err == nil || strings.Contains(string(body), "internal_error")) {
			t.Errorf("after the commit point: %d, %q, %v", resp.StatusCode, body, err)
		}
		if !commit && (resp.StatusCode != 500 || err != nil || *envelope(t, string(body)).Code != "internal_error") {
			t.Errorf("before the commit point: %d, %q, %v", resp.StatusCode, body, err)
		}
		ev := p.rec.wait(t, 1)[0]
		if ev.Outcome != "internal_error" {
			t.Errorf("outcome %s", ev.Outcome)
		}
	}
}

// TestStreamsHoldNoBody: once an answer streams, its request counts no longer
// towards the bytes that may be held, however long the stream lasts.
func TestStreamsHoldNoBody(t *testing.T) {
	up := fake(t, fakellm.Options{Default: fakellm.Behaviour{Fault: fakellm.Hang, After: 2}})
	p := newPlane(t, document(up.URL()), func(c *Config) { c.MaxBuffered = 3 << 20 })
	body := ask(strings.Repeat("x", 1<<20), true)
	for i := range 6 { // together twice what may be held
		ctx, cancel := context.WithCancel(context.Background())
		t.Cleanup(cancel)
		req, _ := http.NewRequestWithContext(ctx, "POST", p.url+"/v1/chat/completions", strings.NewReader(body))
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { resp.Body.Close() })
		if resp.StatusCode != 200 {
			t.Fatalf("stream %d: status %d", i, resp.StatusCode)
		}
	}
	if n := p.srv.InFlight(); n != 6 {
		t.Errorf("%d requests in flight, want 6", n)
	}
	if n := p.srv.buffered.Load(); n != 0 {
		t.Errorf("%d bytes are held", n)
	}
}
