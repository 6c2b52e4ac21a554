package wire

// patcher turns a Patch into cuts of one body. Precedence: Force, then Remove,
// then Default, so that Remove with Default of the same name is a Force.
type patcher struct {
	done map[string]bool // members of Force and Default that the body now has
	cuts []cut
	keep bool // a member was kept
	prev int  // end of the member before the current one
}

// apply fills cuts; keep tells that a member stands before the closing brace.
func (p *patcher) apply(h *Head, b []byte, patch *Patch) {
	p.done = make(map[string]bool, len(patch.Force)+len(patch.Default))
	lastNull := p.lastIsNull(h, b, patch.Default)
	open := -1 // key of the first dropped member, while nothing was kept yet
	h.each(b, func(m member) bool {
		quote := m.key.start - 1
		value, drop := p.decide(b, m, patch, lastNull)
		switch {
		case drop && p.keep:
			p.cuts = append(p.cuts, cut{start: p.prev, end: m.val.end})
		case drop:
			if open < 0 {
				open = quote
			}
		default:
			if open >= 0 && !p.keep {
				p.cuts = append(p.cuts, cut{start: open, end: quote})
			}
			p.keep = true
			if value != nil {
				p.cuts = append(p.cuts, cut{start: m.val.start, end: m.val.end, text: string(value)})
			}
		}
		p.prev = m.val.end
		return true
	})
	if open >= 0 && !p.keep {
		p.cuts = append(p.cuts, cut{start: open, end: p.prev})
	}
	p.add(h, patch.Force)
	p.add(h, patch.Default)
	if patch.SystemPrepend != "" || patch.SystemAppend != "" {
		p.prompt(h, b, patch)
	}
}

// gatewayOwn tells the members that no patch may touch.
func gatewayOwn(name string) bool {
	return name == "model" || name == "stream" || name == "stream_options"
}

func (p *patcher) ours(b []byte, m member, name string) bool {
	return !gatewayOwn(name) && textIs(b[m.key.start:m.key.end], name)
}

// lastIsNull finds the defaults whose member is there, but null where it counts.
func (p *patcher) lastIsNull(h *Head, b []byte, fields []Field) map[string]int {
	if len(fields) == 0 {
		return nil
	}
	last := make(map[string]int)
	h.each(b, func(m member) bool {
		for _, f := range fields {
			if p.ours(b, m, f.Name) {
				delete(last, f.Name)
				if b[m.val.start] == 'n' {
					last[f.Name] = m.val.start
				}
			}
		}
		return true
	})
	return last
}

// decide says what becomes of one member: a new value (nil keeps the old), or
// dropped. A forced member that comes again is dropped.
func (p *patcher) decide(b []byte, m member, patch *Patch, lastNull map[string]int) (value []byte, drop bool) {
	for _, f := range patch.Force {
		if p.ours(b, m, f.Name) {
			if p.done[f.Name] {
				return nil, true
			}
			p.done[f.Name] = true
			return forced(patch.Force, f), false
		}
	}
	for _, name := range patch.Remove {
		if p.ours(b, m, name) {
			return nil, true
		}
	}
	for _, f := range patch.Default {
		if p.ours(b, m, f.Name) {
			p.done[f.Name] = true
			if at, ok := lastNull[f.Name]; ok && at == m.val.start {
				return f.Value, false
			}
			return nil, false
		}
	}
	return nil, false
}

// forced is the last value of that name: a list that names it twice means it so.
func forced(fields []Field, f Field) []byte {
	for i := len(fields) - 1; i >= 0; i-- {
		if fields[i].Name == f.Name {
			return fields[i].Value
		}
	}
	return f.Value
}

// add appends the members that the body does not have.
func (p *patcher) add(h *Head, fields []Field) {
	for _, f := range fields {
		if p.done[f.Name] || gatewayOwn(f.Name) {
			continue
		}
		p.done[f.Name] = true
		p.insert(h, f.Name, string(forced(fields, f)), raw)
	}
}

