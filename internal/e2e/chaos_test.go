package e2e

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sluice/internal/fakellm"
	"sluice/internal/testenv"
)

const chaosYAML = `
server: { listen: "%%DATA%%", drain: { delay: 0s } }
admin: { listen: "%%ADMIN%%" }
storage: { url: "%[1]s" }
redis: { url: "%[2]s" }
data_dir: "%%DIR%%/data"
log: { level: warn }
resources:
  upstreams:
    - { name: v1, dialect: vllm, usage: exact, endpoints: [%[3]s], timeouts: { connect: 500ms, first_byte: 2s, between_bytes: 2s }, readiness: { interval: 500ms }, slow_start: 2s, price: { input: "0.20", output: "0.80" } }
    - { name: v2, dialect: vllm, usage: exact, endpoints: [%[4]s], timeouts: { connect: 500ms, first_byte: 2s, between_bytes: 2s }, readiness: { interval: 500ms }, slow_start: 2s, price: { input: "0.30", output: "1.20" } }
  models: [ { name: chat, default: { upstream: v1, model: m } } ]
  experiments:
    - key: chat-v2
      model: chat
      kind: canary
      state: running
      baseline: control
      variants:
        - { name: control, weight: 5000, upstream: v1, model: m }
        - { name: canary, weight: 5000, upstream: v2, model: m, fallback: control }
`

// chaosTime is how long the run lasts; SLUICE_CHAOS=10m is the long form.
func chaosTime() time.Duration {
	if d, err := time.ParseDuration(os.Getenv("SLUICE_CHAOS")); err == nil {
		return d
	}
	return 20 * time.Second
}

// fault is something that happens to one replica, and its end.
type fault struct {
	name       string
	begin, end func(r *replica)
}

func behaviour(name string, b fakellm.Behaviour) fault {
	if b.Tokens == 0 {
		b.Tokens = usual.Tokens
	}
	return fault{name, func(r *replica) { r.behave(b) }, func(r *replica) { r.behave(usual) }}
}

var faults = []fault{
	{"kill -9, restart", func(r *replica) { r.kill() }, func(r *replica) { r.start(500 * time.Millisecond) }},
	{"SIGSTOP, SIGCONT", func(r *replica) { r.signal(syscall.SIGSTOP) }, func(r *replica) { r.signal(syscall.SIGCONT) }},
	behaviour("slow", fakellm.Behaviour{TTFT: time.Second, Gap: 50 * time.Millisecond}),
	behaviour("500", fakellm.Behaviour{Fault: fakellm.Status, Status: 500}),
	behaviour("503", fakellm.Behaviour{Fault: fakellm.Status, Status: 503}),
	behaviour("429", fakellm.Behaviour{Fault: fakellm.Status, Status: 429}),
	behaviour("429 with retry-after", fakellm.Behaviour{Fault: fakellm.Status, Status: 429, RetryAfter: "2"}),
	behaviour("truncated before its first token", fakellm.Behaviour{Fault: fakellm.Truncate}),
	behaviour("truncated in the middle", fakellm.Behaviour{Fault: fakellm.Truncate, After: 3, Gap: 5 * time.Millisecond}),
	behaviour("reset in the middle", fakellm.Behaviour{Fault: fakellm.Reset, After: 3, Gap: 5 * time.Millisecond}),
	behaviour("error as first event", fakellm.Behaviour{Fault: fakellm.ErrorEvent, Status: 503}),
	behaviour("error in the middle", fakellm.Behaviour{Fault: fakellm.ErrorEvent, After: 3, Status: 500}),
	behaviour("empty", fakellm.Behaviour{Fault: fakellm.Empty}),
	behaviour("garbage", fakellm.Behaviour{Fault: fakellm.Garbage}),
	behaviour("accepts and never answers", fakellm.Behaviour{Fault: fakellm.Hang}),
	behaviour("closes without an answer", fakellm.Behaviour{Fault: fakellm.Refuse}),
}

