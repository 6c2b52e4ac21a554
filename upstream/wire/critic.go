package wire

import "unicode/utf8"

// Judging says by what an answer is judged. The zero Judging does what costs
// next to nothing.
type Judging struct {
	Asks     Asks
	Checks   Checks
	Tools    ToolNames // with CheckTools
	Shingles *Shingles // with CheckPrompt; nil: nothing to leak
}

// bitset is a set of choices. Indexes above 255 share the last place.
type bitset [4]uint64

func (s *bitset) add(index int64) {
	i := uint64(min(max(index, 0), 255))
	s[i>>6] |= 1 << (i & 63)
}

func (s *bitset) has(index int64) bool {
	i := uint64(min(max(index, 0), 255))
	return s[i>>6]>>(i&63)&1 == 1
}

// parts are what one choice of an event, or of a whole answer, carries. end is 0
// of what is absent.
type parts struct {
	index                 int64
	content, finish       span
	rest                  bool // one of those below is there
	refusal, calls, call1 span
}

// critic finds out what an answer is like while it passes. Text is judged of
// choice 0, whose content comes in any number of pieces; it keeps no text.
type critic struct {
	Judging
	// busy: every byte of the content has to be looked at. Without it only those
	// that scanText calls special have.
	busy bool

	seen, full    bitset // choices that began, that have content
	ended, called bitset // that have a finish reason, a tool call
	finish        [FinishKinds]uint16
	refused       bool

	begin  beginning
	begun  bool // begin is judged
	mark   markFinder
	asJSON bool // json is fed
	json   jsonText
	leak   leak
	flaws  Flaws
	calls  []toolCall
}

// reset makes j ready for the next answer.
func (j *critic) reset(o Judging) {
	*j = critic{Judging: o, busy: true, calls: j.calls[:0]}
	if cap(j.calls) > 8 {
		j.calls = nil
	}
	j.asJSON = o.Checks&CheckJSON != 0 && o.Asks.Has(AskJSON)
	if o.Checks&CheckPrompt != 0 {
		j.leak.of = o.Shingles
	}
}

// choices judges the array at v, of which c was read: that has all of a single
// choice.
func (j *critic) choices(b []byte, v span, c *content) {
	switch {
	case c.choices == 1:
		j.choice(b, &c.one, c.special)
	case c.choices > 1:
		j.each(b, v)
	}
}

// each judges every choice of the array at v.
func (j *critic) each(b []byte, v span) {
	for a := arrayAt(b, v.start); a.next(); {
		if b[a.val] == '{' {
			var p parts
			for o := objectAt(b, a.val); o.next(); {
				switch string(b[o.key.start:o.key.end]) {
				case "index":
					p.index, _ = number(b, o.val, o.end(), 0, false)
				case "finish_reason":
					p.reason(b, o.value())
				case "delta", "message":
					p.delta(b, o.val)
				case "text":
					p.content = o.value()
				}
			}
			j.choice(b, &p, true)
		}
	}
}

func (p *parts) reason(b []byte, v span) {
	if b[v.start] == '"' && v.end-v.start > 2 {
		p.finish = v
	}
}

// delta notes the members of a delta or message that count.
func (p *parts) delta(b []byte, i int) {
	o := objectAt(b, i)
	for o.next() {
		p.member(b, &o)
	}
}

func (p *parts) member(b []byte, o *object) {
	switch string(b[o.key.start:o.key.end]) {
	case "content":
		p.content = o.value()
	case "refusal":
		p.refusal, p.rest = o.value(), true
	case "tool_calls":
		p.calls, p.rest = o.value(), true
	case "function_call":
		p.call1, p.rest = o.value(), true
	case "audio":
		if carries(b, o.val, o.end()) && p.refusal.end == 0 {
			p.content = o.value()
		}
	}
}

