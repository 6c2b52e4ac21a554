package metrics_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"sluice/metrics"
)

var update = flag.Bool("update", false, "rewrite golden files")

var outcomeWords = func() (w []string) {
	for _, c := range metrics.Classes {
		w = append(w, c.Outcome)
	}
	return w
}()

func randomEvent(rng *rand.Rand, i int) metrics.Event {
	ev := event([]string{"", "e1", "e2"}[rng.IntN(3)], []string{"control", "canary"}[rng.IntN(2)])
	if ev.Experiment == "" {
		ev.Assigned = ""
	}
	ev.RequestID = fmt.Sprintf("r%06d", i)
	ev.Outcome = outcomeWords[rng.IntN(len(outcomeWords))]
	ev.Stream = rng.IntN(2) == 0
	if rng.IntN(20) == 0 {
		ev.Role = metrics.RoleShadow
	}
	ev.Attempts = nil
	for range rng.IntN(4) {
		in, out := rng.Int64N(100_000), rng.Int64N(5000)
		ev.Attempts = append(ev.Attempts, metrics.Attempt{
			Variant: []string{"control", "canary"}[rng.IntN(2)], Upstream: []string{"v1", "v2"}[rng.IntN(2)],
			Outcome: outcomeWords[rng.IntN(len(outcomeWords))], Duration: time.Duration(rng.Int64N(1e9)), Reason: "retry",
			Input: in, Cached: rng.Int64N(in + 1), Output: out, Reasoning: rng.Int64N(out + 1),
			HasUsage: rng.IntN(4) > 0, Estimated: rng.IntN(8) == 0, Priced: rng.IntN(5) > 0, CostNano: rng.Int64N(1e12),
		})
	}
	return ev
}

// TestSumsAgree is the promise that requests, tokens and cost are the same in
// the metrics, the store and the access log.
func TestSumsAgree(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	var log bytes.Buffer
	var stored metrics.Totals
	var rows int
	w := writeFunc(func(evs []metrics.Event) error {
		for i := range evs {
			rows++
			add(&stored, evs[i].Totals())
		}
		return nil
	})
	r := metrics.New(metrics.Options{Registerer: reg, Writer: w, AccessLog: &log, Log: quiet})
	stop := start(r)
	rng := rand.New(rand.NewPCG(3, 4))
	const n = 10_000
	var want metrics.Totals
	var shadows int
	perArm := map[string]int{}
	for i := range n {
		ev := randomEvent(rng, i)
		add(&want, ev.Totals())
		if ev.Role == metrics.RoleShadow {
			shadows++
		}
		perArm[ev.Experiment+"/"+ev.Assigned+"/"+ev.Outcome]++
		r.Record(ev)
	}
	if err := r.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if rows != n || stored != want {
		t.Errorf("the store has %d rows, %+v; want %d, %+v", rows, stored, n, want)
	}
	for name, v := range map[string]int64{
		"sluice_requests_total": n, "sluice_input_tokens_total": want.Input, "sluice_output_tokens_total": want.Output,
		"sluice_cached_input_tokens_total": want.Cached, "sluice_reasoning_output_tokens_total": want.Reasoning,
		"sluice_request_input_tokens": want.Input, "sluice_request_output_tokens": want.Output,
	} {
		if got, _ := sums(t, reg, name, nil); got != float64(v) {
			t.Errorf("%s = %v, want %d", name, got, v)
		}
	}
	if got, _ := sums(t, reg, "sluice_cost_usd_total", nil); math.Round(got*1e9) != float64(want.CostNano) {
		t.Errorf("sluice_cost_usd_total = %v, want %s", got, metrics.FormatUSD(want.CostNano))
	}
	for arm, n := range perArm {
		p := strings.Split(arm, "/")
		l := map[string]string{"experiment": or(p[0], "none"), "variant": or(p[1], "default"), "outcome": p[2], "api": "chat_completions", "model": "chat"}
		if got, _ := sums(t, reg, "sluice_requests_total", l); got != float64(n) {
			t.Errorf("requests of %s = %v, want %d", arm, got, n)
		}
	}
	checkLogSums(t, log.Bytes(), n-shadows)
}

