package ramp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"sort"
	"strings"
	"time"
)

// reader collects what is wrong, with the path to it, so that a person sees
// everything at once.
type reader struct{ problems Error }

func (r *reader) add(path, format string, args ...any) {
	r.problems = append(r.problems, Problem{path, fmt.Sprintf(format, args...)})
}

// object calls member for each key in order; a key that member does not know is
// a problem, as is one that is written twice.
func (r *reader) object(path string, raw json.RawMessage, member func(at, key string, v json.RawMessage) bool) {
	if raw = bytes.TrimSpace(raw); len(raw) == 0 || raw[0] != '{' {
		r.add(path, "want an object")
		return
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	if _, err := dec.Token(); err != nil {
		r.add(path, "not valid JSON")
		return
	}
	seen := map[string]bool{}
	for dec.More() {
		token, err := dec.Token()
		key, ok := token.(string)
		var v json.RawMessage
		if err != nil || !ok || dec.Decode(&v) != nil {
			r.add(path, "not valid JSON")
			return
		}
		at := path + "/" + escape(key)
		switch {
		case seen[key]:
			r.add(at, "written twice")
		case string(v) == "null":
			r.add(at, "null says nothing; leave it out to have the default")
		case !member(at, key, v):
			r.add(at, "there is no such member; there are %s", members(path))
		}
		seen[key] = true
	}
	if _, err := dec.Token(); err != nil {
		r.add(path, "not valid JSON")
		return
	}
	if _, err := dec.Token(); err == nil || dec.More() {
		r.add(path, "something follows the object")
	}
}

// escape makes a key a part of a JSON pointer, short enough to show.
func escape(key string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(clip(key))
}

// members lists what an object may have.
func members(path string) string {
	list := map[string]string{
		"": `alpha_false_rollback alpha_pass bake cooldown holdback max_duration max_weight min_duration min_units no_data_after
			on_unsupervised pace ready restarts rollback shadow slo stale_after steps trial variant`,
		"/ready":  "interval max_ttft not_ready_limit probes",
		"/trial":  "cap_window min_bad_trials min_bad_units min_pass_units",
		"/shadow": "budget_usd_per_day max_per_minute percent",
	}[path]
	if list == "" {
		list = "approve weight"
	}
	words := strings.Fields(list)
	sort.Strings(words)
	return strings.Join(words, ", ")
}

func (r *reader) text(at string, v json.RawMessage, to *string) {
	if s, ok := unquote(v); ok {
		*to = s
	} else {
		r.add(at, "want a string")
	}
}

func unquote(v json.RawMessage) (string, bool) {
	var s string
	if len(v) == 0 || v[0] != '"' || json.Unmarshal(v, &s) != nil {
		return "", false
	}
	return s, true
}

func (r *reader) word(at string, v json.RawMessage, to *string, words ...string) {
	s, ok := unquote(v)
	for _, w := range words {
		if ok && s == w {
			*to = s
			return
		}
	}
	r.add(at, "want %s, not %s", strings.Join(words, " or "), clip(string(v)))
}

func (r *reader) flag(at string, v json.RawMessage, to *bool) {
	switch string(v) {
	case "true":
		*to = true
	case "false":
		*to = false
	default:
		r.add(at, "want true or false, not %s", clip(string(v)))
	}
}

func (r *reader) number(at string, v json.RawMessage, lo, hi float64, to *float64) {
	var f float64
	if len(v) == 0 || v[0] == '"' || json.Unmarshal(v, &f) != nil || !(f >= lo && f <= hi) {
		r.add(at, "want a number from %v to %v, not %s", lo, hi, clip(string(v)))
		return
	}
	*to = f
}

func (r *reader) whole(at string, v json.RawMessage, lo, hi int, to *int) {
	var f float64
	if len(v) == 0 || v[0] == '"' || json.Unmarshal(v, &f) != nil || f != math.Trunc(f) || !(f >= float64(lo) && f <= float64(hi)) {
		r.add(at, "want a whole number from %d to %d, not %s", lo, hi, clip(string(v)))
		return
	}
	*to = int(f)
}

func (r *reader) level(at string, v json.RawMessage, to *float64) {
	var f float64
	if len(v) == 0 || v[0] == '"' || json.Unmarshal(v, &f) != nil || !(f >= 1e-9 && f <= 0.2) {
		r.add(at, "want a probability from 1e-9 to 0.2, like 0.01, not %s", clip(string(v)))
		return
	}
	*to = f
}

// span reads "10m"; 0, where it may be, is off or none.
func (r *reader) span(at string, v json.RawMessage, least time.Duration, to *time.Duration) {
	if string(v) == "0" && least == 0 {
		*to = 0
		return
	}
	s, ok := unquote(v)
	if !ok {
		r.add(at, `want a time with its unit, like "10m" or "30s", not %s`, clip(string(v)))
		return
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < least || d > maxDays {
		r.add(at, `want a time from %s to %s, like "10m" or "30s", not %q`, least, maxDays, clip(s))
		return
	}
	*to = d
}
