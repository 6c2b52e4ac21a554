package metrics

import "time"

// The types in this file are what the store answers from ledger and rollups.

// UsageQuery selects and groups usage. Empty filters match all.
type UsageQuery struct {
	Since, Until time.Time // Until zero = now; both are cut down to the minute (the hour with tenant, key or upstream)
	// GroupBy is any of model, experiment, variant, role, tenant, key, upstream, minute, hour, day.
	GroupBy []string
	// Filter by the same names but the times: {"model": "chat"}.
	Filter map[string]string
	Limit  int // rows, 0 = 1000; the rest is cut and told
}

// UsageRow is one group. Tokens are sums over all attempts.
type UsageRow struct {
	Group      map[string]string `json:"group"` // by the names of GroupBy; times are RFC 3339
	Requests   int64             `json:"requests"`
	Errors     int64             `json:"errors"`
	Attempts   int64             `json:"attempts"`
	Metered    int64             `json:"metered_attempts"`
	Estimated  int64             `json:"estimated_attempts"`
	Unpriced   int64             `json:"unpriced_attempts"` // metered, price unknown: not in CostNano
	Input      int64             `json:"input_tokens"`
	Cached     int64             `json:"cached_tokens"`
	CacheWrite int64             `json:"cache_write_tokens"`
	Output     int64             `json:"output_tokens"`
	Reasoning  int64             `json:"reasoning_tokens"`
	CostNano   int64             `json:"cost_nano_usd"`
}

// Quantiles of a latency, within 2 %; zero when Count is 0.
type Quantiles struct {
	Count              int64
	P50, P90, P95, P99 time.Duration
}

// VariantStats is what one assigned variant of an experiment came to.
type VariantStats struct {
	Variant    string
	Requests   int64
	Outcomes   map[string]int64 // requests by outcome
	Errors     int64            // numerator of the error ratio
	Eligible   int64            // denominator of the error ratio
	Fallbacks  int64            // requests that another variant answered
	Units      int64            // distinct analysed units first seen since
	Attempts   int64
	Metered    int64 // attempts with usage
	Estimated  int64
	Unpriced   int64
	Input      int64
	Cached     int64
	CacheWrite int64
	Output     int64
	Reasoning  int64
	CostNano   int64
	TTFT       Quantiles // of successes
	Duration   Quantiles // of successes
}