// choice judges what one choice carries. special is scanText's of its content,
// where that is a string.
func (j *critic) choice(b []byte, p *parts, special bool) {
	j.seen.add(p.index)
	switch v := p.content; {
	case v.end == 0:
	case b[v.start] == '"' && j.full.has(p.index):
		if p.index == 0 && (special || j.busy) {
			j.text(b[v.start+1:v.end-1], special)
		}
	default:
		j.content(b, v, p.index, special)
	}
	if p.rest {
		j.others(b, p)
	}
	if p.finish.end > 0 && !j.ended.has(p.index) {
		j.ended.add(p.index)
		j.finish[finishOf(b[p.finish.start+1:p.finish.end-1])]++
	}
}

// others judges what a choice carries beside content.
func (j *critic) others(b []byte, p *parts) {
	if p.refusal.end > 0 && carries(b, p.refusal.start, p.refusal.end) {
		j.refuse(p.index)
	}
	if p.calls.end > 0 && carries(b, p.calls.start, p.calls.end) {
		j.full.add(p.index)
		j.called.add(p.index)
		if j.judgesCalls() {
			j.toolCalls(b, p.calls, p.index)
		}
	}
	if p.call1.end > 0 && carries(b, p.call1.start, p.call1.end) {
		j.full.add(p.index)
		j.called.add(p.index)
		if c := j.call(p.index, -1); j.judgesCalls() && c != nil {
			c.function(b, p.call1)
		}
	}
}

func (j *critic) judgesCalls() bool { return j.Checks&CheckTools != 0 && j.Asks.Has(AskTools) }

func (j *critic) refuse(index int64) {
	j.full.add(index)
	j.refused = j.refused || index == 0
}

// finishOf puts the words of all engines into the closed set.
func finishOf(reason []byte) Finish {
	switch string(reason) {
	case "stop", "eos_token", "eos", "stop_sequence", "end_turn", "completed":
		return FinishStop
	case "length", "max_tokens", "max_output_tokens", "model_length":
		return FinishLength
	case "tool_calls", "function_call", "tool_use":
		return FinishToolCalls
	case "content_filter", "content-filter":
		return FinishFilter
	}
	return FinishOther
}

// content judges a piece of a choice's content: a string, or a list of parts.
func (j *critic) content(b []byte, v span, index int64, special bool) {
	switch b[v.start] {
	case '"':
		j.piece(b[v.start+1:v.end-1], index, special)
	case '[':
		for a := arrayAt(b, v.start); a.next(); {
			j.part(b, span{a.val, a.end()}, index)
		}
	default:
		if carries(b, v.start, v.end) {
			j.full.add(index)
		}
	}
}

// part judges one part of a content list. Those that hold reasoning are where
// they belong.
func (j *critic) part(b []byte, v span, index int64) {
	switch typ := memberOf(b, v, "type"); {
	case reads(b, typ, "thinking"), reads(b, typ, "reasoning"):
	case reads(b, typ, "refusal"):
		j.refuse(index)
	default:
		if text := memberOf(b, v, "text"); isString(b, text.start, text.end) {
			j.piece(b[text.start+1:text.end-1], index, true)
		} else if carries(b, v.start, v.end) {
			j.full.add(index)
		}
	}
}

// piece judges the inside of a JSON string that is content.
func (j *critic) piece(raw []byte, index int64, special bool) {
	if !j.full.has(index) && !blank(raw) {
		j.full.add(index)
	}
	if index == 0 {
		j.text(raw, special)
	}
}

// blank tells that a text is white space only.
func blank(raw []byte) bool {
	for i := 0; i < len(raw); {
		c, size := rune(raw[i]), 1
		if c == '\\' && i+1 < len(raw) {
			c, size = unescape(raw[i:])
		}
		if size == 0 || c != ' ' && c != '\n' && c != '\t' && c != '\r' {
			return false
		}
		i += size
	}
	return true
}

