package metrics

import "math"

// Totals sums the event's attempts. Tokens of every attempt count, and so does
// every known cost: an event with one attempt of known and one of unknown price
// has the known part (the other is in sluice_unpriced_requests_total), so that
// the log, the ledger and /metrics add up to the same amount.
func (e *Event) Totals() Totals {
	var t Totals
	for i := range e.Attempts {
		a := &e.Attempts[i]
		if a.HasUsage {
			t.HasUsage = true
			t.Estimated = t.Estimated || a.Estimated
			t.Input = addSat(t.Input, a.Input)
			t.Cached = addSat(t.Cached, a.Cached)
			t.CacheWr = addSat(t.CacheWr, a.CacheWr)
			t.Output = addSat(t.Output, a.Output)
			t.Reasoning = addSat(t.Reasoning, a.Reasoning)
		}
		if a.costs() {
			t.Priced = true
			t.CostNano = addSat(t.CostNano, a.CostNano)
		}
	}
	return t
}

// costs reports whether the attempt has a known cost: a call that used nothing
// (a refused connection) has none, not a cost of 0.
func (a *Attempt) costs() bool { return a.Priced && (a.HasUsage || a.CostNano > 0) }

// Tokens returns the attempt's counts.
func (a *Attempt) Tokens() Tokens {
	return Tokens{a.Input, a.Cached, a.CacheWr, a.Output, a.Reasoning}
}

// addSat adds without wrapping; neither is negative once an event is recorded.
func addSat(a, b int64) int64 {
	if b > 0 && a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
