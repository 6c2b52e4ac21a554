package dashboards_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"sluice/internal/testenv"
	"sluice/metrics"
	"sluice/metrics/dashboards"
)

var update = flag.Bool("update", false, "rewrite the generated files under deploy/")

const deploy = "../../deploy"

func TestFilesAreCurrent(t *testing.T) {
	for name, want := range dashboards.Files() {
		path := filepath.Join(deploy, name)
		if *update {
			if err := os.WriteFile(path, want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(string(got), string(want)); d != "" {
			t.Errorf("%s is stale, run `go generate ./metrics/dashboards` (-file +table):\n%s", path, d)
		}
	}
}

// promtool runs the checks of Prometheus's own tool.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	bin, err := exec.LookPath("promtool")
	if err != nil {
		testenv.Missing(t, "promtool", "prometheus")
	}
	cmd := exec.Command(bin, args...)
	cmd.Dir = filepath.Join(deploy, "prometheus")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func TestPromtool(t *testing.T) {
	promtool(t, "check", "rules", "rules.yml")
	promtool(t, "check", "config", "prometheus.yml")
	promtool(t, "test", "rules", "rules_test.yml")
}

// known reads the golden list of metric names and labels.
func known(t *testing.T) map[string][]string {
	t.Helper()
	raw, err := os.ReadFile("../testdata/names.golden")
	if err != nil {
		t.Fatal(err)
	}
	m := map[string][]string{}
	for line := range strings.Lines(string(raw)) {
		f := strings.Fields(line)
		m[f[0]] = strings.Split(strings.Trim(f[2], "{}"), ",")
	}
	for _, r := range dashboards.Recorded() {
		m[r.Record] = []string{"experiment", "variant", "outcome"}
	}
	return m
}

var (
	nameRE  = regexp.MustCompile(`(?:experiment_variant(?:_outcome)?:)?sluice_[a-z0-9_]+(?::[a-z0-9_]+)?(\{[^}]*\})?`)
	labelRE = regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)\s*"`)
)

// TestNamesExist holds the table against what the recorder exports.
func TestNamesExist(t *testing.T) {
	names := known(t)
	check := func(where, expr string) {
		found := nameRE.FindAllStringSubmatch(expr, -1)
		if len(found) == 0 && !strings.Contains(expr, "scrape_samples_scraped") {
			t.Errorf("%s: no metric in %s", where, expr)
		}
		for _, m := range found {
			name := strings.TrimSuffix(m[0], m[1])
			labels, ok := names[name]
			if !ok {
				labels, ok = names[strings.TrimSuffix(name, "_bucket")]
			}
			if !ok {
				t.Errorf("%s: nothing exports %s", where, name)
			}
			for _, l := range labelRE.FindAllStringSubmatch(m[1], -1) {
				if ok && !slices.Contains(labels, l[1]) {
					t.Errorf("%s: %s has no label %s", where, name, l[1])
				}
			}
		}
	}
	for _, d := range dashboards.Dashboards() {
		for _, row := range d.Rows {
			for _, p := range row.Panels {
				for _, q := range p.Queries {
					if !p.Optional {
						check(p.Title, q.Expr)
					}
				}
			}
		}
	}
	for _, r := range append(dashboards.Recorded(), dashboards.Alerts()...) {
		if !r.Later {
			check(r.Record+r.Alert, r.Expr)
		}
	}
}

// TestDashboardForm is a small linter of the rendered JSON.
func TestDashboardForm(t *testing.T) {
	uids := map[string]bool{}
	for name, raw := range dashboards.Files() {
		if !strings.HasSuffix(name, ".json") {
			continue
		}
		var d struct {
			UID    string
			ID     *int
			Panels []struct {
				ID                       int
				Type, Title, Description string
				GridPos                  struct{ X, Y, W, H int }
				FieldConfig              struct{ Defaults struct{ Unit string } }
				Targets                  []struct{ Expr string }
			}
		}
		if err := json.Unmarshal(raw, &d); err != nil {
			t.Fatal(err)
		}
		if d.UID == "" || uids[d.UID] || d.ID != nil || strings.Contains(string(raw), "__inputs") {
			t.Errorf("%s: bad uid %q, id %v or inputs", name, d.UID, d.ID)
		}
		uids[d.UID] = true
		ids, cells := map[int]bool{}, map[[2]int]string{}
		for _, p := range d.Panels {
			if ids[p.ID] {
				t.Errorf("%s: id %d twice", name, p.ID)
			}
			ids[p.ID] = true
			if p.GridPos.X+p.GridPos.W > 24 {
				t.Errorf("%s: %s sticks out", name, p.Title)
			}
			for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
				for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
					if other := cells[[2]int{x, y}]; other != "" {
						t.Fatalf("%s: %s lies on %s", name, p.Title, other)
					}
					cells[[2]int{x, y}] = p.Title
				}
			}
			if p.Type != "row" && (p.Description == "" || p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0) {
				t.Errorf("%s: %s lacks a description, unit or query", name, p.Title)
			}
		}
	}
	if len(uids) != 2 {
		t.Errorf("%d dashboards, want 2", len(uids))
	}
}

