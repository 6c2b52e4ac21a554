// Package trial decides what one trial is: from the facts of a request, running
// or over, which guardrails it counts for, when, and with what result (the rules
// 1 to 8 of "What one trial is"). It hides the traffic of LLM clients from the
// arithmetic in guardrail: retries by SDKs, cancels, hangs, agents that send a
// hundred requests, users whose app is broken on either side, cold caches, long
// prompts. No clock: the caller says how old a request is.
package trial

import "time"

// Arm is a request's side by its assigned variant, whatever answered it.
type Arm uint8

// The arms.
const (
	Neither  Arm = iota // a third variant, or none
	Baseline            // whom the others are compared with
	Canary              // the variant that is judged
)

// Why is the reason for which a request is no trial; "" is none.
type Why string

// The reasons. Those of the first group are known when the request starts.
const (
	Outside      Why = "outside"       // neither arm; override, fixed, shadow, provisional, not_ready, holdout, replayed: not analysed
	SDKRetry     Why = "sdk_retry"     // the client repeats an attempt that was counted
	BeforeStep   Why = "before_step"   // started before the step began
	NotAdmitted  Why = "not_admitted"  // one of many of its unit
	PreTreatment Why = "pre_treatment" // the unit failed on the baseline already
	SwitchCost   Why = "switch_cost"   // the unit's first request after it moved: its cache is cold
	NoThreshold  Why = "no_threshold"  // too little of a baseline to say what is slow
	NotAsked     Why = "not_asked"     // the request did not ask for what the metric judges

	Withdrawn Why = "withdrawn" // the client left before it could be told
	Refused   Why = "refused"   // answered 4xx: counts for rejected alone
	Failed    Why = "failed"    // failed before it could be told: counts for error
	Gateway   Why = "gateway"   // the gateway's own answer: a limit, a budget, a shutdown
	NotReady  Why = "not_ready" // no server was there to be asked: a ramp holds for that
	Crowded   Why = "crowded"   // too many requests wait for the age from which means count
	Unknown   Why = "unknown"   // no usage, no price, too few tokens, an answer that could not be judged
)

// Ending is how the first attempt ended.
type Ending uint8

// The endings.
const (
	Running   Ending = iota // not yet
	Answered                // completely
	Broken                  // the stream broke off
	Fault                   // no answer, by fault of the variant
	Refusal                 // the request was refused: a bad caller or a bad variant
	Ours                    // ended by the gateway, says nothing of the variant
	Abandoned               // the client left, or its own deadline passed
	Unreached               // no server was there
)

// Call is a first attempt that is over, in the words of the access log.
type Call struct {
	Outcome     string // "success", "client_error", "upstream_timeout", …
	Status      int    // of the upstream, 0 without one
	ServedModel bool   // a 404 for the served model: upstream/wire recognises them
	Gateway     bool   // answered by the gateway itself, before any upstream
	Unreached   bool   // nothing was sent, because no server is there
	Expired     bool   // ended by a deadline that the client itself had set
}

// Ending is what the attempt means for its variant. A 401 or 403 is the
// gateway's credential for that upstream, a 429 the upstream's own limit, an
// open breaker (no_endpoint) the consequence of failures: all are its faults. A
// refusal of this one request is one whatever its status: some servers say 500
// to a prompt that is too long. A server that is not there is the business of
// readiness, which holds.
func (c Call) Ending() Ending {
	switch {
	case c.Gateway:
		return Ours
	case c.Expired:
		return Abandoned
	case c.Unreached:
		return Unreached
	}
	switch c.Outcome {
	case "success":
		return Answered
	case "canceled":
		return Abandoned
	case "upstream_truncated":
		return Broken
	case "client_error":
		switch {
		case c.Status == 401 || c.Status == 403 || c.Status == 408 || c.Status == 429:
			return Fault
		case c.Status == 404 && c.ServedModel:
			return Fault
		}
		return Refusal
	case "upstream_unreachable":
		return Unreached
	case "queue_full", "upstream_error", "upstream_timeout", "upstream_rate_limited", "upstream_invalid", "no_endpoint":
		return Fault
	}
	return Ours
}

