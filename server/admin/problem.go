package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"sluice/internal/control"
	"sluice/internal/store"
	"sluice/router"
)

// Problem is the RFC 9457 body of every error, with a stable code.
type Problem struct {
	Type        string         `json:"type" doc:"about:blank, or a URI of the problem's kind"`
	Title       string         `json:"title"`
	Status      int            `json:"status"`
	Detail      string         `json:"detail" doc:"what is wrong and what to do"`
	Code        string         `json:"code" doc:"stable, for programs"`
	RequestID   string         `json:"request_id,omitempty"`
	CurrentETag string         `json:"current_etag,omitempty" doc:"of a 412: the object's ETag now"`
	Errors      []ProblemField `json:"errors,omitempty"`
	retryAfter  string
}

// ProblemField is one fault and where it is.
type ProblemField struct {
	Location string `json:"location" doc:"JSON pointer or dotted path"`
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
	if p.CurrentETag != "" {
		h.Set("ETag", p.CurrentETag)
	}
	return h
}

func newProblem(status int, code, detail string) *Problem {
	return &Problem{Type: "urn:sluice:problem:" + code, Title: http.StatusText(status), Status: status, Code: code, Detail: detail}
}

// humaError shapes what huma itself refuses (bad JSON, unknown members, wrong
// types) like every other problem. Values are not echoed: they may be secrets.
func humaError(ctx huma.Context, status int, msg string, errs ...error) huma.StatusError {
	code := map[int]string{400: "bad_request", 404: "not_found", 405: "method_not_allowed", 406: "not_acceptable", 408: "timeout",
		413: "too_large", 415: "unsupported_media_type", 422: "invalid", 500: "internal_error"}[status]
	if code == "" {
		code = "error"
	}
	p := newProblem(status, code, msg)
	var parts []string
	for _, e := range errs {
		if e == nil {
			continue
		}
		f := ProblemField{Message: e.Error()}
		var d huma.ErrorDetailer
		if errors.As(e, &d) {
			det := d.ErrorDetail()
			f = ProblemField{Location: det.Location, Message: det.Message}
		}
		p.Errors = append(p.Errors, f)
		parts = append(parts, strings.TrimPrefix(strings.TrimPrefix(f.Location+": ", "body: "), ": ")+f.Message)
	}
	if len(parts) > 0 {
		p.Detail = strings.Join(parts, "; ")
	}
	if ctx != nil {
		p.RequestID = requestID(ctx.Context())
	}
	return p
}

// problemOf maps an error of the layers below; it is the one place that does.
func (a *API) problemOf(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	p := a.classify(ctx, err)
	p.RequestID = requestID(ctx)
	return p
}

func (a *API) classify(ctx context.Context, err error) *Problem {
	var (
		own  *Problem
		edit *router.EditError
		many router.Problems
	)
	switch {
	case errors.As(err, &own):
		return own
	case errors.As(err, &edit):
		status := http.StatusConflict
		switch edit.Code {
		case router.CodeNotFound:
			status = http.StatusNotFound
		case router.CodeRuntimeField:
			status = http.StatusUnprocessableEntity
		}
		return newProblem(status, edit.Code, edit.Error())
	case errors.As(err, &many):
		return invalid(many)
	case errors.Is(err, router.ErrConflict):
		return newProblem(http.StatusConflict, "conflict", err.Error())
	case errors.Is(err, control.ErrReadOnly), errors.Is(err, store.ErrUnavailable):
		p := newProblem(http.StatusServiceUnavailable, "read_only", "The database is away: nothing can be changed but kills and rollbacks, serving goes on. "+err.Error())
		p.retryAfter = "2"
		return p
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return newProblem(http.StatusServiceUnavailable, "timeout", "The request ended before the work was done; read the object again before you repeat it.")
	}
	a.log.Error("admin request failed", "request_id", requestID(ctx), "err", err)
	return newProblem(http.StatusInternalServerError, "internal_error", "The request failed here; its id tells the operator where.")
}

func invalid(ps router.Problems) *Problem {
	p := newProblem(http.StatusUnprocessableEntity, "invalid", "")
	for i, f := range ps {
		p.Errors = append(p.Errors, ProblemField{Location: f.Path, Code: f.Code, Message: f.Message})
		if i == 0 {
			p.Code, p.Detail = f.Code, strings.TrimPrefix(f.Path+": ", ": ")+f.Message
			p.Type = "urn:sluice:problem:" + f.Code
		}
	}
	if len(ps) > 1 {
		p.Detail += fmt.Sprintf(" (and %d more)", len(ps)-1)
	}
	return p
}

func (a *API) writeProblem(w http.ResponseWriter, r *http.Request, p *Problem) {
	p.RequestID = requestID(r.Context())
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	json.NewEncoder(w).Encode(p)
}
