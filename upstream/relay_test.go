package upstream

import (
	"bytes"
	"compress/gzip"
	"context"
	"strings"
	"testing"
	"time"

	"sluice/upstream/wire"
)

// B012: what an answer is, is told by its bytes.
func TestAnswerOfAnotherKind(t *testing.T) { eachCarrier(t, answerOfAnotherKind) }

func answerOfAnotherKind(t *testing.T, o PoolOptions) {
	gz := func(s string) string {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		w.Write([]byte(s))
		w.Close()
		return b.String()
	}
	large := strings.Replace(okBody, "Hello", strings.Repeat("x", 3<<20), 1)
	tests := []struct {
		name, request, contentType, body string
		headers                          []string
		stream                           bool
		wantType                         string
		length                           int64  // 0 = of the body
		usage                            string // exact | estimated
	}{
		{name: "JSON for a stream", request: usageBody, contentType: "application/json", body: okBody, wantType: "application/json", usage: "exact"},
		{name: "JSON called a stream", request: usageBody, contentType: "text/event-stream", body: okBody, wantType: "application/json", usage: "exact"},
		{name: "stream for a unary request", request: chatBody, contentType: "text/event-stream", body: wholeStream(3), stream: true, wantType: "text/event-stream", length: -1, usage: "exact"},
		{name: "stream called text", request: usageBody, contentType: "text/plain", body: wholeStream(3), stream: true, wantType: "text/event-stream", length: -1, usage: "exact"},
		{name: "leading newlines", request: usageBody, contentType: "text/event-stream", body: "\n\n" + wholeStream(1), stream: true, wantType: "text/event-stream", length: -1, usage: "exact"},
		{name: "no type", request: chatBody, body: okBody, wantType: "application/json", usage: "exact"},
		{name: "without usage", request: chatBody, contentType: "application/json", body: okBody[:strings.Index(okBody, `,"usage"`)] + "}", wantType: "application/json", usage: "estimated"},
		{name: "3 MB", request: chatBody, contentType: "application/json", body: large, wantType: "application/json", usage: "exact"},
		{name: "gzip unasked", request: chatBody, contentType: "application/json", body: gz(okBody), headers: []string{"Content-Encoding: gzip"}, wantType: "application/json", usage: "estimated"},
	}
	for _, tt := range tests {
		for _, chunked := range []bool{false, true} {
			name := tt.name
			if chunked {
				name += " chunked"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				up := newPeer(t, func(tn *turn) {
					if chunked {
						tn.head(200, tt.contentType, tt.headers...)
						tn.chunk(tt.body)
						tn.finish()
						return
					}
					tn.reply(200, tt.contentType, tt.body, tt.headers...)
				})
				p, ups := poolWith(t, o, Config{Name: "a", Endpoints: []string{up.url()}})
				res, rec := do(t, p, request(t, tt.request, to(ups["a"])))
				if res.Outcome != Success || res.Stream != tt.stream || rec.text() != tt.body {
					t.Fatalf("outcome %s, stream %v, %d bytes of %d; %v", res.Outcome, res.Stream, len(rec.text()), len(tt.body), res.Attempts[0].Err)
				}
				m := rec.metas[0]
				want := tt.length
				if want == 0 {
					want = int64(len(tt.body))
				}
				if chunked && (len(tt.body) > maxHeld || tt.headers != nil) {
					want = -1
				}
				if m.Header.Get("Content-Type") != tt.wantType || m.Stream != tt.stream || m.Length != want {
					t.Errorf("meta %+v, want length %d", m, want)
				}
				if tt.headers != nil && m.Header.Get("Content-Encoding") != "gzip" {
					t.Errorf("the encoding is not declared: %v", m.Header)
				}
				a := res.Attempts[0]
				if !a.HasUsage || a.Estimated != (tt.usage == "estimated") || (!a.Estimated && a.Usage.Input != 9) {
					t.Errorf("usage %+v estimated %v", a.Usage, a.Estimated)
				}
				if got := ups["a"].Status()[0].InFlight; got != 0 {
					t.Errorf("%d in flight", got)
				}
			})
		}
	}
}