// Flags are what a request asked for and what its answer was like.
type Flags uint16

// The flags. Asked ones are known from the request, before any treatment; a
// metric's trials are the requests that ask, never the answers that have.
const (
	AskedJSON   Flags = 1 << iota // demanded JSON
	AskedTools                    // offered tools
	AskedSystem                   // had a system prompt

	EmptyAnswer
	BadJSON
	BadToolCall
	LeakedReasoning
	LeakedPrompt
	StoppedByLength // finish reason length
)

// Facts are what is known of one request when it is looked at. Durations count
// from the start of its first attempt; 0 is "not yet", or never.
type Facts struct {
	Arm      Arm
	Analysed bool   // what the assignment says; false is outside of every trial
	Retry    int    // x-stainless-retry-count
	Request  uint64 // Hash of the request id
	Ordinal  int    // 1 for the unit's first request of the window: Units.Next
	History  History
	Moved    bool          // its unit was served by another variant before: Units.Served
	Started  int64         // Unix ms, on the clock of Plan.Since
	Prompt   int           // uncached prompt tokens to expect, by one estimate for both arms; negative: unknown
	Age      time.Duration // now

	First  time.Duration // first token of any kind
	Answer time.Duration // first token of the answer: content or tool call
	End    time.Duration // the first attempt was over
	Cancel time.Duration // the client left
	Ending Ending
	Flags  Flags
	// Unjudged are the flags of an answer whose absence says nothing.
	Unjudged Flags

	Closed   bool // all attempts are over: Cost is final
	HasUsage bool
	Input    int64
	Output   int64
	Chars    int64 // of the answer
	HasCost  bool
	Cost     float64 // of all attempts, in any unit
	MaxCost  float64 // the most that it could have cost, 0 unknown; caps Cost
}

// Hash spreads a request or unit id over 64 bits: FNV-1a with the finaliser of
// MurmurHash3, whose low and high bits are equally good.
func Hash(id string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(id) {
		h = (h ^ uint64(id[i])) * 1099511628211
	}
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// Admitted reports whether the j-th request of a unit in the window is a trial,
// with probability min(1, 2/j) by the hash of its id. A unit of n requests gives
// about 1 + 2 ln(n) trials: no unit decides alone, and an agent that fails late
// is still seen, which the first five would not show.
func Admitted(request uint64, j int) bool {
	if j <= 2 {
		return true
	}
	return request < ^uint64(0)/uint64(j)*2
}

// Tally counts trials of one unit, to about 65,000; then both halve.
type Tally struct {
	N   uint16 `json:"n"`
	Bad uint16 `json:"bad"`
}

func (t *Tally) add(bad bool) {
	if t.N == 1<<16-1 {
		t.N, t.Bad = t.N/2, t.Bad/2
	}
	t.N++
	if bad {
		t.Bad++
	}
}

// History is a unit's own past on the baseline, fixed before the rollout began.
type History struct {
	Errors   Tally `json:"errors"`
	Rejected Tally `json:"rejected"`
	Slow     Tally `json:"slow"`
	Flawed   Tally `json:"flawed"` // the quality metrics
}

// The shares from which a unit's past makes it no witness.
const (
	pastErrors = 0.05
	pastSlow   = 0.10
)

// fails reports whether that part of the past makes the unit no witness.
func (h *History) fails(p past) bool {
	switch p {
	case pastOfErrors:
		return h.Errors.fails(pastErrors)
	case pastOfRejected:
		return h.Rejected.fails(pastErrors)
	case pastOfSlow:
		return h.Slow.fails(pastSlow)
	case pastOfFlaws:
		return h.Flawed.fails(pastErrors)
	}
	return false
}

func (t Tally) fails(share float64) bool {
	return t.N > 0 && float64(t.Bad) >= share*float64(t.N)
}
