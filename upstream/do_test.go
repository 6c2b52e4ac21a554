package upstream

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sluice/upstream/h1"
	"sluice/upstream/wire"
)

func loadHTTP(t *testing.T, name string, v any) {
	t.Helper()
	b, err := os.ReadFile("testdata/http/" + name)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, v); err != nil {
		t.Fatal(err)
	}
}

func TestUnary(t *testing.T) {
	up := newPeer(t, func(tn *turn) {
		tn.reply(200, "application/json; charset=utf-8", okBody, "Set-Cookie: a=b", "Server: secret", "X-RateLimit-Remaining-Requests: 7", "OpenAI-Processing-Ms: 3", "X-Extra: 1")
	})
	p, ups := pool(t, Config{Name: "a", Endpoints: []string{up.url()}, RespHeaders: []string{"x-extra", "set-cookie"}})
	res, rec := do(t, p, request(t, chatBody, Target{Upstream: ups["a"], Model: "served", Tag: "tag"}))
	if res.Outcome != Success || res.Status != 200 || !res.Committed || res.Finish != "stop" || res.Stream || res.TTFT <= 0 {
		t.Errorf("result %+v", res)
	}
	if res.Served.Tag != "tag" || res.Endpoint != up.url() {
		t.Errorf("served %+v at %s", res.Served, res.Endpoint)
	}
	if rec.text() != okBody {
		t.Errorf("client got %q", rec.text())
	}
	m := rec.metas[0]
	if m.Length != int64(len(okBody)) || m.Stream || m.Attempts != 1 {
		t.Errorf("meta %+v", m)
	}
	for k, want := range map[string]string{"Set-Cookie": "", "Server": "", "X-Ratelimit-Remaining-Requests": "7", "Openai-Processing-Ms": "3", "X-Extra": "1", "Content-Type": "application/json"} {
		if got := m.Header.Get(k); got != want {
			t.Errorf("header %s = %q, want %q", k, got, want)
		}
	}
	a := res.Attempts[0]
	if a.Usage != (wire.Usage{Input: 9, Output: 3}) || !a.HasUsage || a.Estimated || a.Status != 200 {
		t.Errorf("attempt %+v", a)
	}
	if got := string(up.last().body); got != strings.Replace(chatBody, `"m"`, `"served"`, 1) {
		t.Errorf("upstream got %s", got)
	}
	if up.last().req.URL.Path != "/v1/chat/completions" || up.last().req.Host != up.ln.Addr().String() {
		t.Errorf("upstream got %s at host %s", up.last().req.URL, up.last().req.Host)
	}
}

