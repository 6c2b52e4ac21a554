package wire

// ErrorInfo is an upstream's error in the normal form.
type ErrorInfo struct {
	Status  int    // HTTP status to act on and to send, 400..599
	Type    string // of the OpenAI envelope
	Code    string // "" for null
	Message string // valid UTF-8, at most 2 KB, never empty
	Param   string // "" for null
	// Nested: the body is an OpenAI envelope already and passes byte for byte.
	Nested bool
	// ModelNotFound: the served model is unknown there: an error of the variant.
	ModelNotFound bool
	// ClientFault: the caller's mistake whatever the status says; it never
	// counts against the endpoint.
	ClientFault bool
}

// ParseError reads the body of an answer with an error status in every shape
// that engines and proxies send.
func ParseError(status int, contentType string, body []byte, d Dialect) ErrorInfo {
	return ErrorInfo{Status: status}
}

// AppendEnvelope appends the OpenAI error envelope
// {"error":{"message","type","param","code"}}: compact, all four keys, "" as
// null for param and code, no HTML escaping, valid UTF-8.
func AppendEnvelope(dst []byte, message, typ, param, code string) []byte { return dst }

// AppendErrorEvent appends the envelope as one event: `data: {"error":…}` and a
// blank line.
func AppendErrorEvent(dst []byte, message, typ, param, code string) []byte { return dst }
