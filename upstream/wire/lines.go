package wire

import "bytes"

// cursor finds line ends, each byte looked at once per kind of end.
type cursor struct {
	p      []byte
	nl, cr int
}

// next is the offset of the first LF or CR at or behind i, len(p) without one.
func (c *cursor) next(i int) int {
	if c.nl < i {
		if k := bytes.IndexByte(c.p[i:], '\n'); k >= 0 {
			c.nl = i + k
		} else {
			c.nl = len(c.p)
		}
	}
	if c.cr < i {
		if k := bytes.IndexByte(c.p[i:], '\r'); k >= 0 {
			c.cr = i + k
		} else {
			c.cr = len(c.p)
		}
	}
	return min(c.nl, c.cr)
}

// terminator is the length of the line end at p[t]; 0 when it is a CR at the
// end of the read whose LF may be still to come.
func (s *Stream) terminator(p []byte, t int) int {
	switch {
	case p[t] == '\n':
		return 1
	case t+1 < len(p):
		if p[t+1] == '\n' {
			return 2
		}
		s.loneCR = true
		return 1
	case s.loneCR:
		s.skipLF = true
		return 1
	}
	return 0
}

// follow reads the lines of p and dispatches the events that end in it. What is
// to be returned is s.out and then p[s.from:limit].
func (s *Stream) follow(p []byte) (limit int) {
	wasDone := s.done
	i := s.resume(p)
	switch {
	case wasDone:
		limit = s.from // only what resume let through
	case s.done:
		wasDone, limit = true, i
	}
	base := i // where the event begins, while s.ev is empty
	c := cursor{p: p, nl: -1, cr: -1}
	for i < len(p) {
		t := c.next(i)
		if s.skipping && t > i {
			s.emptyLine = false
		}
		if t == len(p) {
			break
		}
		n := s.terminator(p, t)
		if n == 0 {
			s.pendingCR = true
			break
		}
		ended := false
		switch {
		case s.skipping:
			ended, s.emptyLine = s.emptyLine, true
		case len(s.ev) > 0:
			s.ev = append(s.ev, p[i:t+n]...)
			ended = s.endLine(s.ev, len(s.ev)-n)
			s.line = len(s.ev)
		default:
			ended = s.endLine(p[base:], t-base)
			s.line = t + n - base
		}
		i = t + n
		if ended {
			s.dispatch(p, base, i)
			base = i
			if s.done && !wasDone {
				wasDone, limit = true, i
			}
		}
	}
	full := s.save(p, base, i)
	if wasDone {
		return limit
	}
	return full
}

// resume takes care of a line end that the last read cut in two, and returns
// where reading goes on.
func (s *Stream) resume(p []byte) (i int) {
	done := s.done
	switch {
	case s.skipLF:
		s.skipLF = false
		if p[0] != '\n' {
			return 0
		}
		if len(s.ev) > 0 {
			s.ev = append(s.ev, '\n')
			s.line = len(s.ev)
		}
		i = 1
		if s.waited {
			s.late.buf = append(s.late.buf, '\n')
			s.from = 1
		} else if s.dropped {
			s.from = 1
		} else if done && len(s.ev) == 0 {
			s.out = append(s.out, '\n') // the end of [DONE] itself
			s.from = 1
			s.dropped = true
		}
	case s.pendingCR:
		s.pendingCR = false
		n := 1
		if p[0] == '\n' {
			i, n = 1, 2
		} else {
			s.loneCR = true
		}
		ended := false
		if s.skipping {
			ended, s.emptyLine = s.emptyLine, true
		} else {
			s.ev = append(s.ev, p[:i]...)
			ended = s.endLine(s.ev, len(s.ev)-n)
			s.line = len(s.ev)
		}
		if ended {
			s.dispatch(p, 0, i)
		}
	}
	return i
}

// endLine reads the line raw[s.line:end] and tells whether it ends the event.
func (s *Stream) endLine(raw []byte, end int) (ended bool) {
	start := s.line
	if !s.started {
		s.started = true
		if bytes.HasPrefix(raw[start:end], bom) {
			start += len(bom)
		}
	}
	if start == end {
		return true
	}
	switch b := raw[start:end]; b[0] {
	case ':':
		s.comment = true
	case 'd':
		if v, ok := fieldValue(b, "data"); ok {
			s.dataLine(raw, end-len(v), end)
		}
	case 'e':
		if v, ok := fieldValue(b, "event"); ok {
			s.named = string(v) == "error"
		} else if v, ok := fieldValue(b, "error"); ok { // llama.cpp before 2024-12
			s.named = true
			s.dataLine(raw, end-len(v), end)
		}
	}
	return false
}

// fieldValue is the value of the line when its field has this name.
func fieldValue(line []byte, name string) (v []byte, ok bool) {
	if len(line) < len(name) || string(line[:len(name)]) != name {
		return nil, false
	}
	v = line[len(name):]
	if len(v) == 0 {
		return v, true
	}
	if v[0] != ':' {
		return nil, false
	}
	if v = v[1:]; len(v) > 0 && v[0] == ' ' {
		v = v[1:]
	}
	return v, true
}

func (s *Stream) dataLine(raw []byte, start, end int) {
	s.lines++
	switch s.lines {
	case 1:
		s.data = span{start, end}
		return
	case 2:
		s.joined = append(s.joined[:0], raw[s.data.start:s.data.end]...)
	}
	s.joined = append(append(s.joined, '\n'), raw[start:end]...)
}

// dispatch ends the event: it is s.ev, or p[base:i] when s.ev is empty.
func (s *Stream) dispatch(p []byte, base, i int) {
	if s.skipping { // its bytes went out as they came
		s.skipping, s.dropped = false, s.done
		if !s.done {
			s.stats.Events++
		}
		s.clear()
		return
	}
	whole, inEv := p[base:i], len(s.ev) > 0
	if inEv {
		whole = s.ev
	}
	quiet := s.done
	act := s.event(whole, s.seen+i)
	s.dropped, s.waited = act == drop || quiet, act == wait
	if s.edits && !quiet {
		if inEv {
			s.from = i
			s.emit(act, whole)
		} else if act != pass || len(s.late.buf) > 0 {
			s.out = append(s.out, p[s.from:base]...)
			s.from = i
			s.emit(act, whole)
		}
	}
	s.clear()
}

func (s *Stream) clear() {
	s.ev, s.line, s.lines = s.ev[:0], 0, 0
	s.comment, s.named = false, false
}

// save keeps the event that goes on behind p, whose bytes p[i:] are not read
// yet, and returns up to where p may be returned.
func (s *Stream) save(p []byte, base, i int) (limit int) {
	if s.skipping || len(s.ev) == 0 && base == len(p) {
		return len(p)
	}
	inEv := len(s.ev) > 0
	if inEv {
		s.ev = append(s.ev, p[i:]...)
		limit = s.from
	} else {
		s.ev = append(s.ev, p[base:]...)
		limit = base
	}
	if !s.edits {
		limit = len(p)
	}
	if len(s.ev) > eventLimit {
		s.stats.Oversize, s.skipping = true, true
		end := len(s.ev)
		if s.pendingCR {
			end--
		}
		s.emptyLine = s.line == end
		s.out = s.late.appendTo(s.out, nil, nil)
		if s.edits && inEv {
			s.out = append(s.out, s.ev...)
			s.from = len(p)
		}
		s.clear()
		s.ev = nil
		return len(p)
	}
	return limit
}
