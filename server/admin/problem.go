package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/danielgtaylor/huma/v2"

	"sluice/router"
)

// Problem is the RFC 9457 body of every error, with a stable code.
type Problem struct {
	Type        string         `json:"type" doc:"URI of the problem's kind"`
	Title       string         `json:"title"`
	Status      int            `json:"status"`
	Detail      string         `json:"detail" doc:"what is wrong and what to do"`
	Code        string         `json:"code" doc:"stable, for programs"`
	RequestID   string         `json:"request_id,omitempty"`
	CurrentETag string         `json:"current_etag,omitempty" doc:"of a 412: the object's ETag now"`
	Errors      []ProblemField `json:"errors,omitempty"`
	retryAfter  string
	etag        string // of a 304
}

// ProblemField is one fault and where it is.
type ProblemField struct {
	Location string `json:"location" doc:"such as body.weights.canary, query.limit, header.If-Match"`
	Code     string `json:"code,omitempty"`
	Message  string `json:"message"`
}

func (p *Problem) Error() string  { return p.Detail }
func (p *Problem) GetStatus() int { return p.Status }

// ContentType implements huma.ContentTypeFilter.
func (p *Problem) ContentType(string) string { return "application/problem+json" }

// GetHeaders implements huma.HeadersError.
func (p *Problem) GetHeaders() http.Header {
	h := http.Header{}
	if p.retryAfter != "" {
		h.Set("Retry-After", p.retryAfter)
	}
	if tag := p.CurrentETag + p.etag; tag != "" {
		h.Set("ETag", tag)
	}
	return h
}

func newProblem(status int, code, detail string) *Problem {
	return &Problem{Type: "urn:sluice:problem:" + code, Title: http.StatusText(status), Status: status, Code: code, Detail: detail}
}

// field is a problem with one place.
func field(status int, code, location, message string) *Problem {
	p := newProblem(status, code, location+": "+message+".")
	p.Errors = []ProblemField{{Location: location, Code: code, Message: message}}
	return p
}

func missingObject(kind, name string) error {
	return newProblem(http.StatusNotFound, "not_found", fmt.Sprintf("There is no %s %q.", kind, clip(name, 128)))
}

// adoptProblems makes huma's own refusals look like every other problem.
// huma has this as a variable of the package.
var adoptProblems = sync.OnceFunc(func() {
	huma.NewError = func(status int, msg string, errs ...error) huma.StatusError {
		return humaError(nil, status, msg, errs...)
	}
	huma.NewErrorWithContext = humaError
})

var humaCodes = map[int]string{400: "bad_request", 404: "not_found", 405: "method_not_allowed", 406: "not_acceptable", 408: "timeout",
	413: "too_large", 415: "unsupported_media_type", 422: "invalid", 500: "internal_error"}

// humaError shapes what huma itself refuses (parameters). Values are not
// echoed: they may be secrets.
func humaError(ctx huma.Context, status int, msg string, errs ...error) huma.StatusError {
	p := newProblem(status, cmpOr(humaCodes[status], "error"), msg)
	if ctx != nil {
		p.RequestID = requestID(ctx.Context())
	}
	if status >= 500 {
		p.Detail = internalDetail
		return p
	}
	var parts []string
	for _, e := range errs {
		if e == nil {
			continue
		}
		f := ProblemField{Location: "request", Message: "cannot be read"}
		var d huma.ErrorDetailer
		if errors.As(e, &d) {
			det := d.ErrorDetail()
			f = ProblemField{Location: det.Location, Message: det.Message}
		}
		if strings.HasPrefix(f.Location, "query.") || strings.HasPrefix(f.Location, "path.") || strings.HasPrefix(f.Location, "header.") {
			f.Code = "invalid_parameter"
			if f.Message == "unknown query parameter" {
				f.Code, f.Message = "unknown_parameter", "is not a parameter of this operation; remove it or mend its name"
			}
			p.Code = f.Code
		}
		f.Location = clip(f.Location, 100)
		p.Errors = append(p.Errors, f)
		parts = append(parts, f.Location+": "+f.Message)
	}
	p.Type = "urn:sluice:problem:" + p.Code
	if len(parts) > 0 {
		p.Detail = strings.Join(parts, "; ") + "."
	}
	return p
}

