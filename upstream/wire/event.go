package wire

import "bytes"

// action is what becomes of an event.
type action uint8

const (
	pass action = iota // as it came
	edit               // without its usage, or with another model
	drop               // it is there only because usage was injected
	wait               // edit, once the next event has said what belongs to it
)

// chunk is what a structural scan of one event's JSON finds.
type chunk struct {
	keyStart, prev int  // of usage: the quote of its key, the end of the member before
	usage, timings span // values; end 0 when absent
	took, print    span // the members timings and system_fingerprint, comma included
	model          span
	err            span
	message        bool
	flatError      bool // "object":"error"
	list           bool // choices is an array
	useful         bool // members that a usage-only event does not have
	typ            span // responses
	response       span
	status         span
	why            span // responses: why the answer is incomplete
	item           span
	output         span // responses: the index of the item
	delta          span
	choices        span
	content        content
	finish         span
	cutUsage       bool
}

// scan walks the top level of the object in b; false when it is none.
func (e *chunk) scan(b []byte, set *choiceSet) bool {
	o := objectAt(b, skipSpace(b, 0))
	for o.next() {
		key := b[o.key.start:o.key.end]
	named:
		switch string(key) {
		case "choices":
			if b[o.val] == '[' {
				e.list = true
				end := 0
				e.finish, end = e.content.walk(b, o.val, set)
				o.walked(end)
				e.choices = o.value()
			}
		case "usage":
			e.usage, e.keyStart, e.prev = o.value(), o.key.start-1, o.prev
		case "id", "created", "service_tier", "obfuscation", "moderation":
		case "system_fingerprint":
			e.print = o.member()
		case "object":
			e.flatError = stringIs(b, o.val, o.end(), "error")
		case "model":
			e.model = o.value()
		case "timings":
			e.timings, e.took = o.value(), o.member()
		case "error":
			if v := o.value(); truthy(b, v) {
				e.err = v
			}
		case "message":
			e.message = true
			e.useful = true
		case "type":
			e.typ = o.value()
		case "response":
			e.response = o.value()
		case "delta":
			e.delta = o.value()
		case "item":
			e.item = o.value()
			e.useful = true
		case "output_index":
			e.output = o.value()
			e.useful = true
		default:
			if bytes.IndexByte(key, '\\') >= 0 && len(key) < 128 {
				var ok bool
				if key, ok = appendUnescaped(nil, key); ok && bytes.IndexByte(key, '\\') < 0 {
					goto named
				}
			}
			e.useful = e.useful || carries(b, o.val, o.end())
		}
	}
	end := o.close()
	return end >= 0 && skipSpace(b, end) == len(b)
}

// truthy tells an error from "error":null, false, "" and {}.
func truthy(b []byte, v span) bool {
	switch b[v.start] {
	case '{', '[', '"':
		return v.end-v.start > 2
	}
	return b[v.start] == 't'
}

// event meters one event and decides what becomes of it. seen is how many bytes
// of the stream there were up to its end.
func (s *Stream) event(whole []byte, seen int) action {
	if s.lines == 0 {
		return pass
	}
	if len(whole) > eventLimit {
		s.stats.Oversize = true
		if !s.done {
			s.stats.Events++
			s.committed = true
		}
		return pass
	}
	if seen > holdLimit && !s.done {
		s.committed = true
	}
	data := whole[s.data.start:s.data.end]
	if s.lines > 1 {
		data = s.joined
	} else if s.again(data) {
		return pass
	}
	switch t := bytes.TrimSpace(data); {
	case len(t) == 0:
		return pass
	case t[0] == '[' && string(t) == "[DONE]":
		s.done = true
		return pass
	}
	if !s.read(data) || s.done {
		return pass
	}
	return s.take(data)
}

// read scans an event's JSON into s.chunk and meters it; false when it is no
// object.
func (s *Stream) read(data []byte) bool {
	e := &s.chunk
	*e = chunk{}
	before := s.choices
	ok := e.scan(data, &s.choices)
	if s.done || !ok {
		s.choices = before
	}
	if ok {
		s.meter(data, e)
	} else if !s.done {
		s.malformed(data)
	}
	return ok
}

