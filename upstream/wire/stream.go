package wire

const (
	// holdLimit commits however little the events said.
	holdLimit = 32 << 10
	// eventLimit is how large an event may be and still be metered.
	eventLimit = 4 << 20
	// keepLimit is how large a buffer Reset keeps.
	keepLimit = 64 << 10
)

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
	// Judging is by what the answer is judged.
	Judging Judging
}

// Stream follows a server-sent event stream as it passes: fed with raw reads,
// it returns the bytes for the client and keeps what metering, failover and
// outcome need. It is for one goroutine; Reset makes it ready for the next
// answer and keeps its buffers, so it may be pooled.
type Stream struct {
	o     StreamOptions
	edits bool // events may be changed or dropped: only whole ones are returned

	// The event that has begun. While it lies within one read its offsets are
	// into that read; ev holds it when it goes on in the next one.
	ev        []byte
	line      int    // where its current line begins
	data      span   // value of its first data line
	lines     int    // number of data lines
	joined    []byte // their values when there are several
	comment   bool   // it has a comment line
	named     bool   // its name says error
	pendingCR bool   // its last byte is a CR whose LF may be still to come
	skipLF    bool   // the last byte was a lone CR that ended a line
	loneCR    bool   // the stream ends lines with lone CRs
	dropped   bool   // the event before was not returned
	waited    bool   // it waits for the next one
	started   bool   // the first line has passed
	skipping  bool   // the event is oversize: wait for its end
	emptyLine bool   // while skipping: the current line is empty so far
	pad       string // after EOF: see Newlines

	held []byte // returned when committed
	late late   // events with a finish reason that wait for the next one
	out  []byte // returned by Feed when it is not a part of p
	from int    // start of the part of p that is still to be returned
	seen int    // bytes fed before this read

	committed bool
	done      bool
	failed    bool // an error event came
	early     bool // before the commit point
	err       ErrorInfo

	usage, timings tally
	choices        choiceSet
	terminal       bool // responses: the last event came
	answered       bool
	finish         []byte
	stats          StreamStats
	chunk          chunk // of the event at hand
	like           template
	critic         critic
}

// StreamStats counts what passed.
type StreamStats struct {
	Events        int64 // events with JSON data
	ContentEvents int64 // those with generated content (text, reasoning, tool calls)
	Chars         int64 // characters of generated content
	Malformed     int64 // events whose data is not a JSON object
	Clamped       int64 // usage numbers that made no sense and were clamped
	Oversize      bool  // an event was over 4 MiB: forwarded, not metered
}

// NewStream returns a Stream at the start of an answer.
func NewStream(o StreamOptions) *Stream {
	s := new(Stream)
	s.Reset(o)
	return s
}

// Reset returns s to the start of an answer.
func (s *Stream) Reset(o StreamOptions) {
	*s = Stream{
		o: o, edits: o.StripUsage || o.StripChunkUsage || o.EchoModel != "",
		ev: keep(s.ev), joined: keep(s.joined), held: keep(s.held), out: keep(s.out), finish: keep(s.finish),
		like: template{before: s.like.before[:0], after: s.like.after[:0]},
		late: late{buf: keep(s.late.buf), ends: s.late.ends[:0]}, critic: critic{calls: s.critic.calls},
	}
	s.critic.reset(o.Judging)
}

func keep(b []byte) []byte {
	if cap(b) > keepLimit {
		return nil
	}
	return b[:0]
}

// Feed takes the next bytes of the upstream's body and returns those to send to
// the client now, nil when there are none. The result may share memory with p
// or with s and is valid until the next call. Before the commit point it
// returns nothing; the call that commits returns all that was held. Nothing
// behind [DONE] is returned, though a late usage is still read.
func (s *Stream) Feed(p []byte) (out []byte) {
	if len(p) == 0 {
		return nil
	}
	s.out, s.from = s.out[:0], 0
	limit := s.follow(p)
	s.seen += len(p)
	if s.seen > holdLimit && !s.done {
		s.committed = true
	}
	return s.release(p, limit)
}

// release returns out and p[from:limit], or holds them.
func (s *Stream) release(p []byte, limit int) []byte {
	rest := p[s.from:limit]
	if !s.committed || len(s.held) > 0 {
		s.held = append(append(s.held, s.out...), rest...)
		return s.unhold()
	}
	if len(s.out) > 0 {
		s.out = append(s.out, rest...)
		return s.out
	}
	if len(rest) == 0 {
		return nil
	}
	return rest
}

func (s *Stream) unhold() []byte {
	if !s.committed || len(s.held) == 0 {
		return nil
	}
	out := s.held
	s.held = s.held[:0]
	return out
}

// Commit commits now (a keep-alive comment was sent, or an answer ended with
// nothing that commits) and returns what was held. It is harmless later.
func (s *Stream) Commit() (out []byte) {
	s.committed = true
	return s.unhold()
}

