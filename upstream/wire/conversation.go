package wire

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"hash"
)

// Conversation hashes what stays the same over the turns of one conversation:
// the system text and the first user message. Text counts as what it says, not
// as how it is written: clients send the first turn as a string and later as
// parts, or mark a part for a cache. ok is false when there is no user message.
// The caller mixes in the key.
func (h *Head) Conversation(body []byte) (id [16]byte, ok bool) {
	sum := sha256.New()
	switch h.API {
	case Chat:
		ok = hashTurns(sum, body, h.messages)
	case Completions:
		if ok = given(body, h.prompt); ok {
			hashTurn(sum, 'u', body, h.prompt)
		}
	case Responses:
		if given(body, h.instructions) {
			hashTurn(sum, 's', body, h.instructions)
		}
		if isString(body, h.input.start, h.input.end) {
			hashTurn(sum, 'u', body, h.input)
			ok = true
		} else {
			ok = hashTurns(sum, body, h.input)
		}
	}
	if ok {
		copy(id[:], sum.Sum(make([]byte, 0, sha256.Size)))
	}
	return id, ok
}

// given tells that a member is there and not null.
func given(b []byte, v span) bool { return v.end > 0 && b[v.start] != 'n' }

// hashTurns hashes the system and developer messages up to the first user
// message, and that one; later system messages belong to a turn.
func hashTurns(sum hash.Hash, b []byte, list span) bool {
	if list.end == 0 {
		return false
	}
	for a := arrayAt(b, list.start); a.next(); {
		role, content := turn(b, a.val)
		system := stringIs(b, role.start, role.end, "system") || stringIs(b, role.start, role.end, "developer")
		user := stringIs(b, role.start, role.end, "user")
		if !system && !user || !given(b, content) {
			continue
		}
		if user {
			hashTurn(sum, 'u', b, content)
			return true
		}
		hashTurn(sum, 's', b, content)
	}
	return false
}

// turn finds role and content of the message at i; end is 0 when absent.
func turn(b []byte, i int) (role, content span) {
	for o := objectAt(b, i); o.next(); {
		if o.is("role") {
			role = o.value()
		} else if o.is("content") {
			content = o.value()
		}
	}
	return role, content
}

// hashTurn hashes what one message says: a string is one text, a list has a part
// for each element.
func hashTurn(sum hash.Hash, role byte, b []byte, content span) {
	hashPart(sum, role, nil)
	if b[content.start] != '[' {
		hashValue(sum, b, content)
		return
	}
	for a := arrayAt(b, content.start); a.next(); {
		v := span{a.val, a.end()}
		if text := partText(b, v); text.end > 0 {
			v = text
		}
		hashValue(sum, b, v)
	}
}

// partText is the text of a content part that is nothing but text; end is 0 for
// any other value.
func partText(b []byte, part span) (text span) {
	plain := false
	for o := objectAt(b, part.start); o.next(); {
		switch {
		case o.is("type"):
			plain = stringIs(b, o.val, o.end(), "text") || stringIs(b, o.val, o.end(), "input_text")
		case o.is("text") && b[o.val] == '"':
			text = o.value()
		}
	}
	if !plain {
		return span{}
	}
	return text
}

// hashValue hashes a string as the text it stands for, anything else as written.
func hashValue(sum hash.Hash, b []byte, v span) {
	raw := b[v.start:v.end]
	if !isString(b, v.start, v.end) {
		hashPart(sum, 'v', raw)
		return
	}
	text := raw[1 : len(raw)-1]
	if bytes.IndexByte(text, '\\') >= 0 {
		var ok bool
		if text, ok = appendUnescaped(make([]byte, 0, len(text)), text); !ok {
			hashPart(sum, 'v', raw)
			return
		}
	}
	hashPart(sum, 't', text)
}

// hashPart keeps the parts apart by kind and length.
func hashPart(sum hash.Hash, kind byte, p []byte) {
	var head [9]byte
	head[0] = kind
	binary.BigEndian.PutUint64(head[1:], uint64(len(p)))
	sum.Write(head[:])
	sum.Write(p)
}

// Answered tells whether the conversation has an answer already: the request
// carries what a model said, or what came of it, or refers to it.
func (h *Head) Answered(body []byte) bool {
	switch h.API {
	case Chat:
		return answeredIn(body, h.messages)
	case Responses:
		if h.input.end > 0 && body[h.input.start] == '[' && answeredIn(body, h.input) {
			return true
		}
		found := false
		h.each(body, func(f member) bool {
			if string(body[f.key.start:f.key.end]) == "previous_response_id" {
				found = body[f.val.start] == '"' && f.val.end-f.val.start > 2
			}
			return true
		})
		return found
	}
	return false
}

// answeredIn looks for a turn that is not the caller's: by an assistant or a
// tool, or in the Responses API an item that has a type but no role, such as a
// function call.
func answeredIn(b []byte, list span) bool {
	if list.end == 0 || b[list.start] != '[' {
		return false
	}
	for a := arrayAt(b, list.start); a.next(); {
		role, _ := turn(b, a.val)
		switch {
		case role.end == 0:
			if memberOf(b, span{a.val, a.end()}, "type").end > 0 {
				return true
			}
		case !stringIs(b, role.start, role.end, "user") && !isSystem(b, role):
			return true
		}
	}
	return false
}
