package upstream

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/upstream/h1"
)

// discard is the cheapest client.
type discard struct{}

func (discard) Commit(Meta)              {}
func (discard) Write([]byte) error       { return nil }
func (discard) FailInBand(Failure) error { return nil }

// benchUpstream answers from memory; stream is what a streaming request gets,
// one flush per event.
func benchUpstream(b *testing.B, events int) (*Pool, *Upstream) {
	parts := strings.SplitAfter(wholeStream(events), "\n\n")
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if !strings.Contains(string(body), `"stream":true`) {
			w.Header()["Content-Type"] = []string{"application/json"}
			io.WriteString(w, okBody)
			return
		}
		w.Header()["Content-Type"] = []string{"text/event-stream"}
		rc := http.NewResponseController(w)
		for _, e := range parts {
			io.WriteString(w, e)
			rc.Flush()
		}
	}))
	b.Cleanup(srv.Close)
	p, ups := pool(b, Config{Name: "a", Endpoints: []string{srv.URL}})
	return p, ups["a"]
}

func benchDo(b *testing.B, body string, events int) {
	p, u := benchUpstream(b, events)
	r := request(b, body, Target{Upstream: u, Model: "served"})
	r.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"*/*"}, "User-Agent": {"OpenAI/Python 1"}, "Authorization": {"Bearer x"}, "X-Stainless-Lang": {"python"}}
	b.ReportAllocs()
	for b.Loop() {
		if res := p.Do(context.Background(), r, discard{}); res.Outcome != Success {
			b.Fatal(res)
		}
	}
}

// The upstream runs in the same process: its cost is in the figures, see
// BenchmarkDirect for what it and net/http's client cost alone.
func BenchmarkDoUnary1KB(b *testing.B) {
	benchDo(b, chatBody[:len(chatBody)-1]+`,"user":"`+strings.Repeat("x", 1000)+`"}`, 0)
}
func BenchmarkDoStream100(b *testing.B) { benchDo(b, usageBody, 100) }

func BenchmarkDoStream100Injected(b *testing.B) { benchDo(b, streamBody, 100) }

func BenchmarkDirect(b *testing.B) {
	for name, body := range map[string]string{"unary": chatBody, "stream": usageBody} {
		b.Run(name, func(b *testing.B) {
			_, u := benchUpstream(b, 100)
			c := u.endpoints()[0].set.Load().carrier
			b.ReportAllocs()
			for b.Loop() {
				to := u.endpoints()[0].paths[0]
				resp, err := c.Do(context.Background(), &h1.Request{Method: "POST", URL: to.url, Target: to.target, Body: []byte(body)})
				if err != nil {
					b.Fatal(err)
				}
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		})
	}
}

// BenchmarkOpenStream reports what a quiet open stream holds, the scripted
// upstream's goroutine and buffers in the same process included.
func BenchmarkOpenStream(b *testing.B) {
	const streams = 1000
	goOn := make(chan struct{})
	up := newPeer(b, func(tn *turn) {
		tn.head(200, "text/event-stream")
		tn.chunk(roleEvent + event("a", ""))
		<-goOn
		tn.chunk(event("b", "stop") + doneEvent)
		tn.finish()
	})
	p, ups := pool(b, Config{Name: "a", Endpoints: []string{up.url()}})
	memory := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapInuse + m.StackInuse)
	}
	before := memory()
	for b.Loop() {
		var open, done sync.WaitGroup
		for range streams {
			open.Add(1)
			rec := &recorder{onCommit: open.Done}
			r := request(b, usageBody, to(ups["a"]))
			r.KeepAliveBefore, r.KeepAliveAfter = 45*time.Second, 15*time.Second
			done.Go(func() { p.Do(context.Background(), r, rec) })
		}
		open.Wait()
		b.ReportMetric(float64(memory()-before)/streams, "B/stream")
		for range streams {
			goOn <- struct{}{}
		}
		done.Wait()
	}
}