// TestChaos lets replicas fail in every way they do, under load, through two
// gateways, and accounts for every request that was not answered whole.
func TestChaos(t *testing.T) {
	d := chaosTime()
	seed := uint64(time.Now().UnixNano())
	if s, err := strconv.ParseUint(os.Getenv("SLUICE_CHAOS_SEED"), 10, 64); err == nil {
		seed = s
	}
	t.Logf("SLUICE_CHAOS=%s SLUICE_CHAOS_SEED=%d", d, seed)
	control := []*replica{startReplica(t), startReplica(t), startReplica(t)}
	canary := []*replica{startReplica(t), startReplica(t), startReplica(t)}
	all := append(append([]*replica{}, control...), canary...)
	redis, pg := testenv.Redis(t), testenv.Postgres(t)
	var gs []*gateway
	for range 2 {
		gs = append(gs, serve(t, t.TempDir(), fmt.Sprintf(chaosYAML, pg, redis.URL, urlsOf(control), urlsOf(canary))))
	}
	eventually(t, 15*time.Second, "every replica is ready", func() bool { return readyEndpoints(gs) == len(gs)*len(all) })

	l := &load{gateways: gs, rate: 40, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}}}
	l.tally.failed = map[string]int{}
	l.now.Store(&phase{name: "warm"})
	for i := range 40 {
		l.one(gs[i%2], i, i%2 == 0, false)
	}
	l.client.CloseIdleConnections()
	time.Sleep(5 * time.Second) // idle upstream connections close after 4 s
	base := usageOf(gs)

	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); l.run(ctx, seed) }()
	l.now.Store(&phase{name: "one of three"})
	happened := oneOfThree(t, gs, rand.New(rand.NewPCG(seed, 1)), [][]*replica{control, canary}, d*7/10)

	eventually(t, 20*time.Second, "every replica is ready again", func() bool { return readyEndpoints(gs) == len(gs)*len(all) })
	l.now.Store(&phase{name: "no canary"})
	each(canary, (*replica).kill)
	time.Sleep(d * 15 / 100)

	l.now.Store(&phase{name: "nothing", allDown: true})
	each(control, (*replica).kill)
	time.Sleep(d * 5 / 100)
	each(all, func(r *replica) { r.start(0) })
	each(all, func(r *replica) { eventually(t, 10*time.Second, "a replica is up", r.up) })
	recovered := recovery(l, gs)
	l.now.Store(&phase{name: "recovered"})
	time.Sleep(d / 10)
	stop()
	<-done
	l.client.CloseIdleConnections()
	time.Sleep(6 * time.Second)

	t.Logf("faults:\n%s", happened)
	t.Logf("%s", l.report())
	t.Logf("both gateways answered users of both variants again %d ms after every replica was up", recovered.Milliseconds())
	for _, w := range l.tally.wrong {
		t.Errorf("not hidden: %s", w)
	}
	if l.tally.answered.Load() < l.tally.sent.Load()/2 {
		t.Errorf("only %d of %d answered", l.tally.answered.Load(), l.tally.sent.Load())
	}
	chaosBooks(t, gs, all, int(l.tally.sent.Load()))
	for i, u := range usageOf(gs) {
		t.Logf("gateway %d: goroutines %d, descriptors %d, RSS %d MB; before %d, %d, %d MB", i, u[0], u[1], u[2]>>10, base[i][0], base[i][1], base[i][2]>>10)
		if u[0] > base[i][0]+20 || u[1] > base[i][1]+20 || u[2] > 3*base[i][2] {
			t.Errorf("gateway %d did not come back to its baseline", i)
		}
	}
}

// oneOfThree makes one replica of each variant fail at a time, for d. The next
// fails when the one before gets calls again.
func oneOfThree(t *testing.T, gs []*gateway, r *rand.Rand, groups [][]*replica, d time.Duration) string {
	var log strings.Builder
	for end := time.Now().Add(d); time.Now().Before(end); {
		var undo []func()
		for g, group := range groups {
			i, f := r.IntN(len(group)), faults[r.IntN(len(faults))]
			fmt.Fprintf(&log, "  %s: variant %d, replica %d: %s\n", time.Now().Format(time.TimeOnly), g, i, f.name)
			f.begin(group[i])
			undo = append(undo, func() { f.end(group[i]) })
		}
		time.Sleep(time.Duration(1000+r.IntN(2500)) * time.Millisecond)
		for _, f := range undo {
			f()
		}
		eventually(t, 40*time.Second, "every replica gets calls again", func() bool { return serving(gs) == len(gs)*len(groups)*len(groups[0]) })
	}
	return log.String()
}

// recovery is how long it takes until every gateway answers users of both
// variants, each time, with all replicas in place.
func recovery(l *load, gs []*gateway) time.Duration {
	start := time.Now()
	for row := 0; row < 20*len(gs) && time.Since(start) < 30*time.Second; row++ {
		req, _ := http.NewRequest("POST", gs[row%len(gs)].Data+"/v1/chat/completions", strings.NewReader(chatBody("hi", false)))
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("X-User-Id", fmt.Sprint("user-", row))
		l.tally.sent.Add(1)
		if class, _ := l.answer(req, false); class == "" {
			l.tally.answered.Add(1)
		} else {
			l.fail(class, false, l.now.Load(), l.now.Load())
			row = -1
			time.Sleep(20 * time.Millisecond)
		}
	}
	return time.Since(start)
}

