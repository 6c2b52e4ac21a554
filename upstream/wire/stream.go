package wire

// StreamOptions says what a Stream follows and what it takes out again.
type StreamOptions struct {
	API     API
	Dialect Dialect
	// StripUsage: include_usage was injected and the client did not ask for it.
	StripUsage bool
	// StripChunkUsage: continuous_usage_stats was injected and the client did
	// not ask for it; the usage of every chunk but the usage event goes.
	StripChunkUsage bool
	// EchoModel, when set, replaces the model in every chunk.
	EchoModel string
}

// Stream follows a server-sent event stream as it passes: fed with raw reads,
// it returns the bytes for the client and keeps what metering, failover and
// outcome need. It is for one goroutine; Reset makes it ready for the next
// answer and keeps its buffers, so it may be pooled.
type Stream struct {
	o StreamOptions
}

// NewStream returns a Stream at the start of an answer.
func NewStream(o StreamOptions) *Stream { return &Stream{o: o} }

// Reset returns s to the start of an answer.
func (s *Stream) Reset(o StreamOptions) { *s = Stream{o: o} }

// Feed takes the next bytes of the upstream's body and returns those to send to
// the client now, nil when there are none. The result may share memory with p
// or with s and is valid until the next call. Before the commit point it
// returns nothing; the call that commits returns all that was held.
func (s *Stream) Feed(p []byte) (out []byte) { return p }

// EOF is called once, when the body ended cleanly, and returns what is still to
// be sent: a tail that was waiting for its end, and, when the answer is
// complete but has no [DONE] (chat and completions), the newlines that are
// missing and `data: [DONE]`. Before the commit point it returns nothing: ask
// Complete and then Commit.
func (s *Stream) EOF() (out []byte) { return nil }

// Commit commits now (a keep-alive comment was sent, or a complete answer had
// nothing that commits) and returns what was held. It is harmless later.
func (s *Stream) Commit() (out []byte) { return nil }

// Committed tells whether the commit point has passed: after it nothing is retried.
func (s *Stream) Committed() bool { return false }

// Held is the number of bytes held back for the commit point.
func (s *Stream) Held() int { return 0 }

// Boundary tells whether the bytes returned so far end between two events, so
// that a comment may be inserted.
func (s *Stream) Boundary() bool { return false }

// Done tells whether [DONE] passed (for responses: the terminal event). Nothing
// behind it is returned by Feed.
func (s *Stream) Done() bool { return false }

// Complete tells whether the answer is whole: every choice that started has a
// finish reason (for responses: the terminal event was seen).
func (s *Stream) Complete() bool { return false }

// Empty tells that no event with JSON data came: nothing, comments, [DONE] only.
func (s *Stream) Empty() bool { return true }

// Error returns the error event of the stream. before tells that it came before
// the commit point, so that it can become an HTTP status or a failover.
func (s *Stream) Error() (info ErrorInfo, before, ok bool) { return ErrorInfo{}, false, false }

// Usage returns the upstream's own count, the last non-null one; ok is false
// when it sent none.
func (s *Stream) Usage() (u Usage, ok bool) { return Usage{}, false }

// FinishReason is that of choice 0 (of the first that finished without one), ""
// unknown; for responses the status of the answer.
func (s *Stream) FinishReason() string { return "" }

// StreamStats counts what passed.
type StreamStats struct {
	Events        int64 // events with data, [DONE] not counted
	ContentEvents int64 // those with generated content (text, reasoning, tool calls)
	Chars         int64 // characters of generated content
	Malformed     int64 // events whose data is not JSON of a known shape
	Clamped       int64 // usage numbers that made no sense and were clamped
	Oversize      bool  // an event was over 4 MiB: forwarded, not metered
}

// Stats returns the counts so far.
func (s *Stream) Stats() StreamStats { return StreamStats{} }

// Estimate is Estimate(Chars, ContentEvents) of this stream.
func (s *Stream) Estimate() int64 { return 0 }
