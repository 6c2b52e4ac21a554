package metrics

import (
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// ExperimentInfo is what the gauges say of one experiment of the current table.
type ExperimentInfo struct {
	Key, Model, State string
	Revision          int64 // at which it last changed
	Baseline          string
	Winner            string // of a promoted one: everybody's; "" = the weights hold
	Trigger           string // what rolled it back, of RollbackTriggers; "" = manual
	Variants          []VariantInfo
}

// VariantInfo is a variant's configured weight in basis points.
type VariantInfo struct {
	Name   string
	Weight int
}

// UpstreamState is one upstream as the balancer sees it now.
type UpstreamState struct {
	Name             string
	InFlight, Queued int // requests with a place, and those that wait for one
	Endpoints        []EndpointState
}

// EndpointState is one replica of an upstream.
type EndpointState struct {
	Endpoint string // base URL as configured
	Ready    bool
	InFlight int
	Breaker  string // closed open half_open
	Drained  bool
	Cooling  bool    // rate limited
	Weight   float64 // share while it starts slowly, else 1
	// Of the engine, where it is polled; Waiting negative: unknown.
	Running, Waiting int
	KVUse            float64 // negative: unknown
}

// breakerStates in the order in which one endpoint's speaks for its upstream.
var breakerStates = []string{"open", "half_open", "closed"}

var (
	experimentInfo = prometheus.NewDesc("sluice_experiment_info", "Experiments of the current table; always 1.", []string{"experiment", "model", "status", "revision"}, nil)
	weightRatio    = prometheus.NewDesc("sluice_experiment_variant_weight_ratio", "Configured share of a variant, 0 to 1.", []string{"experiment", "variant", "baseline"}, nil)
	unitsDesc      = prometheus.NewDesc("sluice_experiment_units", "Distinct units seen in the last hour on this replica, about 2 % off.", []string{"experiment", "variant"}, nil)
	upDesc         = prometheus.NewDesc("sluice_upstream_up", "1 while an endpoint of the upstream is ready.", []string{"upstream"}, nil)
	inFlightDesc   = prometheus.NewDesc("sluice_upstream_inflight_requests", "Calls in flight to the upstream.", []string{"upstream"}, nil)
	queueDesc      = prometheus.NewDesc("sluice_upstream_queue_length", "Requests that wait for a place in front of the upstream.", []string{"upstream"}, nil)
	breakerDesc    = prometheus.NewDesc("sluice_upstream_breaker_state", "1 for the state of the worst breaker among the upstream's endpoints, else 0.", []string{"upstream", "state"}, nil)
	endpointUp     = prometheus.NewDesc("sluice_endpoint_up", "1 while the endpoint is ready.", []string{"upstream", "endpoint"}, nil)
	endpointFlight = prometheus.NewDesc("sluice_endpoint_inflight_requests", "Calls in flight to the endpoint.", []string{"upstream", "endpoint"}, nil)
	endpointBreak  = prometheus.NewDesc("sluice_endpoint_breaker_state", "1 for the state of the endpoint's breaker, else 0.", []string{"upstream", "endpoint", "state"}, nil)
	endpointDrain  = prometheus.NewDesc("sluice_endpoint_drained", "1 while an operator keeps new calls away.", []string{"upstream", "endpoint"}, nil)
	endpointCool   = prometheus.NewDesc("sluice_endpoint_cooling", "1 while the endpoint is left alone because it answered 429 with retry-after.", []string{"upstream", "endpoint"}, nil)
	endpointWeight = prometheus.NewDesc("sluice_endpoint_weight_ratio", "Share of what the endpoint would get otherwise, below 1 while it starts slowly.", []string{"upstream", "endpoint"}, nil)
	engineRunning  = prometheus.NewDesc("sluice_endpoint_engine_running_requests", "Requests that the engine says it works on.", []string{"upstream", "endpoint"}, nil)
	engineWaiting  = prometheus.NewDesc("sluice_endpoint_engine_waiting_requests", "Requests that wait in the engine.", []string{"upstream", "endpoint"}, nil)
	engineKV       = prometheus.NewDesc("sluice_endpoint_engine_kv_use_ratio", "Use of the engine's KV cache, 0 to 1.", []string{"upstream", "endpoint"}, nil)
	revisionDesc   = prometheus.NewDesc("sluice_config_revision", "Revision of the table that serves.", nil, nil)
	reloadOK       = prometheus.NewDesc("sluice_config_last_reload_successful", "1 if the newest revision compiled and serves.", nil, nil)
	reloadTime     = prometheus.NewDesc("sluice_config_last_reload_success_timestamp_seconds", "When the table that serves was swapped in.", nil, nil)
	buildInfo      = prometheus.NewDesc("sluice_build_info", "The running build; always 1.", []string{"version", "goversion"}, nil)
)

// gauges exports state that callers set or that is asked at a scrape.
type gauges struct {
	arms    *armTable
	states  func() []UpstreamState
	version string

	mu       sync.Mutex
	exps     []ExperimentInfo
	ended    map[string]time.Time // experiments that have series and are over
	set      bool
	revision int64
	ok       bool
	at       time.Time
	leader   bool
	rollouts []RolloutInfo
}

func newGauges(arms *armTable, states func() []UpstreamState, version string) *gauges {
	return &gauges{arms: arms, states: states, version: orWord(version, "dev"), ended: map[string]time.Time{}}
}

// SetExperiments replaces what the gauges say of experiments; call it with every
// table that is swapped in. The caller does not change exps afterwards.
func (r *Recorder) SetExperiments(exps []ExperimentInfo) {
	g, now := r.gauges, time.Now()
	alive := map[string]bool{}
	for _, e := range exps {
		alive[e.Key] = e.State != "completed" && e.State != "archived"
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, e := range exps {
		if alive[e.Key] {
			r.countChange(g.exps, &e)
		}
	}
	for _, e := range slices.Concat(g.exps, exps) {
		if alive[e.Key] {
			delete(g.ended, e.Key)
		} else if _, known := g.ended[e.Key]; !known {
			g.ended[e.Key] = now
		}
	}
	g.exps = exps
}

// countChange counts what became of e since the last table; g.mu is held. All
// counters of a live experiment are there at 0, so that increase() sees the
// first rollback.
func (r *Recorder) countChange(last []ExperimentInfo, e *ExperimentInfo) {
	key := label(e.Key, other)
	for _, t := range RollbackTriggers {
		r.prom.rollbacks.WithLabelValues(key, t)
	}
	moved := r.prom.rollout.moved.WithLabelValues(key)
	i := slices.IndexFunc(last, func(o ExperimentInfo) bool { return o.Key == e.Key })
	if i < 0 {
		return
	}
	was := &last[i]
	if e.State == "rolled_back" && was.State != e.State {
		r.prom.rollbacks.WithLabelValues(key, of(RollbackTriggers, orWord(e.Trigger, "manual"))).Inc()
	}
	if was.State != "draft" { // a start moves nobody who had a variant
		moved.Add(movedShare(was, e))
	}
}

// expired returns the experiments that ended before t. One that is still listed
// stays in ended, so that its gauges stay away.
func (g *gauges) expired(t time.Time) []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var keys []string
	maps.DeleteFunc(g.ended, func(key string, at time.Time) bool {
		if !at.Before(t) {
			return false
		}
		keys = append(keys, key)
		return !slices.ContainsFunc(g.exps, func(e ExperimentInfo) bool { return e.Key == key })
	})
	return keys
}

// current returns the experiments that gauges speak of: ended ones leave with
// their series.
func (g *gauges) current(now time.Time) []ExperimentInfo {
	return slices.DeleteFunc(slices.Clone(g.exps), func(e ExperimentInfo) bool {
		at, ended := g.ended[e.Key]
		return ended && now.Sub(at) > forgetAfter
	})
}

// SetConfig reports a reload: the revision that serves since at, and whether
// the newest revision is that one. With ok false revision and at stay as they
// were.
func (r *Recorder) SetConfig(revision int64, ok bool, at time.Time) {
	g := r.gauges
	g.mu.Lock()
	defer g.mu.Unlock()
	g.set, g.ok = true, ok
	if ok {
		g.revision, g.at = revision, at
	}
}

// Describe implements prometheus.Collector.
func (g *gauges) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range slices.Concat(rolloutDescs, []*prometheus.Desc{experimentInfo, weightRatio, unitsDesc, upDesc, inFlightDesc, queueDesc, breakerDesc, endpointUp, endpointFlight, endpointBreak,
		endpointDrain, endpointCool, endpointWeight, engineRunning, engineWaiting, engineKV, revisionDesc, reloadOK, reloadTime, buildInfo}) {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (g *gauges) Collect(ch chan<- prometheus.Metric) {
	// One bad or repeated label set would make the whole scrape fail.
	seen := map[string]bool{}
	emit := func(d *prometheus.Desc, v float64, lvs ...string) {
		id := d.String() + "\x00" + strings.Join(lvs, "\x00")
		if m, err := prometheus.NewConstMetric(d, prometheus.GaugeValue, v, lvs...); err == nil && !seen[id] {
			seen[id] = true
			ch <- m
		}
	}
	emit(buildInfo, 1, g.version, runtime.Version())
	g.mu.Lock()
	exps, set, revision, ok, at := g.current(time.Now()), g.set, g.revision, g.ok, g.at
	leader, rollouts := g.leader, g.rollouts
	g.mu.Unlock()
	if set {
		emit(revisionDesc, float64(revision))
		emit(reloadOK, oneIf(ok))
		if !at.IsZero() {
			emit(reloadTime, float64(at.UnixMilli())/1000)
		}
	}
	units := g.arms.units()
	for _, e := range exps {
		emit(experimentInfo, 1, e.Key, e.Model, e.State, strconv.FormatInt(e.Revision, 10))
		for _, v := range e.Variants {
			emit(weightRatio, float64(v.Weight)/10000, e.Key, v.Name, strconv.FormatBool(v.Name == e.Baseline))
			emit(unitsDesc, float64(units[[2]string{e.Key, v.Name}]), e.Key, v.Name)
		}
	}
	collectRollouts(leader, rollouts, time.Now(), emit)
	if g.states != nil {
		collectUpstreams(g.states(), emit)
	}
}

func collectUpstreams(states []UpstreamState, emit func(*prometheus.Desc, float64, ...string)) {
	for _, u := range states {
		up, flight, worst := false, 0, len(breakerStates)-1
		for _, e := range u.Endpoints {
			up = up || e.Ready
			flight += e.InFlight
			if i := slices.Index(breakerStates, e.Breaker); i >= 0 {
				worst = min(worst, i)
			}
			collectEndpoint(u.Name, e, emit)
		}
		emit(upDesc, oneIf(up), u.Name)
		emit(inFlightDesc, float64(flight), u.Name)
		emit(queueDesc, float64(u.Queued), u.Name)
		for i, s := range breakerStates {
			emit(breakerDesc, oneIf(i == worst), u.Name, s)
		}
	}
}

func collectEndpoint(upstream string, e EndpointState, emit func(*prometheus.Desc, float64, ...string)) {
	emit(endpointUp, oneIf(e.Ready), upstream, e.Endpoint)
	emit(endpointFlight, float64(e.InFlight), upstream, e.Endpoint)
	for _, s := range breakerStates {
		emit(endpointBreak, oneIf(s == e.Breaker), upstream, e.Endpoint, s)
	}
	emit(endpointDrain, oneIf(e.Drained), upstream, e.Endpoint)
	emit(endpointCool, oneIf(e.Cooling), upstream, e.Endpoint)
	emit(endpointWeight, e.Weight, upstream, e.Endpoint)
	if e.Waiting >= 0 {
		emit(engineRunning, float64(e.Running), upstream, e.Endpoint)
		emit(engineWaiting, float64(e.Waiting), upstream, e.Endpoint)
	}
	if e.KVUse >= 0 {
		emit(engineKV, e.KVUse, upstream, e.Endpoint)
	}
}

// units sums each variant's distinct units over the models it serves.
func (t *armTable) units() map[[2]string]int64 {
	out := map[[2]string]int64{}
	now := time.Now()
	t.each(func(a *arm) {
		if a.key.experiment == none || a.key.role != RolePrimary {
			return
		}
		a.live.mu.Lock()
		defer a.live.mu.Unlock()
		out[[2]string{a.key.experiment, a.key.variant}] += a.live.unitCount(now)
	})
	return out
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

var (
	ledgerLength   = prometheus.NewDesc("sluice_ledger_queue_length", "Events that wait for the store.", nil, nil)
	ledgerFailures = prometheus.NewDesc("sluice_ledger_write_failures_total", "Failed writes to the store; each is retried.", nil, nil)
	ledgerDropped  = prometheus.NewDesc("sluice_ledger_dropped_total", "Events that are missing from the store.", nil, nil)
	accessDropped  = prometheus.NewDesc("sluice_access_log_dropped_total", "Lines that are missing from the access log.", nil, nil)
)

// sinkStats exports the queues; a sink that is off reads 0.
type sinkStats struct {
	ledger *ledger
	access *accessLog
}

// Describe implements prometheus.Collector.
func (s *sinkStats) Describe(ch chan<- *prometheus.Desc) {
	ch <- ledgerLength
	ch <- ledgerFailures
	ch <- ledgerDropped
	ch <- accessDropped
}

// Collect implements prometheus.Collector.
func (s *sinkStats) Collect(ch chan<- prometheus.Metric) {
	var length int
	var failures, dropped, lines uint64
	if s.ledger != nil {
		length, dropped = s.ledger.q.length()
		failures = s.ledger.failures.Load()
	}
	if s.access != nil {
		_, lines = s.access.q.length()
	}
	ch <- prometheus.MustNewConstMetric(ledgerLength, prometheus.GaugeValue, float64(length))
	ch <- prometheus.MustNewConstMetric(ledgerFailures, prometheus.CounterValue, float64(failures))
	ch <- prometheus.MustNewConstMetric(ledgerDropped, prometheus.CounterValue, float64(dropped))
	ch <- prometheus.MustNewConstMetric(accessDropped, prometheus.CounterValue, float64(lines))
}
