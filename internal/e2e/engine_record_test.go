package e2e

import (
	"bytes"
	"context"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
)

// wireTap stands between the gateway and an engine and keeps what the engine
// answered last, so that ids, times and numbers too can be compared.
type wireTap struct {
	*httptest.Server
	mu   sync.Mutex
	last bytes.Buffer
}

func newWireTap(t testing.TB, engine string) *wireTap {
	to, err := url.Parse(engine)
	if err != nil {
		t.Fatal(err)
	}
	tap := &wireTap{}
	proxy := &httputil.ReverseProxy{
		FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) },
		ErrorLog: log.New(io.Discard, "", 0), // the engine is not there yet
	}
	tap.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			proxy.ServeHTTP(w, r)
			return
		}
		tap.mu.Lock()
		tap.last.Reset()
		tap.mu.Unlock()
		proxy.ServeHTTP(&copied{w, tap}, r)
	}))
	t.Cleanup(tap.Close)
	return tap
}

// answer is the body of the engine's last answer.
func (tap *wireTap) answer() []byte {
	tap.mu.Lock()
	defer tap.mu.Unlock()
	return bytes.Clone(tap.last.Bytes())
}

type copied struct {
	http.ResponseWriter
	tap *wireTap
}

func (c *copied) Unwrap() http.ResponseWriter { return c.ResponseWriter }

func (c *copied) Write(p []byte) (int, error) {
	c.tap.mu.Lock()
	c.tap.last.Write(p)
	c.tap.mu.Unlock()
	return c.ResponseWriter.Write(p)
}

// relayed sends a body through the tap and compares what the client got with
// what the engine sent, every byte of it. It is for answers that the gateway
// does not change.
func (p *enginePair) relayed(ctx context.Context, i int, name, body string) (same bool) {
	p.t.Helper()
	through, got, err := send(ctx, p.g.Data, "", strings.Replace(body, `"model":"chat"`, `"model":"tapped-`+p.variants[i]+`"`, 1))
	if err != nil {
		p.t.Fatal(name, err)
	}
	if want := p.taps[i].answer(); len(want) == 0 || !bytes.Equal(got, want) {
		p.t.Errorf("%s: status %d\n got %q\nthe engine sent %q", name, through.StatusCode, clip(got), clip(want))
		return false
	}
	return true
}