// B010: an error in gzip is read, not passed on under a wrong label.
func TestCompressedError(t *testing.T) {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	w.Write([]byte(`{"error":{"message":"slow down","type":"x","param":null,"code":"c"}}`))
	w.Close()
	bomb := func() string {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		w.Write(make([]byte, 8<<20))
		w.Close()
		return b.String()
	}()
	for body, want := range map[string]string{b.String(): "slow down", bomb: "", "not gzip": ""} {
		up := newPeer(t, func(tn *turn) { tn.reply(429, "application/json", body, "Content-Encoding: gzip") })
		p, ups := pool(t, Config{Name: "a", Endpoints: []string{up.url()}})
		res, _ := do(t, p, request(t, chatBody, to(ups["a"])))
		f := res.Failure
		if f == nil || f.Status != 429 || f.Header.Get("Content-Encoding") != "" || !strings.Contains(f.Message+string(f.Body), want) || len(f.Body) > maxErrorBody {
			t.Errorf("failure %+v", f)
		}
	}
}

func TestLargeAnswerCutShort(t *testing.T) {
	up := newPeer(t, func(tn *turn) {
		tn.send("HTTP/1.1 200 OK\r\nContent-Length: 9000000\r\nContent-Type: application/json\r\n\r\n" + `{"choices":[{"text":"` + strings.Repeat("x", 2<<20))
		tn.fin()
	})
	good := okPeer(t)
	p, ups := pool(t, Config{Name: "a", Endpoints: []string{up.url()}}, Config{Name: "b", Endpoints: []string{good.url()}})
	res, _ := do(t, p, request(t, chatBody, to(ups["a"]), to(ups["b"])))
	if res.Outcome != Truncated || !res.Abort || res.Failure != nil || good.calls.Load() != 0 {
		t.Errorf("%+v", res)
	}
}

// B017: the client's answer ends at [DONE]; the connection is used again when
// its end comes soon after.
func TestConnectionIsUsedAgainAfterDone(t *testing.T) {
	up := newPeer(t, func(tn *turn) {
		tn.head(200, "text/event-stream")
		tn.chunk(wholeStream(1))
		time.Sleep(2 * time.Millisecond) // the last chunk comes in a packet of its own
		tn.finish()
	})
	up.check = func(tn *turn) { tn.reply(404, "", "", "Connection: close"); tn.fin() }
	p, ups := pool(t, Config{Name: "a", Endpoints: []string{up.url()}})
	for range 5 {
		if res, _ := do(t, p, request(t, usageBody, to(ups["a"]))); res.Outcome != Success {
			t.Fatalf("%s", res.Outcome)
		}
		time.Sleep(20 * time.Millisecond)
	}
	if n := up.conns.Load(); n != 1 {
		t.Errorf("%d connections for 5 streams", n)
	}
}