// EOF is called once, when the body ended cleanly, and returns what is still to
// be sent: a tail that was waiting for its end, and, when the answer is
// complete but has no [DONE] (chat and completions), the newlines that are
// missing and `data: [DONE]`. Before the commit point it returns nothing.
func (s *Stream) EOF() (out []byte) {
	s.out, s.from = s.out[:0], 0
	s.pad = s.padding(true)
	if len(s.ev) > 0 && !s.done {
		s.eofEvent()
	}
	s.out = s.late.appendTo(s.out, nil, nil)
	chat := s.o.API == Chat || s.o.API == Completions
	if chat && !s.done && !s.failed && s.Complete() {
		s.out = append(append(s.out, s.pad...), "data: [DONE]\n\n"...)
		s.done, s.pad = true, ""
	}
	s.ev, s.pendingCR, s.skipping = s.ev[:0], false, false
	return s.release(nil, 0)
}

// eofEvent dispatches the event that the end of the stream cut short.
func (s *Stream) eofEvent() {
	end := len(s.ev)
	if s.pendingCR {
		end--
	}
	if s.line < end {
		s.endLine(s.ev, end)
	}
	act := s.event(s.ev, s.seen)
	if s.edits {
		s.emit(act, s.ev)
		if act == drop {
			s.pad = ""
		}
	}
}

// padding is what has to follow the bytes returned so far (all fed bytes when
// flushed) to end the event they end in.
func (s *Stream) padding(flushed bool) string {
	switch {
	case s.done:
		return ""
	case s.skipping:
		if s.emptyLine && !s.pendingCR {
			return "\n"
		}
		return "\n\n"
	case len(s.ev) == 0 || s.edits && !flushed:
		return ""
	case s.pendingCR:
		if s.line == len(s.ev)-1 {
			return "\n" // the blank line itself
		}
		return "\n\n"
	case s.line == len(s.ev) && s.ev[len(s.ev)-1] == '\n':
		return "\n"
	}
	return "\n\n"
}

// Newlines is what has to be sent before an event of the gateway's own, so that
// it does not run into the end of an unfinished one: "", one or two newlines.
func (s *Stream) Newlines() string {
	if !s.committed {
		return "" // nothing was returned
	}
	if s.pad != "" {
		return s.pad
	}
	return s.padding(false)
}

// Interrupt returns what has to be sent before an event of the gateway's own
// that ends the answer: events that wait for the next one, then Newlines. It
// may share memory with s and is valid until the next call.
func (s *Stream) Interrupt() []byte {
	s.out = s.late.appendTo(s.out[:0], nil, nil)
	return append(s.out, s.Newlines()...)
}

// Committed tells whether the commit point has passed: after it nothing is retried.
func (s *Stream) Committed() bool { return s.committed }

// Held is the number of bytes held back for the commit point or for the end of
// an event.
func (s *Stream) Held() int {
	if s.edits || !s.committed {
		return len(s.held) + len(s.ev) + len(s.late.buf)
	}
	return 0
}

// Boundary tells whether the bytes returned so far end between two events, so
// that a comment may be inserted.
func (s *Stream) Boundary() bool {
	return s.Newlines() == ""
}

// Done tells whether [DONE] passed. Nothing behind it is returned by Feed.
func (s *Stream) Done() bool { return s.done }

// Complete tells whether the answer is whole: every choice that started has a
// finish reason (for responses: the terminal event was seen).
func (s *Stream) Complete() bool { return s.terminal || s.choices.complete() }

// Empty tells that no event with JSON data came: nothing, comments, [DONE] only.
func (s *Stream) Empty() bool { return s.stats.Events == 0 }

// Error returns the first error event of the stream. before tells that it came
// before the commit point, so that it can become an HTTP status or a failover.
func (s *Stream) Error() (info ErrorInfo, before, ok bool) { return s.err, s.early, s.failed }

// Usage returns the upstream's own count, the last non-null one (llama.cpp's
// timings when there is none); ok is false when it sent neither.
func (s *Stream) Usage() (u Usage, ok bool) {
	if s.usage.ok {
		return s.usage.Usage, true
	}
	return s.timings.Usage, s.timings.ok
}

// FinishReason is that of choice 0 (of the first that finished without one), ""
// unknown; for responses the status of the answer.
func (s *Stream) FinishReason() string { return string(s.finish) }

// Answered tells whether an answer token was seen: content or a tool call, not
// reasoning.
func (s *Stream) Answered() bool { return s.answered }

// ContentEvents is Stats' of that name.
func (s *Stream) ContentEvents() int64 { return s.stats.ContentEvents }

// Stats returns the counts so far.
func (s *Stream) Stats() StreamStats { return s.stats }

// Answer is what the answer was like so far; Seen is false before anything of
// one came. Nothing may be fed behind it.
func (s *Stream) Answer() Answer {
	if s.choices.count == 0 && !s.terminal && s.stats.ContentEvents == 0 {
		return Answer{}
	}
	a := s.critic.answer(s.Complete() && !s.failed)
	a.Chars, a.Events = s.stats.Chars, s.stats.ContentEvents
	return a
}

// Estimate is the estimated number of output tokens seen so far.
func (s *Stream) Estimate() int64 { return Estimate(s.stats.Chars, s.stats.ContentEvents) }
