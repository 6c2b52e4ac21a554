package store

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/hex"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"sluice/metrics"
)

// rollup collects what one batch adds. Rows are written in key order, so that
// replicas which add to the same rows cannot deadlock.
type rollup struct {
	minutes   map[minuteKey]*minuteSums
	latency   map[latencyKey]int64
	hours     map[hourKey]*hourSums
	exposures map[exposureKey]*metrics.Event
	known     *exposed
}

type (
	minuteKey struct {
		minute                                    int64
		model, experiment, variant, role, outcome string
	}
	minuteSums struct {
		requests, fallbacks, duration, ttft, ttftCount int64
		sums
	}
	latencyKey struct {
		minute                                 int64
		model, experiment, variant, role, kind string
		bucket                                 int
	}
	hourKey struct {
		hour                                                    int64
		tenant, key, model, experiment, variant, role, upstream string
	}
	hourSums struct {
		requests, errors int64
		sums
	}
	exposureKey struct {
		experiment string
		generation int
		unit       [8]byte
	}
)

// exposed remembers units whose first exposure is stored, so that most requests
// write none. It is bounded: forgetting one only costs an insert that changes nothing.
type exposed struct {
	mu  sync.Mutex
	set map[exposureKey]struct{}
}

const maxExposed = 200_000

func (x *exposed) has(k exposureKey) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	_, ok := x.set[k]
	return ok
}

func (x *exposed) add(m map[exposureKey]*metrics.Event) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.set == nil || len(x.set)+len(m) > maxExposed {
		x.set = make(map[exposureKey]struct{}, len(m))
	}
	for k := range m {
		x.set[k] = struct{}{}
	}
}

func newRollup(known *exposed) *rollup {
	return &rollup{map[minuteKey]*minuteSums{}, map[latencyKey]int64{}, map[hourKey]*hourSums{}, map[exposureKey]*metrics.Event{}, known}
}

func (r *rollup) add(e *metrics.Event) {
	minute := unixMinute(e.Time)
	model, exp, variant, role, outcome := text(e.Model), text(e.Experiment), text(e.Assigned), role(e), text(e.Outcome)
	m := at(r.minutes, minuteKey{minute, model, exp, variant, role, outcome})
	m.requests++
	m.duration += e.Duration.Microseconds()
	if e.TTFT > 0 {
		m.ttft += e.TTFT.Microseconds()
		m.ttftCount++
	}
	if e.Served != e.Assigned && e.Served != "" {
		m.fallbacks++
	}
	if outcome == "success" {
		k := latencyKey{minute, model, exp, variant, role, "duration", latencyBucket(e.Duration)}
		r.latency[k]++
		if e.TTFT > 0 {
			k.kind, k.bucket = "ttft", latencyBucket(e.TTFT)
			r.latency[k]++
		}
	}
	hk := hourKey{minute - minute%60, text(e.Tenant), text(e.KeyID), model, exp, variant, role, text(e.Upstream)}
	h := at(r.hours, hk)
	h.requests++
	if isError(outcome) {
		h.errors++
	}
	for i := range e.Attempts {
		a := &e.Attempts[i]
		m.sums.add(a)
		hk.upstream = text(a.Upstream)
		at(r.hours, hk).sums.add(a)
	}
	if e.HasUnit && e.Analysed && exp != "" {
		k := exposureKey{exp, e.Generation, e.Unit}
		if old := r.exposures[k]; (old == nil || e.Time.Before(old.Time)) && !r.known.has(k) {
			r.exposures[k] = e
		}
	}
}

func at[K comparable, V any](m map[K]*V, k K) *V {
	v := m[k]
	if v == nil {
		v = new(V)
		m[k] = v
	}
	return v
}

// isError is the numerator of the error ratio of design.md section 9.
func isError(outcome string) bool {
	switch outcome {
	case "no_endpoint", "queue_full", "internal_error":
		return true
	}
	return strings.HasPrefix(outcome, "upstream_")
}

