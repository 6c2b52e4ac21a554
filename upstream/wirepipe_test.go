package upstream

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"

	"sluice/upstream/h1"
)

// inTime runs f in virtual time with each client for plain HTTP; options makes
// a pool's from the upstream that is played.
func inTime(t *testing.T, f func(t *testing.T, options func(*wirePipe) PoolOptions)) {
	t.Run("h1", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { f(t, (*wirePipe).dialed) })
	})
	t.Run("nethttp", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { f(t, (*wirePipe).options) })
	})
}

// dialed plays the upstream behind real HTTP over pipes.
func (c *wirePipe) dialed() PoolOptions {
	return PoolOptions{carrier: func(carrierKey) (carrier, error) {
		return h1.New(h1.Options{Dial: func(_ context.Context, _, addr string) (net.Conn, error) {
			host, _, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, err
			}
			a, b := net.Pipe()
			go c.answer(b, host)
			return a, nil
		}}), nil
	}}
}

// answer serves one connection.
func (c *wirePipe) answer(conn net.Conn, host string) {
	defer conn.Close()
	br := bufio.NewReader(conn)
	for {
		r, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		io.Copy(io.Discard, r.Body)
		if r.Method == http.MethodGet {
			io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
			continue
		}
		if !c.answerCall(conn, br, host) {
			return
		}
	}
}

// answerCall answers a POST, chunked; false when the connection is at its end.
func (c *wirePipe) answerCall(conn net.Conn, br *bufio.Reader, host string) bool {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	closed := make(chan error, 1)
	go func() {
		_, err := br.Peek(1) // the next request, or the end
		if err != nil {
			cancel()
		}
		closed <- err
	}()
	pr, pw := io.Pipe()
	a := &answerPipe{head: make(chan *http.Response, 1), PipeWriter: pw, r: pr}
	go func() {
		c.serve(ctx, host, a)
		close(a.head)
		pw.Close()
	}()
	if resp := <-a.head; resp != nil {
		fmt.Fprintf(conn, "HTTP/1.1 %d X\r\nContent-Type: %s\r\nTransfer-Encoding: chunked\r\n\r\n", resp.StatusCode, resp.Header.Get("Content-Type"))
		buf := make([]byte, 64<<10)
		for {
			n, err := pr.Read(buf)
			if n > 0 {
				fmt.Fprintf(conn, "%x\r\n%s\r\n", n, buf[:n])
			}
			if err != nil {
				break
			}
		}
		io.WriteString(conn, "0\r\n\r\n")
	}
	return <-closed == nil
}
