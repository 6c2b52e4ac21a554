package store

import (
	"context"
	"math"
	"slices"
	"time"

	"sluice/metrics"
)

// Statistics are answered in these.
type (
	Quantiles    = metrics.Quantiles
	VariantStats = metrics.VariantStats
)

// ExperimentStats sums the primary traffic of an experiment since a time (cut
// down to the minute; latencies older than a few hours to the hour), one entry
// for each assigned variant, by name.
func (s *Store) ExperimentStats(ctx context.Context, experiment string, since time.Time) ([]VariantStats, error) {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	from := int64(0)
	if !since.IsZero() {
		from = unixMinute(since)
	}
	by := map[string]*VariantStats{}
	variant := func(name string) *VariantStats {
		v := at(by, name)
		if v.Outcomes == nil {
			v.Variant, v.Outcomes = name, map[string]int64{}
		}
		return v
	}
	if err := s.statCounts(ctx, experiment, from, variant); err != nil {
		return nil, s.wrap("read experiment statistics", err)
	}
	if err := s.statLatency(ctx, experiment, from, variant); err != nil {
		return nil, s.wrap("read experiment statistics", err)
	}
	if err := s.statUnits(ctx, experiment, from, variant); err != nil {
		return nil, s.wrap("read experiment statistics", err)
	}
	var out []VariantStats
	for _, name := range sortedKeys(by) {
		out = append(out, *by[name])
	}
	return out, nil
}

func (s *Store) statCounts(ctx context.Context, experiment string, from int64, variant func(string) *VariantStats) error {
	q := "SELECT variant, outcome, " + bigint("requests") + ", " + bigint("fallbacks")
	for _, c := range sumColumns {
		q += ", " + bigint(c)
	}
	rs, err := s.r.QueryContext(ctx, q+` FROM rollups
		WHERE experiment = $1 AND minute >= $2 AND role = 'primary' GROUP BY variant, outcome`, experiment, from)
	if err != nil {
		return err
	}
	defer rs.Close()
	for rs.Next() {
		var name, outcome string
		var requests, fallbacks int64
		var t sums
		if err := rs.Scan(&name, &outcome, &requests, &fallbacks, &t.attempts, &t.metered, &t.estimated, &t.priced,
			&t.input, &t.cached, &t.cacheWrite, &t.output, &t.reasoning, &t.cost); err != nil {
			return err
		}
		v := variant(name)
		v.Requests += requests
		v.Outcomes[outcome] += requests
		if isError(outcome) {
			v.Errors += requests
		}
		if !isNeutral(outcome) {
			v.Eligible += requests
		}
		v.Fallbacks += fallbacks
		v.Attempts += t.attempts
		v.Metered += t.metered
		v.Estimated += t.estimated
		v.Unpriced += t.metered - t.priced
		v.Input += t.input
		v.Cached += t.cached
		v.CacheWrite += t.cacheWrite
		v.Output += t.output
		v.Reasoning += t.reasoning
		v.CostNano += t.cost
	}
	return rs.Err()
}

func (s *Store) statLatency(ctx context.Context, experiment string, from int64, variant func(string) *VariantStats) error {
	rs, err := s.r.QueryContext(ctx, `
		SELECT variant, kind, bucket, `+bigint("count")+` FROM rollup_latency
		 WHERE experiment = $1 AND minute >= $2 AND role = 'primary'
		 GROUP BY variant, kind, bucket ORDER BY variant, kind, bucket`, experiment, from)
	if err != nil {
		return err
	}
	defer rs.Close()
	type series struct{ variant, kind string }
	hist := map[series][][2]int64{}
	for rs.Next() {
		var k series
		var b, n int64
		if err := rs.Scan(&k.variant, &k.kind, &b, &n); err != nil {
			return err
		}
		hist[k] = append(hist[k], [2]int64{b, n})
	}
	for k, h := range hist {
		if k.kind == "ttft" {
			variant(k.variant).TTFT = quantiles(h)
		} else {
			variant(k.variant).Duration = quantiles(h)
		}
	}
	return rs.Err()
}

func (s *Store) statUnits(ctx context.Context, experiment string, from int64, variant func(string) *VariantStats) error {
	rs, err := s.r.QueryContext(ctx, `
		SELECT variant, count(DISTINCT unit) FROM exposures
		 WHERE experiment = $1 AND created_at >= $2 GROUP BY variant`, experiment, from*60e6)
	if err != nil {
		return err
	}
	defer rs.Close()
	for rs.Next() {
		var name string
		var n int64
		if err := rs.Scan(&name, &n); err != nil {
			return err
		}
		variant(name).Units = n
	}
	return rs.Err()
}

// quantiles reads nearest ranks from buckets in ascending order.
func quantiles(h [][2]int64) Quantiles {
	var q Quantiles
	for _, b := range h {
		q.Count += b[1]
	}
	if q.Count == 0 {
		return q
	}
	h = slices.Clone(h)
	rank := func(p float64) time.Duration {
		want := int64(math.Ceil(p * float64(q.Count)))
		for _, b := range h {
			if want -= b[1]; want <= 0 {
				return bucketValue(int(b[0]))
			}
		}
		return bucketValue(int(h[len(h)-1][0]))
	}
	q.P50, q.P90, q.P95, q.P99 = rank(0.5), rank(0.9), rank(0.95), rank(0.99)
	return q
}
