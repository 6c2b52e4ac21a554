package wire

import "slices"

// cut replaces body[start:end] by pre, text and post.
type cut struct {
	start, end int
	pre        string
	text       string
	how        quoting
	post       string
}

// quoting says how the text of a cut is written.
type quoting uint8

const (
	raw     quoting = iota // as it is
	quoted                 // as a JSON string
	escaped                // as the inside of one
)

const (
	includeUsage    = `"include_usage":true`
	continuousUsage = `"continuous_usage_stats":true`
)

// Splice appends the body with the edit made to dst and returns it. Every byte
// that need not change stays: key order, white space, numbers, other members.
// It allocates nothing but dst when there is no Patch. In a Patch the members
// model, stream and stream_options are ignored: they are the gateway's.
func (h *Head) Splice(dst, body []byte, e Edit) []byte {
	keep := len(h.members) > 0 // a member stands before what is added at the end
	if e.Patch != nil {
		var p patcher
		p.apply(h, body, e.Patch)
		cuts := h.cutOwn(p.cuts, body, e, p.keep)
		slices.SortStableFunc(cuts, func(a, b cut) int { return a.start - b.start })
		return appendCuts(dst, body, cuts)
	}
	var space [8]cut
	cuts := h.cutOwn(space[:0], body, e, keep)
	// In order but for the first, so that this is linear; and nothing escapes.
	for i := 1; i < len(cuts); i++ {
		for j := i; j > 0 && cuts[j].start < cuts[j-1].start; j-- {
			cuts[j], cuts[j-1] = cuts[j-1], cuts[j]
		}
	}
	return appendCuts(dst, body, cuts)
}

// cutOwn appends the gateway's own changes: model, then stream_options.
func (h *Head) cutOwn(cuts []cut, body []byte, e Edit, keep bool) []cut {
	if e.Model != "" {
		if h.model.end > 0 {
			cuts = append(cuts, cut{start: h.model.start, end: h.model.end, text: e.Model, how: quoted})
		} else {
			cuts = append(cuts, cut{start: h.close, end: h.close, pre: comma(keep) + `"model":`, text: e.Model, how: quoted})
			keep = true
		}
	}
	if h.Stream && (h.API == Chat || h.API == Completions) {
		cuts = h.cutOptions(cuts, body, e, keep)
	}
	return cuts
}

func comma(keep bool) string {
	if keep {
		return ","
	}
	return ""
}

func appendCuts(dst, body []byte, cuts []cut) []byte {
	pos := 0
	for _, c := range cuts {
		dst = append(append(dst, body[pos:c.start]...), c.pre...)
		switch c.how {
		case raw:
			dst = append(dst, c.text...)
		case quoted:
			dst = appendQuoted(dst, c.text)
		case escaped:
			dst = appendEscaped(dst, c.text)
		}
		dst = append(dst, c.post...)
		pos = c.end
	}
	return append(dst, body[pos:]...)
}

// cutOptions merges what is injected into stream_options. Values the client
// wrote that are neither boolean nor null stay for the engine to judge.
func (h *Head) cutOptions(cuts []cut, b []byte, e Edit, keep bool) []cut {
	if !e.IncludeUsage && !e.ContinuousUsage {
		return cuts
	}
	if !given(b, h.options) {
		at, pre := span{h.close, h.close}, `"stream_options":{`
		if h.options.end > 0 { // null
			at, pre = h.options, `{`
		} else if keep {
			pre = `,"stream_options":{`
		}
		text, post := includeUsage, `}`
		switch {
		case !e.IncludeUsage:
			text = continuousUsage
		case e.ContinuousUsage:
			post = `,` + continuousUsage + `}`
		}
		return append(cuts, cut{start: at.start, end: at.end, pre: pre, text: text, post: post})
	}
	usage, continuous, n := !e.IncludeUsage, !e.ContinuousUsage, 0
	o := objectAt(b, h.options.start)
	for ; o.next(); n++ {
		known := e.IncludeUsage && o.is("include_usage")
		if known {
			usage = true
		} else if known = e.ContinuousUsage && o.is("continuous_usage_stats"); known {
			continuous = true
		}
		if known && (b[o.val] == 'f' || b[o.val] == 'n') {
			cuts = append(cuts, cut{start: o.val, end: o.end(), text: "true"})
		}
	}
	at := o.close() - 1
	if !usage {
		cuts = append(cuts, cut{start: at, end: at, pre: comma(n > 0), text: includeUsage})
		n++
	}
	if !continuous {
		cuts = append(cuts, cut{start: at, end: at, pre: comma(n > 0), text: continuousUsage})
	}
	return cuts
}

// ReplaceModel appends a unary answer (or the JSON of one event) to dst with
// the value of its top-level model (for the Responses API also response.model)
// replaced, everything else byte for byte. What is not an object is appended
// as it is.
func ReplaceModel(dst, body []byte, model string) []byte {
	var space [4]cut
	cuts := appendModelCuts(space[:0], body, skipSpace(body, 0), model, true)
	return appendCuts(dst, body, cuts)
}

func appendModelCuts(cuts []cut, b []byte, i int, model string, nested bool) []cut {
	for o := objectAt(b, i); o.next(); {
		if o.is("model") && isString(b, o.val, o.end()) {
			cuts = append(cuts, cut{start: o.val, end: o.end(), text: model, how: quoted})
		} else if nested && b[o.val] == '{' && o.is("response") {
			cuts = appendModelCuts(cuts, b, o.val, model, false)
		}
	}
	return cuts
}
