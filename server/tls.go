package server

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// certCheck is how often the certificate's files are looked at, when there are
// handshakes.
const certCheck = 2 * time.Second

// certificate is a listener's key pair. It follows its files: whoever renews
// them needs neither a restart nor a signal. A pair that does not load leaves
// the old one in place.
type certificate struct {
	certFile, keyFile string
	log               *slog.Logger

	mu      sync.Mutex
	pair    *tls.Certificate
	looked  time.Time
	version [2]os.FileInfo
	err     error // of the last load
}

// newCertificate loads the pair, or says which file is at fault.
func newCertificate(certFile, keyFile string, log *slog.Logger) (*certificate, error) {
	c := &certificate{certFile: certFile, keyFile: keyFile, log: log}
	c.version = c.stat()
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("server.tls: %w", err)
	}
	c.pair, c.looked = &pair, time.Now()
	return c, nil
}

// stat tells whether the files are what they were.
func (c *certificate) stat() (v [2]os.FileInfo) {
	v[0], _ = os.Stat(c.certFile) // a file that is gone differs, and fails to load
	v[1], _ = os.Stat(c.keyFile)
	return v
}

func same(a, b os.FileInfo) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size() && os.SameFile(a, b)
}

// get is tls.Config.GetCertificate.
func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.Sub(c.looked) >= certCheck {
		c.looked = now
		if v := c.stat(); !same(v[0], c.version[0]) || !same(v[1], c.version[1]) || c.err != nil {
			c.version = v
			c.reload()
		}
	}
	return c.pair, nil
}

func (c *certificate) reload() {
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	switch {
	case err != nil && c.err == nil:
		c.log.Error("the new TLS certificate does not load; the old one stays", "err", err)
	case err == nil:
		c.pair = &pair
		c.log.Info("TLS certificate loaded", "not_after", pair.Leaf.NotAfter)
	}
	c.err = err
}

// degraded says what is wrong with the pair, "" if nothing is.
func (c *certificate) degraded() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.err != nil:
		return "certificate: the new TLS certificate does not load; the old one stays"
	case time.Now().After(c.pair.Leaf.NotAfter):
		return "certificate: the TLS certificate has expired"
	}
	return ""
}

// tlsConfig is the listener's.
func (c *certificate) tlsConfig() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: c.get, NextProtos: []string{"h2", "http/1.1"}}
}
