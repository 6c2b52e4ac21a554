package router

import (
	"sluice/metrics"
	"sluice/upstream"
)

// Metered prices one call. Its tokens go to the assigned variant's books, its
// price is that of the variant that was called.
func Metered(a *upstream.Attempt) metrics.Attempt {
	m := metrics.Attempt{
		Variant: a.Target.Variant, Endpoint: a.Endpoint, Outcome: string(a.Outcome), Status: a.Status,
		Start: a.Start, Duration: a.Duration, Reason: a.Reason,
		Input: a.Usage.Input, Cached: a.Usage.Cached, CacheWr: a.Usage.CacheWrite, Output: a.Usage.Output,
		Reasoning: a.Usage.Reasoning, HasUsage: a.HasUsage, Estimated: a.Estimated,
	}
	if a.Target.Upstream != nil {
		m.Upstream = a.Target.Upstream.Name()
	}
	if v, ok := a.Target.Tag.(*CompiledVariant); ok && a.HasUsage && v.Price != nil {
		m.CostNano, m.Priced = v.Price.Cost(metrics.Tokens{
			Input: m.Input, Cached: m.Cached, CacheWrite: m.CacheWr, Output: m.Output, Reasoning: m.Reasoning})
	}
	return m
}
