package e2e

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestEngine puts two processes of real engines behind one experiment. It needs
// what scripts/test-engine.sh installs and runs only with SLUICE_ENGINE=1.
// SLUICE_ENGINE_PAIRS names the pairs: "llamacpp+llamacpp,vllm+vllm".
func TestEngine(t *testing.T) {
	if os.Getenv("SLUICE_ENGINE") != "1" {
		t.Skip("SLUICE_ENGINE=1 is not set: run make test-engine")
	}
	pairs := os.Getenv("SLUICE_ENGINE_PAIRS")
	if pairs == "" {
		pairs = "llamacpp+llamacpp"
	}
	for pair := range strings.SplitSeq(pairs, ",") {
		t.Run(pair, func(t *testing.T) {
			one, two, ok := strings.Cut(pair, "+")
			if !ok {
				t.Fatalf("SLUICE_ENGINE_PAIRS has %q: want two engines as in llamacpp+vllm", pair)
			}
			runPair(t, one, two)
		})
	}
}

// enginePair is a gateway with one experiment: the variant control on the first
// engine, canary on the second.
type enginePair struct {
	t        *testing.T
	g        *gateway
	variants [2]string
	engines  [2]*engine
	taps     [2]*wireTap // before each engine, for the models tapped-…
	users    [2]string   // one of each variant
	asked    int         // requests before the books are opened
	table    bytes.Buffer
}

func runPair(t *testing.T, one, two string) {
	p := &enginePair{t: t, variants: [2]string{"control", "canary"}, engines: [2]*engine{newEngine(t, one), newEngine(t, two)}}
	for i, e := range p.engines {
		p.taps[i] = newWireTap(t, e.url)
	}
	p.engines[0].start()
	p.note("%s (control) ready after %.1f s", one, p.engines[0].await().Seconds())
	p.g = serve(t, t.TempDir(), p.yaml())
	p.loading()
	if t.Failed() {
		return
	}
	t.Run("books", func(t *testing.T) { p.t = t; p.books() })
	for i := range p.engines {
		t.Run("bytes of "+p.variants[i], func(t *testing.T) { p.t = t; p.bytes(i) })
		t.Run("cancel at "+p.variants[i], func(t *testing.T) { p.t = t; p.cancel(i, true); p.cancel(i, false) })
	}
	t.Run("crash", func(t *testing.T) { p.t = t; p.crash() })
	fmt.Printf("\n== %s as control, %s as canary\n%s\n", one, two, p.table.String())
}

func (p *enginePair) note(format string, args ...any) { fmt.Fprintf(&p.table, format+"\n", args...) }

func (p *enginePair) yaml() string {
	var ups strings.Builder
	for i, e := range p.engines {
		usage := "final"
		if e.kind == "vllm" {
			usage = "exact"
		}
		fmt.Fprintf(&ups, `
    - { name: v%d, dialect: %s, endpoints: ["%s/v1"], usage: %s, readiness: { interval: 200ms }, price: { input: "0.20", output: "0.80" } }`,
			i+1, e.kind, e.url, usage)
		fmt.Fprintf(&ups, `
    - { name: tap%d, dialect: %s, endpoints: ["%s/v1"] }`, i+1, e.kind, p.taps[i].URL)
	}
	return `
server: { listen: "%DATA%" }
admin: { listen: "%ADMIN%" }
storage: { url: "sqlite:%DIR%/sluice.db" }
data_dir: "%DIR%"
resources:
  upstreams:` + ups.String() + `
  models:
    - { name: chat, default: { upstream: v1, model: chat } }
    - { name: tapped-control, default: { upstream: tap1, model: chat } }
    - { name: tapped-canary, default: { upstream: tap2, model: chat } }
  experiments:
    - key: engines
      model: chat
      kind: canary
      state: running
      baseline: control
      variants:
        - { name: control, weight: 5000, upstream: v1, model: chat }
        - { name: canary, weight: 5000, upstream: v2, model: chat, fallback: control }
`
}

// short is a request that costs the engine little.
func short(n int) string { return fmt.Sprintf("Say hello to user %d.", n) }

func engineBody(text string, maxTokens int, more string) string {
	return fmt.Sprintf(`{"model":"chat","messages":[{"role":"user","content":%q}],"max_tokens":%d,"temperature":0,"seed":1%s}`, text, maxTokens, more)
}

// send posts a body as a user and returns the answer with its body read.
func send(ctx context.Context, base, user, body string) (*http.Response, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, "POST", base+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-User-Id", user)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp, b, err
}