// What kinds of failure are tried again, and what the client gets when no
// other endpoint is left.
func TestRetryPolicy(t *testing.T) {
	answer := func(status int, body string, h ...string) func(*turn) {
		return func(tn *turn) { tn.reply(status, "application/json", body, h...) }
	}
	nested := func(code int) string {
		return `{"error":{"message":"no","type":"x","param":null,"code":` + http.StatusText(0) + jsonInt(code) + `}}`
	}
	tests := []struct {
		name    string
		serve   func(*turn)
		body    string // "" = chatBody
		outcome Outcome
		status  int
		code    string
		retried bool
	}{
		{name: "503", serve: answer(503, nested(503)), outcome: Error, status: 503, retried: true},
		{name: "502 html", serve: func(tn *turn) { tn.reply(502, "text/html", "<html>bad</html>") }, outcome: Error, status: 502, code: "upstream_error", retried: true},
		{name: "504", serve: answer(504, nested(504)), outcome: Error, status: 504, retried: true},
		{name: "500", serve: answer(500, nested(500)), outcome: Error, status: 500, retried: true},
		{name: "501", serve: answer(501, nested(501)), outcome: Error, status: 501},
		{name: "429", serve: answer(429, nested(429)), outcome: UpRateLimited, status: 429, retried: true},
		{name: "400", serve: answer(400, nested(400)), outcome: ClientError, status: 400},
		{name: "408", serve: answer(408, nested(408)), outcome: ClientError, status: 408},
		{name: "422", serve: answer(422, `{"error":"bad","error_type":"validation"}`), outcome: ClientError, status: 422},
		{name: "404 model", serve: answer(404, `{"error":{"message":"The model m does not exist.","type":"NotFoundError","param":"model","code":404}}`), outcome: Error, status: 404, retried: true},
		{name: "401", serve: answer(401, nested(401)), outcome: Error, status: 502, code: "upstream_error", retried: true},
		{name: "403", serve: answer(403, `{"error":"CANARY"}`), outcome: Error, status: 502, code: "upstream_error", retried: true},
		{name: "redirect", serve: answer(307, "", "Location: http://169.254.169.254/"), outcome: Invalid, status: 502, code: "upstream_invalid"},
		{name: "empty 200", serve: answer(200, ""), outcome: Invalid, status: 502, code: "upstream_invalid", retried: true},
		{name: "not JSON", serve: answer(200, "hello"), outcome: Invalid, status: 502, code: "upstream_invalid", retried: true},
		{name: "error in 200", serve: answer(200, nested(503)), outcome: Error, status: 503, retried: true},
		{name: "client error in 200", serve: answer(200, nested(400)), outcome: ClientError, status: 400},
		{name: "FIN before any byte", serve: (*turn).fin, outcome: Truncated, status: 502, code: "upstream_truncated", retried: true},
		{name: "RST before any byte", serve: (*turn).rst, outcome: Truncated, status: 502, code: "upstream_truncated", retried: true},
		{name: "half a header", serve: func(tn *turn) { tn.send("HTTP/1.1 200 OK\r\nContent-Type: a/b\r\n"); tn.fin() }, outcome: Truncated, status: 502, code: "upstream_truncated", retried: true},
		{name: "garbage", serve: func(tn *turn) { tn.send("SSH-2.0-OpenSSH_9.2\r\n\r\n"); tn.fin() }, outcome: Invalid, status: 502, code: "upstream_invalid", retried: true},
		{name: "short body", serve: func(tn *turn) {
			tn.send("HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n" + okBody)
			tn.fin()
		}, outcome: Truncated, status: 502, code: "upstream_truncated", retried: true},
		{name: "broken chunks", serve: func(tn *turn) {
			tn.head(200, "application/json")
			tn.send("zz\r\n")
			tn.fin()
		}, outcome: Truncated, status: 502, code: "upstream_truncated", retried: true},
		{name: "huge header", serve: func(tn *turn) {
			tn.send("HTTP/1.1 200 OK\r\nX-A: " + strings.Repeat("a", 1<<20) + "\r\n\r\n")
			tn.fin()
		}, outcome: Invalid, status: 502, code: "upstream_invalid", retried: true},
		{name: "role only", body: streamBody, serve: func(tn *turn) {
			tn.head(200, "text/event-stream")
			tn.chunk(roleEvent)
			tn.finish()
		}, outcome: Truncated, status: 502, code: "upstream_truncated", retried: true},
		{name: "comments only", body: streamBody, serve: func(tn *turn) {
			tn.head(200, "text/event-stream")
			tn.chunk(": x\n\n")
			tn.finish()
		}, outcome: Invalid, status: 502, code: "upstream_invalid", retried: true},
		{name: "error event 429", body: streamBody, serve: func(tn *turn) {
			tn.head(200, "text/event-stream")
			tn.chunk(roleEvent + `data: {"error":{"message":"slow down","code":429}}` + "\n\n")
			tn.finish()
		}, outcome: UpRateLimited, status: 429, code: "upstream_rate_limited", retried: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			bad, good := newPeer(t, tt.serve), okPeer(t)
			p, ups := pool(t, Config{Name: "a", Endpoints: []string{bad.url()}}, Config{Name: "b", Endpoints: []string{good.url()}})
			if tt.body == "" {
				tt.body = chatBody
			}
			res, rec := do(t, p, request(t, tt.body, to(ups["a"])))
			f := res.Failure
			if res.Outcome != tt.outcome || f == nil || f.Status != tt.status || res.Status != tt.status || f.Code != tt.code {
				t.Fatalf("alone: outcome %s, status %d, failure %+v; cause %v", res.Outcome, res.Status, f, res.Attempts[0].Err)
			}
			if f.Message == "" || f.Type == "" || strings.Contains(string(f.Body)+f.Message, "CANARY") || len(rec.metas) > 0 || f.NoRetry {
				t.Errorf("failure %+v, commits %d", f, len(rec.metas))
			}
			res, _ = do(t, p, request(t, tt.body, to(ups["a"]), to(ups["b"])))
			if got := res.Outcome == Success; got != tt.retried || (good.calls.Load() == 1) != tt.retried {
				t.Errorf("with a fallback: outcome %s, attempts %q", res.Outcome, outcomes(res))
			}
		})
	}
}

func jsonInt(n int) string { b, _ := json.Marshal(n); return string(b) }

