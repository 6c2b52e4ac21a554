package wire

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
)

// Conversation hashes what stays the same over the turns of one conversation:
// the system text and the first user message, as the client wrote them. ok is
// false when there is no user message. The caller mixes in the key.
func (h *Head) Conversation(body []byte) (id [16]byte, ok bool) {
	sum := sha256.New()
	switch h.API {
	case Chat:
		ok = hashTurns(sum, body, h.messages)
	case Completions:
		if ok = given(body, h.prompt); ok {
			hashPart(sum, 'u', body[h.prompt.start:h.prompt.end])
		}
	case Responses:
		if given(body, h.instructions) {
			hashPart(sum, 's', body[h.instructions.start:h.instructions.end])
		}
		if isString(body, h.input.start, h.input.end) {
			hashPart(sum, 'u', body[h.input.start:h.input.end])
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
			hashPart(sum, 'u', b[content.start:content.end])
			return true
		}
		hashPart(sum, 's', b[content.start:content.end])
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

// hashPart keeps the parts apart by kind and length.
func hashPart(sum hash.Hash, kind byte, p []byte) {
	var head [9]byte
	head[0] = kind
	binary.BigEndian.PutUint64(head[1:], uint64(len(p)))
	sum.Write(head[:])
	sum.Write(p)
}
