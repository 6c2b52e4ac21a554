package wire

import "bytes"

// strict tells the dialects whose chunks have no usage member unless asked for.
func (d Dialect) strict() bool { return d == OpenAI || d == VLLM || d == "" }

// judge decides what is taken out of an event, so that the client sees the
// stream it would have got without the injection.
func (s *Stream) judge(b []byte, e *chunk) action {
	e.cutUsage = false
	if e.usage.end > 0 {
		object := b[e.usage.start] == '{'
		usageEvent := object && e.content.choices == 0
		switch {
		case s.o.StripUsage && usageEvent && s.o.API != Responses && s.onlyUsage(e):
			return drop
		case s.o.StripUsage && (usageEvent || s.o.Dialect.strict()):
			e.cutUsage = true
		case s.o.StripChunkUsage && !usageEvent && (object || s.o.Dialect.strict()):
			e.cutUsage = true
		}
	}
	if s.waits(e) {
		return wait
	}
	if e.cutUsage || s.o.EchoModel != "" && (e.model.end > 0 || e.response.end > 0) {
		return edit
	}
	return pass
}

// onlyUsage tells whether a usage event has nothing that an uninjected stream
// would have. vLLM's own events of this shape never have.
func (s *Stream) onlyUsage(e *chunk) bool {
	return s.o.Dialect == VLLM || !e.useful && (e.timings.end == 0 || s.late.lacksTimings())
}

// emit appends what becomes of an event to s.out. Events that waited go first.
func (s *Stream) emit(act action, whole []byte) {
	if s.lines > 0 && act != wait && len(s.late.buf) > 0 {
		var data []byte
		if act == drop {
			if data = s.joined; s.lines == 1 {
				data = whole[s.data.start:s.data.end]
			}
		}
		s.out = s.late.appendTo(s.out, data, &s.chunk)
	}
	switch act {
	case wait:
		s.keepLate(whole)
	case pass:
		s.out = append(s.out, whole...)
	case drop:
		if s.comment {
			s.out = appendComments(s.out, whole)
		}
	case edit:
		if s.lines == 1 {
			s.out = append(s.out, whole[:s.data.start]...)
			s.out = s.appendEdited(s.out, whole[s.data.start:s.data.end])
			s.out = append(s.out, whole[s.data.end:]...)
			return
		}
		s.out = appendRebuilt(s.out, whole, s.appendEdited(nil, s.joined))
	}
}

func (s *Stream) appendEdited(dst, b []byte) []byte {
	var space [4]cut
	cuts := space[:0]
	e := &s.chunk
	if e.cutUsage {
		cuts = append(cuts, cutMember(b, e.keyStart, e.prev, e.usage.end))
	}
	if s.o.EchoModel != "" {
		if isString(b, e.model.start, e.model.end) {
			c := cut{start: e.model.start, end: e.model.end, text: s.o.EchoModel, how: quoted}
			if len(cuts) > 0 && cuts[0].start > c.start {
				cuts = append(cuts, cuts[0])
				cuts[0] = c
			} else {
				cuts = append(cuts, c)
			}
		} else if e.response.end > 0 {
			cuts = appendModelCuts(cuts, b, e.response.start, s.o.EchoModel, false)
		}
	}
	return appendCuts(dst, b, cuts)
}

// cutMember removes a member with one of its commas.
func cutMember(b []byte, key, prev, end int) cut {
	if prev > 0 {
		return cut{start: prev, end: end}
	}
	if i := skipSpace(b, end); i < len(b) && b[i] == ',' {
		end = skipSpace(b, i+1)
	}
	return cut{start: key, end: end}
}

// eachLine calls f with every line of an event and its terminator.
func eachLine(whole []byte, f func(line, end []byte)) {
	c := cursor{p: whole, nl: -1, cr: -1}
	for i := 0; i < len(whole); {
		t := c.next(i)
		next := min(t+1, len(whole))
		if t < len(whole) && whole[t] == '\r' && next < len(whole) && whole[next] == '\n' {
			next++
		}
		f(whole[i:t], whole[t:next])
		i = next
	}
}

// appendComments appends the comment lines of an event.
func appendComments(dst, whole []byte) []byte {
	eachLine(whole, func(line, end []byte) {
		if len(line) > 0 && line[0] == ':' {
			dst = append(append(dst, line...), end...)
		}
	})
	return dst
}

// appendRebuilt appends an event of several data lines with other data: all of
// it where the first data line was, line by line as before.
func appendRebuilt(dst, whole, data []byte) []byte {
	first := true
	eachLine(whole, func(line, end []byte) {
		if _, ok := fieldValue(line, "data"); !ok {
			dst = append(append(dst, line...), end...)
			return
		}
		if !first {
			return
		}
		first = false
		for part := range bytes.SplitSeq(data, []byte{'\n'}) {
			dst = append(append(append(dst, "data: "...), part...), end...)
		}
	})
	return dst
}