// Another endpoint of the same upstream comes before the fallback; three
// attempts are the most.
func TestAttemptsAreBounded(t *testing.T) {
	var calls atomic.Int64
	serve := func(tn *turn) {
		calls.Add(1)
		tn.reply(503, "application/json", `{"error":{"message":"no","code":503}}`)
	}
	var urls []string
	for range 5 {
		urls = append(urls, newPeer(t, serve).url())
	}
	good := okPeer(t)
	p, ups := pool(t, Config{Name: "a", Endpoints: urls}, Config{Name: "b", Endpoints: []string{good.url()}})
	res, _ := do(t, p, request(t, chatBody, to(ups["a"])))
	if calls.Load() != 3 || len(res.Attempts) != 3 || res.Outcome != Error || !res.Failure.NoRetry {
		t.Errorf("calls %d, attempts %q, failure %+v", calls.Load(), outcomes(res), res.Failure)
	}
	seen := map[string]bool{}
	for _, a := range res.Attempts {
		seen[a.Endpoint] = true
	}
	if len(seen) != 3 {
		t.Errorf("an endpoint was tried twice: %v", seen)
	}
	for _, n := range []int{2, 5} { // the last attempt is the fallback's
		p, ups = pool(t, Config{Name: "a", Endpoints: urls[:n]}, Config{Name: "b", Endpoints: []string{good.url()}})
		res, _ = do(t, p, request(t, chatBody, to(ups["a"]), to(ups["b"])))
		if outcomes(res) != "upstream_error upstream_error success" || res.Served.Upstream != ups["b"] || res.Attempts[2].Reason != "fallback" {
			t.Errorf("attempts %q, served by %v", outcomes(res), res.Served.Upstream.Name())
		}
	}
}

func TestInternalErrorIsRetriedOnce(t *testing.T) {
	serve := func(tn *turn) { tn.reply(500, "application/json", `{"error":{"message":"no","code":500}}`) }
	urls := []string{newPeer(t, serve).url(), newPeer(t, serve).url(), newPeer(t, serve).url()}
	p, ups := pool(t, Config{Name: "a", Endpoints: urls})
	res, _ := do(t, p, request(t, chatBody, to(ups["a"])))
	if len(res.Attempts) != 2 {
		t.Errorf("attempts %q", outcomes(res))
	}
	// But a fallback is another model, which may do better.
	good := okPeer(t)
	p, ups = pool(t, Config{Name: "a", Endpoints: urls}, Config{Name: "b", Endpoints: []string{good.url()}})
	if res, _ = do(t, p, request(t, chatBody, to(ups["a"]), to(ups["b"]))); outcomes(res) != "upstream_error upstream_error success" {
		t.Errorf("attempts %q", outcomes(res))
	}
}

// deadPeer returns the URL of a port that passes its check once and then
// refuses connections.
func deadPeer(t *testing.T) *peer { return newPeer(t, func(tn *turn) { tn.fin() }) }

func TestConnectErrorIsFree(t *testing.T) {
	dead, slow := deadPeer(t), newPeer(t, func(tn *turn) { tn.reply(503, "text/plain", "") })
	p, ups := pool(t, Config{Name: "a", Endpoints: []string{dead.url()}}, Config{Name: "b", Endpoints: []string{slow.url()}})
	dead.close()
	res, _ := do(t, p, request(t, chatBody, to(ups["a"])))
	if res.Outcome != Unreachable || res.Failure.Code != "upstream_unreachable" || res.Failure.Status != 502 {
		t.Errorf("%s %+v %+v", res.Outcome, res.Failure, res.Attempts)
	}
	res, _ = do(t, p, request(t, chatBody, to(ups["a"]), to(ups["b"]), to(ups["b"]), to(ups["b"]), to(ups["b"])))
	if got, want := outcomes(res), "upstream_unreachable upstream_error upstream_error upstream_error"; got != want {
		t.Errorf("attempts %q, want %q: the free one is outside the three", got, want)
	}
	if res.Attempts[0].Free || !res.Attempts[1].Free || res.Attempts[2].Free || res.Attempts[3].Free {
		t.Errorf("free: %+v", res.Attempts)
	}
}

func TestNoReadyEndpoint(t *testing.T) {
	loading := okPeer(t)
	loading.check = func(tn *turn) { tn.reply(503, "application/json", `{"error":{"message":"Loading model"}}`) }
	good := okPeer(t)
	p, ups := pool(t, Config{Name: "a", Dialect: wire.LlamaCPP, Endpoints: []string{loading.url()}},
		Config{Name: "none"}, Config{Name: "b", Endpoints: []string{good.url()}})
	for _, name := range []string{"a", "none"} {
		res, _ := do(t, p, request(t, chatBody, to(ups[name])))
		f := res.Failure
		if res.Outcome != NoEndpoint || f == nil || f.Status != 503 || f.Code != "no_ready_endpoint" || f.RetryAfter == "" || f.NoRetry {
			t.Errorf("%s: %s %+v", name, res.Outcome, f)
		}
		if loading.calls.Load() != 0 {
			t.Error("an endpoint that is loading got traffic")
		}
		if len(res.Attempts) != 1 || res.Attempts[0].Endpoint != "" {
			t.Errorf("attempts %+v", res.Attempts)
		}
	}
	var last *Attempt
	r := request(t, chatBody, to(ups["a"]), to(ups["b"]))
	next := r.Next
	r.Next = func(n int, l *Attempt, same bool) (Target, string, bool) {
		if n == 1 {
			last = l
			if same {
				t.Error("the same target was offered again without a ready endpoint")
			}
		}
		return next(n, l, same)
	}
	res, rec := do(t, p, r)
	if res.Outcome != Success || last.Outcome != NoEndpoint || rec.metas[0].Attempts != 1 {
		t.Errorf("fallback: %s, last %+v, meta %+v", res.Outcome, last, rec.metas)
	}
}