// TestPanelsOnPrometheus feeds a recorder, scrapes it with a real Prometheus and
// runs every query.
func TestPanelsOnPrometheus(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	reg := prometheus.NewRegistry()
	r := metrics.New(metrics.Options{Registerer: reg, Log: slog.New(slog.NewTextHandler(io.Discard, nil)), UpstreamStates: func() []metrics.UpstreamState {
		return []metrics.UpstreamState{{Name: "v1", Endpoints: []metrics.EndpointState{{Endpoint: "http://a", Ready: true, Breaker: "closed", Weight: 1}}}}
	}})
	r.SetConfig(3, true, time.Now())
	r.SetExperiments([]metrics.ExperimentInfo{{Key: "chat-v2", Model: "chat", State: "running", Revision: 3, Baseline: "control",
		Variants: []metrics.VariantInfo{{Name: "control", Weight: 9000}, {Name: "canary", Weight: 1000}}}})
	srv := httptest.NewServer(promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	t.Cleanup(srv.Close)

	rules := filepath.Join(t.TempDir(), "rules.yml")
	if err := os.WriteFile(rules, []byte(strings.ReplaceAll(dashboards.Rules(), "interval: 15s", "interval: 1s")), 0o644); err != nil {
		t.Fatal(err)
	}
	base := testenv.Prometheus(t, fmt.Sprintf(`
global: { scrape_interval: 1s, evaluation_interval: 1s }
rule_files: [%q]
scrape_configs:
  - job_name: sluice
    static_configs: [{ targets: [%q] }]
`, rules, strings.TrimPrefix(srv.URL, "http://")))

	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	if err := dashboards.CheckPanels(ctx, base, true); err == nil {
		t.Error("CheckPanels passes without any traffic")
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	rng := rand.New(rand.NewPCG(1, 1))
	var err error
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			t.Fatalf("the panels do not all have data: %v", err)
		case <-tick.C:
		}
		r.Record(sample(rng, "control", n))
		r.Record(sample(rng, "canary", n))
		r.SetRollouts(true, ramping(n))
		if n < 100 || n%20 != 0 {
			continue
		}
		if err = dashboards.CheckPanels(ctx, base, true); err == nil {
			err = dashboards.CheckRules(ctx, base)
		}
		if err == nil {
			return
		}
	}
}

// ramping is a ramp in its second step.
func ramping(n int) []metrics.RolloutInfo {
	value, bound := 0.02, 0.03
	return []metrics.RolloutInfo{{
		Experiment: "chat-v2", Phase: "ramping", Step: 1, Steps: 5, Target: 1000, Since: time.Now().Add(-time.Minute), DataAt: time.Now(),
		Guardrails: []metrics.GuardrailInfo{{Variant: "canary", Name: "error", State: "pending", Value: &value, Threshold: &bound,
			Trials: metrics.Trials{N: int64(n), Bad: int64(n / 50)}, Baseline: metrics.Trials{N: int64(9 * n)}}},
	}}
}

func sample(rng *rand.Rand, variant string, n int) metrics.Event {
	out := 20 + rng.Int64N(100)
	outcome := "success"
	if n%10 == 0 {
		outcome = "upstream_error"
	}
	d := time.Duration(rng.Int64N(int64(time.Second))) + 100*time.Millisecond
	return metrics.Event{
		Time: time.Now(), RequestID: fmt.Sprint(variant, n), API: "chat_completions", Model: "chat", Experiment: "chat-v2", Assigned: variant, Served: variant,
		Reason: "bucket", HasUnit: true, Unit: [8]byte{byte(n)}, Outcome: outcome, Status: 200, Stream: true, TTFT: d / 10, TTFA: d / 5,
		Asks: 1 | 1<<3, Answer: metrics.Answer{Seen: true, Judged: 1<<6 - 1, Flaws: uint8(n%7) % 2 << (n % 6), Chars: 4 * out, Events: out, Finish: [5]uint16{uint16(n % 2), uint16(1 - n%2)}, Gap: d / 20, Refusal: n%9 == 0},
		Duration: d, Overhead: time.Millisecond,
		Attempts: []metrics.Attempt{{Variant: variant, Upstream: "v1", Outcome: outcome, Duration: d, Input: 100, Cached: 20, Output: out, HasUsage: true, CostNano: out * 1000, Priced: true}},
	}
}
