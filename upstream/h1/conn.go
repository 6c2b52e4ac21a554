package h1

import (
	"net"
	"syscall"
	"time"
)

// conn is one connection. It is used by one goroutine at a time; only Close may
// come from another.
type conn struct {
	net.Conn
	addr string
	used bool // it has served a call

	idleAt time.Time // when it was put into the pool
	tail   *tail     // what is still to come of the last answer; nil: nothing

	// Of a read by the raw descriptor; raw is nil where there is none.
	raw     syscall.RawConn
	reader  func(fd uintptr) bool
	peeker  func(fd uintptr)
	into    *buffer
	n       int
	err     error
	patient bool
	state   peeked
}

// peeked is what a look at a connection found, without waiting.
type peeked uint8

const (
	peekNothing peeked = iota // open and silent
	peekData                  // bytes are there to be read
	peekGone                  // closed or broken
)

func newConn(nc net.Conn, addr string) *conn {
	c := &conn{Conn: nc, addr: addr}
	c.initRaw()
	return c
}

// fill waits for bytes and puts them into b, which has no memory meanwhile
// unless it holds something.
func (c *conn) fill(b *buffer) error {
	if c.raw == nil {
		b.room()
		n, err := c.Conn.Read(b.b[b.w:])
		b.w += n
		if n > 0 {
			return nil
		}
		return err
	}
	b.rest()
	_, err := c.readRaw(b, true)
	return err
}
