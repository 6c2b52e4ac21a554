package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sluice/internal/fakellm"
	"sluice/internal/testenv"
)

// TestSplitWithoutAFile starts with nothing but flags, and sends what an
// unchanged SDK sends, which is no user at all: both variants get their share,
// and a conversation keeps its variant over its turns.
func TestSplitWithoutAFile(t *testing.T) {
	a, b := fake(t, fakellm.Options{Models: []string{"Qwen3-8B"}}), fake(t, fakellm.Options{Models: []string{"Qwen3-8B"}})
	g := &gateway{t: t, Dir: t.TempDir()}
	data, admin := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t)), fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	g.Data, g.Admin = "http://"+data, "http://"+admin
	g.run([]string{"serve", "--listen", data, "--admin-listen", admin,
		"--upstream", "v1=" + a.URL(), "--upstream", "v2=" + b.URL(), "--split", "v1=70,v2=30"})
	share := map[string]int{}
	for i := range 200 {
		first := fmt.Sprintf(`{"role":"user","content":"conversation %d"}`, i)
		v := variantOf(t, g, `{"model":"Qwen3-8B","max_tokens":1,"messages":[`+first+`]}`)
		share[v]++
		next := variantOf(t, g, `{"model":"Qwen3-8B","max_tokens":1,"messages":[`+first+`,{"role":"assistant","content":"a"},{"role":"user","content":"and then?"}]}`)
		if next != v {
			t.Fatalf("conversation %d moved from %s to %s at its second turn", i, v, next)
		}
	}
	// 60 ± 4 standard deviations of 200 draws.
	if share["v2"] < 34 || share["v2"] > 86 || share["v1"]+share["v2"] != 200 {
		t.Errorf("shares of 200 conversations: %v", share)
	}
	if left, _ := filepath.Glob(filepath.Join(g.Dir, "*")); len(left) > 0 {
		t.Errorf("files are left behind: %v", left)
	}
}

func variantOf(t *testing.T, g *gateway, body string) string {
	t.Helper()
	resp, err := http.Post(g.Data+"/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != 200 {
		t.Fatalf("%d %s", resp.StatusCode, b)
	}
	return resp.Header.Get("X-Sluice-Variant")
}

