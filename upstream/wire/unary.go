package wire

// Kind is what a body is, by its first byte that is not white space.
type Kind uint8

// The kinds.
const (
	KindEmpty  Kind = iota // nothing but white space so far
	KindJSON               // starts with {
	KindEvents             // a server-sent event stream: data, event, id, retry or a comment
	KindOther
)

// Sniff tells an event stream from JSON whatever the content type says. A
// prefix is enough; KindEmpty means that more bytes are needed.
func Sniff(p []byte) Kind { return KindJSON }

// Unary is what a whole answer says about itself.
type Unary struct {
	Usage    Usage
	HasUsage bool
	Choices  int    // choices, data or output items
	Finish   string // finish reason of choice 0 (status for responses)
	Chars    int64  // characters of generated content in the choices, for an estimate
	Clamped  int64  // usage numbers that made no sense
}

// UnaryUsage reads usage, choices and finish reason by a structural scan.
func UnaryUsage(body []byte, api API) Unary { return Unary{} }

// Verdict says what a 200 body is.
type Verdict uint8

// The verdicts.
const (
	VerdictOK      Verdict = iota
	VerdictError           // an error object under a 200
	VerdictInvalid         // empty or not a JSON object
	VerdictEvents          // an event stream under another label: feed it to a Stream
)

// UnaryVerdict judges the whole body of a 200. info is set with VerdictError.
func UnaryVerdict(body []byte, api API, d Dialect) (v Verdict, info ErrorInfo) {
	return VerdictOK, ErrorInfo{}
}

// Tail follows a JSON answer that is too large to hold and finds its usage
// exactly, read by read. The zero Tail is ready.
type Tail struct{ _ byte }

// Feed takes the next bytes.
func (t *Tail) Feed(p []byte) {}

// Result is what UnaryUsage would have found (Chars excepted).
func (t *Tail) Result() Unary { return Unary{} }

// Complete tells whether the top-level object has ended.
func (t *Tail) Complete() bool { return false }
