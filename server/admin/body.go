package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"sluice/router"
)

const (
	maxBody         = 1 << 20
	maxDocumentBody = router.MaxDocumentBytes + 64<<10
	maxDepth        = 64 // of nested JSON
	bodyTimeout     = 15 * time.Second
)

// strictQuery refuses what parsers read in different ways, and sets the headers
// of every answer below it.
func (a *API) strictQuery(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "private, no-cache") // ETags decide
		w.Header().Set("X-Content-Type-Options", "nosniff")
		query, err := url.ParseQuery(r.URL.RawQuery)
		if err != nil {
			a.writeProblem(w, r, newProblem(http.StatusUnprocessableEntity, "invalid_query", "The query cannot be read; percent-encode values and separate them by &."))
			return
		}
		for name, values := range query {
			if len(values) > 1 {
				a.writeProblem(w, r, field(http.StatusUnprocessableEntity, "repeated_parameter", "query."+clip(name, 80), "is given more than once; keep one"))
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// strictBody reads the body of a write once, bounded, and refuses what is not
// one JSON value in UTF-8 without repeated members: with a repeated one, what
// is checked, logged and applied may differ. What it keeps is for bodyOf.
func (a *API) strictBody(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if safeMethod(r.Method) {
			next.ServeHTTP(w, r)
			return
		}
		data, p := readBody(w, r)
		if p == nil && len(data) > 0 {
			p = checkJSON(data)
		}
		if p != nil {
			a.writeProblem(w, r, p)
			return
		}
		r = r.WithContext(context.WithValue(r.Context(), keyRawBody, data))
		r.Body = io.NopCloser(bytes.NewReader(data))
		next.ServeHTTP(w, r)
	})
}

func readBody(w http.ResponseWriter, r *http.Request) ([]byte, *Problem) {
	limit := int64(maxBody)
	if strings.HasSuffix(r.URL.Path, "/document") {
		limit = maxDocumentBody
	}
	if r.ContentLength > limit {
		return nil, tooLarge(limit)
	}
	ctl := http.NewResponseController(w)
	// A recorder of tests has no deadlines; a connection always has.
	_ = ctl.SetReadDeadline(time.Now().Add(bodyTimeout))
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if err == nil {
		// Only then: net/http waits for the rest of a body before it answers.
		_ = ctl.SetReadDeadline(time.Time{})
	}
	var over *http.MaxBytesError
	var timeout net.Error
	switch {
	case errors.As(err, &over):
		return nil, tooLarge(limit)
	case errors.As(err, &timeout) && timeout.Timeout():
		return nil, newProblem(http.StatusRequestTimeout, "timeout", "The body did not arrive within 15 s; send it again.")
	case err != nil:
		return nil, newProblem(http.StatusBadRequest, "body_cut", "The body ended before it was complete; send it again.")
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, nil
	}
	if enc := r.Header.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		return nil, newProblem(http.StatusUnsupportedMediaType, "unsupported_media_type", "Send the body without Content-Encoding.")
	}
	if ct := r.Header.Get("Content-Type"); ct != "" {
		kind, _, err := mime.ParseMediaType(ct)
		if err != nil || kind != "application/json" && kind != "application/merge-patch+json" {
			return nil, newProblem(http.StatusUnsupportedMediaType, "unsupported_media_type", "Send the body as Content-Type: application/json.")
		}
	}
	return data, nil
}

func tooLarge(limit int64) *Problem {
	const mib = 1 << 20
	return newProblem(http.StatusRequestEntityTooLarge, "too_large", "The body is larger than "+itoa(limit/mib)+" MiB; send less at once.")
}

// checkJSON refuses what encoding/json would silently mend.
func checkJSON(data []byte) *Problem {
	bad := func(detail string) *Problem {
		p := newProblem(http.StatusBadRequest, "invalid_json", detail)
		p.Errors = []ProblemField{{Location: "body", Code: p.Code, Message: detail}}
		return p
	}
	if !utf8.Valid(data) {
		return bad("The body is not valid UTF-8.")
	}
	if !json.Valid(data) {
		var v json.RawMessage
		err := json.Unmarshal(data, &v)
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			at := data[:min(int(syntax.Offset), len(data))]
			return bad("The body is not valid JSON: line " + itoa(int64(1+bytes.Count(at, []byte("\n")))) + ", byte " + itoa(syntax.Offset) + ": " + syntax.Error() + ".")
		}
		return bad("The body is not valid JSON.")
	}
	where, code := fault(data)
	switch code {
	case "duplicate_member":
		detail := "The member " + where + " is written twice; keep one."
		p := newProblem(http.StatusUnprocessableEntity, code, detail)
		p.Errors = []ProblemField{{Location: where, Code: code, Message: "written twice; keep one"}}
		return p
	case "too_deep":
		return bad("The body is nested more than " + itoa(maxDepth) + " levels deep.")
	}
	return nil
}

// level is one open object or list.
type level struct {
	names map[string]bool // nil: a list
	name  string          // member being read
	n     int             // item being read
	value bool            // of an object: a value comes next
}

// fault walks valid JSON and tells the first repeated member or excess of depth.
func fault(data []byte) (where, code string) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var stack []*level
	for {
		tok, err := dec.Token()
		if err != nil {
			return "", ""
		}
		var top *level
		if len(stack) > 0 {
			top = stack[len(stack)-1]
		}
		if d, ok := tok.(json.Delim); ok && (d == '}' || d == ']') {
			stack = stack[:len(stack)-1]
			continue
		}
		if name, ok := tok.(string); ok && top != nil && top.names != nil && !top.value {
			top.name, top.value = name, true
			if top.names[name] {
				return location(stack), "duplicate_member"
			}
			top.names[name] = true
			continue
		}
		if top != nil {
			top.value = false
			top.n++
		}
		if d, ok := tok.(json.Delim); ok {
			if len(stack) == maxDepth {
				return location(stack), "too_deep"
			}
			l := &level{}
			if d == '{' {
				l.names = map[string]bool{}
			}
			stack = append(stack, l)
		}
	}
}

func location(stack []*level) string {
	var b strings.Builder
	b.WriteString("body")
	for _, l := range stack {
		if l.names == nil {
			b.WriteString("[" + itoa(int64(l.n-1)) + "]")
			continue
		}
		b.WriteString("." + clip(l.name, 80))
	}
	return b.String()
}

// clip bounds a hostile text in a message.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

// bodyOf reads the body as a T, strictly. Without a body it answers a zero T
// where one may be left out.
func bodyOf[T any](ctx context.Context, optional bool) (*T, error) {
	data, err := object(ctx, optional)
	if err != nil || data == nil {
		return new(T), err
	}
	return router.ParseStrict[T](data)
}

// object is the body's bytes, an object; nil without one.
func object(ctx context.Context, optional bool) ([]byte, error) {
	data, _ := ctx.Value(keyRawBody).([]byte)
	data = bytes.TrimSpace(data)
	switch {
	case len(data) == 0 && optional:
		return nil, nil
	case len(data) == 0:
		return nil, newProblem(http.StatusBadRequest, "body_required", "The request has no body; send a JSON object as application/json.")
	case data[0] != '{':
		p := newProblem(http.StatusUnprocessableEntity, "wrong_type", "The body must be a JSON object.")
		p.Errors = []ProblemField{{Location: "body", Code: p.Code, Message: "want an object"}}
		return nil, p
	}
	return data, nil
}
