package metrics

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"
)

const (
	accessBatch = 2000
	accessDelay = 50 * time.Millisecond // the longest a line waits for company
	accessChunk = 64 << 10              // bytes of whole lines in one Write
)

// accessLog writes one JSON line per model request.
type accessLog struct {
	q   *queue
	w   io.Writer
	log *slog.Logger
	buf []byte
}

func newAccessLog(w io.Writer, log *slog.Logger, limit int) *accessLog {
	return &accessLog{q: newQueue(limit, accessBatch), w: w, log: log}
}

// run writes lines until ctx ends, then what is left. A reader of the log that
// does not read cannot hold up shutdown for longer than drain.
func (a *accessLog) run(ctx context.Context, drain time.Duration) error {
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		for collect(ctx, a.q, accessDelay) {
			a.write(a.q.take())
		}
		a.q.close()
		a.write(a.q.take())
	}()
	<-ctx.Done()
	t := time.NewTimer(drain)
	defer t.Stop()
	select {
	case <-gone:
		return nil
	case <-t.C:
		n, _ := a.q.length()
		return fmt.Errorf("the access log did not take %d lines within %v of shutdown: its reader does not read", n, drain)
	}
}

func (a *accessLog) write(evs []Event) {
	waiting := 0 // events in buf
	for i := range evs {
		a.buf = appendLine(a.buf, &evs[i])
		waiting++
		if len(a.buf) >= accessChunk || i == len(evs)-1 {
			lost := 0
			if _, err := a.w.Write(a.buf); err != nil {
				lost = waiting
				a.log.Warn("the access log cannot be written, its lines are lost", "lines", lost, "err", err)
			}
			a.q.finish(waiting, lost)
			a.buf, waiting = a.buf[:0], 0
		}
	}
	a.q.giveBack(evs)
}

// appendLine appends the event as one line of JSON. What is absent is null;
// without an experiment the names are those of the metrics, so that lines and
// series can be joined. It never has prompt text or keys: Event has none.
func appendLine(b []byte, e *Event) []byte {
	t := e.Totals()
	b = append(b, `{"ts":"`...)
	b = e.Time.UTC().AppendFormat(b, "2006-01-02T15:04:05.000000Z")
	b = append(b, '"')
	b = field(b, "request_id", e.RequestID)
	b = field(b, "client_request_id", e.ClientRequestID)
	b = field(b, "model", e.Model)
	b = field(b, "experiment", orWord(e.Experiment, none))
	b = field(b, "assigned", orWord(e.Assigned, defaultVariant))
	b = field(b, "served", orWord(e.Served, served(e)))
	b = field(b, "version", e.Version)
	b = number(b, "bucket", int64(e.Bucket), e.Bucket >= 0)
	b = field(b, "reason", e.Reason)
	b = number(b, "revision", e.Revision, true)
	b = field(b, "upstream", e.Upstream)
	b = field(b, "endpoint", e.Endpoint)
	b = number(b, "attempts", int64(len(e.Attempts)), true)
	b = field(b, "outcome", e.Outcome)
	b = number(b, "status", int64(e.Status), true)
	b = boolean(b, "stream", e.Stream)
	b = millis(b, "ttft_ms", e.TTFT, e.TTFT > 0)
	b = millis(b, "duration_ms", e.Duration, true)
	b = number(b, "input_tokens", t.Input, t.HasUsage)
	b = number(b, "output_tokens", t.Output, t.HasUsage)
	b = number(b, "cached_tokens", t.Cached, t.HasUsage)
	b = append(b, `,"cost_usd":`...)
	if t.Priced {
		b = appendUSD(b, t.CostNano)
	} else {
		b = append(b, "null"...)
	}
	b = boolean(b, "estimated", t.Estimated)
	b = words(b, "asks", AskNames[:], uint64(e.Asks), true)
	b = millis(b, "ttfa_ms", e.TTFA, e.TTFA > 0)
	b = appendAnswer(b, &e.Answer)
	return append(b, '}', '\n')
}

// appendAnswer appends what the answer was like, null where none came.
func appendAnswer(b []byte, a *Answer) []byte {
	b = millis(b, "gap_ms", a.Gap, a.Gap > 0)
	b = number(b, "output_chars", a.Chars, a.Seen)
	finish := uint64(0)
	for i, n := range a.Finish {
		if n > 0 {
			finish |= 1 << i
		}
	}
	b = words(b, "finish", FinishNames[:], finish, a.Seen)
	b = words(b, "flaws", FlawNames[:], uint64(a.Flaws), a.Seen)
	if !a.Seen {
		return append(key(b, "refusal"), "null"...)
	}
	return boolean(b, "refusal", a.Refusal)
}

// served is the word for a request that no variant answered: none was, unless
// there is no experiment, where it is the model's default.
func served(e *Event) string {
	if e.Experiment == "" {
		return defaultVariant
	}
	return ""
}
