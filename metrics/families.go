package metrics

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Label values without an experiment, and the roles of a request.
const (
	none           = "none"
	defaultVariant = "default"
	RolePrimary    = "primary"
	RoleShadow     = "shadow"
	RoleProbe      = "probe" // of preflights and readiness: cost, but no traffic
)

// Buckets. The TTFT set is a subset of vLLM's, so that gateway and engine can be
// compared; the others follow the OpenTelemetry GenAI conventions.
var (
	durationBuckets = []float64{.01, .02, .04, .08, .16, .32, .64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84, 327.68}
	ttftBuckets     = []float64{.01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
	tpotBuckets     = []float64{.005, .01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5}
	tokenBuckets    = []float64{1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576}
	overheadBuckets = []float64{50e-6, 100e-6, 250e-6, 500e-6, .001, .0025, .005, .01, .025, .05, .1, .25}
)

var armLabels = []string{"model", "experiment", "variant", "role"}

// families are all metrics that events feed.
//
// Worst case of series: an arm has 20+20 (duration) + 21 (TTFT) + 18 (TPOT) +
// 2×15 (tokens) + 9 (counters) + 63 (answers) = 181, and 16 outcomes per api;
// 200 arms make 39 thousand. armTable holds the cap.
type families struct {
	requests  *prometheus.CounterVec
	duration  *prometheus.HistogramVec
	ttft      *prometheus.HistogramVec
	tpot      *prometheus.HistogramVec
	tokens    [5]*prometheus.CounterVec // in the order of Tokens
	inputLen  *prometheus.HistogramVec
	outputLen *prometheus.HistogramVec
	usage     *prometheus.CounterVec
	cost      *costVec

	unpriced    *prometheus.CounterVec
	anomalies   *prometheus.CounterVec
	overhead    *prometheus.HistogramVec
	attempts    *prometheus.CounterVec
	upstream    *prometheus.CounterVec
	upstreamSec *prometheus.HistogramVec
	queueWait   *prometheus.HistogramVec
	rollbacks   *prometheus.CounterVec
	notes       *prometheus.CounterVec
	retries     *prometheus.CounterVec
	hedges      *prometheus.CounterVec
	fallbacks   *prometheus.CounterVec
	assignments *prometheus.CounterVec
	overflow    *prometheus.CounterVec
	sticky      *prometheus.CounterVec
	rollout     rolloutFamilies
	answers     answerFamilies

	all []prometheus.Collector
}

func newFamilies() *families {
	f := &families{}
	arm := func(more ...string) []string { return append(append([]string(nil), armLabels...), more...) }
	f.requests = f.counter("sluice_requests_total", "Model requests by the assigned variant and the client's final outcome.", arm("api", "outcome"))
	f.duration = f.histogram("sluice_request_duration_seconds", "Time from the request's arrival to the end of its answer, of all requests whatever their outcome.", durationBuckets, arm("stream"))
	f.ttft = f.histogram("sluice_time_to_first_token_seconds", "Time to the first token of streamed answers.", ttftBuckets, arm())
	f.tpot = f.histogram("sluice_time_per_output_token_seconds", "Mean time per output token after the first, one observation per successful streamed answer.", tpotBuckets, arm())
	for i, n := range [...]struct{ name, help string }{
		{"sluice_input_tokens_total", "Input tokens of all attempts, cached ones included."},
		{"sluice_cached_input_tokens_total", "Input tokens read from the engine's cache: a part of sluice_input_tokens_total."},
		{"sluice_cache_write_input_tokens_total", "Input tokens written to the engine's cache: a part of sluice_input_tokens_total."},
		{"sluice_output_tokens_total", "Output tokens of all attempts, reasoning included."},
		{"sluice_reasoning_output_tokens_total", "Reasoning tokens: a part of sluice_output_tokens_total."},
	} {
		f.tokens[i] = f.counter(n.name, n.help, arm())
	}
	f.inputLen = f.histogram("sluice_request_input_tokens", "Input tokens per metered request.", tokenBuckets, arm())
	f.outputLen = f.histogram("sluice_request_output_tokens", "Output tokens per metered request.", tokenBuckets, arm())
	f.usage = f.counter("sluice_usage_total", "Attempts by where their token counts came from; missing is a successful attempt without any.", arm("source"))
	f.cost = newCostVec("sluice_cost_usd_total", "Cost of all attempts in USD: the sum of the ledger's integers, converted once.", arm("basis"))
	f.all = append(f.all, f.cost)

	f.unpriced = f.counter("sluice_unpriced_requests_total", "Requests with tokens whose price is not configured, by the upstream that used them.", []string{"model", "upstream"})
	f.anomalies = f.counter("sluice_usage_anomalies_total", "Impossible token counts from an upstream that were clamped.", []string{"upstream"})
	f.overhead = f.histogram("sluice_gateway_overhead_seconds", "The gateway's own time before the first attempt, without the time the client took to send the request.", overheadBuckets, []string{"api"})
	f.attempts = f.counter("sluice_attempts_total", "Calls to endpoints by the assigned variant and what the call came to.", []string{"model", "experiment", "variant", "upstream", "outcome"})
	f.upstream = f.counter("sluice_upstream_requests_total", "Calls to an upstream and what they came to.", []string{"upstream", "outcome"})
	f.upstreamSec = f.histogram("sluice_upstream_request_duration_seconds", "Duration of calls to an upstream.", durationBuckets, []string{"upstream"})
	f.queueWait = f.histogram("sluice_upstream_queue_wait_seconds", "How long requests waited for a place in front of the upstream; only of those that waited.", ttftBuckets, []string{"upstream"})
	f.retries = f.counter("sluice_retries_total", "Calls made because an earlier one failed, by the upstream that failed and its outcome.", []string{"upstream", "reason"})
	f.hedges = f.counter("sluice_hedges_total", "Calls made beside one that took unusually long, by whether theirs became the answer.", []string{"upstream", "result"})
	f.fallbacks = f.counter("sluice_fallbacks_total", "Changes from the assigned to another variant.", []string{"model", "experiment", "variant", "to", "reason"})
	f.assignments = f.counter("sluice_experiment_assignments_total", "Requests assigned to a variant and why.", []string{"experiment", "variant", "reason"})
	f.notes = f.counter("sluice_experiment_notes_total", "Requests with a note: an override that was not followed, or a user whose pin and session disagree. Experiment none: no experiment applied.", []string{"experiment", "note"})
	f.rollbacks = f.counter("sluice_experiment_rollbacks_total", "Experiments that went back to their baseline, as this replica saw it, and what made them.", []string{"experiment", "trigger"})
	f.overflow = f.counter("sluice_metric_series_overflow_total", "Observations folded into other because the cap on series is reached.", []string{"metric"})
	f.sticky = f.counter("sluice_sticky_events_total", "What happened to pins and their store, such as pin_timeout or pin_cached.", []string{"event"})
	f.addRollout()
	f.addAnswers(arm)
	return f
}

func (f *families) counter(name, help string, labels []string) *prometheus.CounterVec {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	f.all = append(f.all, v)
	return v
}

// histogram is classic for Prometheus 2, and native where it is scraped so.
func (f *families) histogram(name, help string, buckets []float64, labels []string) *prometheus.HistogramVec {
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: name, Help: help, Buckets: buckets,
		NativeHistogramBucketFactor:     1.1,
		NativeHistogramMaxBucketNumber:  160,
		NativeHistogramMinResetDuration: time.Hour,
	}, labels)
	f.all = append(f.all, v)
	return v
}

