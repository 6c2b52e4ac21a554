// Package upstream knows the servers: their dialects, connections, health and
// balancing. It hides everything between "send this request to the first
// target that can answer" and "these bytes are the client's, this is what they
// cost in tokens". Nothing above it sees a connection, a retry or an event.
package upstream

import (
	"context"
	"net/http"
	"time"

	"sluice/upstream/wire"
)

// Config describes one upstream. Zero values mean the documented defaults.
type Config struct {
	Name        string
	Dialect     wire.Dialect // "" = openai
	Endpoints   []string     // base URLs with any path prefix, normalised
	Credential  string       // the resolved secret, sent as Bearer; "" sends none
	UsageExact  bool         // usage: exact: per-chunk usage is injected where the dialect has it
	Balance     string       // least_outstanding (default) | round_robin | prefix | load
	Limits      Limits
	Timeouts    Timeouts
	Readiness   Readiness
	Warmup      int           // completions that an endpoint must answer before it gets traffic
	SlowStart   time.Duration // 0 = 10 s, negative off: how long a recovered endpoint's share grows
	ColdStart   ColdStart
	Drained     []string // base URLs of endpoints that get no new calls; "*" is all of them
	Hedge       Hedge
	DenyFields  []string // nil = the dialect's defaults, empty = none
	ReqHeaders  []string // additions to the request allow-list, lower case
	RespHeaders []string // additions to the response allow-list, lower case
	TLS         TLS
}

// Timeouts of one attempt; 0 takes the default, negative switches off.
type Timeouts struct {
	Connect      time.Duration // 2 s
	FirstByte    time.Duration // 10 min: request sent to first event or unary header
	BetweenBytes time.Duration // 2 min
	Total        time.Duration // off
}

// Limits bound what one gateway sends to an upstream; the zero value does not.
type Limits struct {
	MaxInFlight  int
	MaxQueue     int           // waiting beyond that; 0 = nobody waits
	QueueTimeout time.Duration // 0 = 10 s
}

// ColdStart is what happens to a request that finds no endpoint because none
// has come up yet.
type ColdStart struct {
	MaxWait time.Duration // 0 = it fails at once
	Wake    string        // URL that is POSTed to, once for all who wait; "" = none
}

// Hedge sends a second call to another endpoint when the first has not begun
// to answer in time; the zero value never does.
type Hedge struct {
	Quantile float64       // of the upstream's own TTFT, such as 0.95; 0 = off
	Min      time.Duration // never earlier than that
	MaxShare float64       // of the requests; 0 = 0.05
}

// Readiness is how an endpoint is checked.
type Readiness struct {
	Path     string        // "" = the dialect's own check
	Interval time.Duration // 2 s
	Down, Up int           // 3, 2
}

// TLS to the upstream; empty uses the system's roots.
type TLS struct{ CAFile, CertFile, KeyFile string }

// Outcome is the closed set of design.md section 9.
type Outcome string

// The outcomes. Success is the only good one.
const (
	Success        Outcome = "success"
	ClientError    Outcome = "client_error"
	Canceled       Outcome = "canceled"
	RateLimited    Outcome = "rate_limited"
	BudgetExceeded Outcome = "budget_exceeded"
	QueueFull      Outcome = "queue_full"
	Error          Outcome = "upstream_error"
	Timeout        Outcome = "upstream_timeout"
	UpRateLimited  Outcome = "upstream_rate_limited"
	Unreachable    Outcome = "upstream_unreachable"
	Truncated      Outcome = "upstream_truncated"
	Invalid        Outcome = "upstream_invalid"
	NoEndpoint     Outcome = "no_endpoint"
	ShuttingDown   Outcome = "shutting_down"
	InternalError  Outcome = "internal_error"
)

// Target is one choice of Do: an upstream, and what the variant makes of the
// request there.
type Target struct {
	Upstream *Upstream
	Variant  string      // "" without experiment
	Model    string      // served model name
	Patch    *wire.Patch // nil: none
	Tag      any         // the caller's own handle, handed back in Result.Served and Attempt
	Priority int         // in the upstream's queue; higher goes first
}

