package wire

import "bytes"

// late holds events with a finish reason until the event behind them has come.
// An engine that is asked for usage writes some members into the usage event
// that it writes into these otherwise: vLLM its fingerprint, llama.cpp its
// timings. When the usage event is taken out, they go back to their place.
type late struct {
	buf  []byte
	ends []ending
}

// ending is what is known of one of the events.
type ending struct {
	brace       int  // offset in buf of the brace that closes its object
	print, took bool // it has a fingerprint, timings
}

// lateLimit bounds what waits: more choices than real answers have.
const lateLimit = 16 << 10

// waits tells whether the event at hand waits for the next one.
func (s *Stream) waits(e *chunk) bool {
	if !s.o.StripUsage || e.finish.end == 0 || s.lines > 1 || len(s.late.buf) >= lateLimit {
		return false
	}
	switch s.o.Dialect {
	case VLLM:
		return e.print.end == 0
	case LlamaCPP:
		return e.took.end == 0
	case OpenAI, "":
		return e.print.end == 0 || e.took.end == 0
	}
	return false
}

// keepLate makes the event at hand wait.
func (s *Stream) keepLate(whole []byte) {
	l := &s.late
	l.buf = append(l.buf, whole[:s.data.start]...)
	start := len(l.buf)
	l.buf = s.appendEdited(l.buf, whole[s.data.start:s.data.end])
	l.ends = append(l.ends, ending{
		brace: start + bytes.LastIndexByte(l.buf[start:], '}'), print: s.chunk.print.end > 0, took: s.chunk.took.end > 0,
	})
	l.buf = append(l.buf, whole[s.data.end:]...)
}

func (l *late) lacksTimings() bool {
	return len(l.ends) > 0 && !l.ends[len(l.ends)-1].took
}

// appendTo appends the events to dst with what the usage event has of theirs,
// and forgets them. data is its JSON, nil when there is none. The timings are
// of the last one: llama.cpp has a usage event for each choice.
func (l *late) appendTo(dst, data []byte, usage *chunk) []byte {
	from := 0
	for i, end := range l.ends {
		dst = append(dst, l.buf[from:end.brace]...)
		from = end.brace
		if data == nil {
			continue
		}
		if !end.print {
			dst = appendMember(dst, data[usage.print.start:usage.print.end])
		}
		if !end.took && i == len(l.ends)-1 {
			dst = appendMember(dst, data[usage.took.start:usage.took.end])
		}
	}
	dst = append(dst, l.buf[from:]...)
	l.buf, l.ends = l.buf[:0], l.ends[:0]
	return dst
}

func appendMember(dst, member []byte) []byte {
	if len(member) > 0 && member[0] == '"' {
		dst = append(dst, ',')
	}
	return append(dst, member...)
}