func cmpOr(s, def string) string {
	if s == "" {
		return def
	}
	return s
}

const internalDetail = "The request failed here; its request_id tells the operator where in the log."

// problemOf maps an error of the layers below; it is the one place that does.
func (a *API) problemOf(ctx context.Context, err error) *Problem {
	p := a.classify(ctx, err)
	p.RequestID = requestID(ctx)
	return p
}

func (a *API) classify(ctx context.Context, err error) *Problem {
	var (
		own  *Problem
		edit *router.EditError
		many router.Problems
		away interface{ Unavailable() bool }
	)
	switch {
	case errors.As(err, &own):
		return own
	case errors.As(err, &edit):
		status := http.StatusConflict
		switch edit.Code {
		case router.CodeNotFound:
			status = http.StatusNotFound
		case router.CodeRuntimeField, router.CodeUnknownEndpoint:
			status = http.StatusUnprocessableEntity
		}
		return newProblem(status, edit.Code, edit.Error())
	case errors.As(err, &many):
		return invalid(many)
	case errors.Is(err, router.ErrConflict):
		return newProblem(http.StatusConflict, "conflict", "The document changed at the same time, again and again; read it and try once more.")
	case errors.Is(err, context.Canceled), ctx.Err() != nil:
		return newProblem(http.StatusServiceUnavailable, "timeout", "The request ended before the work was done; read the object again before you repeat it.")
	case errors.Is(err, router.ErrReadOnly), errors.As(err, &away) && away.Unavailable(), errors.Is(err, context.DeadlineExceeded):
		a.log.Warn("admin request without the database", "request_id", requestID(ctx), "err", err)
		p := newProblem(http.StatusServiceUnavailable, "read_only", "The database is away: nothing can be changed but by kill and rollback, and serving goes on. Try again when it is back; GET /status says when.")
		p.retryAfter = "2"
		return p
	}
	a.log.Error("admin request failed", "request_id", requestID(ctx), "err", err)
	return newProblem(http.StatusInternalServerError, "internal_error", internalDetail)
}

func invalid(ps router.Problems) *Problem {
	p := newProblem(http.StatusUnprocessableEntity, "invalid", "The request is not valid.")
	for i, f := range ps {
		where := locate(f.Path)
		p.Errors = append(p.Errors, ProblemField{Location: where, Code: f.Code, Message: f.Message})
		if i == 0 {
			p.Code, p.Detail = f.Code, where+": "+f.Message
			p.Type = "urn:sluice:problem:" + f.Code
			if f.Code == "invalid_json" {
				p.Status, p.Title = http.StatusBadRequest, http.StatusText(http.StatusBadRequest)
			}
		}
	}
	if len(ps) > 1 {
		p.Detail += fmt.Sprintf(" (and %d more)", len(ps)-1)
	}
	return p
}

// locate writes a JSON pointer as body.variants[0].weight; what is elsewhere in
// the document than in the object that was sent begins with document.
func locate(pointer string) string {
	parts := strings.Split(pointer, "/")
	var b strings.Builder
	if len(parts) > 3 && slices.Contains([]string{"upstreams", "models", "experiments", "keys"}, parts[1]) {
		b.WriteString("document")
	} else {
		b.WriteString("body")
	}
	for i, part := range parts {
		if i == 0 {
			continue
		}
		part = strings.ReplaceAll(strings.ReplaceAll(part, "~1", "/"), "~0", "~")
		if _, err := strconv.ParseUint(part, 10, 31); err == nil {
			b.WriteString("[" + part + "]")
			continue
		}
		b.WriteString("." + part)
	}
	return b.String()
}

func (a *API) writeProblem(w http.ResponseWriter, r *http.Request, p *Problem) {
	p.RequestID = requestID(r.Context())
	h := w.Header()
	for k, v := range p.GetHeaders() {
		h[k] = v
	}
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // the client is gone: nobody to tell
}
