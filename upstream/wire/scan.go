package wire

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
)

// maxMembers bounds what Head remembers of a hostile body; further members are
// found by walking.
const maxMembers = 256

// Scan reads a request body once: it checks that the whole is one JSON object
// (structure, literals, numbers, ends of strings; at most 512 levels deep,
// nothing behind it) and finds the members the gateway uses. The inside of
// string values is the engine's to judge. The error is a 400 that names the
// member, Param "" when it is the body as a whole.
func Scan(body []byte, api API) (Head, *FieldError) {
	h := Head{API: api, N: 1}
	h.members = make([]member, 0, 16)
	if bytes.HasPrefix(body, bom) {
		return h, &FieldError{Message: "The request body must not start with a byte order mark."}
	}
	i := skipSpace(body, 0)
	if i == len(body) {
		return h, &FieldError{Message: "The request body is empty; send a JSON object."}
	}
	if body[i] != '{' {
		return h, &FieldError{Message: "The request body must be a JSON object."}
	}
	i, err := h.scanMembers(body, skipSpace(body, i+1))
	if err != nil {
		return h, err
	}
	h.close = i
	if i = skipSpace(body, i+1); i < len(body) {
		return h, &FieldError{Message: fmt.Sprintf("The request body has data behind the JSON object, at byte %d.", i)}
	}
	return h, nil
}

var bom = []byte("\xef\xbb\xbf")

func invalidAt(i int, fault string) *FieldError {
	return &FieldError{Message: fmt.Sprintf("The request body is not valid JSON: %s at byte %d.", fault, i)}
}

// scanMembers reads from behind the opening brace to the closing one.
func (h *Head) scanMembers(b []byte, i int) (end int, err *FieldError) {
	if i < len(b) && b[i] == '}' {
		return i, nil
	}
	var seen seenFields
	for {
		if i = skipSpace(b, i); i >= len(b) {
			return i, invalidAt(i, faultEnd)
		}
		val, fault := checkKey(b, i)
		if fault != "" {
			return i, invalidAt(val, fault)
		}
		m := member{key: span{i + 1, skipString(b, i) - 1}}
		m.val.start = val
		if m.val.end, fault = checkValue(b, val, 1); fault != "" {
			return i, invalidAt(m.val.end, fault)
		}
		if len(h.members) < maxMembers {
			h.members = append(h.members, m)
		} else if h.more == 0 {
			h.more = h.members[maxMembers-1].val.end
		}
		if err = h.field(b, m, &seen); err != nil {
			return i, err
		}
		if i = skipSpace(b, m.val.end); i >= len(b) {
			return i, invalidAt(i, faultEnd)
		}
		if b[i] == '}' {
			return i, nil
		}
		if b[i] != ',' {
			return i, invalidAt(i, faultByte)
		}
		i++
	}
}

// seenFields remembers the members that may come once only.
type seenFields struct{ model, stream, user, n, options bool }

// field takes note of one member.
func (h *Head) field(b []byte, m member, seen *seenFields) *FieldError {
	key := b[m.key.start:m.key.end]
	if bytes.IndexByte(key, '\\') >= 0 {
		if len(key) > 256 { // no name of ours, however it is escaped
			return nil
		}
		out, ok := appendUnescaped(nil, key)
		if !ok {
			return invalidAt(m.key.start, "malformed escape in a key")
		}
		key = out
	}
	val, end := m.val.start, m.val.end
	switch string(key) {
	case "model":
		h.model = m.val
		return h.setModel(b, val, end, &seen.model)
	case "stream":
		return h.setStream(b, val, end, &seen.stream)
	case "user":
		return h.setUser(b, val, end, &seen.user)
	case "n":
		return h.setN(b, val, end, &seen.n)
	case "stream_options":
		h.options = m.val
		return h.setOptions(b, val, end, &seen.options)
	case "safety_identifier":
		h.SafetyIdentifier = lenientString(b, val, end)
	case "metadata":
		h.setMetadata(b, val)
	case "messages":
		h.messages = m.val
	case "prompt":
		h.prompt = m.val
	case "instructions":
		h.instructions = m.val
	case "input":
		h.input = m.val
	}
	return nil
}

func once(name string, seen *bool) *FieldError {
	if *seen {
		return &FieldError{Param: name, Message: "'" + name + "' is given more than once."}
	}
	*seen = true
	return nil
}

func mustBe(name, what string) *FieldError {
	return &FieldError{Param: name, Message: "'" + name + "' must be " + what + "."}
}