func TestInjection(t *testing.T) {
	const cont = `data: {"id":"c","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}],"usage":{"prompt_tokens":9,"total_tokens":10,"completion_tokens":1}}` + "\n\n"
	for _, tt := range []struct {
		name       string
		cfg        Config
		api        wire.API
		body       string
		want, lack string
	}{
		{"final", Config{Dialect: wire.VLLM}, wire.Chat, streamBody, `"include_usage":true`, "continuous"},
		{"exact", Config{Dialect: wire.VLLM, UsageExact: true}, wire.Chat, streamBody, `"continuous_usage_stats":true`, ""},
		{"exact completions", Config{Dialect: wire.SGLang, UsageExact: true}, wire.Completions, `{"model":"m","stream":true,"prompt":"x"}`, `"continuous_usage_stats":true`, ""},
		{"client asked", Config{}, wire.Chat, usageBody, usageBody, ""},
		{"unary", Config{Dialect: wire.VLLM, UsageExact: true}, wire.Chat, chatBody, chatBody, "stream_options"},
		{"responses", Config{Dialect: wire.VLLM, UsageExact: true}, wire.Responses, `{"model":"m","stream":true,"input":"x"}`, "input", "stream_options"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			up := okPeer(t)
			up.check = func(tn *turn) { tn.reply(200, "", "") }
			tt.cfg.Name, tt.cfg.Endpoints = "a", []string{up.url()}
			p, ups := pool(t, tt.cfg)
			do(t, p, requestAPI(t, tt.api, tt.body, to(ups["a"])))
			got := string(up.last().body)
			if !strings.Contains(got, tt.want) || tt.lack != "" && strings.Contains(got, tt.lack) {
				t.Errorf("upstream got %s", got)
			}
		})
	}
	// With exact usage a cut stream's count is the upstream's, and the client
	// sees none of it.
	up := newPeer(t, func(tn *turn) {
		tn.head(200, "text/event-stream")
		tn.chunk(cont)
		tn.fin()
	})
	up.check = func(tn *turn) { tn.reply(200, "", "") }
	p, ups := pool(t, Config{Name: "a", Dialect: wire.VLLM, UsageExact: true, Endpoints: []string{up.url()}})
	res, rec := do(t, p, request(t, streamBody, to(ups["a"])))
	a := res.Attempts[0]
	if res.Outcome != Truncated || a.Usage != (wire.Usage{Input: 9, Output: 1}) || a.Estimated || strings.Contains(rec.text(), "usage") {
		t.Errorf("%s, usage %+v estimated %v, client got %s", res.Outcome, a.Usage, a.Estimated, rec.text())
	}
}

func TestEchoModel(t *testing.T) {
	up := okPeer(t)
	p, ups := pool(t, Config{Name: "a", Endpoints: []string{up.url()}})
	for _, body := range []string{chatBody, usageBody} {
		r := request(t, body, to(ups["a"]))
		r.EchoModel = "public"
		res, rec := do(t, p, r)
		if !strings.Contains(rec.text(), `"model":"public"`) || strings.Contains(rec.text(), `"model":"m"`) || res.Outcome != Success {
			t.Errorf("client got %s", rec.text())
		}
		if n := rec.metas[0].Length; n != -1 && n != int64(len(rec.text())) {
			t.Errorf("length %d of %d", n, len(rec.text()))
		}
	}
}

// The body may be reused from Release on: the bytes sent are not disturbed.
func TestReleaseIsCalledOnce(t *testing.T) {
	for _, size := range []int{10, 100 << 10} {
		body := `{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"` + strings.Repeat("x", size) + `"}]}`
		up := okPeer(t)
		p, ups := pool(t, Config{Name: "a", Endpoints: []string{up.url()}})
		r := request(t, body, to(ups["a"]))
		n := 0
		r.Release = func() { n++; clear(r.Body) }
		res, _ := do(t, p, r)
		if n != 1 || res.Outcome != Success || string(up.last().body) != body {
			t.Errorf("released %d times, outcome %s", n, res.Outcome)
		}
	}
}

// B068: a client that cannot be written to ends the upstream's work at once.
func TestClientWriteError(t *testing.T) {
	for name, body := range map[string]string{"stream": usageBody, "unary": chatBody} {
		t.Run(name, func(t *testing.T) {
			up := newPeer(t, func(tn *turn) {
				if name == "unary" {
					tn.reply(200, "application/json", okBody)
					return
				}
				tn.head(200, "text/event-stream")
				tn.chunk(event("a", ""))
				tn.hang()
			})
			p, ups := pool(t, Config{Name: "a", Endpoints: []string{up.url()}})
			rec := &recorder{onWrite: func(int) error { return errBroken }}
			res := p.Do(context.Background(), request(t, body, to(ups["a"])), rec)
			if res.Outcome != Canceled || res.Status != 499 || !res.Abort || res.Failure != nil || len(rec.inband) > 0 {
				t.Errorf("%+v", res)
			}
			if name == "stream" {
				<-up.gone
			}
		})
	}
}
