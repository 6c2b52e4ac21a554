package wire

import "strings"

// info judges what was read.
func (r *errorBody) info(status int, d Dialect) ErrorInfo {
	e := ErrorInfo{Status: status, Type: r.typ, Code: r.code, Message: r.text, Param: clean(r.param), Nested: r.nested}
	lower := strings.ToLower(r.text)
	e.ModelNotFound = r.modelNotFound(status, lower)
	switch status {
	case 401, 403, 408, 429: // the gateway's key; a wait; backpressure
	default:
		e.ClientFault = status < 500 && !e.ModelNotFound || status == 500 && d == LlamaCPP && llamaClientFault(lower)
	}
	if r.nested {
		return e
	}
	e.Type = errorType(status)
	switch {
	case e.ModelNotFound:
		e.Code = "model_not_found"
	case e.Code != "":
	case status < 500 && contextLength(lower, r.typ):
		e.Code = "context_length_exceeded"
	case status == 429:
		e.Code = "upstream_rate_limited"
	case status >= 500:
		e.Code = "upstream_error"
	}
	return e
}

// errorType is the OpenAI type of a status.
func errorType(status int) string {
	switch {
	case status == 401:
		return "authentication_error"
	case status == 403:
		return "permission_error"
	case status == 429:
		return "rate_limit_error"
	case status >= 500:
		return "upstream_error"
	}
	return "invalid_request_error"
}

// modelNotFound tells a 404 (llama.cpp's router: 400) that is about the served
// model from one about anything else.
func (r *errorBody) modelNotFound(status int, lower string) bool {
	if status != 404 && status != 400 {
		return false
	}
	if r.code == "model_not_found" || status == 404 && r.param == "model" {
		return true
	}
	at := strings.Index(lower, "model")
	if at < 0 {
		return false
	}
	rest := lower[at:]
	missing := strings.Contains(rest, "not found") || strings.Contains(rest, "does not exist")
	if status == 400 { // "model '…' not found", nothing looser
		return missing && at == 0 && len(rest) < 512
	}
	return missing || strings.Contains(rest, "not exist") || strings.Contains(lower, "unknown model") ||
		strings.Contains(lower, "no such model")
}

func contextLength(lower, typ string) bool {
	return typ == "exceed_context_size_error" || strings.Contains(lower, "context length") ||
		strings.Contains(lower, "max context") || strings.Contains(lower, "context size") ||
		strings.Contains(lower, "`inputs` tokens + `max_new_tokens`")
}

// llamaClientFault recognises the caller's mistakes that llama.cpp answers with 500.
func llamaClientFault(lower string) bool {
	for _, part := range []string{"parse", "json", "is not supported", "requires --jinja"} {
		if strings.Contains(lower, part) {
			return true
		}
	}
	return false
}

// streamStatus is the HTTP status that an error event stands for. Codes outside
// 400 to 504 count as 503, none at all as 502 unless the text is clear.
func (r *errorBody) streamStatus(d Dialect) int {
	lower := strings.ToLower(r.text)
	if r.hardCoded || r.status == 0 && d == TGI {
		return tgiStatus(r.typ, lower)
	}
	switch {
	case r.status >= 400 && r.status <= 504:
		return r.status
	case r.status != 0:
		return 503
	}
	switch r.code {
	case "rate_limit_exceeded", "rate_limit_error":
		return 429
	case "context_length_exceeded", "invalid_request_error", "invalid_prompt":
		return 400
	case "model_not_found":
		return 404
	case "server_error", "internal_error", "internal_server_error":
		return 500
	}
	switch strings.ToLower(r.typ) {
	case "invalid_request_error", "badrequesterror", "validation":
		return 400
	case "notfounderror", "not_found_error":
		return 404
	case "rate_limit_error", "overloaded":
		return 429
	case "service_unavailable", "unavailable_error", "overloaded_error":
		return 503
	case "server_error", "internalservererror", "internal_error", "generation":
		return 500
	}
	if strings.Contains(lower, "overloaded") {
		return 429
	}
	return 502
}

// tgiStatus goes by the text: TGI sends 422 for every kind of error in a stream.
func tgiStatus(typ, lower string) int {
	switch {
	case typ == "overloaded" || strings.Contains(lower, "overloaded"):
		return 429
	case typ == "validation" || typ == "template_error" || typ == "tool_error" ||
		strings.Contains(lower, "validation") || strings.Contains(lower, "template") ||
		strings.Contains(lower, "tool error") || strings.Contains(lower, "must be"):
		return 422
	}
	return 500
}

// AppendEnvelope appends the OpenAI error envelope
// {"error":{"message","type","param","code"}}: compact, all four keys, "" as
// null for param and code, no HTML escaping, valid UTF-8.
func AppendEnvelope(dst []byte, message, typ, param, code string) []byte {
	dst = appendQuoted(append(dst, `{"error":{"message":`...), message)
	dst = appendQuoted(append(dst, `,"type":`...), typ)
	dst = appendNullable(append(dst, `,"param":`...), param)
	dst = appendNullable(append(dst, `,"code":`...), code)
	return append(dst, `}}`...)
}

func appendNullable(dst []byte, s string) []byte {
	if s == "" {
		return append(dst, "null"...)
	}
	return appendQuoted(dst, s)
}

// AppendErrorEvent appends the envelope as one event: `data: {"error":…}` and a
// blank line.
func AppendErrorEvent(dst []byte, message, typ, param, code string) []byte {
	dst = AppendEnvelope(append(dst, "data: "...), message, typ, param, code)
	return append(dst, "\n\n"...)
}