func (h *Head) setModel(b []byte, val, end int, seen *bool) *FieldError {
	if err := once("model", seen); err != nil || b[val] == 'n' {
		return err
	}
	s, ok := stringValue(b, val, end)
	if !ok {
		return mustBe("model", "a string")
	}
	h.Model = s
	return nil
}

func (h *Head) setStream(b []byte, val, end int, seen *bool) *FieldError {
	if err := once("stream", seen); err != nil || b[val] == 'n' {
		return err
	}
	switch b[val] {
	case 't':
		h.Stream = true
	case 'f':
	default:
		return mustBe("stream", "a boolean")
	}
	return nil
}

func (h *Head) setUser(b []byte, val, end int, seen *bool) *FieldError {
	if err := once("user", seen); err != nil || b[val] == 'n' {
		return err
	}
	if b[val] != '"' {
		return mustBe("user", "a string")
	}
	h.User = lenientString(b, val, end)
	return nil
}

// setN accepts 2, 2.0 and 2e0: a JSON number has no type, and engines differ.
func (h *Head) setN(b []byte, val, end int, seen *bool) *FieldError {
	if err := once("n", seen); err != nil || b[val] == 'n' {
		return err
	}
	f, err := strconv.ParseFloat(string(b[val:end]), 64)
	if err != nil && !math.IsInf(f, 0) || b[val] != '-' && (b[val] < '0' || b[val] > '9') {
		return mustBe("n", "an integer")
	}
	if f != math.Trunc(f) {
		return mustBe("n", "an integer")
	}
	h.N = int(min(max(f, math.MinInt32), math.MaxInt32))
	return nil
}

// setOptions notes what the client asked for. A value that is neither boolean
// nor null is left to the engine and counts as asked for: some read 1 or "true"
// so, and then nothing may be taken out of the answer.
func (h *Head) setOptions(b []byte, val, end int, seen *bool) *FieldError {
	if err := once("stream_options", seen); err != nil || b[val] == 'n' {
		return err
	}
	if b[val] != '{' {
		return mustBe("stream_options", "an object")
	}
	for o := objectAt(b, val); o.next(); {
		asked := b[o.val] != 'f' && b[o.val] != 'n'
		if o.is("include_usage") {
			h.IncludeUsage = asked
		} else if o.is("continuous_usage_stats") {
			h.ContinuousUsage = asked
		}
	}
	return nil
}

func (h *Head) setMetadata(b []byte, val int) {
	h.MetadataUserID, h.MetadataSessionID = "", ""
	for o := objectAt(b, val); o.next(); {
		if o.is("user_id") {
			h.MetadataUserID = lenientString(b, o.val, o.end())
		} else if o.is("session_id") {
			h.MetadataSessionID = lenientString(b, o.val, o.end())
		}
	}
}

// lenientString is "" for other types; a string with a malformed escape is
// taken as it is written.
func lenientString(b []byte, val, end int) string {
	s, ok := stringValue(b, val, end)
	if !ok && isString(b, val, end) {
		return string(b[val+1 : end-1])
	}
	return s
}

// each calls f with every top-level member in order until f returns false.
func (h *Head) each(body []byte, f func(m member) bool) {
	for _, m := range h.members {
		if !f(m) {
			return
		}
	}
	if h.more == 0 {
		return
	}
	for o := (object{b: body, val: 1, stop: h.more}); o.next(); {
		if !f(member{key: o.key, val: o.value()}) {
			return
		}
	}
}

// Has tells whether the body has a top-level member of this name, however its
// key is escaped.
func (h *Head) Has(body []byte, name string) bool {
	_, ok := h.Denied(body, []string{name})
	return ok
}

// Denied returns the first top-level member whose name is in deny.
func (h *Head) Denied(body []byte, deny []string) (name string, ok bool) {
	if len(deny) == 0 {
		return "", false
	}
	h.each(body, func(m member) bool {
		key := body[m.key.start:m.key.end]
		for _, d := range deny {
			if textIs(key, d) {
				name, ok = d, true
				return false
			}
		}
		return true
	})
	return name, ok
}

// DenyDefaults are the members of a request that steer the engine of this
// dialect rather than the answer, refused unless configured otherwise.
func DenyDefaults(d Dialect) []string {
	switch d {
	case VLLM:
		return []string{"priority", "kv_transfer_params", "request_id"}
	case SGLang:
		return []string{"priority", "rid", "bootstrap_host", "bootstrap_port", "bootstrap_room",
			"routed_dp_rank", "custom_logit_processor", "lora_path"}
	case LlamaCPP:
		return []string{"id_slot", "lora"}
	}
	return nil
}
