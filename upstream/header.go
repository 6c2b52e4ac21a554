package upstream

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"sluice/upstream/h1"
)

// Names are in canonical form throughout: net/http made them so.
const (
	hdrAuth        = "Authorization"
	hdrRequestID   = "X-Request-Id"
	hdrRetryAfter  = "Retry-After"
	hdrRetryMS     = "Retry-After-Ms"
	hdrContentType = "Content-Type"
	hdrEncoding    = "Content-Encoding"
)

// private headers carry a credential or belong to one connection.
var private = headerNames(`authorization proxy-authorization proxy-authenticate www-authenticate
	x-api-key api-key x-goog-api-key x-auth-token cookie set-cookie cookie2 set-cookie2
	connection proxy-connection keep-alive te trailer transfer-encoding upgrade expect http2-settings
	content-length content-encoding host accept-encoding`)

// forbidden headers never pass in either direction, whatever a configuration
// adds: private ones, what this gateway or the HTTP library sets itself, and
// what steers an engine's scheduler.
var forbidden = headerNames(`server alt-svc forwarded x-real-ip via idempotency-key x-idempotency-key
	x-request-id x-session-id x-vllm-priority x-data-parallel-rank x-conversation-id x-smg-routing-key
	endpoint-load-metrics-format openai-organization openai-project`)

func headerNames(list string) headerSet {
	return newHeaderSet(strings.Fields(list), func(string) bool { return true })
}

// Private tells whether a header, in any case, carries a credential or belongs
// to one connection: it is nobody's identity and is never passed on.
func Private(name string) bool { return private.has(http.CanonicalHeaderKey(name)) }

// Passable tells whether a header, in any case, has an effect when it is added
// to an upstream's allow-list.
func Passable(name string) bool { return passable(http.CanonicalHeaderKey(name)) }

func passable(name string) bool {
	if private.has(name) || forbidden.has(name) {
		return false
	}
	for _, p := range []string{"X-Sluice-", "X-Override-", "X-Forwarded-", "Proxy-", "Access-Control-"} {
		if strings.HasPrefix(name, p) {
			return false
		}
	}
	return true
}

// requestFields appends to h what the upstream gets of a client's header, and
// what is ours.
func (u *Upstream) requestFields(h []h1.Field, client http.Header, requestID string) []h1.Field {
	named := client["Connection"]
	typed := false
	for k, vv := range client {
		if len(vv) == 0 || !u.mayPass(k, vv) || (len(named) > 0 && connectionNames(named, k)) {
			continue
		}
		typed = typed || k == hdrContentType
		for _, v := range vv {
			h = append(h, h1.Field{Name: k, Value: v})
		}
	}
	if !typed {
		h = append(h, h1.Field{Name: hdrContentType, Value: jsonType})
	}
	// A compressed event stream would arrive in one burst.
	h = append(h, h1.Field{Name: "Accept-Encoding", Value: "identity"}, h1.Field{Name: hdrRequestID, Value: requestID})
	if u.auth != "" {
		h = append(h, h1.Field{Name: hdrAuth, Value: u.auth})
	}
	return h
}

// mayPass is the allow-list of requests.
func (u *Upstream) mayPass(k string, vv []string) bool {
	switch k {
	case hdrContentType, "Accept", "User-Agent", "Tracestate":
		return true
	case "Traceparent":
		return len(vv) == 1 && validTraceparent(vv[0])
	}
	if strings.HasPrefix(k, "Openai-") {
		return !forbidden.has(k)
	}
	return u.reqHeaders.has(k)
}

// connectionNames tells whether a Connection header names k.
func connectionNames(values []string, k string) bool {
	for _, v := range values {
		for name := range strings.SplitSeq(v, ",") {
			if strings.EqualFold(strings.TrimSpace(name), k) {
				return true
			}
		}
	}
	return false
}

// validTraceparent checks the W3C form, version 00 and later ones that extend it.
func validTraceparent(s string) bool {
	if len(s) < 55 || len(s) > 512 || (len(s) > 55 && (s[:2] == "00" || s[55] != '-')) {
		return false
	}
	zero := func(s string) bool { return strings.Trim(s, "0") == "" }
	for i := range 55 {
		c := s[i]
		if i == 2 || i == 35 || i == 52 {
			if c != '-' {
				return false
			}
		} else if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return s[:2] != "ff" && !zero(s[3:35]) && !zero(s[36:52])
}

// responseHeader picks what the client may see of an answer.
func (u *Upstream) responseHeader(up []h1.Field) http.Header {
	h := make(http.Header, 4)
	for _, f := range up {
		v := f.Value
		switch k := f.Name; {
		case k == hdrContentType, k == hdrEncoding:
		case k == hdrRetryAfter:
			if v = cleanRetryAfter(v); v == "" {
				continue
			}
		case k == hdrRetryMS:
			if cleanRetryMS(v) == "" {
				continue
			}
		case strings.HasPrefix(k, "X-Ratelimit-"):
		case strings.HasPrefix(k, "Openai-"):
			if forbidden.has(k) {
				continue
			}
		case u.respHeaders.has(k):
		default:
			continue
		}
		if namedByConnection(up, f.Name) {
			continue
		}
		h[f.Name] = append(h[f.Name], v)
	}
	return h
}

// namedByConnection tells whether an answer says that k is for this connection only.
func namedByConnection(up []h1.Field, k string) bool {
	for i := range up {
		if up[i].Name == "Connection" && connectionNames([]string{up[i].Value}, k) {
			return true
		}
	}
	return false
}

// maxRetryAfter clamps what an upstream asks clients to wait.
const maxRetryAfter = 24 * time.Hour

// cleanRetryAfter returns a retry-after value fit to pass on: seconds, clamped,
// or a date as it came; "" for negative and meaningless ones.
func cleanRetryAfter(v string) string {
	v = strings.TrimSpace(v)
	if n, err := strconv.ParseFloat(v, 64); err == nil {
		switch {
		case !(n >= 0): // NaN too
			return ""
		case n > maxRetryAfter.Seconds():
			return strconv.Itoa(int(maxRetryAfter.Seconds()))
		}
		return v
	}
	if _, err := http.ParseTime(v); err == nil {
		return v
	}
	return ""
}

func cleanRetryMS(v string) string {
	v = strings.TrimSpace(v)
	if n, err := strconv.ParseFloat(v, 64); err != nil || !(n >= 0) || n > float64(maxRetryAfter.Milliseconds()) {
		return ""
	}
	return v
}

// retryWait is how long the two values ask to wait, at most maxRetryAfter; ok is
// false without either.
func retryWait(after, ms string, now time.Time) (time.Duration, bool) {
	if d, ok := waitOf(ms, time.Millisecond); ok {
		return d, true
	}
	if d, ok := waitOf(after, time.Second); ok {
		return d, true
	}
	if t, err := http.ParseTime(after); err == nil {
		return min(max(t.Sub(now), 0), maxRetryAfter), true
	}
	return 0, false
}

// waitOf reads a number of units; values that cannot be meant are cut to bounds.
func waitOf(s string, unit time.Duration) (time.Duration, bool) {
	n, err := strconv.ParseFloat(s, 64)
	if err != nil || n != n {
		return 0, false
	}
	return time.Duration(min(max(n, 0), float64(maxRetryAfter/unit)) * float64(unit)), true
}