// loading starts the second engine behind the running gateway: until the engine
// says that it is ready, every user of its variant is served by the other one,
// and the gateway sends it nothing.
func (p *enginePair) loading() {
	t, e := p.t, p.engines[1]
	t.Helper()
	one := func(n int) (served string) {
		user := fmt.Sprint("user-", n)
		p.asked++
		resp, b, err := send(t.Context(), p.g.Data, user, engineBody(short(n), 2, ""))
		if err != nil || resp.StatusCode != 200 {
			t.Fatalf("%v %s", err, b)
		}
		served, assigned := resp.Header.Get("X-Sluice-Variant"), resp.Header.Get("X-Sluice-Assigned")
		for i, v := range p.variants {
			if v == assigned || assigned == "" && v == served {
				p.users[i] = user
			}
		}
		return served
	}
	for n := 0; p.users[0] == "" || p.users[1] == ""; n++ {
		if n > 60 {
			t.Fatal("60 users and none of them in one of the variants")
		}
		one(n)
	}
	var canary int
	fmt.Sscanf(p.users[1], "user-%d", &canary)
	e.start()
	start, asked := time.Now(), 0
	for {
		before := e.ready()
		served := one(canary)
		if served == "canary" {
			if !before && !e.ready() {
				t.Fatal("the canary answered and its engine says that it is not ready")
			}
			break
		}
		asked++
		if calls := scrape(t, p.g.Admin).sum("sluice_upstream_requests_total", `upstream="v2"`); calls != 0 {
			t.Fatalf("%.0f calls to an engine that was not ready", calls)
		}
		if time.Since(start) > 15*time.Minute {
			t.Fatalf("no answer of the canary after 15 minutes:\n%s", e.tail())
		}
		time.Sleep(50 * time.Millisecond)
	}
	if asked < 3 {
		t.Errorf("only %d requests while the engine loaded: nothing was tested", asked)
	}
	p.note("%s (canary) loading for %.1f s: %d requests of its users, all answered by control, 0 calls to it", e.kind, time.Since(start).Seconds(), asked)
}

// What differs between two equal answers of one engine: the id, the second in
// which it was made, and how long llama.cpp took.
var differs = regexp.MustCompile(`("id": ?"chatcmpl-)[^"]*|("created": ?)\d+|("(?:prompt|predicted)_(?:ms|per_token_ms|per_second)": ?)[-0-9.e+]+`)

func unmarked(b []byte) []byte { return differs.ReplaceAll(b, []byte("$1$2$3")) }

// bytes sends the same requests straight to the engine and through the gateway,
// and compares the answers that the gateway need not change with those that the
// engine gave it.
func (p *enginePair) bytes(i int) {
	t, e := p.t, p.engines[i]
	cache := ""
	if e.kind == "llamacpp" {
		cache = `,"cache_prompt":false` // or the counts of cached tokens depend on what was asked before
	}
	equal, again, exact := 0, 0, 0
	for name, body := range map[string]string{
		"whole":             engineBody("Tell me of the sea, ü & <b>.", 24, cache),
		"stream":            engineBody("Tell me of the sea.", 24, cache+`,"stream":true`),
		"stream with usage": engineBody("Tell me of the hills.", 24, cache+`,"stream":true,"stream_options":{"include_usage":true}`),
		"usage false":       engineBody("Tell me of rain.", 24, cache+`,"stream":true,"stream_options":{"include_usage":false}`),
		"options null":      engineBody("Tell me of snow.", 12, cache+`,"stream":true,"stream_options":null`),
		"n=2":               engineBody("Tell me of wind.", 8, cache+`,"n":2`),
		"logprobs":          engineBody("Tell me of fog.", 6, cache+`,"logprobs":true,"top_logprobs":2`),
		"logprobs streamed": engineBody("Tell me of ice.", 6, cache+`,"logprobs":true,"top_logprobs":2,"stream":true`),
		"stop":              engineBody("Tell me of sun.", 24, cache+`,"stop":["e"],"stream":true`),
		"too long":          engineBody(strings.Repeat("sea ", 20000), 4, cache),
		"too long streamed": engineBody(strings.Repeat("sea ", 20000), 4, cache+`,"stream":true`),
		"wrong type":        `{"model":"chat","messages":[{"role":"user","content":7}]}`,
	} {
		var want, got []byte
		var direct, through *http.Response
		// vLLM joins the tokens of two steps in one event when its front end is
		// late, so two equal streams may be cut differently: try again.
		for range 6 {
			var err error
			if direct, want, err = send(t.Context(), e.url, "", body); err != nil {
				t.Fatal(name, err)
			}
			if through, got, err = send(t.Context(), p.g.Data, p.users[i], body); err != nil {
				t.Fatal(name, err)
			}
			if e.kind != "vllm" || bytes.Equal(unmarked(got), unmarked(want)) {
				break
			}
			again++
		}
		if v := through.Header.Get("X-Sluice-Variant"); v != p.variants[i] {
			t.Errorf("%s: served by %q", name, v)
		}
		if direct.StatusCode != through.StatusCode || !bytes.Equal(unmarked(got), unmarked(want)) {
			t.Errorf("%s: status %d, want %d\n got %q\nwant %q", name, through.StatusCode, direct.StatusCode, clip(got), clip(want))
			continue
		}
		equal++
		if !strings.Contains(body, `"stream":true`) || strings.Contains(body, `"include_usage":true`) || direct.StatusCode != 200 {
			if !p.relayed(t.Context(), i, name, body) {
				continue
			}
			exact++
		}
	}
	p.note("%s: %d kinds of answers equal those given straight (%d asked again), %d equal what the engine sent to the last byte", p.variants[i], equal, again, exact)
}

