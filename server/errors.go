package server

import (
	"net/http"
	"strconv"

	"sluice/upstream"
	"sluice/upstream/wire"
)

// errorType gives the envelope's type for each code of the closed set
// (design.md section 5); what is not in it is an upstream's own.
var errorType = map[string]string{
	"invalid_request":        "invalid_request_error",
	"not_found":              "invalid_request_error",
	"method_not_allowed":     "invalid_request_error",
	"unsupported_media_type": "invalid_request_error",
	"request_too_large":      "invalid_request_error",
	"model_not_found":        "invalid_request_error",
	"invalid_api_key":        "authentication_error",
	"permission_denied":      "permission_error",
	"rate_limit_exceeded":    "rate_limit_error",
	"budget_exceeded":        "rate_limit_error",
	"queue_full":             "rate_limit_error",
	"upstream_rate_limited":  "rate_limit_error",
	"internal_error":         "internal_error",
	"shutting_down":          "upstream_error",
}

// failure is an error that the gateway makes.
func failure(status int, code, message string) *upstream.Failure {
	return &upstream.Failure{Status: status, Code: code, Message: message}
}

func paramFailure(param, message string) *upstream.Failure {
	return &upstream.Failure{Status: http.StatusBadRequest, Code: "invalid_request", Param: param, Message: message}
}

// outcomeOf classifies what the gateway refused before any attempt.
func outcomeOf(f *upstream.Failure) upstream.Outcome {
	switch f.Code {
	case "rate_limit_exceeded":
		return upstream.RateLimited
	case "budget_exceeded":
		return upstream.BudgetExceeded
	case "queue_full":
		return upstream.QueueFull
	case "no_ready_endpoint":
		return upstream.NoEndpoint
	case "shutting_down":
		return upstream.ShuttingDown
	case "internal_error":
		return upstream.InternalError
	}
	return upstream.ClientError
}

func typeOf(f *upstream.Failure) string {
	if f.Type != "" {
		return f.Type
	}
	if t, ok := errorType[f.Code]; ok {
		return t
	}
	return "upstream_error"
}

// writeError is the only place that starts an error response: the OpenAI
// envelope with all four keys, or an upstream's own envelope byte for byte.
func (s *Server) writeError(w http.ResponseWriter, requestID string, f *upstream.Failure) {
	h := w.Header()
	for k, v := range f.Header {
		h[k] = v
	}
	h.Set("X-Request-Id", requestID)
	if f.RetryAfter != "" {
		h.Set("Retry-After", f.RetryAfter)
	}
	if f.RetryMS != "" {
		h.Set("Retry-After-Ms", f.RetryMS)
	}
	if f.NoRetry {
		h.Set("X-Should-Retry", "false")
	}
	body := f.Body
	h.Set("Content-Type", "application/json")
	if body == nil {
		if f.Code != "" {
			h.Set("X-Sluice-Error", f.Code)
		}
		body = wire.AppendEnvelope(make([]byte, 0, 256), f.Message, typeOf(f), f.Param, f.Code)
	} else if f.ContentType != "" {
		h.Set("Content-Type", f.ContentType)
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	s.boundWrite(w)
	if f.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", "Bearer")
	}
	w.WriteHeader(f.Status)
	w.Write(body)
}
