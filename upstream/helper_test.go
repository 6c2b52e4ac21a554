package upstream

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"sluice/upstream/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// peer is a scripted upstream on a raw loopback socket: what it sends is
// exactly what the test wrote.
type peer struct {
	ln    net.Listener
	serve func(*turn)
	wg    sync.WaitGroup

	conns atomic.Int64 // accepted for POSTs
	calls atomic.Int64 // POSTs
	gone  chan time.Time

	mu    sync.Mutex
	seen  []*turn
	open  map[net.Conn]bool
	check func(*turn) // GETs; nil answers 404, which is ready for openai
}

// turn is one request of a connection.
type turn struct {
	net.Conn
	req   *http.Request
	body  []byte
	n     int // of the POSTs of this peer, from 1
	reuse bool
	p     *peer
	stop  bool // close the connection after this turn
}

func newPeer(t testing.TB, serve func(*turn)) *peer {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{ln: ln, serve: serve, open: map[net.Conn]bool{}, gone: make(chan time.Time, 64)}
	p.wg.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

func (p *peer) url() string { return "http://" + p.ln.Addr().String() + "/v1" }

func (p *peer) close() {
	p.ln.Close()
	p.mu.Lock()
	for c := range p.open {
		c.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
}

func (p *peer) accept() {
	for {
		c, err := p.ln.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		p.open[c] = true
		p.mu.Unlock()
		p.wg.Go(func() {
			p.conn(c)
			c.Close()
			p.mu.Lock()
			delete(p.open, c)
			p.mu.Unlock()
		})
	}
}

func (p *peer) conn(c net.Conn) {
	br := bufio.NewReader(c)
	for used := false; ; used = true {
		req, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return
		}
		tn := &turn{Conn: c, req: req, body: body, p: p, reuse: used}
		if req.Method == http.MethodGet {
			if p.check != nil {
				p.check(tn)
			} else {
				tn.reply(404, "text/plain", "none")
			}
			if tn.stop {
				return
			}
			continue
		}
		if !used {
			p.conns.Add(1)
		}
		p.mu.Lock()
		tn.n = int(p.calls.Add(1))
		p.seen = append(p.seen, tn)
		p.mu.Unlock()
		p.serve(tn)
		if tn.stop {
			return
		}
	}
}

// last returns the latest POST.
func (p *peer) last() *turn {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen[len(p.seen)-1]
}

func (t *turn) send(s string) { io.WriteString(t.Conn, s) }

// reply sends a whole answer with a length and keeps the connection.
func (t *turn) reply(status int, contentType, body string, headers ...string) {
	t.send(fmt.Sprintf("HTTP/1.1 %d X\r\nContent-Type: %s\r\nContent-Length: %d\r\n%s\r\n%s",
		status, contentType, len(body), lines(headers), body))
}

// head starts a chunked answer.
func (t *turn) head(status int, contentType string, headers ...string) {
	t.send(fmt.Sprintf("HTTP/1.1 %d X\r\nContent-Type: %s\r\nTransfer-Encoding: chunked\r\n%s\r\n", status, contentType, lines(headers)))
}

func (t *turn) chunk(s string) { t.send(fmt.Sprintf("%x\r\n%s\r\n", len(s), s)) }
func (t *turn) finish()        { t.send("0\r\n\r\n") }
func (t *turn) fin()           { t.stop = true }

// rst makes the close a reset.
func (t *turn) rst() {
	t.Conn.(*net.TCPConn).SetLinger(0)
	t.stop = true
}

// hang waits until the gateway closes the connection and notes when.
func (t *turn) hang() {
	t.Conn.Read(make([]byte, 1))
	select {
	case t.p.gone <- time.Now():
	default:
	}
	t.stop = true
}

func lines(headers []string) string {
	var b strings.Builder
	for _, h := range headers {
		b.WriteString(h + "\r\n")
	}
	return b.String()
}

// recorder is a client: it writes down what it gets, and error events as the
// server writes them.
type recorder struct {
	mu       sync.Mutex
	metas    []Meta
	body     bytes.Buffer
	inband   []Failure
	onWrite  func(total int) error
	onCommit func()
}

func (r *recorder) Commit(m Meta) {
	r.mu.Lock()
	r.metas = append(r.metas, m)
	f := r.onCommit
	r.mu.Unlock()
	if f != nil {
		f()
	}
}

func (r *recorder) Write(p []byte) error {
	r.mu.Lock()
	r.body.Write(p)
	n, f := r.body.Len(), r.onWrite
	r.mu.Unlock()
	if f != nil {
		return f(n)
	}
	return nil
}

func (r *recorder) FailInBand(f Failure) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inband = append(r.inband, f)
	r.body.Write(wire.AppendErrorEvent(nil, f.Message, f.Type, f.Param, f.Code))
	return nil
}