func checkLogSums(t *testing.T, log []byte, lines int) {
	t.Helper()
	var in, nano int64
	n := 0
	for line := range bytes.Lines(log) {
		var l struct {
			Input *int64      `json:"input_tokens"`
			Cost  json.Number `json:"cost_usd"`
		}
		if err := json.Unmarshal(line, &l); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		n++
		if l.Input != nil {
			in += *l.Input
		}
		if l.Cost != "" {
			whole, frac, _ := strings.Cut(string(l.Cost), ".")
			var w, f int64
			fmt.Sscan(whole, &w)
			fmt.Sscanf((frac + "000000000")[:9], "%d", &f)
			nano += w*1e9 + f
		}
	}
	rng := rand.New(rand.NewPCG(3, 4))
	var want metrics.Totals
	for i := range 10_000 {
		if ev := randomEvent(rng, i); ev.Role != metrics.RoleShadow {
			add(&want, ev.Totals())
		}
	}
	if n != lines || in != want.Input || nano != want.CostNano {
		t.Errorf("the log has %d lines, %d input tokens, %d nano-USD; want %d, %d, %d", n, in, nano, lines, want.Input, want.CostNano)
	}
}

func add(sum *metrics.Totals, t metrics.Totals) {
	sum.Input += t.Input
	sum.Cached += t.Cached
	sum.CacheWr += t.CacheWr
	sum.Output += t.Output
	sum.Reasoning += t.Reasoning
	sum.CostNano += t.CostNano
}

func or(s, word string) string {
	if s == "" {
		return word
	}
	return s
}

type writeFunc func([]metrics.Event) error

func (f writeFunc) WriteEvents(_ context.Context, evs []metrics.Event) error { return f(evs) }

// full returns a recorder in which every metric has at least one series.
func full(t *testing.T, reg prometheus.Registerer) *metrics.Recorder {
	r := metrics.New(metrics.Options{Registerer: reg, Log: quiet, Version: "1.2.3", MaxSeries: 500, UpstreamStates: func() []metrics.UpstreamState {
		return []metrics.UpstreamState{{Name: "v1", Endpoints: []metrics.EndpointState{
			{Endpoint: "http://a", Ready: true, InFlight: 2, Breaker: "half_open", Weight: 0.5, Running: 3, Waiting: 1, KVUse: 0.25},
			{Endpoint: "http://b", InFlight: 3, Breaker: "open", Drained: true, Cooling: true, Waiting: -1, KVUse: -1}, {Endpoint: "http://b", Waiting: -1, KVUse: -1}, {Endpoint: "bad\xff", Waiting: -1, KVUse: -1},
		}}}
	}})
	r.SetConfig(12, true, time.Unix(1700000000, 0))
	for _, state := range []string{"running", "rolled_back", "rolled_back", "running"} {
		r.SetExperiments([]metrics.ExperimentInfo{{Key: "e1", Model: "chat", State: state, Revision: 11, Baseline: "control",
			Variants: []metrics.VariantInfo{{Name: "control", Weight: 9000}, {Name: "canary", Weight: 1000}}}})
	}
	ev := event("e1", "canary")
	ev.Queued, ev.Upstream = time.Second, "v1"
	ev.HasUnit, ev.Unit = true, [8]byte{1}
	ev.TTFA, ev.Answer = time.Second, metrics.Answer{Seen: true, Gap: time.Second}
	ev.Attempts = []metrics.Attempt{
		{Variant: "canary", Upstream: "v1", Outcome: "upstream_error", Input: 5, Cached: 9, HasUsage: true, Output: 3},
		{Variant: "control", Upstream: "v2", Outcome: "success", Input: 5, Output: 3, HasUsage: true, CostNano: 7, Priced: true, Reason: "fallback"},
	}
	r.Record(ev)
	for i := range 9 {
		r.Record(event(fmt.Sprintf("x%d", i), "a"))
	}
	r.CountSticky("pin_timeout", 2)
	r.CountSticky("pin_timeout", -1)
	rollouts(r)
	return r
}

