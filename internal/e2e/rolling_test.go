package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sluice/internal/fakellm"
	"sluice/internal/testenv"
)

// balancer is what stands in front of replicas: it polls /readyz and sends new
// requests to those that say 200.
type balancer struct {
	gs    []*gateway
	ready []atomic.Bool
	turn  atomic.Uint64
	proxy httputil.ReverseProxy
}

func newBalancer(gs []*gateway, stop <-chan struct{}) *balancer {
	b := &balancer{gs: gs, ready: make([]atomic.Bool, len(gs))}
	b.proxy = httputil.ReverseProxy{FlushInterval: -1, Transport: &http.Transport{MaxIdleConnsPerHost: 100}, Rewrite: func(r *httputil.ProxyRequest) {
		for range 2 * len(gs) {
			if i := int(b.turn.Add(1)) % len(gs); b.ready[i].Load() {
				u, _ := url.Parse(gs[i].Data)
				r.SetURL(u)
				return
			}
		}
	}}
	for i, g := range gs {
		go func() {
			c := http.Client{Timeout: time.Second}
			for {
				resp, err := c.Get(g.Data + "/readyz")
				ok := err == nil && resp.StatusCode == 200
				if err == nil {
					resp.Body.Close()
				}
				b.ready[i].Store(ok)
				select {
				case <-stop:
					return
				case <-time.After(100 * time.Millisecond):
				}
			}
		}()
	}
	return b
}

// TestRollingRestart restarts two replicas in turn behind a load balancer, under
// unary requests and streams that are longer than the restart's delay: nothing
// fails, nothing is cut, nobody changes variants.
func TestRollingRestart(t *testing.T) {
	a, b := fake(t, fakellm.Options{Dialect: "vllm"}), fake(t, fakellm.Options{Dialect: "vllm"})
	redis, pg := testenv.Redis(t), testenv.Postgres(t)
	yaml := strings.Replace(pairYAML, `server: { listen: "%%DATA%%" }`, `server: { listen: "%%DATA%%", drain: { delay: 1s, timeout: 1m } }`, 1)
	var gs []*gateway
	for range 2 {
		gs = append(gs, serve(t, t.TempDir(), fmt.Sprintf(yaml, pg, redis.URL, quoted(a), quoted(b))))
	}
	stop := make(chan struct{})
	defer close(stop)
	lb := newBalancer(gs, stop)
	front := &http.Server{Handler: &lb.proxy}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go front.Serve(ln)
	defer front.Close()
	base := "http://" + ln.Addr().String()
	eventually(t, 5*time.Second, "both are ready", func() bool { return lb.ready[0].Load() && lb.ready[1].Load() })

	var ok, streams atomic.Int64
	var mu sync.Mutex
	var failed []string
	var variants sync.Map
	end := make(chan struct{})
	var wg sync.WaitGroup
	for w := range 12 {
		wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-end:
					return
				default:
				}
				user, stream := fmt.Sprint("user-", w), w%2 == 0
				text := "[[tokens:2]]"
				if stream {
					text = "[[tokens:100 gap:20ms]]"
				}
				v, err := askThrough(base, user, text, stream)
				if was, loaded := variants.LoadOrStore(user, v); err == nil && loaded && was != v {
					err = fmt.Errorf("%s moved from %v to %s", user, was, v)
				}
				if err != nil {
					mu.Lock()
					failed = append(failed, err.Error())
					mu.Unlock()
				} else if ok.Add(1); stream {
					streams.Add(1)
				}
				if !stream {
					time.Sleep(10 * time.Millisecond)
				}
			}
		})
	}
	time.Sleep(time.Second)
	for i, g := range gs {
		if err := g.stop(); err != nil {
			t.Errorf("replica %d: %v", i, err)
		}
		file := filepath.Join(g.Dir, fmt.Sprintf("sluice-%s.yaml", strings.ReplaceAll(strings.TrimPrefix(g.Data, "http://"), ":", "-")))
		g.run([]string{"serve", "--config", file})
		eventually(t, 10*time.Second, "it is back", lb.ready[i].Load)
		time.Sleep(500 * time.Millisecond)
	}
	close(end)
	wg.Wait()
	t.Logf("%d requests, %d of them streams of 2 s, over two restarts: %d failed", ok.Load(), streams.Load(), len(failed))
	for _, f := range failed[:min(len(failed), 10)] {
		t.Error(f)
	}
	if streams.Load() < 6 {
		t.Errorf("only %d streams", streams.Load())
	}
}

// askThrough sends one request and returns the variant of a whole answer.
func askThrough(base, user, text string, stream bool) (variant string, err error) {
	req, _ := http.NewRequest("POST", base+"/v1/chat/completions", strings.NewReader(chatBody(text, stream)))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-User-Id", user)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(bufio.NewReader(resp.Body))
	switch {
	case err != nil:
		return "", fmt.Errorf("cut after %d bytes: %w", len(b), err)
	case resp.StatusCode != 200:
		return "", fmt.Errorf("%d %s", resp.StatusCode, b)
	case stream && !strings.HasSuffix(string(b), "data: [DONE]\n\n"):
		return "", fmt.Errorf("a stream ended with %q", b[max(0, len(b)-200):])
	}
	return resp.Header.Get("X-Sluice-Variant"), nil
}