// Describe implements prometheus.Collector.
func (f *families) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range f.all {
		c.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (f *families) Collect(ch chan<- prometheus.Metric) {
	for _, c := range f.all {
		c.Collect(ch)
	}
}

// costVec is a counter that adds nano-USD as integers: a sum of floats would
// drift from the ledger's.
type costVec struct{ *prometheus.MetricVec }

type costCounter struct {
	desc  *prometheus.Desc
	pairs []*dto.LabelPair
	nano  atomic.Int64
}

func newCostVec(name, help string, labels []string) *costVec {
	desc := prometheus.NewDesc(name, help, labels, nil)
	return &costVec{prometheus.NewMetricVec(desc, func(lvs ...string) prometheus.Metric {
		return &costCounter{desc: desc, pairs: prometheus.MakeLabelPairs(desc, lvs)}
	})}
}

func (v *costVec) with(lvs ...string) *costCounter {
	m, err := v.GetMetricWithLabelValues(lvs...)
	if err != nil {
		panic(err) // a wrong number of labels: a mistake in this package
	}
	return m.(*costCounter)
}

// add holds the sum at the largest int64 instead of wrapping.
func (c *costCounter) add(nano int64) {
	if c.nano.Add(nano) < 0 {
		c.nano.Store(math.MaxInt64)
	}
}

func (c *costCounter) Desc() *prometheus.Desc { return c.desc }

func (c *costCounter) Write(out *dto.Metric) error {
	v := float64(c.nano.Load()) / 1e9
	out.Label = c.pairs
	out.Counter = &dto.Counter{Value: &v}
	return nil
}
