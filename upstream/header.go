package upstream

import (
	"net/http"
	"strconv"
	"strings"
	"time"
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

// forbidden headers never pass in either direction, whatever a configuration
// adds: credentials, what belongs to one connection, what this gateway or the
// HTTP library sets itself, and what steers an engine's scheduler.
var forbidden = func() headerSet {
	s := headerSet{}
	for _, n := range strings.Fields(`authorization proxy-authorization proxy-authenticate www-authenticate
		x-api-key api-key x-goog-api-key x-auth-token cookie set-cookie cookie2 set-cookie2
		connection proxy-connection keep-alive te trailer transfer-encoding upgrade expect http2-settings
		content-length host accept-encoding server alt-svc forwarded x-real-ip via idempotency-key x-idempotency-key
		x-request-id x-session-id x-vllm-priority x-data-parallel-rank x-conversation-id x-smg-routing-key
		endpoint-load-metrics-format openai-organization openai-project`) {
		s[http.CanonicalHeaderKey(n)] = struct{}{}
	}
	return s
}()

// passable tells whether an addition to an allow-list may have effect.
func passable(name string) bool {
	if forbidden.has(name) {
		return false
	}
	for _, p := range []string{"X-Sluice-", "X-Override-", "X-Forwarded-", "Proxy-", "Access-Control-"} {
		if strings.HasPrefix(name, p) {
			return false
		}
	}
	return true
}

// requestHeader builds what the upstream gets. It never changes or keeps the
// client's map, but shares its values.
func (u *Upstream) requestHeader(client http.Header, requestID string) http.Header {
	h := make(http.Header, 10)
	named := client["Connection"]
	for k, vv := range client {
		if len(vv) == 0 || !u.mayPass(k, vv) || (len(named) > 0 && connectionNames(named, k)) {
			continue
		}
		h[k] = vv
	}
	vals := make([]string, 0, 4)
	set := func(k, v string) {
		vals = append(vals, v)
		h[k] = vals[len(vals)-1 : len(vals) : len(vals)]
	}
	if h[hdrContentType] == nil {
		set(hdrContentType, "application/json")
	}
	if h["User-Agent"] == nil {
		h["User-Agent"] = nil // present without a value: net/http then sends none of its own
	}
	// A compressed event stream would arrive in one burst.
	set("Accept-Encoding", "identity")
	set(hdrRequestID, requestID)
	if u.auth != "" {
		set(hdrAuth, u.auth)
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
func (u *Upstream) responseHeader(up http.Header) http.Header {
	h := make(http.Header, 4)
	named := up["Connection"]
	for k, vv := range up {
		if len(vv) == 0 {
			continue
		}
		switch {
		case k == hdrContentType, k == hdrEncoding:
		case k == hdrRetryAfter:
			v := cleanRetryAfter(vv[0])
			if v == "" {
				continue
			}
			vv = []string{v}
		case k == hdrRetryMS:
			if cleanRetryMS(vv[0]) == "" {
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
		if len(named) > 0 && connectionNames(named, k) {
			continue
		}
		h[k] = vv
	}
	return h
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

// retryWait is how long the two values ask to wait; ok is false without either.
func retryWait(after, ms string, now time.Time) (time.Duration, bool) {
	if n, err := strconv.ParseFloat(ms, 64); err == nil && ms != "" {
		return time.Duration(n * float64(time.Millisecond)), true
	}
	if n, err := strconv.ParseFloat(after, 64); err == nil && after != "" {
		return time.Duration(n * float64(time.Second)), true
	}
	if t, err := http.ParseTime(after); err == nil {
		return min(max(t.Sub(now), 0), maxRetryAfter), true
	}
	return 0, false
}
