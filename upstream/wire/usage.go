package wire

import (
	"math"
	"strconv"
)

// rawUsage collects the numbers of a usage object before they are made sane;
// -1 is absent.
type rawUsage struct{ in, cached, write, out, reasoning int64 }

// parseUsage reads the usage object at i in any engine's spelling. ok is false
// when it holds neither input nor output tokens: that is no count. clamped is
// how many numbers contradicted each other or were negative.
func parseUsage(b []byte, i int) (u Usage, ok bool, clamped int64) {
	r := rawUsage{-1, -1, -1, -1, -1}
	o := objectAt(b, i)
	for o.next() {
		switch string(b[o.key.start:o.key.end]) {
		case "prompt_tokens", "input_tokens":
			r.in, ok = number(b, o.val, o.end(), r.in, ok)
		case "completion_tokens", "output_tokens":
			r.out, ok = number(b, o.val, o.end(), r.out, ok)
		case "reasoning_tokens": // sglang
			if r.reasoning < 0 {
				r.reasoning, _ = number(b, o.val, o.end(), r.reasoning, false)
			}
		case "prompt_tokens_details", "input_tokens_details":
			for d := objectAt(b, o.val); d.next(); {
				switch string(b[d.key.start:d.key.end]) {
				case "cached_tokens":
					r.cached, _ = number(b, d.val, d.end(), r.cached, false)
				case "cache_write_tokens", "created_cache_tokens":
					r.write, _ = number(b, d.val, d.end(), r.write, false)
				}
			}
		case "completion_tokens_details", "output_tokens_details":
			for d := objectAt(b, o.val); d.next(); {
				if string(b[d.key.start:d.key.end]) == "reasoning_tokens" {
					r.reasoning, _ = number(b, d.val, d.end(), r.reasoning, false)
				}
			}
		}
	}
	if !ok || o.close() < 0 {
		return Usage{}, false, 0
	}
	u, clamped = r.normal()
	return u, true, clamped
}

// parseTimings reads llama.cpp's timings, whose prompt_n leaves out what came
// from the cache.
func parseTimings(b []byte, i int) (u Usage, ok bool, clamped int64) {
	r := rawUsage{-1, -1, -1, -1, -1}
	o := objectAt(b, i)
	for o.next() {
		switch string(b[o.key.start:o.key.end]) {
		case "prompt_n":
			r.in, ok = number(b, o.val, o.end(), r.in, ok)
		case "cache_n":
			r.cached, _ = number(b, o.val, o.end(), r.cached, false)
		case "predicted_n":
			r.out, ok = number(b, o.val, o.end(), r.out, ok)
		}
	}
	if !ok || o.close() < 0 {
		return Usage{}, false, 0
	}
	if r.cached > 0 {
		r.in = max(r.in, 0) + r.cached
	}
	u, clamped = r.normal()
	return u, true, clamped
}

// normal makes the parts fit the whole: 0 <= cached+write <= input, 0 <=
// reasoning <= output.
func (r rawUsage) normal() (u Usage, clamped int64) {
	fit := func(v, most int64) int64 {
		if v == -1 {
			return 0
		}
		if v < 0 || v > most {
			clamped++
		}
		return min(max(v, 0), most)
	}
	u.Input = fit(r.in, maxTokens)
	u.Output = fit(r.out, maxTokens)
	u.Cached = fit(r.cached, u.Input)
	u.CacheWrite = fit(r.write, u.Input-u.Cached)
	u.Reasoning = fit(r.reasoning, u.Output)
	return u, clamped
}

// maxTokens is beyond any real answer; a larger count would overflow money.
const maxTokens = 1 << 40

// number reads a JSON number as an integer, below zero as -2. Anything else
// leaves old and ok as they were.
func number(b []byte, i, end int, old int64, ok bool) (int64, bool) {
	negative := i < end && b[i] == '-'
	if negative {
		i++
	}
	if i >= end || b[i] < '0' || b[i] > '9' {
		return old, ok
	}
	var v int64
	start := i
	for ; i < end && b[i] >= '0' && b[i] <= '9'; i++ {
		if v > (math.MaxInt64-9)/10 {
			v = math.MaxInt64 / 10
			continue
		}
		v = v*10 + int64(b[i]-'0')
	}
	if i < end && b[i]|0x20 == 'e' || i < end && b[i] == '.' {
		// Languages without integers write large ones so; a range error is infinity.
		f, _ := strconv.ParseFloat(string(b[start:end]), 64)
		v = int64(min(f, math.MaxInt64/10))
	}
	if negative && v > 0 {
		return -2, true
	}
	return v, true
}

// tally is the count of an answer as its events tell it.
type tally struct {
	Usage
	ok bool
	// llama.cpp counts every choice by itself: the sum of those that finished,
	// and how many they are.
	sum Usage
	n   int
}

// add takes a count; finished is the number of choices that have a finish reason.
func (t *tally) add(u Usage, d Dialect, finished int) {
	t.ok = true
	if d != LlamaCPP {
		t.Usage = u
		return
	}
	if t.n > 0 { // one prompt for all of them
		u.Output += t.sum.Output
		u.Reasoning += t.sum.Reasoning
		if u.Input < t.sum.Input {
			u.Input, u.Cached, u.CacheWrite = t.sum.Input, t.sum.Cached, t.sum.CacheWrite
		}
	}
	t.Usage = u
	if t.n < finished {
		t.sum = u
		t.n++
	}
}