func TestLint(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	full(t, reg)
	problems, err := testutil.GatherAndLint(reg)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

func TestUpstreamGauges(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	full(t, reg)
	want := `
# HELP sluice_upstream_breaker_state 1 for the state of the worst breaker among the upstream's endpoints, else 0.
# TYPE sluice_upstream_breaker_state gauge
sluice_upstream_breaker_state{state="closed",upstream="v1"} 0
sluice_upstream_breaker_state{state="half_open",upstream="v1"} 0
sluice_upstream_breaker_state{state="open",upstream="v1"} 1
# HELP sluice_endpoint_engine_waiting_requests Requests that wait in the engine.
# TYPE sluice_endpoint_engine_waiting_requests gauge
sluice_endpoint_engine_waiting_requests{endpoint="http://a",upstream="v1"} 1
# HELP sluice_experiment_rollbacks_total Experiments that went back to their baseline, as this replica saw it, and what made them.
# TYPE sluice_experiment_rollbacks_total counter
sluice_experiment_rollbacks_total{experiment="e1",trigger="breaker"} 0
sluice_experiment_rollbacks_total{experiment="e1",trigger="guardrail"} 0
sluice_experiment_rollbacks_total{experiment="e1",trigger="limit"} 0
sluice_experiment_rollbacks_total{experiment="e1",trigger="manual"} 1
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "sluice_upstream_breaker_state", "sluice_endpoint_engine_waiting_requests", "sluice_experiment_rollbacks_total"); err != nil {
		t.Error(err)
	}
}

// TestNamesAreAContract fails when a metric or label is renamed: dashboards and
// alerts of users hang on them. Run with -update after adding one.
func TestNamesAreAContract(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	full(t, reg)
	var got strings.Builder
	for _, f := range gather(t, reg) {
		labels := map[string]bool{}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = true
			}
		}
		var names []string
		for l := range labels {
			names = append(names, l)
		}
		slices.Sort(names)
		fmt.Fprintf(&got, "%s %s {%s}\n", f.GetName(), strings.ToLower(f.GetType().String()), strings.Join(names, ","))
	}
	const golden = "testdata/names.golden"
	if *update {
		if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got.String()); d != "" {
		t.Errorf("metric names or labels changed (-want +got):\n%s", d)
	}
}

func TestLabels(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	full(t, reg)
	canary := map[string]string{"model": "chat", "experiment": "e1", "variant": "canary"}
	for _, c := range []struct {
		name   string
		labels map[string]string
		want   float64
	}{
		{"sluice_requests_total", canary, 1},
		{"sluice_requests_total", map[string]string{"experiment": "e1", "variant": "control"}, 0}, // served there, assigned elsewhere
		{"sluice_input_tokens_total", canary, 10},
		{"sluice_cached_input_tokens_total", canary, 5}, // 9 of 5, clamped
		{"sluice_usage_anomalies_total", map[string]string{"upstream": "v1"}, 1},
		{"sluice_unpriced_requests_total", map[string]string{"model": "chat", "upstream": "v1"}, 1},
		{"sluice_attempts_total", map[string]string{"experiment": "e1", "variant": "canary", "upstream": "v2", "outcome": "success"}, 1},
		{"sluice_attempts_total", map[string]string{"experiment": "e1", "variant": "canary", "upstream": "v1", "outcome": "upstream_error"}, 1},
		{"sluice_fallbacks_total", map[string]string{"model": "chat", "experiment": "e1", "variant": "canary", "to": "control", "reason": "fallback"}, 1},
		{"sluice_retries_total", map[string]string{"upstream": "v1", "reason": "upstream_error"}, 1},
		{"sluice_experiment_units", map[string]string{"experiment": "e1", "variant": "canary"}, 1},
		{"sluice_experiment_variant_weight_ratio", map[string]string{"experiment": "e1", "variant": "control", "baseline": "true"}, 0.9},
		{"sluice_experiment_variant_weight_ratio", map[string]string{"experiment": "e1", "variant": "canary", "baseline": "false"}, 0.1},
		{"sluice_experiment_info", map[string]string{"experiment": "e1", "model": "chat", "status": "running", "revision": "11"}, 1},
		{"sluice_config_revision", nil, 12},
		{"sluice_sticky_events_total", map[string]string{"event": "pin_timeout"}, 2},
		{"sluice_upstream_inflight_requests", map[string]string{"upstream": "v1"}, 5},
		{"sluice_endpoint_up", map[string]string{"upstream": "v1"}, 1},
	} {
		if got, _ := sums(t, reg, c.name, c.labels); got != c.want {
			t.Errorf("%s%v = %v, want %v", c.name, c.labels, got, c.want)
		}
	}
}

func TestStrangersMakeNoSeries(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	r := metrics.New(metrics.Options{Registerer: reg, Log: quiet, KnownModel: func(m string) bool { return m == "chat" }})
	r.Record(event("", ""))
	stranger := event("", "")
	stranger.Model = "first"
	stranger.API, stranger.Reason, stranger.Outcome = "weird", "odd", "unheard_of"
	r.Record(stranger)
	stranger = event("", "")
	stranger.Model = "second"
	r.Record(stranger)
	count := func() (n int) {
		for _, f := range gather(t, reg) {
			n += len(f.GetMetric())
		}
		return n
	}
	before := count()
	for i := range 10_000 {
		ev := event("", "")
		ev.Model = fmt.Sprintf("model-%d", i)
		r.Record(ev)
	}
	if after := count(); after != before {
		t.Errorf("10,000 unknown models made %d series more", after-before)
	}
	if n, _ := sums(t, reg, "sluice_requests_total", map[string]string{"model": "other"}); n != 10_002 {
		t.Errorf("requests of other = %v, want 10002", n)
	}
}

// TestNotes: each note is counted beside the others, under words of a closed set,
// and goes with its experiment.
func TestNotes(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	r := metrics.New(metrics.Options{Registerer: reg, Log: quiet})
	for _, words := range [][]string{{"override_denied", "merge_conflict"}, {"merge_conflict"}, {"override_masked"}, {"a spell"}, {""}, nil} {
		ev := event("e1", "control")
		for _, w := range words {
			ev.Notes |= metrics.Note(w)
		}
		r.Record(ev)
	}
	shadow := event("e1", "control")
	shadow.Role, shadow.Notes = metrics.RoleShadow, metrics.Note("merge_conflict")
	r.Record(shadow)
	outside := event("", "")
	outside.Notes = metrics.Note("override_unknown_variant") | 1<<7 // a bit that has no word
	r.Record(outside)
	for word, want := range map[string]float64{"merge_conflict": 2, "override_denied": 1, "override_masked": 1, "override_unknown_variant": 0} {
		if got, _ := sums(t, reg, "sluice_experiment_notes_total", map[string]string{"experiment": "e1", "note": word}); got != want {
			t.Errorf("%s: %v, want %v", word, got, want)
		}
	}
	if got, _ := sums(t, reg, "sluice_experiment_notes_total", map[string]string{"experiment": "none"}); got != 1 {
		t.Errorf("without an experiment: %v, want 1", got)
	}
	if _, n := sums(t, reg, "sluice_experiment_notes_total", nil); n != 4 {
		t.Errorf("%d series, want 4", n)
	}
	r.Forget("e1")
	if _, n := sums(t, reg, "sluice_experiment_notes_total", nil); n != 1 {
		t.Errorf("%d series after the experiment is forgotten, want 1", n)
	}
}

func TestSeriesCap(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	const limit = 2000
	r := metrics.New(metrics.Options{Registerer: reg, Log: quiet, MaxSeries: limit})
	for i := range 3000 {
		ev := event(fmt.Sprintf("exp-%d", i), fmt.Sprintf("v-%d\xff", i))
		ev.Model = fmt.Sprintf("model-%d", i)
		ev.API, ev.Reason = fmt.Sprintf("api-%d", i), fmt.Sprintf("reason-%d", i)
		ev.Attempts[0].Upstream, ev.Attempts[0].Variant = fmt.Sprintf("up-%d", i), "moved"
		r.Record(ev)
	}
	n := 0
	for _, f := range gather(t, reg) {
		for _, m := range f.GetMetric() {
			n++
			if h := m.Histogram; h != nil {
				n += len(h.Bucket) + 2
			}
		}
	}
	if n > limit+700 {
		t.Errorf("%d series for a cap of %d", n, limit)
	}
	if got, _ := sums(t, reg, "sluice_requests_total", nil); got != 3000 {
		t.Errorf("folding lost requests: %v of 3000", got)
	}
	if got, _ := sums(t, reg, "sluice_metric_series_overflow_total", map[string]string{"metric": "sluice_requests_total"}); got == 0 {
		t.Error("the overflow was not counted")
	}
}

func TestForget(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	r := metrics.New(metrics.Options{Registerer: reg, Log: quiet})
	for range 300 { // 300 generations of an experiment fit only if the cap is given back
		r.Record(event("old", "a"))
		r.Record(event("keep", "a"))
		r.Forget("old")
	}
	for _, f := range gather(t, reg) {
		if _, n := sums(t, reg, f.GetName(), map[string]string{"experiment": "old"}); n != 0 {
			t.Errorf("%s still has %d series of the experiment", f.GetName(), n)
		}
	}
	if got, _ := sums(t, reg, "sluice_requests_total", map[string]string{"experiment": "keep"}); got != 300 {
		t.Errorf("requests of the other experiment = %v, want 300", got)
	}
	if got, _ := sums(t, reg, "sluice_metric_series_overflow_total", nil); got != 0 {
		t.Errorf("%v overflows: forgetting did not give series back", got)
	}
}

func TestRecordConcurrently(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	w := &writer{}
	r := metrics.New(metrics.Options{Registerer: reg, Log: quiet, Writer: w, AccessLog: &bytes.Buffer{}})
	stop := start(r)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 0))
			for i := range 500 {
				r.Record(randomEvent(rng, g*1000+i))
				if i%100 == 0 {
					r.Live()
					r.Forget("e9")
					r.SetExperiments([]metrics.ExperimentInfo{{Key: "e1", State: "running"}})
					gather(t, reg)
				}
			}
		})
	}
	wg.Wait()
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if got, _ := sums(t, reg, "sluice_requests_total", nil); got != 4000 || len(w.stored()) != 4000 {
		t.Errorf("%v requests counted, %d stored; want 4000", got, len(w.stored()))
	}
}