// take counts the event in s.chunk and decides what becomes of it.
func (s *Stream) take(data []byte) action {
	e := &s.chunk
	s.stats.Events++
	if e.err.end > 0 || e.flatError && e.message || s.named && !e.list {
		s.fail(data)
		return pass
	}
	if s.o.API == Responses {
		s.typed(data, e)
	} else {
		s.choicesSeen(data, e)
	}
	act := pass
	if s.edits {
		act = s.judge(data, e)
	}
	if act == pass && s.lines == 1 {
		s.learn(data, e)
	}
	return act
}

// malformed counts an event that is not a JSON object. A bare string under
// `event: error` is an error all the same.
func (s *Stream) malformed(data []byte) {
	s.stats.Malformed++
	if s.named {
		s.fail(data)
	}
}

func (s *Stream) fail(data []byte) {
	if s.failed {
		return
	}
	s.failed, s.early = true, !s.committed
	s.err = streamError(data, s.o.Dialect)
}

// meter takes usage: the last non-null one counts.
func (s *Stream) meter(b []byte, e *chunk) {
	finished := s.choices.done()
	if e.usage.end > 0 && b[e.usage.start] == '{' {
		s.setUsage(b, e.usage.start, finished)
	}
	if e.response.end > 0 && s.o.API == Responses {
		for o := objectAt(b, e.response.start); o.next(); {
			switch {
			case o.is("usage"):
				s.setUsage(b, o.val, finished)
			case o.is("status"):
				e.status = o.value()
			case o.is("incomplete_details"):
				e.why = memberOf(b, o.value(), "reason")
			}
		}
	}
	if e.timings.end > 0 {
		if u, ok, n := parseTimings(b, e.timings.start); ok {
			s.timings.add(u, s.o.Dialect, finished)
			s.stats.Clamped += n
		}
	}
}

func (s *Stream) setUsage(b []byte, i, finished int) {
	if u, ok, n := parseUsage(b, i); ok {
		s.usage.add(u, s.o.Dialect, finished)
		s.stats.Clamped += n
	}
}

// choicesSeen is the commit point and the counts of chat and completions.
func (s *Stream) choicesSeen(b []byte, e *chunk) {
	c := &e.content
	s.stats.Chars += c.chars
	if c.output {
		s.stats.ContentEvents++
	}
	s.answered = s.answered || c.answered
	s.critic.choices(b, e.choices, c)
	if e.finish.end > 0 && (c.zero || len(s.finish) == 0) {
		s.finish = append(s.finish[:0], b[e.finish.start+1:e.finish.end-1]...)
	}
	if c.any || !e.list && e.usage.end == 0 && e.timings.end == 0 {
		s.committed = true
	}
}

// typed is the same for the events of the Responses API, which say what they are.
func (s *Stream) typed(b []byte, e *chunk) {
	if !isString(b, e.typ.start, e.typ.end) {
		s.committed = true
		return
	}
	typ := b[e.typ.start+1 : e.typ.end-1]
	s.critic.event(b, string(typ), e)
	switch string(typ) {
	case "response.created", "response.queued", "response.in_progress", "response.output_item.added",
		"response.content_part.added", "response.reasoning_summary_part.added":
		return
	case "error", "response.failed":
		s.terminal = string(typ) != "error"
		s.finish = append(s.finish[:0], "failed"...)
		s.fail(b)
		return
	case "response.completed", "response.incomplete":
		s.terminal = true
		if isString(b, e.status.start, e.status.end) {
			s.finish = append(s.finish[:0], b[e.status.start+1:e.status.end-1]...)
		} else {
			s.finish = append(s.finish[:0], typ[len("response."):]...)
		}
	}
	if bytes.HasSuffix(typ, []byte(".delta")) && e.delta.end > 0 {
		var c content
		c.text(b, e.delta.start, e.delta.end, !bytes.HasPrefix(typ, []byte("response.reasoning")))
		if !c.any {
			return
		}
		s.stats.ContentEvents++
		s.stats.Chars += c.chars
		s.answered = s.answered || c.answered
	}
	s.committed = true
}
