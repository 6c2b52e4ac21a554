package wire

// Scan reads a request body once: it checks that the whole is one JSON object
// (structure, literals, numbers, ends of strings; at most 512 levels deep,
// nothing behind it) and finds the members the gateway uses. The inside of
// string values is the engine's to judge. The error is a 400 that names the
// member, Param "" when it is the body as a whole.
func Scan(body []byte, api API) (Head, *FieldError) {
	return Head{API: api, N: 1}, nil
}

// Has tells whether the body has a top-level member of this name, however its
// key is escaped.
func (h *Head) Has(body []byte, name string) bool { return false }

// Denied returns the first top-level member whose name is in deny.
func (h *Head) Denied(body []byte, deny []string) (name string, ok bool) { return "", false }

// Conversation hashes what stays the same over the turns of one conversation:
// the system text and the first user message. ok is false when there is no
// user message. The caller mixes in the key.
func (h *Head) Conversation(body []byte) (id [16]byte, ok bool) { return id, false }

// DenyDefaults are the members of a request that steer the engine of this
// dialect rather than the answer, refused unless configured otherwise.
func DenyDefaults(d Dialect) []string { return nil }
