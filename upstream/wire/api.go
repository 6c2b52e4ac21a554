// Package wire knows the OpenAI wire format byte by byte: it finds the few
// request members the gateway uses, splices the few it changes, follows a
// server-sent event stream as it passes, reads usage and errors in the shapes
// that real engines send, and nothing else. It never decodes what it forwards,
// does no I/O and keeps no clock.
package wire

// API is the kind of a data-plane endpoint; its String is the `api` label.
type API uint8

// The endpoints of the data plane.
const (
	Chat API = iota
	Completions
	Embeddings
	Responses
)

// String returns the name used in logs and as the Prometheus label `api`.
func (a API) String() string {
	switch a {
	case Chat:
		return "chat_completions"
	case Completions:
		return "completions"
	case Embeddings:
		return "embeddings"
	case Responses:
		return "responses"
	}
	return "other"
}

// Path is the endpoint's path below a base URL such as http://gpu1:8000/v1.
func (a API) Path() string {
	switch a {
	case Chat:
		return "/chat/completions"
	case Completions:
		return "/completions"
	case Embeddings:
		return "/embeddings"
	case Responses:
		return "/responses"
	}
	return ""
}

// Dialect names a family of servers; they differ in usage injection, error
// shapes, readiness and cancel.
type Dialect string

// The dialects.
const (
	OpenAI   Dialect = "openai"
	VLLM     Dialect = "vllm"
	TGI      Dialect = "tgi"
	SGLang   Dialect = "sglang"
	LlamaCPP Dialect = "llamacpp"
)

// Usage is the normal form of an engine's token counts: Input includes Cached
// and CacheWrite, Output includes Reasoning.
type Usage struct {
	Input, Cached, CacheWrite, Output, Reasoning int64
}

// FieldError is a client's mistake in the request body: it becomes a 400 in
// the OpenAI envelope that names the member.
type FieldError struct {
	Param   string // top-level member, "" when it is the body as a whole
	Message string // a whole sentence for the client
}

func (e *FieldError) Error() string { return e.Message }
