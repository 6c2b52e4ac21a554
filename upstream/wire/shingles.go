package wire

import (
	"math/bits"
	"unicode"
	"unicode/utf8"
)

const (
	shingleWords = 8
	// leakShingles are how many different shingles of a prompt make a leak: ten
	// words of it in a row, or three quotes of eight. A prompt that has fewer is
	// leaked when all of it is there.
	leakShingles = 3
	// promptRoom is how many bytes of a prompt are kept whole, as about 1,400
	// shingles; of one that is k times as long every k-th is, by its hash.
	promptRoom = 8 << 10
)

// words cuts text that comes in pieces of any size into words, letters and
// digits in lower case, and hashes the last eight of them. A character of a
// script that is written without spaces is a word.
type words struct {
	h     uint64 // of the word at hand
	open  bool   // there is one
	n     int    // words so far
	ring  [shingleWords]uint64
	roll  uint64 // of the last eight
	part  [utf8.UTFMax]byte
	parts int // bytes of a character that has begun
}

const (
	rollBase = 0x9E3779B97F4A7C15 | 1
	// rollOut is rollBase to the power of shingleWords.
	roll2, roll4, rollOut = rollBase * rollBase & (1<<64 - 1), roll2 * roll2 & (1<<64 - 1), roll4 * roll4 & (1<<64 - 1)
)

// folded is a letter or digit in lower case, 0 for what stands between words.
var folded = func() (t [utf8.RuneSelf]byte) {
	for c := range t {
		if c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' {
			t[c] = lower(byte(c))
		}
	}
	return t
}()

// byte takes the next byte; ended tells that a word ended before it, or with it.
func (w *words) byte(c byte) (ended bool) {
	if c < utf8.RuneSelf && w.parts == 0 {
		if f := folded[c]; f != 0 {
			if !w.open {
				w.open, w.h = true, hashStart
			}
			w.h = (w.h ^ uint64(f)) * hashPrime
			return false
		}
		return w.end()
	}
	return w.wide(c)
}

// wide takes a byte of a character that is not ASCII.
func (w *words) wide(c byte) (ended bool) {
	if w.parts > 0 && utf8.RuneStart(c) || w.parts == len(w.part) { // what has begun is none
		w.parts = 0
		ended = w.end()
		if c < utf8.RuneSelf {
			return w.byte(c) || ended
		}
	}
	w.part[w.parts] = c
	w.parts++
	if !utf8.FullRune(w.part[:w.parts]) {
		return ended
	}
	r, _ := utf8.DecodeRune(w.part[:w.parts])
	w.parts = 0
	switch {
	case r >= 0x0E00 && unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Thai, unicode.Lao, unicode.Khmer, unicode.Myanmar):
		ended = w.end() || ended
		w.letter(r)
		return w.end() || ended
	case unicode.IsLetter(r) || unicode.IsDigit(r) || unicode.IsMark(r):
		w.letter(unicode.ToLower(r))
		return ended
	}
	return w.end() || ended
}

func (w *words) letter(r rune) {
	if !w.open {
		w.open, w.h = true, hashStart
	}
	w.h = (w.h ^ uint64(r)) * hashPrime
}

// end ends the word at hand, if there is one.
func (w *words) end() bool {
	if !w.open {
		return false
	}
	w.open = false
	h := mix(w.h)
	at := &w.ring[w.n%shingleWords]
	w.roll = w.roll*rollBase + h - *at*rollOut
	*at = h
	w.n++
	return true
}

// shingle is the hash of the last eight words, never 0; ok is false before there
// are so many.
func (w *words) shingle() (h uint64, ok bool) { return w.roll | 1, w.n >= shingleWords }

// Shingles are the eight-word sequences of a system prompt that the user's own
// messages do not have. They are not written once made.
type Shingles struct {
	slots []uint64 // open addressing; 0 is free
	users []uint64 // a bit for each slot: the user has it too
	every uint64   // kept are the hashes that this divides
	need  int      // different ones that make a leak
	n     int
}

// Shingles hashes the system prompt as the variant sends it: the client's with
// patch's before and behind it. It is nil when that has fewer than eight words,
// or nothing that the user's messages do not have.
func (h *Head) Shingles(body []byte, patch *Patch) *Shingles {
	var prepend, add string
	if patch != nil {
		prepend, add = patch.SystemPrepend, patch.SystemAppend
	}
	list := h.messages
	if h.API == Responses {
		list = h.input
	}
	size := len(prepend) + len(add) + h.instructions.size()
	eachTurn(body, list, func(role, content span) {
		if isSystem(body, role) {
			size += content.size()
		}
	})
	if size < 2*shingleWords-1 || h.API == Completions || h.API == Embeddings {
		return nil
	}
	s := &Shingles{every: uint64(1 + size/promptRoom)}
	// A word has at least a letter and a space, in most texts five.
	room := 1 << bits.Len(uint(min(size/2, promptRoom/3)))
	s.slots, s.users = make([]uint64, room), make([]uint64, (room+63)/64)
	s.system(h, body, list, prepend, add)
	if s.need = min(leakShingles, s.n); s.need == 0 {
		return nil
	}
	live := s.n - s.user(h, body, list)
	if live < s.need {
		return nil
	}
	return s
}