func clip(b []byte) []byte { return b[:min(len(b), 4000)] }

// long is a request that the engine works on until somebody ends it.
func long(stream bool) string {
	return engineBody("Count for ever.", longTokens, fmt.Sprintf(`,"ignore_eos":true,"stream":%v`, stream))
}

const longTokens = 3000

// events reads a stream up to its nth event.
func events(r io.Reader, n int) {
	for sc := bufio.NewScanner(r); n > 0 && sc.Scan(); {
		if strings.HasPrefix(sc.Text(), "data: ") {
			n--
		}
	}
}

// line waits for the access-log line of the client's request id.
func (p *enginePair) line(id string) map[string]any {
	p.t.Helper()
	for deadline := time.Now().Add(15 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		for _, l := range p.g.Access(0) {
			if l["client_request_id"] == id {
				return l
			}
		}
	}
	p.t.Fatalf("no access-log line for %s", id)
	return nil
}

// cancel goes away in the middle of a long answer and waits for the engine to
// notice.
func (p *enginePair) cancel(i int, stream bool) {
	t, e := p.t, p.engines[i]
	_, outBefore := e.tokens()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	mark := fmt.Sprintf("leaver-%d-%v", i, stream)
	req, _ := http.NewRequestWithContext(ctx, "POST", p.g.Data+"/v1/chat/completions", strings.NewReader(long(stream)))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Request-Id", mark)
	req.Header.Set("X-User-Id", p.users[i])
	if stream {
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		events(resp.Body, 10)
	} else {
		time.AfterFunc(time.Second, stop)
		if resp, err := http.DefaultClient.Do(req); err == nil {
			resp.Body.Close()
			t.Fatalf("%d tokens came within a second: make the answer longer", longTokens)
		}
	}
	stop()
	start, poll := time.Now(), 20*time.Millisecond
	if !stream && e.kind == "llamacpp" {
		// It looks for a client that left a whole answer only after a second
		// without a result of any task, and a scrape is a task.
		poll = 2500 * time.Millisecond
	}
	for time.Sleep(poll); e.busy() != 0; time.Sleep(poll) {
		if time.Since(start) > 30*time.Second {
			t.Fatal("the engine still works 30 s after the client went away")
		}
	}
	took := time.Since(start)
	line := p.line(mark)
	time.Sleep(500 * time.Millisecond) // the engine counts at the end of its step
	_, out := e.tokens()
	generated, metered := out-outBefore, line["output_tokens"]
	if line["outcome"] != "canceled" || generated >= longTokens {
		t.Errorf("outcome %v, %v of %d tokens generated", line["outcome"], generated, longTokens)
	}
	p.note("%s: cancelled (stream %v): the engine had stopped %d ms later, %.0f of %d tokens generated, metered %v, estimated %v",
		p.variants[i], stream, took.Milliseconds(), generated, longTokens, metered, line["estimated"])
}

// crash kills the canary's engine in the middle of an answer: the client must
// not take it for a whole one, and the next is answered by the fallback.
func (p *enginePair) crash() {
	t := p.t
	req, _ := http.NewRequestWithContext(t.Context(), "POST", p.g.Data+"/v1/chat/completions", strings.NewReader(long(true)))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-User-Id", p.users[1])
	cut, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer cut.Body.Close()
	events(cut.Body, 5)
	p.engines[1].kill()
	rest, err := io.ReadAll(cut.Body)
	if bytes.Contains(rest, []byte("[DONE]")) || err == nil && !bytes.Contains(rest, []byte("upstream_truncated")) {
		t.Errorf("a cut answer ended as a whole one: %v %q", err, rest[max(0, len(rest)-300):])
	}
	resp, b, err := send(t.Context(), p.g.Data, p.users[1], engineBody(short(1), 4, ""))
	if err != nil || resp.StatusCode != 200 || resp.Header.Get("X-Sluice-Variant") != "control" {
		t.Fatalf("after the crash: %v %v %s", err, resp.Header, b)
	}
	p.note("canary killed in mid-stream: the client saw a cut answer, the next was control's (fallback from %q)", resp.Header.Get("X-Sluice-Fallback-From"))
}
