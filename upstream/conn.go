package upstream

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"sluice/upstream/h1"
	"sluice/upstream/wire"
)

// carrier moves requests to one endpoint: *h1.Client does for plain HTTP, and
// *transport, over net/http, for TLS. Errors are those of h1. The request's body
// may be read until the answer's body is closed if that has a method holds that
// says so, else until Do returns.
type carrier interface {
	Do(context.Context, *h1.Request) (*h1.Response, error)
	CloseIdleConnections()
	Close()
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
	addr    string // host:port to connect to; "" = as the URL says
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

// timedOut tells a silent peer from one that refuses.
func timedOut(d *h1.DialError) bool {
	var ne net.Error
	return errors.Is(d.Err, os.ErrDeadlineExceeded) || errors.Is(d.Err, context.DeadlineExceeded) ||
		errors.As(d.Err, &ne) && ne.Timeout()
}

// newCarrier chooses by scheme.
func newCarrier(k carrierKey) (carrier, error) {
	if k.https {
		return newTransport(k)
	}
	return h1.New(h1.Options{Dial: k.dial(), Idle: k.idle, MaxIdle: maxIdlePerHost}), nil
}

// dial connects to the key's address, or to the one that is asked for.
func (k carrierKey) dial() func(ctx context.Context, network, addr string) (net.Conn, error) {
	d := &net.Dialer{
		Timeout:         k.connect,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: tcpKeepAlive, Interval: tcpKeepAlive, Count: 3},
	}
	if k.addr == "" {
		return d.DialContext
	}
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		return d.DialContext(ctx, network, k.addr)
	}
}

// newTransport returns the carrier over net/http, which can do both schemes.
func newTransport(k carrierKey) (carrier, error) {
	connect := k.dial()
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := connect(ctx, network, addr)
		if err != nil {
			return nil, &h1.DialError{Err: err}
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
		return overNetHTTP(t, true), nil
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
	return overNetHTTP(t, false), nil
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
		return nil, &h1.DialError{Err: fmt.Errorf("tls: %w", err)}
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

// staleWindow is how long after sending the loss of a reused connection still
// counts as stale. An engine that dies in mid-prefill is a failure.
const staleWindow = 5 * time.Second