// system takes all of the system prompt as one text.
func (s *Shingles) system(h *Head, body []byte, list span, prepend, add string) {
	r := textReader{each: func(shingle uint64) { s.add(shingle) }}
	r.plain(prepend)
	if h.API == Responses {
		r.value(body, h.instructions)
	}
	eachTurn(body, list, func(role, content span) {
		if isSystem(body, role) {
			r.value(body, content)
		}
	})
	r.plain(add)
}

// user marks what the user's messages, and what its tools answered, have too,
// and returns how many.
func (s *Shingles) user(h *Head, body []byte, list span) (marked int) {
	r := textReader{each: func(shingle uint64) {
		if i := s.find(shingle); i >= 0 && s.users[i>>6]>>(i&63)&1 == 0 {
			s.users[i>>6] |= 1 << (i & 63)
			marked++
		}
	}}
	if h.API == Responses && isString(body, list.start, list.end) {
		r.value(body, list)
		return marked
	}
	eachTurn(body, list, func(role, content span) {
		if !isSystem(body, role) && !reads(body, role, "assistant") {
			r.w = words{}
			r.value(body, content)
		}
	})
	return marked
}

func (s *Shingles) add(h uint64) {
	if h>>32%s.every != 0 || s.n >= len(s.slots)/2 {
		return
	}
	for i := int(h>>1) & (len(s.slots) - 1); ; i = (i + 1) & (len(s.slots) - 1) {
		switch s.slots[i] {
		case h:
			return
		case 0:
			s.slots[i] = h
			s.n++
			return
		}
	}
}

// find is the slot of h, -1 when it is none of the prompt's.
func (s *Shingles) find(h uint64) int {
	for i := int(h>>1) & (len(s.slots) - 1); s.slots[i] != 0; i = (i + 1) & (len(s.slots) - 1) {
		if s.slots[i] == h {
			return i
		}
	}
	return -1
}

// eachTurn calls f with the role and content of every message that has some.
func eachTurn(b []byte, list span, f func(role, content span)) {
	if list.end == 0 {
		return
	}
	for a := arrayAt(b, list.start); a.next(); {
		if role, content := turn(b, a.val); given(b, content) {
			f(role, content)
		}
	}
}

// textReader hands the shingles of texts to each.
type textReader struct {
	w    words
	each func(shingle uint64)
}

func (r *textReader) byte(c byte) {
	if r.w.byte(c) {
		r.word()
	}
}

func (r *textReader) word() {
	if h, ok := r.w.shingle(); ok {
		r.each(h)
	}
}

func (r *textReader) end() {
	r.w.parts = 0
	if r.w.end() {
		r.word()
	}
}

// plain reads a text, whose last word ends with it.
func (r *textReader) plain(s string) {
	for i := range len(s) {
		r.byte(s[i])
	}
	r.end()
}

// value reads a message's content: a string, or the texts among its parts.
func (r *textReader) value(b []byte, v span) {
	if v.end == 0 {
		return
	}
	switch b[v.start] {
	case '"':
		r.inside(b[v.start+1 : v.end-1])
	case '[':
		for a := arrayAt(b, v.start); a.next(); {
			if b[a.val] == '"' {
				r.inside(b[a.val+1 : a.end()-1])
			} else if t := memberOf(b, span{a.val, a.end()}, "text"); isString(b, t.start, t.end) {
				r.inside(b[t.start+1 : t.end-1])
			}
		}
	}
}

// inside reads the inside of a JSON string.
func (r *textReader) inside(raw []byte) {
	var room [utf8.UTFMax]byte
	for i := 0; i < len(raw); {
		if raw[i] == '\\' && i+1 < len(raw) {
			if c, size := unescape(raw[i:]); size > 0 {
				for _, u := range utf8.AppendRune(room[:0], c) {
					r.byte(u)
				}
				i += size
				continue
			}
		}
		r.byte(raw[i])
		i++
	}
	r.end()
}

// leak finds shingles of a prompt in content that comes in pieces.
type leak struct {
	of    *Shingles
	w     words
	found [leakShingles]uint64
	n     int
}

func (q *leak) byte(c byte) {
	if q.w.byte(c) {
		q.word()
	}
}

func (q *leak) word() {
	h, ok := q.w.shingle()
	if !ok || q.leaked() {
		return
	}
	i := q.of.find(h)
	if i < 0 || q.of.users[i>>6]>>(i&63)&1 == 1 {
		return
	}
	for _, f := range q.found[:q.n] {
		if f == h {
			return
		}
	}
	q.found[q.n] = h
	q.n++
}

func (q *leak) leaked() bool { return q.of != nil && q.n >= q.of.need }
