package wire

// The Responses API says the same in other words: an answer has one choice,
// whose parts are the items of its output.

// event judges an event of the Responses API.
func (j *critic) event(b []byte, typ string, e *chunk) {
	switch typ {
	case "response.output_text.delta":
		if isString(b, e.delta.start, e.delta.end) {
			j.piece(b[e.delta.start+1:e.delta.end-1], 0, true)
		}
	case "response.refusal.delta":
		if e.delta.end > 0 && carries(b, e.delta.start, e.delta.end) {
			j.refuse(0)
		}
	case "response.function_call_arguments.delta":
		j.full.add(0)
		j.called.add(0)
		if c := j.itemCall(b, e.output); c != nil && e.delta.end > 0 {
			c.setArguments(b, e.delta)
		}
	case "response.output_item.added", "response.output_item.done":
		if e.item.end > 0 {
			j.item(b, e.item, e.output, typ == "response.output_item.done")
		}
	case "response.completed", "response.incomplete":
		status := e.status
		if status.end == 0 && typ == "response.incomplete" {
			status = e.typ
		}
		j.respond(b, status, e.why)
	}
}

// itemCall is the tool call at an index of the output; nil when none is judged.
func (j *critic) itemCall(b []byte, index span) *toolCall {
	if !j.judgesCalls() {
		return nil
	}
	i := int64(0)
	if index.end > 0 {
		i, _ = number(b, index.start, index.end, 0, false)
	}
	return j.call(0, i)
}

// item judges an item of the output as far as no other event tells of it.
func (j *critic) item(b []byte, v, index span, done bool) {
	switch typ := memberOf(b, v, "type"); {
	case reads(b, typ, "message"), reads(b, typ, "reasoning"), typ.end == 0:
	case reads(b, typ, "function_call"):
		j.full.add(0)
		j.called.add(0)
		if c := j.itemCall(b, index); c != nil {
			c.whole(b, v, done)
		}
	default:
		j.full.add(0) // another kind of call
	}
}

// whole takes the name of a call, and its arguments unless they came in pieces.
func (c *toolCall) whole(b []byte, v span, done bool) {
	if name := memberOf(b, v, "name"); !c.named && name.end > 0 {
		c.setName(b, name)
	}
	if args := memberOf(b, v, "arguments"); done && args.end > 0 && c.args.state == jsonStart {
		c.setArguments(b, args)
	}
}

// respond notes how the answer ended.
func (j *critic) respond(b []byte, status, why span) {
	j.seen.add(0)
	if j.ended.has(0) {
		return
	}
	j.ended.add(0)
	reason := FinishOther
	switch {
	case why.end > 0 && isString(b, why.start, why.end):
		reason = finishOf(b[why.start+1 : why.end-1])
	case status.end == 0 || reads(b, status, "completed"):
		if reason = FinishStop; j.called.has(0) {
			reason = FinishToolCalls
		}
	}
	j.finish[reason]++
}

// output judges the items of a whole answer, and counts the characters that the
// events of a stream would have had.
func (j *critic) output(b []byte, v span) (chars int64) {
	n := 0
	for a := arrayAt(b, v.start); a.next(); n++ {
		item := span{a.val, a.end()}
		typ := memberOf(b, item, "type")
		switch {
		case reads(b, typ, "message"):
			content := memberOf(b, item, "content")
			if content.end > 0 {
				j.content(b, content, 0, true)
			}
			chars += partChars(b, content)
			continue
		case reads(b, typ, "reasoning"):
			chars += partChars(b, memberOf(b, item, "summary")) + partChars(b, memberOf(b, item, "content"))
			continue
		case reads(b, typ, "function_call"):
			j.full.add(0)
			j.called.add(0)
			if j.judgesCalls() {
				if c := j.call(0, int64(n)); c != nil {
					c.whole(b, item, true)
				}
			}
		case typ.end > 0:
			j.full.add(0)
		}
		for _, name := range [...]string{"arguments", "input", "code"} {
			if text := memberOf(b, item, name); isString(b, text.start, text.end) {
				chars += textLen(b[text.start+1 : text.end-1])
			}
		}
	}
	return chars
}

// partChars counts the characters of a content list.
func partChars(b []byte, v span) (n int64) {
	if v.end == 0 {
		return 0
	}
	if isString(b, v.start, v.end) {
		return textLen(b[v.start+1 : v.end-1])
	}
	for a := arrayAt(b, v.start); a.next(); {
		part := span{a.val, a.end()}
		for _, name := range [...]string{"text", "refusal"} {
			if text := memberOf(b, part, name); isString(b, text.start, text.end) {
				n += textLen(b[text.start+1 : text.end-1])
			}
		}
	}
	return n
}
