package upstream

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"sluice/upstream/wire"
)

// carrier moves one request to one endpoint. It is the seam at which an own
// HTTP/1.1 client replaces http.Transport for plain HTTP (docs/ARCHITECTURE.md,
// seams); it has http.RoundTripper's contract and calls GotConn of an
// httptrace.ClientTrace, by which stale connections are told from failures.
type carrier interface {
	RoundTrip(*http.Request) (*http.Response, error)
	CloseIdleConnections()
}

const (
	// selfHostedIdle is below the 5 s after which uvicorn and cpp-httplib close.
	selfHostedIdle = 4 * time.Second
	hostedIdle     = 60 * time.Second
	tcpKeepAlive   = 15 * time.Second
	maxIdlePerHost = 8192
	// writeBuffer is what net/http gathers before it writes.
	writeBuffer   = 4 << 10
	maxRespHeader = 256 << 10
)

// carrierKey is everything that connections depend on; endpoints keep their
// connections over a configuration change that leaves it alone.
type carrierKey struct {
	https   bool
	connect time.Duration
	idle    time.Duration
	tls     TLS
}

func keyOf(c *Config, https bool) carrierKey {
	k := carrierKey{https: https, connect: c.Timeouts.Connect, idle: selfHostedIdle}
	if https {
		k.tls = c.TLS
		if c.Dialect == wire.OpenAI {
			k.idle = hostedIdle
		}
	}
	return k
}

// dialError marks a failure to connect: no byte of the request was sent.
type dialError struct{ err error }

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// timeout tells a silent peer from one that refuses.
func (e *dialError) timeout() bool {
	var ne net.Error
	return errors.Is(e.err, os.ErrDeadlineExceeded) || errors.Is(e.err, context.DeadlineExceeded) ||
		errors.As(e.err, &ne) && ne.Timeout()
}

// newTransport is the carrier for both schemes today.
func newTransport(k carrierKey) (carrier, error) {
	d := &net.Dialer{
		Timeout:         k.connect,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: tcpKeepAlive, Interval: tcpKeepAlive, Count: 3},
	}
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := d.DialContext(ctx, network, addr)
		if err != nil {
			return nil, &dialError{err}
		}
		return c, nil
	}
	t := &http.Transport{
		Proxy:                  nil, // never from the environment
		DialContext:            dial,
		DisableCompression:     true,
		MaxIdleConns:           0,
		MaxIdleConnsPerHost:    maxIdlePerHost,
		IdleConnTimeout:        k.idle,
		ReadBufferSize:         4 << 10,
		WriteBufferSize:        writeBuffer,
		MaxResponseHeaderBytes: maxRespHeader,
	}
	if !k.https {
		return t, nil
	}
	cfg, err := tlsConfig(k.tls)
	if err != nil {
		return nil, err
	}
	cfg.NextProtos = []string{"h2", "http/1.1"}
	t.TLSClientConfig = cfg
	t.ForceAttemptHTTP2 = true
	t.DialTLSContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		raw, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return handshake(ctx, raw, cfg, addr, k.connect)
	}
	return t, nil
}

// handshake is done here, not by net/http, so that its failures are connect
// errors by type.
func handshake(ctx context.Context, raw net.Conn, cfg *tls.Config, addr string, limit time.Duration) (net.Conn, error) {
	cfg = cfg.Clone()
	cfg.ServerName, _, _ = net.SplitHostPort(addr)
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, max(limit, 5*time.Second))
		defer cancel()
	}
	c := tls.Client(raw, cfg)
	if err := c.HandshakeContext(ctx); err != nil {
		raw.Close()
		return nil, &dialError{fmt.Errorf("tls: %w", err)}
	}
	return c, nil
}

func tlsConfig(t TLS) (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if t.CAFile != "" {
		pem, err := os.ReadFile(t.CAFile)
		if err != nil {
			return nil, fmt.Errorf("tls ca_file: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("tls ca_file %s holds no PEM certificate", t.CAFile)
		}
	}
	if t.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("tls cert_file and key_file: %w", err)
		}
		cfg.Certificates = []tls.Certificate{cert}
	}
	return cfg, nil
}

// errUsedUp answers reads of a body that was given back.
var errUsedUp = errors.New("the request's body is gone")

// staleWindow is how long after sending the loss of a reused connection still
// counts as stale. An engine that dies in mid-prefill is a failure.
const staleWindow = 5 * time.Second

// source is the body of one attempt, in one of two forms.
//
// A small body of a plain HTTP request is inline: a reader that net/http knows
// to be in memory, so that header and body leave in one write. Both fit its
// write buffer, hence the body has been read before the first byte is sent, and
// after an error net/http waits for its writer: nobody reads it any more once
// RoundTrip has returned.
//
// Any other body may be read after RoundTrip returned, from a goroutine of
// net/http's own; release ends that, so that the bytes can be used for
// something else.
type source struct {
	mu     sync.Mutex
	data   []byte
	inline bool
	readTo int // furthest offset read
}

// inlineBytes is what header and body together may have to be sent inline,
// below writeBuffer by a margin for the request line.
const inlineBytes = writeBuffer - 512

// headerBytes is the size of a header on the wire.
func headerBytes(h http.Header) int {
	n := 0
	for k, vv := range h {
		for _, v := range vv {
			n += len(k) + len(v) + 4
		}
	}
	return n
}

// release ends all reading.
func (s *source) release() {
	s.mu.Lock()
	s.data = nil
	s.mu.Unlock()
}

// consumed tells whether the whole body has been read by the carrier.
func (s *source) consumed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inline || s.data == nil || s.readTo >= len(s.data)
}

func (s *source) open() io.ReadCloser {
	if s.inline {
		return io.NopCloser(bytes.NewReader(s.data))
	}
	return &sourceReader{s: s}
}

// rewind is http.Request.GetBody: net/http asks for it when it has a reused
// connection that failed before anything was written.
func (s *source) rewind() (io.ReadCloser, error) { return s.open(), nil }

// sourceReader is one pass over a source.
type sourceReader struct {
	s   *source
	off int
}

func (r *sourceReader) Read(p []byte) (int, error) {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	if r.s.data == nil {
		return 0, errUsedUp
	}
	if r.off >= len(r.s.data) {
		return 0, io.EOF
	}
	n := copy(p, r.s.data[r.off:])
	r.off += n
	r.s.readTo = max(r.s.readTo, r.off)
	return n, nil
}

func (r *sourceReader) Close() error { return nil }