// chaosBooks compares what the replicas told with what was metered, request by
// request, and the three books of the gateways with each other.
func chaosBooks(t *testing.T, gs []*gateway, all []*replica, sent int) {
	t.Helper()
	told := map[string][2]int{}
	each(all, func(r *replica) { r.tokens(told) })
	var in, out float64
	exact, wrong, lines := 0, 0, 0
	apart := map[string]int{}
	for _, g := range gs {
		for _, line := range g.Access(0) {
			lines++
			id, outcome := line["request_id"].(string), line["outcome"].(string)
			i, _ := line["input_tokens"].(float64)
			o, _ := line["output_tokens"].(float64)
			in, out = in+i, out+o
			switch want := told[id]; {
			case int(i) == want[0] && int(o) == want[1]:
				exact++
			case line["estimated"] == true:
				apart[outcome+", estimated"]++
			case outcome == "canceled" || outcome == "upstream_truncated" || outcome == "upstream_timeout":
				apart[outcome+", cut while a usage was on its way"]++
			default:
				attempts, _ := line["attempts"].(float64)
				apart[fmt.Sprintf("%s after %v attempts, one of them cut", outcome, attempts)]++
				if wrong++; attempts < 2 && wrong <= 5 {
					t.Errorf("metered %v/%v, told %v: %v", i, o, want, line)
				}
			}
		}
	}
	t.Logf("%d access-log lines, %d metered exactly as told; apart: %v", lines, exact, apart)
	if lines < sent || exact < lines*9/10 {
		t.Errorf("%d lines for %d requests, %d exact", lines, sent, exact)
	}
	var mIn, mOut, lIn, lOut float64
	for _, g := range gs {
		m := scrape(t, g.Admin)
		mIn, mOut = mIn+m.sum("sluice_input_tokens_total"), mOut+m.sum("sluice_output_tokens_total")
	}
	eventually(t, 15*time.Second, "the ledger has what the log has", func() bool {
		var usage struct {
			Items []struct {
				Input  float64 `json:"input_tokens"`
				Output float64 `json:"output_tokens"`
			}
		}
		gs[0].admin("GET", "/usage?group_by=variant&since=2h", "", &usage)
		lIn, lOut = 0, 0
		for _, u := range usage.Items {
			lIn, lOut = lIn+u.Input, lOut+u.Output
		}
		return lIn == in && lOut == out
	})
	t.Logf("tokens in/out: access log %.0f/%.0f, /metrics %.0f/%.0f, ledger %.0f/%.0f", in, out, mIn, mOut, lIn, lOut)
	if mIn != in || mOut != out {
		t.Error("the access log and /metrics differ")
	}
}

func eventually(t *testing.T, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s later: not so: %s", limit, what)
		}
	}
}

func each(list []*replica, f func(*replica)) {
	for _, r := range list {
		f(r)
	}
}

func urlsOf(list []*replica) string {
	var q []string
	each(list, func(r *replica) { q = append(q, strconv.Quote(r.url())) })
	return strings.Join(q, ", ")
}

func readyEndpoints(gs []*gateway) int { n, _ := standing(gs); return n }

// serving counts the endpoints that nothing keeps calls away from.
func serving(gs []*gateway) int { _, n := standing(gs); return n }

func standing(gs []*gateway) (ready, serving int) {
	for _, g := range gs {
		var out struct {
			Status map[string]struct {
				Endpoints []struct {
					Ready     bool
					Breaker   struct{ State string }
					CoolUntil time.Time `json:"cool_until"`
				}
			}
		}
		g.admin("GET", "/upstreams", "", &out)
		for _, u := range out.Status {
			for _, e := range u.Endpoints {
				if e.Ready {
					ready++
					if e.Breaker.State == "closed" && time.Now().After(e.CoolUntil) {
						serving++
					}
				}
			}
		}
	}
	return ready, serving
}

var totalRE = regexp.MustCompile(`total (\d+)`)

// usageOf is each gateway's goroutines, descriptors and resident KB.
func usageOf(gs []*gateway) (list [][3]int) {
	for _, g := range gs {
		var u [3]int
		if resp, err := http.Get(g.Admin + "/debug/pprof/goroutine?debug=1"); err == nil {
			b, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if m := totalRE.FindSubmatch(b); m != nil {
				u[0], _ = strconv.Atoi(string(m[1]))
			}
		}
		fds, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", g.cmd.Process.Pid))
		u[1] = len(fds)
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", g.cmd.Process.Pid))
		if _, rest, ok := strings.Cut(string(status), "VmRSS:"); ok {
			fmt.Sscan(rest, &u[2])
		}
		list = append(list, u)
	}
	return list
}
