package e2e

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/internal/fakellm"
)

const pairYAML = `
server: { listen: "%%DATA%%" }
admin: { listen: "%%ADMIN%%" }
storage: { url: "%[1]s" }
redis: { url: "%[2]s" }
data_dir: "%%DIR%%/data-%%DATA%%"
resources:
  upstreams:
    - { name: v1, dialect: vllm, endpoints: [%[3]s], usage: exact, price: { input: "0.20", output: "0.80", cached_input: "0.02" } }
    - { name: v2, dialect: vllm, endpoints: [%[4]s], usage: exact, price: { input: "0.30", output: "1.20" } }
  models: [ { name: chat, default: { upstream: v1, model: m } } ]
  experiments:
    - key: chat-v2
      model: chat
      kind: ab
      state: running
      baseline: control
      variants:
        - { name: control, weight: 5000, upstream: v1, model: m }
        - { name: canary, weight: 5000, upstream: v2, model: m, fallback: control }
`

func quoted(s ...*fakellm.Server) string {
	var q []string
	for _, f := range s {
		q = append(q, strconv.Quote(f.URL()))
	}
	return strings.Join(q, ", ")
}

// total requests of TestBooksAgree; SLUICE_BOOKS=10000 is the long form.
func total(def int) int {
	if n, err := strconv.Atoi(os.Getenv("SLUICE_BOOKS")); err == nil {
		return n
	}
	return def
}

// TestBooksAgree sends mixed requests, with errors, fail-overs, truncations and
// cancels, and compares four books: what the upstreams say they generated, the
// access log, the ledger and /metrics. They must agree to the token.
func TestBooksAgree(t *testing.T) {
	t.Run("whole answers and faults", func(t *testing.T) { books(t, total(1500), false) })
	t.Run("with cancels", func(t *testing.T) { books(t, 300, true) })
}

func books(t *testing.T, n int, cancelled bool) {
	a, b, c := fake(t, fakellm.Options{Dialect: "vllm"}), fake(t, fakellm.Options{Dialect: "vllm"}), fake(t, fakellm.Options{Dialect: "vllm"})
	dir := t.TempDir()
	g := serve(t, dir, fmt.Sprintf(pairYAML, "sqlite:"+dir+"/sluice.db", "", quoted(a, b), quoted(c)))
	kinds := []string{
		"", "", "", "", "[[cached:3]]", "[[tokens:30]]", "[[status:503]]", "[[status:429]]", "[[status:400]]", "[[fault:empty]]",
		"[[fault:error_event code:503]]", "[[fault:error_event@2]]", "[[fault:truncate@4]]", "[[fault:no_done]]", "[[tool]]",
	}
	work, cancels := make(chan int), int64(0)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for i := range work {
				r := rand.New(rand.NewPCG(uint64(i), 7))
				if oneRequest(t, g, i, kinds[r.IntN(len(kinds))], r.IntN(3) > 0, cancelled && r.IntN(20) == 0) {
					mu.Lock()
					cancels++
					mu.Unlock()
				}
			}
		})
	}
	for i := range n {
		work <- i
	}
	close(work)
	wg.Wait()
	lines := g.Access(n)
	if len(lines) != n {
		t.Fatalf("%d access-log lines for %d requests", len(lines), n)
	}
	var logIn, logOut, logCost float64
	outcomes := map[string]int{}
	for _, l := range lines {
		outcomes[l["outcome"].(string)]++
		in, _ := l["input_tokens"].(float64)
		out, _ := l["output_tokens"].(float64)
		cost, _ := l["cost_usd"].(float64)
		logIn, logOut, logCost = logIn+in, logOut+out, logCost+cost
		if l["estimated"] == true {
			t.Errorf("an estimate with usage: exact: %v", l)
		}
	}
	t.Logf("%d requests, %d cancelled by their client, outcomes %v", n, cancels, outcomes)
	var upIn, upOut int64
	for _, s := range []*fakellm.Server{a, b, c} {
		upIn, upOut = upIn+s.Counts().ReportedInput, upOut+s.Counts().ReportedOutput
	}
	t.Logf("tokens by book: upstreams %d/%d, log %.0f/%.0f", upIn, upOut, logIn, logOut)
	var usage struct {
		Items []struct {
			Input    int64 `json:"input_tokens"`
			Output   int64 `json:"output_tokens"`
			Cost     int64 `json:"cost_nano_usd"`
			Requests int64 `json:"requests"`
		}
	}
	var ledgerIn, ledgerOut, ledgerCost, ledgerN int64
	for deadline := time.Now().Add(15 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		g.admin("GET", "/usage?group_by=model,variant&since=1h", "", &usage)
		ledgerIn, ledgerOut, ledgerCost, ledgerN = 0, 0, 0, 0
		for _, i := range usage.Items {
			ledgerIn, ledgerOut, ledgerCost, ledgerN = ledgerIn+i.Input, ledgerOut+i.Output, ledgerCost+i.Cost, ledgerN+i.Requests
		}
		if ledgerN == int64(n) {
			break
		}
	}
	m := scrape(t, g.Admin)
	promIn, promOut, promCost := m.sum("sluice_input_tokens_total"), m.sum("sluice_output_tokens_total"), m.sum("sluice_cost_usd_total")
	if ledgerN != int64(n) || m.sum("sluice_requests_total") != float64(n) {
		t.Errorf("requests: sent %d, ledger %d, metrics %.0f", n, ledgerN, m.sum("sluice_requests_total"))
	}
	if float64(ledgerIn) != logIn || float64(ledgerOut) != logOut || promIn != logIn || promOut != logOut {
		t.Errorf("tokens: log %.0f/%.0f, ledger %d/%d, metrics %.0f/%.0f", logIn, logOut, ledgerIn, ledgerOut, promIn, promOut)
	}
	if d := logCost - float64(ledgerCost)/1e9; d > 1e-9 || d < -1e-9 {
		t.Errorf("cost: log %.9f, ledger %.9f", logCost, float64(ledgerCost)/1e9)
	}
	if d := promCost - logCost; d > 1e-6 || d < -1e-6 {
		t.Errorf("cost: metrics %.9f, log %.9f", promCost, logCost)
	}
	// A client that goes away leaves at most what was on the wire between the
	// upstream and here: a few events. Without one the books are equal.
	if d := float64(upOut) - logOut; d < 0 || d > float64(8*cancels) {
		t.Errorf("output tokens: upstreams %d, log %.0f, %d cancels", upOut, logOut, cancels)
	}
	if d := float64(upIn) - logIn; d < 0 || d > 0 && cancels == 0 {
		t.Errorf("input tokens: upstreams %d, log %.0f", upIn, logIn)
	}
}

// oneRequest reports whether the client cancelled.
func oneRequest(t *testing.T, g *gateway, i int, kind string, stream, cancel bool) bool {
	ctx, stop := context.WithTimeout(context.Background(), 30*time.Second)
	defer stop()
	text := fmt.Sprintf("request %d %s", i, kind)
	if cancel {
		text, stream = fmt.Sprintf("request %d [[tokens:40 gap:5ms]]", i), true
	}
	req, _ := http.NewRequestWithContext(ctx, "POST", g.Data+"/v1/chat/completions", strings.NewReader(chatBody(text, stream)))
	req.Header.Set("X-User-Id", fmt.Sprint("user-", i%97))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Errorf("request %d: %v", i, err)
		return false
	}
	defer resp.Body.Close()
	if cancel {
		io.ReadAtLeast(resp.Body, make([]byte, 900), 900)
		return true
	}
	io.Copy(io.Discard, resp.Body)
	return false
}