// isNeutral outcomes are outside the error ratio's denominator.
func isNeutral(outcome string) bool {
	switch outcome {
	case "client_error", "canceled", "rate_limited", "budget_exceeded", "shutting_down":
		return true
	}
	return false
}

var (
	sumColumns    = []string{"attempts", "metered", "estimated", "priced", "input_tokens", "cached_tokens", "cache_write", "output_tokens", "reasoning", "cost_nano"}
	minuteColumns = append([]string{"requests", "fallbacks", "duration", "ttft", "ttft_count"}, sumColumns...)
	hourColumns   = append([]string{"requests", "errors"}, sumColumns...)
)

const (
	minutePK  = "minute, model, experiment, variant, role, outcome"
	latencyPK = "minute, model, experiment, variant, role, kind, bucket"
	hourPK    = "hour, tenant, key_id, model, experiment, variant, role, upstream"
)

func (t *sums) row() []any {
	return []any{t.attempts, t.metered, t.estimated, t.priced, t.input, t.cached, t.cacheWrite, t.output, t.reasoning, t.cost}
}

func (r *rollup) write(ctx context.Context, s *Store, tx *sql.Tx) error {
	var minutes, latency, hours, exposures [][]any
	for k, v := range r.minutes {
		row := []any{k.minute, k.model, k.experiment, k.variant, k.role, k.outcome, v.requests, v.fallbacks, v.duration, v.ttft, v.ttftCount}
		minutes = append(minutes, append(row, v.row()...))
	}
	for k, n := range r.latency {
		latency = append(latency, []any{k.minute, k.model, k.experiment, k.variant, k.role, k.kind, int64(k.bucket), n})
	}
	for k, v := range r.hours {
		row := []any{k.hour, k.tenant, k.key, k.model, k.experiment, k.variant, k.role, k.upstream, v.requests, v.errors}
		hours = append(hours, append(row, v.row()...))
	}
	for k, e := range r.exposures {
		exposures = append(exposures, []any{k.experiment, int64(k.generation), hex.EncodeToString(k.unit[:]), text(e.Assigned), e.Revision, micros(e.Time)})
	}
	for _, t := range []struct {
		into, conflict string
		key            int
		rows           [][]any
	}{
		{"rollups (" + minutePK + ", " + strings.Join(minuteColumns, ", ") + ")", adding("rollups", minutePK, minuteColumns), 6, minutes},
		{"rollup_latency (" + latencyPK + ", count)", adding("rollup_latency", latencyPK, []string{"count"}), 7, latency},
		{"usage_hours (" + hourPK + ", " + strings.Join(hourColumns, ", ") + ")", adding("usage_hours", hourPK, hourColumns), 8, hours},
		{intoExposures, "ON CONFLICT (experiment, generation, unit) DO NOTHING", 3, exposures},
	} {
		slices.SortFunc(t.rows, func(a, b []any) int { return compareKey(a[:t.key], b[:t.key]) })
		if err := s.insertAll(ctx, tx, t.into, t.conflict, t.rows); err != nil {
			return err
		}
	}
	return nil
}

func compareKey(a, b []any) int {
	for i := range a {
		var c int
		if s, ok := a[i].(string); ok {
			c = cmp.Compare(s, b[i].(string))
		} else {
			c = cmp.Compare(a[i].(int64), b[i].(int64))
		}
		if c != 0 {
			return c
		}
	}
	return 0
}

// growth of the latency buckets: bucket n holds (growth^(n-1), growth^n]
// microseconds, so that a bucket's middle is within 2 % of every value in it.
const growth = 1.04

var logGrowth = math.Log(growth)

func latencyBucket(d time.Duration) int {
	us := d.Microseconds()
	if us <= 1 {
		return 0
	}
	return int(math.Ceil(math.Log(float64(us)) / logGrowth))
}

func bucketValue(b int) time.Duration {
	return time.Duration(2 * math.Pow(growth, float64(b)) / (1 + growth) * float64(time.Microsecond))
}