func (r *recorder) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.body.String()
}

// eachCarrier runs f with the client for plain HTTP that is used, and with the
// one over net/http that is used with TLS.
func eachCarrier(t *testing.T, f func(t *testing.T, o PoolOptions)) {
	t.Run("h1", func(t *testing.T) { f(t, PoolOptions{}) })
	t.Run("nethttp", func(t *testing.T) { f(t, PoolOptions{carrier: newTransport}) })
}

// pool returns a pool with these upstreams, checked.
func pool(t testing.TB, cfgs ...Config) (*Pool, map[string]*Upstream) {
	t.Helper()
	return poolWith(t, PoolOptions{}, cfgs...)
}

func poolWith(t testing.TB, o PoolOptions, cfgs ...Config) (*Pool, map[string]*Upstream) {
	t.Helper()
	p := NewPool(o)
	t.Cleanup(p.Close)
	ups, err := p.Apply(cfgs)
	if err != nil {
		t.Fatal(err)
	}
	for range 15 { // a loaded machine may need more than the 2 s that Ready waits at most
		if p.Ready(context.Background(), 2*time.Second) {
			return p, ups
		}
	}
	t.Fatal("the endpoints' first checks did not return")
	return p, ups
}

const (
	chatBody   = `{"model":"m","messages":[{"role":"user","content":"hi"}]}`
	streamBody = `{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}`
	usageBody  = `{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"hi"}]}`
	okBody     = `{"id":"c","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"Hello"},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12}}`
)

// request builds a request for body. targets are tried in order: the same while
// Do says so, then the next.
func request(t testing.TB, body string, targets ...Target) *Request {
	t.Helper()
	return requestAPI(t, wire.Chat, body, targets...)
}

func requestAPI(t testing.TB, api wire.API, body string, targets ...Target) *Request {
	t.Helper()
	h, ferr := wire.Scan([]byte(body), api)
	if ferr != nil {
		t.Fatal(ferr)
	}
	i := 0
	return &Request{
		API: api, Head: h, Body: []byte(body), RequestID: "req-1",
		Header: http.Header{"Content-Type": {"application/json"}},
		Next: func(n int, last *Attempt, same bool) (Target, string, bool) {
			switch {
			case n == 0:
				return targets[0], "", true
			case same:
				return targets[i], "retry", true
			}
			if i+1 >= len(targets) {
				return Target{}, "", false
			}
			i++
			return targets[i], "fallback", true
		},
	}
}

func to(u *Upstream) Target { return Target{Upstream: u} }

// event is one chat chunk.
func event(content, finish string) string {
	f := "null"
	if finish != "" {
		f = `"` + finish + `"`
	}
	return `data: {"id":"c","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{"content":"` + content + `"},"finish_reason":` + f + "}]}\n\n"
}

const (
	roleEvent  = `data: {"id":"c","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}` + "\n\n"
	usageEvent = `data: {"id":"c","object":"chat.completion.chunk","model":"m","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12}}` + "\n\n"
	doneEvent  = "data: [DONE]\n\n"
)

// wholeStream is a complete answer of n content events.
func wholeStream(n int) string {
	return roleEvent + strings.Repeat(event("word ", ""), n) + event("", "stop") + usageEvent + doneEvent
}

// okPeer answers everything well.
func okPeer(t testing.TB) *peer {
	return newPeer(t, func(tn *turn) {
		if h, _ := wire.Scan(tn.body, wire.Chat); h.Stream {
			tn.head(200, "text/event-stream")
			tn.chunk(wholeStream(2))
			tn.finish()
			return
		}
		tn.reply(200, "application/json", okBody)
	})
}

func do(t testing.TB, p *Pool, r *Request) (Result, *recorder) {
	t.Helper()
	rec := &recorder{}
	return p.Do(context.Background(), r, rec), rec
}

func outcomes(res Result) string {
	var s []string
	for _, a := range res.Attempts {
		s = append(s, string(a.Outcome))
	}
	return strings.Join(s, " ")
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

var errBroken = errors.New("broken pipe")
