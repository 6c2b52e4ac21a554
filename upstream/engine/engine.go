// Package engine reads what inference servers say of themselves: their load
// from a page of metrics. It hides the names that each of them uses, and the
// text format of Prometheus. Pages come from elsewhere: nothing in them is
// trusted.
package engine

import (
	"bytes"
	"math"
	"strconv"
)

// Load is how busy a server says it is.
type Load struct {
	Running, Waiting int     // requests
	KVUse            float64 // of the KV cache, 0..1; negative: unknown
}

// most bounds counts that cannot be meant.
const most = 1 << 20

// kind is what a metric tells.
type kind uint8

const (
	running kind = iota + 1
	waiting
	kvUse  // a ratio: the highest counts
	kvPart // with kvWhole: a part of
	kvWhole
)

// names are the gauges by dialect; a server of another dialect is not asked.
var names = map[string]map[string]kind{
	"vllm": {
		"vllm:num_requests_running": running, "vllm:num_requests_waiting": waiting,
		"vllm:kv_cache_usage_perc": kvUse, "vllm:gpu_cache_usage_perc": kvUse,
	},
	"sglang": {
		"sglang:num_running_reqs": running, "sglang:num_queue_reqs": waiting, "sglang:token_usage": kvUse,
	},
	"tgi": {
		"tgi_batch_current_size": running, "tgi_queue_size": waiting,
		"tgi_batch_current_max_tokens": kvPart, "tgi_batch_max_total_tokens": kvWhole,
	},
	"llamacpp": {
		"llamacpp:requests_processing": running, "llamacpp:requests_deferred": waiting, "llamacpp:kv_cache_usage_ratio": kvUse,
	},
}

// Known tells whether servers of a dialect tell their load at all.
func Known(dialect string) bool { return names[dialect] != nil }

// ParseLoad reads a page of metrics. Several engines in one server are summed,
// of their caches the fullest counts. ok is false when neither running nor
// waiting requests are told.
func ParseLoad(dialect string, page []byte) (l Load, ok bool) {
	want := names[dialect]
	l.KVUse = -1
	var part, whole float64
	for len(page) > 0 {
		line := page
		if i := bytes.IndexByte(page, '\n'); i >= 0 {
			line, page = page[:i], page[i+1:]
		} else {
			page = nil
		}
		name, v, good := sample(line)
		if !good {
			continue
		}
		switch want[string(name)] {
		case running:
			l.Running, ok = l.Running+count(v), true
		case waiting:
			l.Waiting, ok = l.Waiting+count(v), true
		case kvUse:
			l.KVUse = max(l.KVUse, min(v, 1))
		case kvPart:
			part += v
		case kvWhole:
			whole += v
		}
	}
	if whole > 0 && part >= 0 {
		l.KVUse = max(l.KVUse, min(part/whole, 1))
	}
	l.Running, l.Waiting = min(l.Running, most), min(l.Waiting, most)
	return l, ok
}

func count(v float64) int { return int(min(v, most)) }

// sample splits a line into its metric's name and value; good is false for
// comments, and for values that are no number of something.
func sample(line []byte) (name []byte, v float64, good bool) {
	line = bytes.TrimRight(line, " \t\r")
	if len(line) == 0 || line[0] == '#' {
		return nil, 0, false
	}
	end := bytes.IndexAny(line, "{ \t")
	if end <= 0 {
		return nil, 0, false
	}
	name, rest := line[:end], line[end:]
	if rest[0] == '{' {
		if rest = afterLabels(rest); rest == nil {
			return nil, 0, false
		}
	}
	rest = bytes.TrimLeft(rest, " \t")
	if i := bytes.IndexAny(rest, " \t#"); i >= 0 {
		rest = rest[:i] // a timestamp or an exemplar follows
	}
	if len(rest) > 40 {
		return nil, 0, false
	}
	v, err := strconv.ParseFloat(string(rest), 64)
	if err != nil || v < 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		return nil, 0, false
	}
	return name, v, true
}

// afterLabels is what follows {…}, whose values may hold quoted braces.
func afterLabels(b []byte) []byte {
	quoted := false
	for i := 1; i < len(b); i++ {
		switch {
		case quoted && b[i] == '\\':
			i++
		case b[i] == '"':
			quoted = !quoted
		case b[i] == '}' && !quoted:
			return b[i+1:]
		}
	}
	return nil
}

// Vitals are what a server's page tells of its life.
type Vitals struct {
	Started   float64 // of its process, Unix seconds; 0 unknown
	Preempted float64 // requests put back for want of cache, since then; negative unknown
	Aborted   float64 // requests whose client went, since then; negative unknown
}

const startTime = "process_start_time_seconds"

// counters are those of Vitals by dialect; label is what the sample must have.
var counters = map[string]struct{ preempted, aborted, label string }{
	"vllm":   {"vllm:num_preemptions_total", "vllm:request_success_total", `finished_reason="abort"`},
	"sglang": {"sglang:num_retracted_requests_total", "sglang:num_aborted_requests_total", ""},
}

// ParseVitals reads a page of metrics. Of several processes in one server the
// youngest counts, counters are summed.
func ParseVitals(dialect string, page []byte) Vitals {
	v := Vitals{Preempted: -1, Aborted: -1}
	c := counters[dialect]
	for line := range bytes.Lines(page) {
		name, x, good := sample(bytes.TrimSuffix(line, []byte("\n")))
		if !good {
			continue
		}
		switch string(name) {
		case startTime:
			v.Started = max(v.Started, x)
		case "":
		case c.preempted:
			v.Preempted = max(v.Preempted, 0) + x
		case c.aborted:
			if bytes.Contains(line, []byte(c.label)) {
				v.Aborted = max(v.Aborted, 0) + x
			}
		}
	}
	return v
}