func (p *patcher) insert(h *Head, name, value string, how quoting) {
	pre := string(appendQuoted([]byte(comma(p.keep)), name)) + ":"
	p.cuts = append(p.cuts, cut{start: h.close, end: h.close, pre: pre, text: value, how: how})
	p.keep = true
}

// named tells whether the patch itself sets or removes this member; then the
// prompt is not merged into what is no longer there.
func named(patch *Patch, name string) bool {
	for _, f := range patch.Force {
		if f.Name == name {
			return true
		}
	}
	for _, n := range patch.Remove {
		if n == name {
			return true
		}
	}
	return false
}

// prompt merges the system text, a blank line between it and the client's.
func (p *patcher) prompt(h *Head, b []byte, patch *Patch) {
	switch h.API {
	case Chat:
		if h.messages.end > 0 && b[h.messages.start] == '[' && !named(patch, "messages") {
			p.promptMessages(h, b, patch)
		}
	case Responses:
		if named(patch, "instructions") || p.done["instructions"] && !given(b, h.instructions) {
			return
		}
		switch {
		case h.instructions.end == 0:
			p.insert(h, "instructions", joinPrompt(patch), quoted)
		default:
			p.mergeText(b, h.instructions, patch)
		}
	}
}

// joinPrompt is the whole text where the client has none.
func joinPrompt(patch *Patch) string {
	if patch.SystemPrepend == "" || patch.SystemAppend == "" {
		return patch.SystemPrepend + patch.SystemAppend
	}
	return patch.SystemPrepend + "\n\n" + patch.SystemAppend
}

func (p *patcher) promptMessages(h *Head, b []byte, patch *Patch) {
	list := arrayAt(b, h.messages.start)
	for list.next() {
		role, content := turn(b, list.val)
		if !stringIs(b, role.start, role.end, "system") && !stringIs(b, role.start, role.end, "developer") {
			continue
		}
		if content.end == 0 {
			at := list.val + 1
			p.cuts = append(p.cuts, cut{start: at, end: at, pre: `"content":`, text: joinPrompt(patch), how: quoted, post: ","})
			return
		}
		if b[content.start] == '[' {
			p.mergeParts(b, content, patch)
			return
		}
		p.mergeText(b, content, patch)
		return
	}
	at := h.messages.start + 1
	p.cuts = append(p.cuts, cut{start: at, end: at, pre: `{"role":"system","content":`,
		text: joinPrompt(patch), how: quoted, post: "}" + comma(list.n > 0)})
}

// mergeText merges into a string; null becomes one; other types stay for the
// engine to judge.
func (p *patcher) mergeText(b []byte, v span, patch *Patch) {
	switch {
	case b[v.start] == 'n' || v.end-v.start == 2 && b[v.start] == '"':
		p.cuts = append(p.cuts, cut{start: v.start, end: v.end, text: joinPrompt(patch), how: quoted})
	case b[v.start] == '"':
		if patch.SystemPrepend != "" {
			p.cuts = append(p.cuts, cut{start: v.start + 1, end: v.start + 1, text: patch.SystemPrepend + "\n\n", how: escaped})
		}
		if patch.SystemAppend != "" {
			p.cuts = append(p.cuts, cut{start: v.end - 1, end: v.end - 1, text: "\n\n" + patch.SystemAppend, how: escaped})
		}
	}
}

// mergeParts adds text parts at the ends of a content array.
func (p *patcher) mergeParts(b []byte, v span, patch *Patch) {
	list := arrayAt(b, v.start)
	n := 0
	for list.next() {
		n++
	}
	const part = `{"type":"text","text":`
	if patch.SystemPrepend != "" {
		p.cuts = append(p.cuts, cut{start: v.start + 1, end: v.start + 1, pre: part, text: patch.SystemPrepend,
			how: quoted, post: "}" + comma(n > 0 || patch.SystemAppend != "")})
	}
	if patch.SystemAppend != "" {
		p.cuts = append(p.cuts, cut{start: v.end - 1, end: v.end - 1, pre: comma(n > 0) + part, text: patch.SystemAppend,
			how: quoted, post: "}"})
	}
}
