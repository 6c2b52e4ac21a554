//go:build unix

package h1

import (
	"io"
	"os"
	"syscall"
)

// initRaw prepares reading by the descriptor, so that waiting needs no buffer.
// The closures are made once: they would be garbage of every read.
func (c *conn) initRaw() {
	sc, ok := c.Conn.(syscall.Conn)
	if !ok {
		return
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return
	}
	c.raw, c.reader, c.peeker = raw, c.readFD, c.peekFD
}

// readRaw reads into b what is there; patient: it waits for it. n is 0 without
// an error when nothing was there.
func (c *conn) readRaw(b *buffer, patient bool) (n int, err error) {
	c.into, c.patient, c.n, c.err = b, patient, 0, nil
	err = c.raw.Read(c.reader)
	c.into = nil
	if err == nil {
		err = c.err
	}
	return c.n, err
}

// readFD is readRaw's part with the descriptor; false: wait and call again.
func (c *conn) readFD(fd uintptr) bool {
	b := c.into
	b.room()
	n, err := syscall.Read(int(fd), b.b[b.w:])
	for err == syscall.EINTR {
		n, err = syscall.Read(int(fd), b.b[b.w:])
	}
	switch {
	case err == syscall.EAGAIN:
		b.rest()
		return !c.patient
	case err != nil:
		c.err = os.NewSyscallError("read", err)
	case n <= 0:
		c.err = io.EOF
	default:
		c.n = n
		b.w += n
	}
	return true
}

// peek looks what a read would find.
func (c *conn) peek() peeked {
	if c.raw == nil {
		return peekNothing
	}
	if c.raw.Control(c.peeker) != nil {
		return peekGone
	}
	return c.state
}

func (c *conn) peekFD(fd uintptr) {
	var one [1]byte
	for {
		n, _, err := syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.EAGAIN:
			c.state = peekNothing
		case err == nil && n > 0:
			c.state = peekData
		default:
			c.state = peekGone
		}
		return
	}
}
