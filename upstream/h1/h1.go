// Package h1 is a client of HTTP/1.1 over plain TCP, made for a gateway: one
// request, one answer, in the caller's goroutine. It hides connections and
// framing: which connection is used, when it may be used again, where a message
// ends, and how a call is cut off in any phase.
//
// No goroutine and no buffer belongs to a connection. A call writes head and
// body in one write, reads with a small buffer that exists only while bytes are
// at hand, and hands content out as views into that buffer. Answers are parsed
// strictly: what another reader could understand differently is refused.
package h1

import (
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"sync"
	"time"
)

// Options of a Client; the zero value means the documented defaults.
type Options struct {
	Connect   time.Duration // longest dial; 0 = no limit but the context's
	Idle      time.Duration // how long an unused connection is kept; 0 = 4 s
	KeepAlive time.Duration // TCP keep-alive period; 0 = 15 s
	MaxIdle   int           // unused connections kept per address; 0 = 8192
	// Dial replaces the dialer, and with it Connect and KeepAlive.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

// Defaults of Options.
const (
	defaultIdle      = 4 * time.Second // below the 5 s after which uvicorn and cpp-httplib close
	defaultKeepAlive = 15 * time.Second
	defaultMaxIdle   = 8192
)

// Client keeps connections and makes calls. It is safe for concurrent use.
type Client struct {
	dial func(ctx context.Context, network, addr string) (net.Conn, error)
	pool pool
}

// New returns a Client.
func New(o Options) *Client {
	if o.Idle <= 0 {
		o.Idle = defaultIdle
	}
	if o.KeepAlive <= 0 {
		o.KeepAlive = defaultKeepAlive
	}
	if o.MaxIdle <= 0 {
		o.MaxIdle = defaultMaxIdle
	}
	c := &Client{dial: o.Dial}
	if c.dial == nil {
		d := &net.Dialer{
			Timeout:         o.Connect,
			KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: o.KeepAlive, Interval: o.KeepAlive, Count: 3},
		}
		c.dial = d.DialContext
	}
	c.pool = pool{max: o.MaxIdle, keep: o.Idle, idle: map[string]*stack{}}
	return c
}

// CloseIdleConnections closes every connection that is not in use; those in use
// now are not kept either, until the next call.
func (c *Client) CloseIdleConnections() { c.pool.closeIdle(false) }

// Close closes every connection that is not in use and keeps none from now on.
// Calls that are under way, and later ones, work.
func (c *Client) Close() { c.pool.closeIdle(true) }

// Field is one header field. In answers Name is in canonical form
// (Content-Type), and Value has no space around it.
type Field struct{ Name, Value string }

// Request is one request. Content-Length and Host are set by Do; everything
// else goes out as it is given here, and nothing is added.
type Request struct {
	Method string
	URL    *url.URL // scheme and host are what is connected to
	Target string   // path and query as sent; "" = URL.RequestURI()
	Fields []Field
	Body   []byte // read only until Do returns
	// Fresh asks for a new connection, and drops the unused ones to the same
	// host: one of them was found closed.
	Fresh bool
	// Sent, when not nil, is called once, when there is a connection and the
	// first byte is about to be written. It must not block.
	Sent func()
}

// Response is the head of an answer, and its body. Close the body.
type Response struct {
	Status int
	Fields []Field
	Length int64 // of the body, -1 unknown
	Body   Body

	room [8]Field
}

// Get returns the value of the first field of that canonical name, or "".
func (r *Response) Get(name string) string {
	for i := range r.Fields {
		if r.Fields[i].Name == name {
			return r.Fields[i].Value
		}
	}
	return ""
}

// Body is the content of an answer. It is not safe for concurrent use.
type Body interface {
	// Read is io.Reader's.
	io.Reader
	// Next waits until there is content and returns what is there, at most some
	// KB; it is valid until the next call of any method. The last content may
	// come together with io.EOF.
	Next() ([]byte, error)
	// Finish says that the caller has all it wants and expects the end now. The
	// connection is kept when the end comes soon; nobody waits for it.
	Finish()
	// Close ends the call: a body that has not been read to its end costs the
	// connection.
	io.Closer
}

