package wire

import "bytes"

// template is an ordinary event: one choice that carries one non-empty text and
// nothing else that is metered. The events of an answer differ in that text
// alone, mostly, so the next one is compared with it instead of scanned: equal
// bytes around one JSON string are an equal structure. It saves four fifths of
// the work per event.
type template struct {
	before, after []byte // around the inside of the text, quotes included
	answer        bool   // the text is an answer, not reasoning
	judged        bool   // it is content of choice 0
}

// templateLimit bounds what is remembered per stream.
const templateLimit = 1 << 10

// learn remembers the event just scanned when it is an ordinary one.
func (s *Stream) learn(b []byte, e *chunk) {
	c := &e.content
	judged := c.one.content == c.only
	if judged && !s.critic.full.has(c.one.index) || c.one.refusal.end > 0 && c.one.refusal == c.only {
		return // what it means is still to be seen
	}
	if c.choices != 1 || c.texts != 1 || c.only.end == 0 || e.finish.end > 0 || e.timings.end > 0 ||
		e.usage.end > 0 && b[e.usage.start] != 'n' || s.o.API == Responses || len(b)-(c.only.end-c.only.start) > templateLimit {
		return
	}
	t := &s.like
	t.before = append(t.before[:0], b[:c.only.start+1]...)
	t.after = append(t.after[:0], b[c.only.end-1:]...)
	t.answer = c.answered
	t.judged = judged && c.one.index == 0
}

// again meters an event that differs from the template in its text alone.
func (s *Stream) again(b []byte) bool {
	t := &s.like
	n := len(t.before)
	if n == 0 || len(b) < n+len(t.after) || !bytes.Equal(b[:n], t.before) || s.done || s.named {
		return false
	}
	end := skipString(b, n-1)
	if end-1 <= n || !bytes.Equal(b[end-1:], t.after) {
		return false
	}
	s.stats.Events++
	s.stats.ContentEvents++
	chars, special := scanText(b[n : end-1])
	s.stats.Chars += chars
	if t.judged && (special || s.critic.busy) {
		s.critic.text(b[n:end-1], special)
	}
	s.answered = s.answered || t.answer
	s.committed = true
	return true
}
