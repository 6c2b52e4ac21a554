package wire

import "bytes"

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
func Sniff(p []byte) Kind {
	p = bytes.TrimPrefix(p, bom)
	i := skipSpace(p, 0)
	if i == len(p) {
		return KindEmpty
	}
	switch p[i] {
	case '{':
		return KindJSON
	case ':':
		return KindEvents
	}
	for _, field := range [...]string{"data", "event", "id", "retry"} {
		rest := p[i:]
		n := min(len(rest), len(field))
		if string(rest[:n]) != field[:n] {
			continue
		}
		if n < len(field) || len(rest) == n {
			return KindEmpty // a prefix of it so far
		}
		if c := rest[n]; c == ':' || c == '\n' || c == '\r' {
			return KindEvents
		}
	}
	return KindOther
}

// Unary is what a whole answer says about itself.
type Unary struct {
	Usage    Usage
	HasUsage bool
	Choices  int    // choices, data or output items
	Finish   string // finish reason of choice 0 (status for responses)
	Chars    int64  // characters of generated content, for an estimate
	Clamped  int64  // usage numbers that made no sense
	Answer   Answer
}

// ReadUnary reads usage, choices and finish reason by a structural scan, and
// what the answer is like. llama.cpp's timings count when there is no usage.
func ReadUnary(body []byte, api API, by Judging) Unary {
	var u Unary
	var timings Usage
	hasTimings := false
	var status, why span
	var j critic
	j.reset(by)
	body = bytes.TrimPrefix(body, bom)
	for o := objectAt(body, skipSpace(body, 0)); o.next(); {
		switch string(body[o.key.start:o.key.end]) {
		case "usage":
			if got, ok, n := parseUsage(body, o.val); ok {
				u.Usage, u.HasUsage = got, true
				u.Clamped += n
			}
		case "timings":
			timings, hasTimings, _ = parseTimings(body, o.val)
		case "choices":
			var c content
			var set choiceSet
			finish, end := c.walk(body, o.val, &set)
			if end > 0 {
				o.walked(end)
			}
			u.Choices, u.Chars, u.Answer.Chars = c.choices, c.chars, c.chars
			if finish.end > 0 {
				u.Finish, _ = stringValue(body, finish.start, finish.end)
			}
			j.choices(body, o.value(), &c)
		case "data", "output":
			a := arrayAt(body, o.val)
			for a.next() {
			}
			u.Choices = a.n
			if api == Responses {
				u.Chars = deepTextLen(body[o.val:o.end()])
				u.Answer.Chars = j.output(body, o.value())
			}
		case "status":
			if status = o.value(); api == Responses {
				u.Finish, _ = stringValue(body, status.start, status.end)
			}
		case "incomplete_details":
			why = memberOf(body, o.value(), "reason")
		}
	}
	if !u.HasUsage && hasTimings {
		u.Usage, u.HasUsage = timings, true
	}
	u.answer(&j, api, body, status, why)
	return u
}

// answer fills in what the whole answer is like; Chars is there.
func (u *Unary) answer(j *critic, api API, body []byte, status, why span) {
	complete := true
	switch api {
	case Embeddings:
		u.Answer = Answer{}
		return
	case Responses:
		failed := u.Finish == "failed" || u.Finish == "cancelled"
		if complete = !failed && u.Finish != "queued" && u.Finish != "in_progress"; complete {
			j.respond(body, status, why)
		}
	default:
		if j.seen == (bitset{}) {
			j.seen.add(0) // an answer without a choice
		}
	}
	chars := u.Answer.Chars
	u.Answer = j.answer(complete)
	u.Answer.Chars = chars
	if chars > 0 {
		u.Answer.Events = 1
	}
}

// Verdict says what a 200 body is.
type Verdict uint8

// The verdicts.
const (
	VerdictOK      Verdict = iota
	VerdictError           // an error object under a 200
	VerdictInvalid         // empty or not a JSON object
	VerdictEvents          // an event stream under another label: feed it to a Stream
)

// emptyList tells that v is a list without elements.
func emptyList(b []byte, v span) bool {
	return b[v.start] == '[' && skipSpace(b, v.start+1) == v.end-1
}

// UnaryVerdict judges the whole body of a 200. info is set with VerdictError:
// an error, and no output, nor anything in choices or data.
func UnaryVerdict(body []byte, api API, d Dialect) (v Verdict, info ErrorInfo) {
	body = bytes.TrimPrefix(body, bom)
	start := skipSpace(body, 0)
	switch Sniff(body) {
	case KindEmpty:
		return VerdictInvalid, info
	case KindEvents:
		return VerdictEvents, info
	case KindOther: // a list, a string, a page: no client can read it
		return VerdictInvalid, info
	}
	end, fault := checkValue(body, start, 0)
	if fault != "" || skipSpace(body, end) != len(body) {
		return VerdictInvalid, info
	}
	failed, flat, message := false, false, false
	for o := objectAt(body, start); o.next(); {
		switch string(body[o.key.start:o.key.end]) {
		case "output": // a failed response has one beside its error
			return VerdictOK, info
		case "choices", "data":
			if v := o.value(); body[v.start] != 'n' && !emptyList(body, v) {
				return VerdictOK, info
			}
		case "error":
			failed = truthy(body, o.value())
		case "object":
			flat = stringIs(body, o.val, o.end(), "error")
		case "message":
			message = true
		}
	}
	if failed || flat && message {
		return VerdictError, streamError(body, d)
	}
	return VerdictOK, info
}
