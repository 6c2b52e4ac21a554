package e2e

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/internal/fakellm"
)

const limitedYAML = `
server: { listen: "%%DATA%%" }
admin: { listen: "%%ADMIN%%" }
storage: { url: "sqlite:%%DIR%%/sluice.db" }
data_dir: "%%DIR%%/data"
resources:
  upstreams:
    - { name: v1, dialect: vllm, endpoints: ["%s"], limits: { max_in_flight: %d, max_queue: %d, queue_timeout: 1s } }
  models: [ { name: chat, default: { upstream: v1, model: m } } ]
`

// TestOverload offers three times what the servers can do: they go on doing what
// they can, who gets in waits no longer than the queue, and the rest hears so at
// once. SLUICE_OVERLOAD=30s is the long form.
func TestOverload(t *testing.T) {
	const (
		slots   = 8
		queue   = 16
		service = 50 * time.Millisecond
	)
	span := 4 * time.Second
	if d, err := time.ParseDuration(os.Getenv("SLUICE_OVERLOAD")); err == nil {
		span = d
	}
	up := fake(t, fakellm.Options{Dialect: "vllm", Slots: slots, Default: fakellm.Behaviour{Tokens: 1, TTFT: service}})
	g := serve(t, t.TempDir(), fmt.Sprintf(limitedYAML, up.URL(), slots, queue))
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 500}}
	capacity := float64(slots) / service.Seconds()

	var mu sync.Mutex
	var accepted, rejected []time.Duration
	other := map[int]int{}
	var wg sync.WaitGroup
	tick := time.NewTicker(time.Duration(float64(time.Second) / (3 * capacity)))
	defer tick.Stop()
	for start := time.Now(); time.Since(start) < span; <-tick.C {
		wg.Go(func() {
			began := time.Now()
			resp, err := client.Post(g.Data+"/v1/chat/completions", "application/json", strings.NewReader(chatBody("hi", false)))
			if err != nil {
				t.Error(err)
				return
			}
			resp.Body.Close()
			took := time.Since(began)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case resp.StatusCode == 200:
				accepted = append(accepted, took)
			case resp.StatusCode == 429 && resp.Header.Get("X-Sluice-Error") == "queue_full" && resp.Header.Get("Retry-After") != "":
				rejected = append(rejected, took)
			default:
				other[resp.StatusCode]++
			}
		})
	}
	wg.Wait()
	goodput := float64(len(accepted)) / span.Seconds()
	at := func(list []time.Duration, q float64) time.Duration {
		slices.Sort(list)
		return list[int(q*float64(len(list)-1))]
	}
	if len(accepted) == 0 || len(rejected) == 0 {
		t.Fatalf("%d accepted, %d rejected, %v", len(accepted), len(rejected), other)
	}
	t.Logf("capacity %.0f/s, offered %.0f/s for %s: goodput %.1f/s (%.1f %%), accepted p50 %s p99 %s, rejected %d in p50 %s p99 %s",
		capacity, 3*capacity, span, goodput, 100*goodput/capacity, at(accepted, 0.5), at(accepted, 0.99), len(rejected), at(rejected, 0.5), at(rejected, 0.99))
	if len(other) > 0 {
		t.Errorf("answers that are neither: %v", other)
	}
	// The machine may be busy with other tests; the figures are in the log.
	if goodput < 0.7*capacity {
		t.Errorf("goodput %.1f/s of %.0f/s", goodput, capacity)
	}
	if p := at(accepted, 0.99); p > 3*time.Second {
		t.Errorf("accepted requests took %s", p)
	}
	if c := up.Counts(); c.InFlight != 0 {
		t.Errorf("%d calls are left over", c.InFlight)
	}
}

// TestStaleConnections asks at intervals around the time after which servers
// close idle connections, and of servers that close on the first byte of a
// request. No client sees an error. SLUICE_STALE=2m is the long form.
func TestStaleConnections(t *testing.T) {
	span := 12 * time.Second
	if d, err := time.ParseDuration(os.Getenv("SLUICE_STALE")); err == nil {
		span = d
	}
	up := fake(t, fakellm.Options{Dialect: "vllm", Default: fakellm.Behaviour{Tokens: 1}}) // closes after 5 s, as uvicorn does
	g := serve(t, t.TempDir(), fmt.Sprintf(limitedYAML, up.URL(), 0, 0))
	var mu sync.Mutex
	asked, failed := 0, map[int]int{}
	var wg sync.WaitGroup
	for w := range 40 { // each on a client of its own, at its own offset around 5 s
		gap := 5*time.Second + time.Duration(w-20)*2500*time.Microsecond
		wg.Go(func() {
			for start := time.Now(); time.Since(start) < span; time.Sleep(gap) {
				resp, err := http.Post(g.Data+"/v1/chat/completions", "application/json", strings.NewReader(chatBody("hi", false)))
				status := 0
				if err == nil {
					resp.Body.Close()
					status = resp.StatusCode
				}
				mu.Lock()
				asked++
				if status != 200 {
					failed[status]++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	t.Logf("%d requests every 5 s ± 50 ms for %s: failed %v", asked, span, failed)
	if len(failed) > 0 {
		t.Errorf("failed: %v", failed)
	}
}
