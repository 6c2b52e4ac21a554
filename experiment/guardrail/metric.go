package guardrail

import "slices"

// Kind is how a guardrail decides.
type Kind string

// The kinds.
const (
	Rate  Kind = "rate"  // yes/no trials: the grid-mixture e-process
	Mean  Kind = "mean"  // a mean per request over units: a confidence sequence of the lift
	Limit Kind = "limit" // a reading against a hard limit
)

// The built-in metrics. A rate counts trials that went badly, so that more is
// always worse; latency becomes a rate by a threshold fixed before the step
// (p95 > T says the same as P(slower than T) > 5 %).
const (
	Error           = "error"
	Rejected        = "rejected"
	SlowTTFA        = "slow_ttfa" // first token of the answer: content or tool call
	SlowTTFT        = "slow_ttft" // first token of any kind
	SlowTotal       = "slow_total"
	SlowTPOT        = "slow_tpot" // time per output token
	Truncated       = "truncated"
	Empty           = "empty"
	InvalidJSON     = "invalid_json"
	InvalidToolCall = "invalid_tool_call"
	ReasoningLeak   = "reasoning_leak"
	PromptLeak      = "prompt_leak"
	FinishLength    = "finish_length"
	Canceled        = "canceled"

	CostPerRequest = "cost_per_request"
	InputTokens    = "input_tokens"
	OutputTokens   = "output_tokens"
	OutputChars    = "output_chars"
	TPOT           = "tpot"

	Waiting     = "waiting"
	KVUse       = "kv_use"
	Preemptions = "preemptions"
	Restarts    = "restarts"
)

// info is what the package knows of a built-in metric: its kind and the values
// of a Config that leaves them out.
type info struct {
	name    string
	kind    Kind
	latency bool // depends on load: see Conditions.Load
	maxRate float64
	okRate  float64 // 0: min_effect_rate, the rate below which nothing fails; of slow_ the quantile's rest
	require Require
}

// builtin is the closed vocabulary, in the order in which it is listed to
// people. The quality metrics ask for no PASS: many services have no request
// that demands JSON, and a ramp would wait for one for ever.
var builtin = []info{
	{Error, Rate, false, 0.10, 0.02, RequirePass},
	{Rejected, Rate, false, 0, 0, RequirePass},
	{SlowTTFA, Rate, true, 0.30, 0, RequirePass},
	{SlowTTFT, Rate, true, 0.30, 0, RequirePass},
	{SlowTotal, Rate, true, 0.30, 0, RequireNoFail},
	{SlowTPOT, Rate, true, 0.30, 0, RequireNoFail},
	{Truncated, Rate, false, 0, 0, RequireNoFail},
	{Empty, Rate, false, 0, 0, RequireNoFail},
	{InvalidJSON, Rate, false, 0, 0, RequireNoFail},
	{InvalidToolCall, Rate, false, 0, 0, RequireNoFail},
	{ReasoningLeak, Rate, false, 0, 0, RequireNoFail},
	{PromptLeak, Rate, false, 0, 0, RequireNoFail},
	{FinishLength, Rate, false, 0, 0, RequireNoFail},
	{Canceled, Rate, false, 0, 0, RequireNoFail},
	{CostPerRequest, Mean, false, 0, 0, RequireNoFail},
	{InputTokens, Mean, false, 0, 0, RequireNoFail},
	{OutputTokens, Mean, false, 0, 0, RequireNoFail},
	{OutputChars, Mean, false, 0, 0, RequireNoFail},
	{TPOT, Mean, true, 0, 0, RequireNoFail},
	{Waiting, Limit, false, 0, 0, RequirePass},
	{KVUse, Limit, false, 0, 0, RequirePass},
	{Preemptions, Limit, false, 0, 0, RequirePass},
	{Restarts, Limit, false, 0, 0, RequirePass},
}

func lookup(metric string) (info, bool) {
	i := slices.IndexFunc(builtin, func(b info) bool { return b.name == metric })
	if i < 0 {
		return info{}, false
	}
	return builtin[i], true
}

// Names are the built-in metrics of a kind, in order; of all kinds for "".
func Names(kind Kind) []string {
	var out []string
	for _, b := range builtin {
		if kind == "" || b.kind == kind {
			out = append(out, b.name)
		}
	}
	return out
}
