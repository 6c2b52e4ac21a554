package server

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice/internal/fakellm"
)

// writePair makes a self-signed pair for 127.0.0.1 in dir.
func writePair(t *testing.T, dir, name string) (cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	pkcs, _ := x509.MarshalPKCS8PrivateKey(k)
	cert, key = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	for path, b := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: pkcs}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

// eachProtocol runs f against a plane that is spoken to in every protocol.
func eachProtocol(t *testing.T, f func(t *testing.T, up *fakellm.Server, base string, c *http.Client)) {
	t.Helper()
	dir := t.TempDir()
	cert, key := writePair(t, dir, "sluice")
	for _, c := range []struct {
		name string
		tls  bool
		set  func(*http.Protocols)
	}{
		{"http1", false, func(p *http.Protocols) { p.SetHTTP1(true) }},
		{"h2c", false, func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) }},
		{"http1 tls", true, func(p *http.Protocols) { p.SetHTTP1(true) }},
		{"h2 tls", true, func(p *http.Protocols) { p.SetHTTP2(true) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			up := fake(t, fakellm.Options{})
			p := newPlane(t, document(up.URL()), func(cfg *Config) {
				cfg.ReadTimeout, cfg.WriteTimeout = 300*time.Millisecond, 300*time.Millisecond
				cfg.MaxBody = 1 << 20
				cfg.CORSOrigins = []string{"https://app.example.com"} // all middleware
				if c.tls {
					cfg.CertFile, cfg.KeyFile = cert, key
				}
			})
			protocols := new(http.Protocols)
			c.set(protocols)
			tr := &http.Transport{Protocols: protocols, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
			t.Cleanup(tr.CloseIdleConnections)
			base := p.url
			if c.tls {
				base = strings.Replace(base, "http:", "https:", 1)
			}
			f(t, up, base, &http.Client{Transport: tr})
		})
	}
}

func postTo(ctx context.Context, c *http.Client, base, body string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, "POST", base+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	return c.Do(req)
}

// TestLongStreams: a stream far longer than every deadline of the server, with
// pauses that are longer too,
// arrives whole, in every protocol (scenario write_timeout).
func TestLongStreams(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, _ *fakellm.Server, base string, c *http.Client) {
		resp, err := postTo(t.Context(), c, base, ask("[[tokens:4 gap:700ms]]", true))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil || !strings.HasSuffix(string(b), "data: [DONE]\n\n") || resp.StatusCode != 200 {
			t.Errorf("%s: %v, %q", resp.Proto, err, b)
		}
	})
}

// TestCancelInEveryProtocol: one client leaves, the upstream notices at once,
// and the other requests of the connection go on.
func TestCancelInEveryProtocol(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, up *fakellm.Server, base string, c *http.Client) {
		stays, err := postTo(t.Context(), c, base, ask("[[tokens:20 gap:50ms]]", true))
		if err != nil {
			t.Fatal(err)
		}
		defer stays.Body.Close()
		for _, stream := range []bool{true, false} {
			before := len(up.Aborts())
			ctx, leave := context.WithCancel(t.Context())
			if stream {
				resp, err := postTo(ctx, c, base, ask("[[tokens:9999 gap:20ms]]", true))
				if err != nil {
					t.Fatal(err)
				}
				bufio.NewReader(resp.Body).ReadString('\n')
				leave()
				resp.Body.Close()
			} else {
				calls := up.Counts().Calls
				go func() { // when the request is there, not while it is on its way
					for up.Counts().Calls == calls && ctx.Err() == nil {
						time.Sleep(time.Millisecond)
					}
					leave()
				}()
				if resp, err := postTo(ctx, c, base, ask("[[fault:hang]]", false)); err == nil {
					resp.Body.Close()
					t.Fatal("a hanging request was answered")
				}
			}
			for until := time.Now().Add(5 * time.Second); len(up.Aborts()) == before; time.Sleep(time.Millisecond) {
				if time.Now().After(until) {
					t.Fatalf("stream %v: the upstream goes on", stream)
				}
			}
		}
		if b, err := io.ReadAll(stays.Body); err != nil || !strings.Contains(string(b), "[DONE]") {
			t.Errorf("the other stream: %v", err)
		}
	})
}