// TestShutdownFinishesStreams sends SIGTERM in the middle of a stream: readiness
// goes at once, the stream ends whole, its tokens are in the ledger, exit is 0.
func TestShutdownFinishesStreams(t *testing.T) {
	up := fake(t, fakellm.Options{Dialect: "vllm"})
	dir := t.TempDir()
	yaml := fmt.Sprintf(plainYAML, "vllm", up.URL(), "final")
	g := serve(t, dir, strings.Replace(yaml, `listen: "%DATA%"`, `listen: "%DATA%", drain: { delay: 500ms }`, 1))
	resp, err := http.Post(g.Data+"/v1/chat/completions", "application/json", strings.NewReader(chatBody("[[tokens:60 gap:20ms]]", true)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	r := bufio.NewReader(resp.Body)
	r.ReadString('\n')
	g.cmd.Process.Signal(syscall.SIGTERM)
	until(t, "readyz turns 503", func() bool {
		ready, err := http.Get(g.Data + "/readyz")
		if err != nil {
			return false
		}
		ready.Body.Close()
		return ready.StatusCode == 503
	})
	if again, _ := g.chat("", "[[tokens:1]]"); again.StatusCode != 200 {
		t.Errorf("a request during the drain's delay got %d", again.StatusCode)
	}
	rest, err := io.ReadAll(r)
	if err != nil || !strings.HasSuffix(string(rest), "data: [DONE]\n\n") {
		t.Errorf("the stream was cut: %v …%q", err, rest[max(0, len(rest)-60):])
	}
	if err := <-g.done; err != nil {
		t.Errorf("exit status: %v\n%s", err, g.Log())
	}
	g.done <- nil
	if n := len(g.Access(2)); n != 2 {
		t.Errorf("%d access-log lines, want 2", n)
	}
}

// TestTerminateUnderLoad sends SIGTERM while requests arrive: whatever was
// answered is in the ledger when the process has ended, to the token.
func TestTerminateUnderLoad(t *testing.T) {
	a, b := fake(t, fakellm.Options{Dialect: "vllm"}), fake(t, fakellm.Options{Dialect: "vllm"})
	dir := t.TempDir()
	db := "sqlite:" + dir + "/sluice.db"
	g := serve(t, dir, fmt.Sprintf(pairYAML, db, "", quoted(a), quoted(b)))
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for w := range 16 {
		wg.Go(func() {
			for i := w; ; i += 16 {
				select {
				case <-stop:
					return
				default:
				}
				resp, err := http.Post(g.Data+"/v1/chat/completions", "application/json",
					strings.NewReader(chatBody(fmt.Sprintf("number %d [[tokens:12 gap:3ms]]", i), i%2 == 0)))
				if err != nil {
					continue // the listener is closed
				}
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		})
	}
	time.Sleep(700 * time.Millisecond)
	g.cmd.Process.Signal(syscall.SIGTERM)
	err := <-g.done
	g.done <- err
	close(stop)
	wg.Wait()
	if err != nil {
		t.Fatalf("exit status: %v\n%s", err, g.Log())
	}
	g.run(g.cmd.Args[1:]) // to read its ledger
	var usage struct {
		Items []struct {
			Requests int64 `json:"requests"`
			Input    int64 `json:"input_tokens"`
			Output   int64 `json:"output_tokens"`
		}
	}
	g.admin("GET", "/usage?group_by=variant", "", &usage)
	var requests, in, out, upIn, upOut, calls int64
	for _, i := range usage.Items {
		requests, in, out = requests+i.Requests, in+i.Input, out+i.Output
	}
	for _, s := range []*fakellm.Server{a, b} {
		c := s.Counts()
		calls, upIn, upOut = calls+c.Calls, upIn+c.ReportedInput, upOut+c.ReportedOutput
	}
	t.Logf("%d requests, tokens by the upstreams %d/%d, in the ledger %d/%d", requests, upIn, upOut, in, out)
	if requests != calls || in != upIn || out != upOut || requests < 100 {
		t.Errorf("the ledger has %d requests, %d/%d tokens; the upstreams had %d, %d/%d", requests, in, out, calls, upIn, upOut)
	}
}

// TestSecondSignal is for who cannot wait for a drain.
func TestSecondSignal(t *testing.T) {
	up := fake(t, fakellm.Options{Dialect: "vllm"})
	g := serve(t, t.TempDir(), fmt.Sprintf(plainYAML, "vllm", up.URL(), "final"))
	resp, err := http.Post(g.Data+"/v1/chat/completions", "application/json", strings.NewReader(chatBody("[[tokens:2000 gap:20ms]]", true)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	bufio.NewReader(resp.Body).ReadString('\n')
	g.cmd.Process.Signal(syscall.SIGTERM)
	until(t, "readyz turns 503", func() bool {
		ready, err := http.Get(g.Data + "/readyz")
		if err != nil {
			return true
		}
		ready.Body.Close()
		return ready.StatusCode == 503
	})
	time.Sleep(700 * time.Millisecond) // a signal that is sent twice at once, as supervisors do, is one
	g.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case err = <-g.done:
		g.done <- err
	case <-time.After(10 * time.Second):
		t.Fatal("it still runs 10 s after the second signal")
	}
	if err == nil {
		t.Error("the exit status is 0, though a stream was cut")
	}
}

// TestServesFromTheSnapshot starts with the database away: what was last known
// serves, read-only, and says so.
func TestServesFromTheSnapshot(t *testing.T) {
	pg := testenv.PostgresServer(t)
	a, b := fake(t, fakellm.Options{Dialect: "vllm"}), fake(t, fakellm.Options{Dialect: "vllm"})
	g := serve(t, t.TempDir(), fmt.Sprintf(pairYAML, pg.URL, "", quoted(a), quoted(b)))
	want := assigned(t, []*gateway{g}, 100)
	g.stop()
	pg.Stop()
	g.run(g.cmd.Args[1:])
	same(t, "a start without the database", want, assigned(t, []*gateway{g}, 100))
	ready, err := http.Get(g.Data + "/readyz?verbose")
	if err != nil {
		t.Fatal(err)
	}
	text, _ := io.ReadAll(ready.Body)
	ready.Body.Close()
	if ready.StatusCode != 200 || !strings.Contains(string(text), "degraded") {
		t.Errorf("readyz: %d %s", ready.StatusCode, text)
	}
	var p struct{ Code string }
	etag := g.admin("GET", "/experiments/chat-v2", "", nil).Header.Get("ETag")
	resp := g.admin("PUT", "/experiments/chat-v2/weights", `{"weights":{"control":5000,"canary":5000},"reason":"x"}`, &p, "If-Match", etag)
	if resp.StatusCode != 503 || p.Code != "read_only" {
		t.Errorf("a write without the database: %d %s", resp.StatusCode, p.Code)
	}
}

// TestBadStarts holds what a start says that cannot go well.
func TestBadStarts(t *testing.T) {
	for name, c := range map[string]struct {
		yaml, want string
	}{
		"unknown key":     {"server: { listne: \"127.0.0.1:0\" }\n", "did you mean `listen`"},
		"open without":    {"server: { listen: \"0.0.0.0:18080\" }\n", "auth.data"},
		"admin open":      {"server: { listen: \"127.0.0.1:0\" }\nadmin: { listen: \"0.0.0.0:18081\" }\n", "admin.token"},
		"no such secret":  {"resources: { upstreams: [ { name: v1, endpoints: [\"http://127.0.0.1:1/v1\"], credential: nope } ] }\n", "nope"},
		"weights sum":     {"resources: { upstreams: [ { name: v1, endpoints: [\"http://127.0.0.1:1/v1\"] } ], models: [ { name: m, default: { upstream: v1 } } ], experiments: [ { key: e, model: m, kind: canary, state: running, baseline: a, variants: [ { name: a, weight: 9000, upstream: v1 } ] } ] }\n", "10000"},
		"missing unit":    {"storage: { url: \"mysql://x\" }\n", "storage.url"},
		"price as number": {"resources: { upstreams: [ { name: v1, endpoints: [\"http://127.0.0.1:1/v1\"], price: { input: 0.2 } } ] }\n", "price"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "sluice.yaml")
			if err := os.WriteFile(file, []byte(c.yaml), 0o600); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			args := []string{"serve", "--config", file}
			if !strings.Contains(c.yaml, "server:") {
				args = append(args, "--listen", fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t)))
			}
			out, err := command(ctx, dir, args...)
			if err == nil || !strings.Contains(out, c.want) {
				t.Errorf("%v\n%s\nwant it to say %q", err, out, c.want)
			}
		})
	}
}
