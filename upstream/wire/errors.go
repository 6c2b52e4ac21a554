package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"strconv"
	"strings"
	"unicode/utf8"
)

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

// maxMessage bounds an error message: some engines echo the whole input.
const maxMessage = 2 << 10

// maxErrorBody is how much of an error body is looked at.
const maxErrorBody = 1 << 20

// ParseError reads the body of an answer with an error status in every shape
// that engines and proxies send: nested and flat objects, bare strings, FastAPI
// details, HTML (its title only), plain text, nothing. It is not for the hot path.
func ParseError(status int, contentType string, body []byte, d Dialect) ErrorInfo {
	if status < 400 || status > 599 {
		status = 502
	}
	body = body[:min(len(body), maxErrorBody)]
	r := readError(bytes.TrimPrefix(bytes.TrimSpace(body), bom), contentType)
	if r.text == "" {
		r.text, r.nested = "The upstream answered with status "+strconv.Itoa(status)+" and no message.", false
	}
	return r.info(status, d)
}

// streamError reads the error event of a stream, or an error object under a
// 200, and finds the HTTP status that it stands for.
func streamError(data []byte, d Dialect) ErrorInfo {
	r := readError(bytes.TrimSpace(data[:min(len(data), maxErrorBody)]), "")
	if r.text == "" {
		r.text, r.nested = "The upstream reported an error without a message.", false
	}
	return r.info(r.streamStatus(d), d)
}

// errorBody is what an error body says, before it is judged.
type errorBody struct {
	text, typ, param, code string
	status                 int  // a numeric code, 0 without one
	hardCoded              bool // TGI's http_status_code, the same for everything
	nested                 bool
}

func readError(body []byte, contentType string) (r errorBody) {
	lower := strings.ToLower(contentType)
	if strings.Contains(lower, "html") || len(body) > 0 && body[0] == '<' {
		r.text = htmlTitle(body)
		return r
	}
	var members map[string]json.RawMessage
	if json.Unmarshal(body, &members) != nil {
		var s string
		if json.Unmarshal(body, &s) == nil {
			r.text = clean(s)
		} else {
			r.text = clean(string(body[:min(len(body), maxMessage+utf8.UTFMax)]))
		}
		return r
	}
	inner := members
	if e, ok := members["error"]; ok {
		var nested map[string]json.RawMessage
		if json.Unmarshal(e, &nested) == nil && nested != nil {
			inner = nested
			_, isString := str(nested["message"])
			r.nested = isString && utf8.Valid(body)
		} else {
			r.text = text(e)
		}
	}
	r.members(inner)
	if r.typ == "" {
		r.typ, _ = str(members["error_type"]) // TGI
	}
	if r.text == "" && r.nested {
		r.nested = false
	}
	if resp, ok := members["response"]; ok && r.text == "" { // response.failed
		var m map[string]json.RawMessage
		if json.Unmarshal(resp, &m) == nil && json.Unmarshal(m["error"], &m) == nil {
			r.members(m)
		}
	}
	if r.text == "" && len(members) > 0 {
		r.text, r.nested = clean(string(body)), false
	}
	return r
}

// members reads the object that holds message, type, param and code.
func (r *errorBody) members(m map[string]json.RawMessage) {
	if r.text == "" {
		for _, name := range []string{"message", "msg", "error"} {
			if r.text = text(m[name]); r.text != "" {
				break
			}
		}
		if r.text == "" {
			r.text = detail(m["detail"])
		}
	}
	r.typ, _ = str(m["type"])
	r.param, _ = str(m["param"])
	for _, name := range []string{"code", "http_status_code", "status", "status_code"} {
		raw := m[name]
		s, isString := str(raw)
		n, err := strconv.Atoi(string(raw))
		if isString {
			n, err = strconv.Atoi(s)
		}
		if err == nil {
			r.status, r.hardCoded = n, name == "http_status_code"
			return
		}
		if isString && s != "" && name == "code" {
			r.code = clean(s)
		}
	}
}

func str(raw json.RawMessage) (string, bool) {
	var s string
	if len(raw) == 0 || raw[0] != '"' || json.Unmarshal(raw, &s) != nil {
		return "", false
	}
	return s, true
}

// text is a string's text, or the JSON of any other value but null.
func text(raw json.RawMessage) string {
	if s, ok := str(raw); ok {
		return clean(s)
	}
	if len(raw) == 0 || raw[0] == 'n' || raw[0] == 'f' {
		return ""
	}
	return clean(string(raw))
}

// detail reads FastAPI's list of {loc, msg}, or a text.
func detail(raw json.RawMessage) string {
	var items []struct {
		Loc []any  `json:"loc"`
		Msg string `json:"msg"`
	}
	if json.Unmarshal(raw, &items) != nil || len(items) == 0 {
		return text(raw)
	}
	var b strings.Builder
	for i, item := range items {
		if b.Len() > maxMessage {
			break
		}
		if i > 0 {
			b.WriteString("; ")
		}
		for j, part := range item.Loc {
			if j > 0 {
				b.WriteByte('.')
			}
			fmt.Fprint(&b, part)
		}
		if len(item.Loc) > 0 {
			b.WriteString(": ")
		}
		b.WriteString(item.Msg)
	}
	return clean(b.String())
}

// htmlTitle is the title of a page, never its markup.
func htmlTitle(body []byte) string {
	page := strings.ToLower(string(body[:min(len(body), 64<<10)]))
	if _, rest, ok := strings.Cut(page, "<title"); ok {
		if _, rest, ok = strings.Cut(rest, ">"); ok {
			if title, _, ok := strings.Cut(rest, "</"); ok {
				at := len(page) - len(rest) // ToLower may change lengths: only trust ASCII
				if at+len(title) <= len(body) && strings.EqualFold(string(body[at:at+len(title)]), title) {
					title = string(body[at : at+len(title)])
				}
				title = strings.NewReplacer("<", " ", ">", " ").Replace(html.UnescapeString(title))
				if title = clean(title[:min(len(title), 200)]); title != "" {
					return title
				}
			}
		}
	}
	return "The upstream answered with an HTML page."
}

// clean makes a text fit to be a message: valid UTF-8, trimmed, bounded.
func clean(s string) string {
	s = strings.TrimSpace(strings.ToValidUTF8(s[:min(len(s), 4*maxMessage)], "\uFFFD"))
	if len(s) <= maxMessage {
		return s
	}
	cut := maxMessage - len("…")
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}
