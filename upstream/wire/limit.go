package wire

import "slices"

// limits are the members by which a request bounds its answer, of all APIs.
var limits = []string{"max_tokens", "max_completion_tokens", "max_output_tokens"}

// MaxTokens is how many tokens the answer to the request may have, over all of
// its choices, after patch (nil: none); 0 where nothing says so. Where several
// members do it is the highest, for it depends on the server which one counts.
func (h *Head) MaxTokens(body []byte, patch *Patch) (most int64) {
	h.each(body, func(f member) bool {
		if name := string(body[f.key.start:f.key.end]); slices.Contains(limits, name) && !patch.touches(name) {
			n, _ := number(body, f.val.start, f.val.end, 0, false)
			most = max(most, n)
		}
		return true
	})
	if patch != nil {
		for _, list := range [][]Field{patch.Force, patch.Default} {
			for _, f := range list {
				if slices.Contains(limits, f.Name) {
					n, _ := number(f.Value, 0, len(f.Value), 0, false)
					most = max(most, n)
				}
			}
		}
	}
	return most * int64(max(h.N, 1))
}

// touches tells that the patch takes the client's value of a member away.
func (p *Patch) touches(name string) bool {
	return p != nil && (slices.Contains(p.Remove, name) || slices.ContainsFunc(p.Force, func(f Field) bool { return f.Name == name }))
}