// TestStuckReaders: a client that reads nothing is cut off by the rolling
// deadline, and its upstream call with it (scenario slow_reader).
func TestStuckReaders(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, up *fakellm.Server, base string, c *http.Client) {
		resp, err := postTo(t.Context(), c, base, ask("[[tokens:150000]]", true))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		for until := time.Now().Add(20 * time.Second); up.Counts().InFlight > 0; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(until) {
				t.Fatalf("the upstream still writes: %+v", up.Counts())
			}
		}
		if b, err := io.ReadAll(resp.Body); err == nil {
			t.Errorf("a cut stream ended cleanly after %d bytes", len(b))
		}
	})
}

func TestLimitsInEveryProtocol(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, _ *fakellm.Server, base string, c *http.Client) {
		big := ask(strings.Repeat("x", 2<<20), false)
		resp, err := postTo(t.Context(), c, base, big)
		if err != nil {
			return // cut while it was still sending
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		if e := envelope(t, string(b)); resp.StatusCode != 413 || *e.Code != "request_too_large" {
			t.Errorf("%d %s", resp.StatusCode, b)
		}
	})
}

func TestHTTP10(t *testing.T) {
	t.Parallel()
	up := fake(t, fakellm.Options{})
	p := newPlane(t, document(up.URL()), nil)
	for _, stream := range []bool{true, false} {
		c := p.dial()
		body := ask("[[tokens:3]]", stream)
		io.WriteString(c, "POST /v1/chat/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: "+
			big.NewInt(int64(len(body))).String()+"\r\n\r\n"+body)
		b, err := io.ReadAll(c) // ends with the connection
		c.Close()
		head, text, _ := strings.Cut(string(b), "\r\n\r\n")
		if err != nil || !strings.HasPrefix(head, "HTTP/1.0 200") || strings.Contains(strings.ToLower(head), "chunked") {
			t.Errorf("stream %v: %v %s", stream, err, head)
		}
		if stream && !strings.HasSuffix(text, "data: [DONE]\n\n") || !stream && !strings.HasPrefix(text, "{") {
			t.Errorf("stream %v: %q", stream, text)
		}
	}
}

func TestCertificateFollowsItsFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	certFile, keyFile := writePair(t, dir, "first")
	up := fake(t, fakellm.Options{})
	p := newPlane(t, document(up.URL()), func(c *Config) { c.CertFile, c.KeyFile = certFile, keyFile })
	name := func() string {
		c, err := tls.Dial("tcp", strings.TrimPrefix(p.url, "http://"), &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].Subject.CommonName
	}
	waitName := func(want string) {
		t.Helper()
		for until := time.Now().Add(20 * time.Second); name() != want; time.Sleep(100 * time.Millisecond) {
			if time.Now().After(until) {
				t.Fatalf("serves %s, want %s", name(), want)
			}
		}
	}
	waitName("first")
	writePair(t, dir, "second")
	waitName("second")
	os.WriteFile(keyFile, []byte("broken"), 0o600)
	for until := time.Now().Add(20 * time.Second); len(p.srv.Degraded()) == 0; time.Sleep(100 * time.Millisecond) {
		if name() != "second" {
			t.Fatal("a broken pair replaced a good one")
		}
		if time.Now().After(until) {
			t.Fatal("a broken pair goes unnoticed")
		}
	}
	writePair(t, dir, "third")
	waitName("third")
	if d := p.srv.Degraded(); len(d) > 0 {
		t.Errorf("still degraded: %v", d)
	}
	if _, err := New(Config{Live: p.live, Doer: p.pool, Recorder: p.rec, CertFile: certFile, KeyFile: filepath.Join(dir, "none")}); err == nil || !strings.Contains(err.Error(), "server.tls") {
		t.Errorf("a missing key file: %v", err)
	}
}