// Do makes one call. It returns when the head of the answer is there; the body
// is read from the connection as the caller asks for it. The end of ctx closes
// the connection in any phase, until the body has ended, and the call then
// fails with the context's cause. r.Body is not read after Do has returned.
//
// Errors: *DialError when nothing was sent, *ProtocolError for an answer that
// is not HTTP, else *CallError.
func (c *Client) Do(ctx context.Context, r *Request) (*Response, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	buf := writePool.Get().(*[]byte)
	defer putWrite(buf)
	head, err := appendHead((*buf)[:0], r)
	*buf = head
	if err != nil {
		return nil, &DialError{err}
	}
	e := &exchange{ctx: ctx, client: c}
	e.stop = onEnd(ctx, e.kill)
	if err := e.connect(r); err != nil {
		e.end()
		return nil, e.cause(err)
	}
	if r.Sent != nil {
		r.Sent()
	}
	if err := e.roundTrip(r, buf); err != nil {
		e.abandon()
		return nil, e.cause(err)
	}
	return &e.resp, nil
}

// onEnd is context.AfterFunc, but asks a context that has an AfterFunc of its
// own directly: package context would make a channel first. It returns nil for a
// context without an end.
func onEnd(ctx context.Context, f func()) (stop func() bool) {
	if a, ok := ctx.(interface{ AfterFunc(func()) func() bool }); ok {
		return a.AfterFunc(f)
	}
	if ctx.Done() == nil {
		return nil
	}
	return context.AfterFunc(ctx, f)
}

// exchange is one call: it owns a connection from connect to the end of the
// body, and it is that body.
type exchange struct {
	client *Client
	ctx    context.Context
	stop   func() bool // ends the watch over ctx; nil without
	c      *conn       // for the caller's goroutine
	out    sending
	resp   Response
	in     buffer
	f      framing
	view   []byte // content that Read has not passed on yet
	err    error  // sticky
	began  bool   // an interim answer came
	keep   bool   // the connection may be used again after the body

	mu     sync.Mutex
	owned  *conn // whoever takes it out decides what becomes of the connection
	killed bool
}

// attach makes c this call's; false when the call has been cut off meanwhile.
func (e *exchange) attach(c *conn) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.killed {
		return false
	}
	e.c, e.owned = c, c
	return true
}

// detach takes the connection out; nil when kill was faster.
func (e *exchange) detach() *conn {
	e.mu.Lock()
	c := e.owned
	e.owned = nil
	e.mu.Unlock()
	return c
}

// kill cuts the call off, from any goroutine.
func (e *exchange) kill() {
	e.mu.Lock()
	c := e.owned
	e.owned, e.killed = nil, true
	e.mu.Unlock()
	if c != nil {
		c.Close()
	}
}

// end stops watching the context.
func (e *exchange) end() {
	if e.stop != nil {
		e.stop()
		e.stop = nil
	}
}

// abandon closes the connection, if it is still ours, and ends the call.
func (e *exchange) abandon() {
	e.end()
	if c := e.detach(); c != nil {
		c.Close()
	}
	e.in.drop()
}

// cause is err, or why the call was cut off.
func (e *exchange) cause(err error) error {
	if e.ctx.Err() != nil {
		return context.Cause(e.ctx)
	}
	return err
}

// connect gets a connection, a kept one if there is one.
func (e *exchange) connect(r *Request) error {
	addr := address(r.URL)
	if r.Fresh {
		e.client.pool.drop(addr)
	} else if c := e.client.pool.get(addr); c != nil {
		if e.attach(c) {
			return nil
		}
		c.Close()
		return errKilled
	}
	e.client.pool.open()
	nc, err := e.client.dial(e.ctx, "tcp", addr)
	if err != nil {
		return &DialError{err}
	}
	c := newConn(nc, addr)
	if !e.attach(c) {
		c.Close()
		return errKilled
	}
	return nil
}

// address is what to dial for u.
func address(u *url.URL) string {
	if u.Port() != "" {
		return u.Host
	}
	return net.JoinHostPort(u.Hostname(), "80")
}

var errKilled = errors.New("the call was cut off")