// Request is one client request, its body read whole.
type Request struct {
	API       wire.API
	Head      wire.Head
	Body      []byte
	Header    http.Header // the client's; Do applies the allow-list
	RequestID string      // ours; sent as x-request-id with the attempt's number appended
	Key       string      // whose request it is: the queue is fair between keys
	Deadline  time.Time   // the client's own, for the whole request; zero = none
	// Next is asked immediately before every attempt, the first one too, from
	// Do's own goroutine and never while the Sink is called, and returns the
	// target to use now; it re-reads kill flags. n counts the answers given so
	// far, from 0. last is how the call before ended: nil at n 0, Outcome
	// NoEndpoint and Endpoint "" when the target had no ready endpoint. same is
	// true when last's target may be tried again (another endpoint is there, or a
	// stale connection is replaced): return that target again, or the baseline's
	// when it has been killed. With same false return a fallback target or ok
	// false, which ends the request with the last failure; but the last attempt
	// is offered to a fallback first, and if there is none Next is asked again
	// with same true. reason is kept in Attempt.Reason.
	Next func(n int, last *Attempt, same bool) (t Target, reason string, ok bool)
	// Beside, when not nil, is asked immediately before a call is sent beside the
	// one under way (Config.Hedge), from Do's own goroutine: whether t, which is
	// that call's target, is still what Next would return. It changes nothing of
	// what Next has decided. After ok true left is called once, from any goroutine,
	// when the first byte is about to leave or the call has failed to be sent.
	Beside func(t Target) (left func(), ok bool)
	// EchoModel, when set, replaces the model in answers (echo_public_model).
	EchoModel string
	// Release, when not nil, is called once, from Do's goroutine, when Body is
	// no longer read: as soon as an answer streams, at the latest when Do
	// returns. Body may be reused from then on.
	Release func()
	// Sent, when not nil, is called when the first byte of an attempt is about to
	// leave, again when the attempt has an answer or has failed to be sent, and
	// before a wait in the queue, after which Next is asked again.
	// It may be called from any goroutine and must not block.
	Sent func()
	// Asks is what the request asks for: Head.Asks of Body. Answers are judged by
	// it, with those of Checks that cost something per byte.
	Asks   wire.Asks
	Checks wire.Checks
	// Progress, when not nil, is called with how long after the start of Do the
	// first token of the answer came (answer false) and the first one of content
	// or a tool call (true), each once at most; of a whole answer both when it is
	// there. It is called from Do's goroutine with a lock held and must not block.
	Progress func(answer bool, at time.Duration)
	// Ended, when not nil, is called when an attempt is over, before anything else
	// is tried, from Do's goroutine; a is good until it returns. A call that lost the
	// race to the one beside it is not told.
	Ended func(a *Attempt)
	// KeepAlive before and after the commit point; 0 = off.
	KeepAliveBefore, KeepAliveAfter time.Duration
}

// Attempt is one call to one endpoint. A send that met a stale connection, or
// that was repeated without injected members, is not an attempt of its own.
type Attempt struct {
	Target    Target
	Endpoint  string // base URL; "" with Outcome NoEndpoint: nothing was called
	Outcome   Outcome
	Status    int // HTTP status of the upstream, 0 without one; 200 also for an error inside a 200
	Usage     wire.Usage
	HasUsage  bool // Usage is known (from the upstream or estimated)
	Estimated bool
	Start     time.Time
	Duration  time.Duration
	// Answer is what the answer was like; Seen is false without one. The times are
	// of this attempt, from its Start, and stay if it failed later; 0 is never.
	Answer wire.Answer
	TTFT   time.Duration // to the first token; of a whole answer: until it was there
	TTFA   time.Duration // to the first token of content or a tool call; the same of a whole answer
	Gap    time.Duration // the longest wait for the upstream between two events with content
	Free   bool          // repeats a connect error or a stale connection; outside the budget of attempts
	// Unreached: nothing was sent, because no server was there. No connection could
	// be made, or no endpoint is ready, or those that were are no longer there. False
	// where servers are there and are left alone because they failed.
	Unreached bool
	Err       error  // cause, for the log
	Reason    string // why this target: "", "retry", "fallback", "killed"
}

// Failure is an error that the gateway must put into the client's envelope.
type Failure struct {
	Status     int
	Code       string // of the closed table in design.md section 5; "" for an upstream's own envelope
	Type       string
	Message    string
	Param      string
	RetryAfter string // value for retry-after, "" none
	RetryMS    string // value for retry-after-ms, "" none
	NoRetry    bool   // x-should-retry: false
	// Body, when not nil, is an upstream's own OpenAI envelope, sent as it came.
	Body        []byte
	ContentType string
	Header      http.Header // allow-listed upstream headers (x-ratelimit-*, …), may be nil
}

// Meta is known when the answer is committed.
type Meta struct {
	Status   int
	Header   http.Header // allow-listed upstream headers incl. content-type
	Stream   bool        // an event stream: headers for SSE are the sink's to add
	Length   int64       // content-length, -1 unknown
	Target   Target
	Endpoint string
	Attempts int
}

// Sink is the client's side, implemented by the server. Calls never overlap.
type Sink interface {
	// Commit starts the response. It is called at most once; a keep-alive
	// comment before the upstream committed also calls it (Meta.Target is then
	// the one being tried).
	Commit(m Meta)
	// Write sends p and flushes; an error means the client is gone.
	Write(p []byte) error
	// FailInBand writes the error event for a stream that is already committed.
	FailInBand(f Failure) error
}

// Result is what one request came to.
type Result struct {
	Outcome   Outcome
	Status    int      // what the client got or must get; 499 when canceled
	Failure   *Failure // not nil: nothing was committed, the server writes it
	Abort     bool     // the client's connection must be aborted, not ended cleanly
	Committed bool
	Served    Target
	Endpoint  string
	Attempts  []Attempt
	Queued    time.Duration // waited for a place in front of an upstream
	TTFT      time.Duration // from the start of Do to the commit point; 0 when none
	TTFA      time.Duration // to the first answer token (content or tool call) of a stream; 0 when none
	Stream    bool
	Finish    string // finish reason of choice 0, "" unknown
}

// Answered is the attempt whose answer the client got, all of it or a part; nil
// when it got none.
func (r *Result) Answered() *Attempt {
	for i := len(r.Attempts) - 1; i >= 0; i-- {
		if a := &r.Attempts[i]; a.TTFT > 0 {
			return a
		}
	}
	return nil
}

// Doer is Do's signature, for the server.
type Doer interface {
	Do(ctx context.Context, r *Request, s Sink) Result
}
