package server

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"sluice/upstream"
)

// deadlineHeaders are how a client bounds its whole request, the time in the
// queue, retries and a stream's end included.
var deadlineHeaders = []string{"X-Sluice-Timeout", "X-Request-Timeout"}

// patienceHeaders are what the OpenAI SDKs say of themselves: how many seconds
// until they give up waiting for an answer. A stream may well last longer.
var patienceHeaders = []string{"X-Stainless-Timeout", "X-Stainless-Read-Timeout"}

// maxPatience is more than any request lasts; it keeps sums from overflowing.
const maxPatience = 30 * 24 * time.Hour

// patience reads the client's own limits: deadline for the whole, giveUp for the
// wait after which no new attempt is of use to it; zero is none.
func patience(h http.Header, start time.Time) (deadline, giveUp time.Time, f *upstream.Failure) {
	for _, name := range deadlineHeaders {
		v := h[name]
		if len(v) == 0 {
			continue
		}
		d, ok := parsePatience(v[0])
		if !ok || len(v) > 1 {
			f := failure(http.StatusBadRequest, "invalid_request",
				"The header "+strings.ToLower(name)+" must be one positive number of seconds, like 30 or 2.5, or a duration like 1500ms.")
			f.Param = strings.ToLower(name)
			return deadline, giveUp, f
		}
		if at := start.Add(d); deadline.IsZero() || at.Before(deadline) {
			deadline = at
		}
	}
	for _, name := range patienceHeaders {
		if v := h[name]; len(v) == 1 {
			if d, ok := parsePatience(v[0]); ok {
				giveUp = start.Add(d)
				break
			}
		}
	}
	return deadline, giveUp, nil
}

func parsePatience(s string) (time.Duration, bool) {
	if n, err := strconv.ParseFloat(s, 64); err == nil {
		if !(n > 0) {
			return 0, false
		}
		return max(time.Duration(min(n, maxPatience.Seconds())*float64(time.Second)), 1), true
	}
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return 0, false
	}
	return min(d, maxPatience), true
}

// caller is whose turn a request takes in a queue: its key's, or without keys
// its host's.
func (x *exchange) caller() string {
	if x.key != nil {
		return x.key.ID
	}
	host := x.r.RemoteAddr
	if i := strings.LastIndexByte(host, ':'); i >= 0 {
		host = host[:i]
	}
	return host
}
