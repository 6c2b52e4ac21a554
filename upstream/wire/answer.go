package wire

// Flaws are what was wrong with an answer that came under a 200.
type Flaws uint8

// The flaws.
const (
	FlawEmpty     Flaws = 1 << iota // a choice finished without content or a tool call
	FlawTruncated                   // the answer broke off
	FlawJSON                        // JSON was demanded, and the content is none
	FlawToolCall                    // a tool call without a name, of a tool that was not offered, or whose arguments are no JSON object
	FlawReasoning                   // the marks of a reasoning model stand in the content
	FlawPrompt                      // the system prompt is quoted in the content
)

// FlawNames are the names of the flaws in the order of their bits: those of the
// guardrails, and label values.
var FlawNames = [...]string{"empty", "truncated", "invalid_json", "invalid_tool_call", "reasoning_leak", "prompt_leak"}

// Checks are the judgements of content that cost more than a look at each byte.
type Checks uint8

// The checks. What they find is only told of requests that ask for it.
const (
	CheckJSON   Checks = 1 << iota // content under AskJSON
	CheckTools                     // tool calls under AskTools
	CheckPrompt                    // quotes of the system prompt under a Shingles
)

// Finish is a finish reason in the words of a closed set.
type Finish uint8

// The finish reasons.
const (
	FinishStop Finish = iota
	FinishLength
	FinishToolCalls
	FinishFilter
	FinishOther
	FinishKinds // their number
)

// FinishNames are the finish reasons as label values.
var FinishNames = [FinishKinds]string{"stop", "length", "tool_calls", "content_filter", "other"}

// Answer is what an answer was like, the same for a stream and a whole answer
// of the same content. Nothing in it is told of what did not come: of a stream
// that broke off only what its beginning shows.
type Answer struct {
	Seen    bool                // an answer came, or a part of one, in a form that can be read
	Flaws   Flaws               // what was found
	Judged  Flaws               // what was looked for: without a bit here its absence says nothing
	Refusal bool                // it reads like a refusal: a label, no flaw
	Chars   int64               // characters generated: text, reasoning, tool calls
	Events  int64               // events that carried some; 1 of a whole answer
	Finish  [FinishKinds]uint16 // choices by finish reason
}