// text judges a piece of the content of choice 0, escapes undone on the way.
// Without special no mark begins in it.
func (j *critic) text(raw []byte, special bool) {
	var room [utf8.UTFMax]byte
	for i := 0; i < len(raw); {
		if !j.busy {
			if !special {
				return
			}
			if i = nextMark(raw, i); i == len(raw) {
				return
			}
		}
		if c := raw[i]; c != '\\' || i+1 == len(raw) {
			j.byte(c)
			i++
			continue
		}
		r, size := unescape(raw[i:])
		if size == 0 {
			r, size = '\\', 1
		}
		for _, u := range utf8.AppendRune(room[:0], r) {
			j.byte(u)
		}
		i += size
	}
}

// nextMark is the offset of the first byte from i on that may begin a mark,
// len(raw) without one.
func nextMark(raw []byte, i int) int {
	for ; i < len(raw); i++ {
		switch textClass[raw[i]] {
		case classMark:
			if mayMark(raw, i) {
				return i
			}
		case classSlash:
			if i+1 == len(raw) || raw[i+1] == 'u' {
				return i
			}
			i++
		}
	}
	return i
}

// mayMark tells whether the byte at i, of classMark, may begin a mark, by the
// one behind it: most characters that begin as ◁ does are quotes and dashes.
func mayMark(raw []byte, i int) bool {
	return raw[i] != 0xE2 || i+1 == len(raw) || raw[i+1] == 0x97
}

// byte judges one byte of the content.
func (j *critic) byte(c byte) {
	if !j.begun {
		if j.begin.byte(c); j.begin.full() {
			j.judgeBeginning()
		}
	}
	if j.mark.n > 0 || isMark(c) {
		j.mark.byte(c)
	}
	if j.asJSON {
		j.json.byte(c)
	}
	if j.leak.of != nil {
		j.leak.byte(c)
		if j.leak.leaked() {
			j.flaws |= FlawPrompt
			j.leak.of = nil
		}
	}
	j.busy = !j.begun || j.mark.n > 0 || j.asJSON || j.leak.of != nil
}

func (j *critic) judgeBeginning() {
	j.begun = true
	j.refused = j.refused || j.begin.refuses()
	if j.begin.channel() {
		j.flaws |= FlawReasoning
	}
}

// answer is what the answer was like. complete tells that all of it came.
func (j *critic) answer(complete bool) Answer {
	if !j.begun {
		j.judgeBeginning()
	}
	if j.leak.of != nil && j.leak.w.end() {
		j.leak.word()
		if j.leak.leaked() {
			j.flaws |= FlawPrompt
		}
	}
	a := Answer{Seen: true, Refusal: j.refused, Finish: j.finish, Flaws: j.flaws | j.mark.found&FlawReasoning}
	a.Judged = FlawTruncated | FlawReasoning
	if j.Checks&CheckPrompt != 0 { // also where there is nothing to leak: an arm without a prompt leaks none
		a.Judged |= FlawPrompt
	}
	if !complete {
		return a
	}
	a.Judged |= FlawEmpty
	for i := range j.seen {
		if j.seen[i]&^j.full[i] != 0 {
			a.Flaws |= FlawEmpty
		}
	}
	if j.asJSON {
		a.Judged |= FlawJSON
		other := j.called.has(0) || j.refused && j.begin.n == 0
		if !other && !j.json.complete() {
			a.Flaws |= FlawJSON
		}
	}
	if j.judgesCalls() {
		a.Judged |= FlawToolCall
		if !j.callsFit() {
			a.Flaws |= FlawToolCall
		}
	}
	return a
}

// callsFit tells whether the tool calls are what a client that offered tools can
// work with.
func (j *critic) callsFit() bool {
	for i := range j.calls {
		if !j.calls[i].valid(&j.Tools) {
			return false
		}
	}
	if j.mark.found&FlawToolCall != 0 {
		return false
	}
	cut := j.finish[FinishLength]+j.finish[FinishFilter] > 0
	return !j.Asks.Has(AskToolCall) || j.called != bitset{} || cut || j.refused
}
