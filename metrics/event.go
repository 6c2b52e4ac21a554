// Package metrics takes one flat Event per request and makes the rest of it:
// Prometheus at once; the access log, the ledger rows and the rollups soon,
// from one bounded queue that never blocks a request. It hides buffering,
// batching and label policy. Money is computed here, in integers.
package metrics

import (
	"context"
	"slices"
	"time"
)

// Event is everything that is recorded of one request. Strings are shared, not
// copied; the recorder does not change them.
type Event struct {
	Time            time.Time
	RequestID       string // UUIDv7
	ClientRequestID string
	API             string // chat_completions, …
	Model           string // public name from configuration, "other" when unknown
	Experiment      string // "" = none
	Assigned        string // variant; "" = default
	Served          string
	Version         string // served variant's label
	Role            string // primary | shadow | probe; "" = primary
	Source          string // "" or playground
	Bucket          int    // -1 = none
	Reason          string
	Revision        int64
	Unit            [8]byte // pin field of the unit, never the id; zero without unit
	HasUnit         bool
	Analysed        bool
	Generation      int
	KeyID, Tenant   string
	Upstream        string // that answered, or failed last
	Endpoint        string
	Outcome         string
	Status          int
	Stream          bool
	TTFT            time.Duration // from the first attempt's start; 0 = none
	Duration        time.Duration
	Overhead        time.Duration // gateway's own time before the first attempt; not what the client took to send
	Queued          time.Duration // waited for a place in front of the upstream
	FinishReason    string
	RetryCount      int           // x-stainless-retry-count
	Asks            uint16        // bits in the order of AskNames
	Prompt          int64         // estimated prompt tokens, by one estimate for every variant
	TTFA            time.Duration // from the first attempt's start to the first token of content or a tool call of a stream; 0 = none
	Answer          Answer        // of the attempt that answered
	Notes           uint8         // bits in the order of NoteNames
	Attempts        []Attempt
}

// Note is the bit of a note in Event.Notes, 0 for a word that is none.
func Note(word string) (bit uint8) {
	if i := slices.Index(NoteNames[:], word); i >= 0 {
		bit = 1 << i
	}
	return bit
}

// Answer is what an answer was like.
type Answer struct {
	Seen    bool          // an answer, or a part of one, came in a form that can be read
	Flaws   uint8         // bits in the order of FlawNames
	Judged  uint8         // those that were looked for
	Refusal bool          // it reads like a refusal: a label, no flaw
	Chars   int64         // characters generated
	Events  int64         // events that carried some
	Finish  [5]uint16     // choices by finish reason, in the order of FinishNames
	Gap     time.Duration // the longest wait between two events with content
}

// The label values of asks, flaws, finish reasons and notes: closed sets.
var (
	NoteNames   = [...]string{"override_denied", "override_unknown_variant", "override_masked", "merge_conflict"}
	AskNames    = [...]string{"stream", "tools", "tool_call", "json", "system", "choices", "logprobs", "image", "stop", "long"}
	FlawNames   = [...]string{"empty", "truncated", "invalid_json", "invalid_tool_call", "reasoning_leak", "prompt_leak"}
	FinishNames = [...]string{"stop", "length", "tool_calls", "content_filter", "other"}
)

// Attempt is one call to one endpoint, with its tokens and cost.
type Attempt struct {
	Variant   string
	Upstream  string
	Endpoint  string
	Outcome   string
	Status    int
	Start     time.Time
	Duration  time.Duration
	Input     int64
	Cached    int64
	CacheWr   int64
	Output    int64
	Reasoning int64
	HasUsage  bool
	Estimated bool
	CostNano  int64 // nano-USD
	Priced    bool  // false: price unknown, CostNano is meaningless
	Reason    string
}

// Totals are an event's tokens and cost over all attempts.
type Totals struct {
	Input, Cached, CacheWr, Output, Reasoning, CostNano int64
	HasUsage, Estimated, Priced                         bool
}

// Writer stores batches; idempotent by RequestID, all or nothing. It must not keep evs.
// Implemented by internal/store.
type Writer interface {
	WriteEvents(ctx context.Context, evs []Event) error
}