// Next is asked before each attempt, and what it answers is used at once: a
// kill between two attempts takes effect.
func TestNextIsAskedBeforeEveryAttempt(t *testing.T) {
	var killed atomic.Bool
	bad := newPeer(t, func(tn *turn) { killed.Store(true); tn.reply(503, "text/plain", "") })
	spare, good := okPeer(t), okPeer(t)
	p, ups := pool(t, Config{Name: "a", Endpoints: []string{bad.url(), spare.url()}, Balance: "round_robin"}, Config{Name: "b", Endpoints: []string{good.url()}})
	r := request(t, chatBody)
	r.Next = func(n int, last *Attempt, same bool) (Target, string, bool) {
		if killed.Load() {
			return to(ups["b"]), "killed", true
		}
		return to(ups["a"]), "", true
	}
	res, _ := do(t, p, r)
	if res.Served.Upstream != ups["b"] || spare.calls.Load() != 0 || res.Attempts[1].Reason != "killed" {
		t.Errorf("attempts %+v", res.Attempts)
	}
}

func TestNextMayStopOrMisbehave(t *testing.T) {
	bad := newPeer(t, func(tn *turn) { tn.reply(503, "text/plain", "") })
	p, ups := pool(t, Config{Name: "a", Endpoints: []string{bad.url()}})
	r := request(t, chatBody, to(ups["a"]))
	r.Next = func(int, *Attempt, bool) (Target, string, bool) { return Target{}, "", false }
	if res, _ := do(t, p, r); res.Outcome != NoEndpoint || res.Failure == nil {
		t.Errorf("stopped at once: %+v", res)
	}
	r.Next = func(int, *Attempt, bool) (Target, string, bool) { return to(ups["a"]), "", true }
	if res, _ := do(t, p, r); res.Outcome != Error || bad.calls.Load() != 3 {
		t.Errorf("always the same: %s after %d calls", res.Outcome, bad.calls.Load())
	}
}

// B048: a black hole is a time-out, not a refusal, and is failed over.
func TestConnectTimeout(t *testing.T) {
	good := okPeer(t)
	dial := func(k carrierKey) (carrier, error) {
		return h1.New(h1.Options{Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if strings.HasPrefix(addr, "black.hole") {
				return nil, &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}
			}
			return new(net.Dialer).DialContext(ctx, network, addr)
		}}), nil
	}
	p, ups := poolWith(t, PoolOptions{carrier: dial}, Config{Name: "a", Endpoints: []string{"http://black.hole:1/v1"}}, Config{Name: "b", Endpoints: []string{good.url()}})
	ups["a"].endpoints()[0].ready.Store(true)
	res, _ := do(t, p, request(t, chatBody, to(ups["a"])))
	if res.Outcome != Timeout || res.Status != 504 || res.Failure.Code != "upstream_timeout" {
		t.Errorf("%s %+v", res.Outcome, res.Failure)
	}
	ups["a"].endpoints()[0].ready.Store(true)
	res, _ = do(t, p, request(t, chatBody, to(ups["a"]), to(ups["b"])))
	if outcomes(res) != "upstream_timeout success" || !res.Attempts[1].Free {
		t.Errorf("attempts %+v", res.Attempts)
	}
}

// B051: a 120 MB refusal is read to 1 MB and dropped.
func TestHugeErrorBody(t *testing.T) {
	var sent atomic.Int64
	up := newPeer(t, func(tn *turn) {
		tn.send("HTTP/1.1 400 X\r\nContent-Type: application/json\r\nContent-Length: 120000000\r\n\r\n" + `{"error":{"message":"`)
		block := []byte(strings.Repeat("e", 1<<20))
		for range 120 {
			n, err := tn.Write(block)
			sent.Add(int64(n))
			if err != nil {
				break
			}
		}
		tn.fin()
	})
	p, ups := pool(t, Config{Name: "a", Endpoints: []string{up.url()}})
	start := time.Now()
	res, _ := do(t, p, request(t, chatBody, to(ups["a"])))
	if res.Outcome != ClientError || res.Status != 400 || len(res.Failure.Body) > 64<<10 {
		t.Errorf("%s %d, body of %d bytes, %v", res.Outcome, res.Status, len(res.Failure.Body), time.Since(start))
	}
	if n := sent.Load(); n > 60<<20 {
		t.Errorf("%d bytes were taken", n)
	}
}
