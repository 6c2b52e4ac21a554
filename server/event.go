package server

import (
	"time"

	"sluice/metrics"
	"sluice/router"
	"sluice/upstream"
)

// event flattens the exchange into the one record of the request.
func (x *exchange) event() metrics.Event {
	res := &x.result
	ev := metrics.Event{
		Time: x.start, RequestID: x.id, ClientRequestID: x.client, API: x.api.String(),
		Model: "other", Bucket: -1, Reason: x.reason, Outcome: string(res.Outcome), Status: res.Status,
		Stream: res.Stream || x.head.Stream, TTFT: res.TTFT, Duration: time.Since(x.start), Queued: res.Queued, FinishReason: res.Finish, Endpoint: res.Endpoint,
		Asks: uint16(x.asks), Prompt: x.prompt,
	}
	if a := res.Answered(); a != nil {
		ev.Answer = answer(a)
	}
	if ev.TTFA = res.TTFA; !ev.Stream {
		ev.TTFT, ev.TTFA = 0, 0 // a whole answer has no first token of its own
	}
	if x.table != nil {
		ev.Revision = x.table.Revision
	}
	if !x.began.IsZero() {
		ev.Overhead = x.began.Sub(x.start) - x.reading
	}
	ev.RetryCount = retryCount(x.r.Header)
	if x.key != nil {
		ev.KeyID, ev.Tenant = x.key.ID, x.key.Tenant
	}
	x.eventPlan(&ev)
	ev.Attempts = make([]metrics.Attempt, 0, len(res.Attempts))
	for i := range res.Attempts {
		if called(&res.Attempts[i]) {
			ev.Attempts = append(ev.Attempts, router.Metered(&res.Attempts[i]))
		}
	}
	if n := len(ev.Attempts); ev.Endpoint == "" && n > 0 {
		ev.Endpoint = ev.Attempts[n-1].Endpoint // whose failure is the answer
	}
	return ev
}

// answer is what the answer of an attempt was like.
func answer(a *upstream.Attempt) metrics.Answer {
	w := &a.Answer
	return metrics.Answer{
		Seen: w.Seen, Flaws: uint8(w.Flaws), Judged: uint8(w.Judged), Refusal: w.Refusal,
		Chars: w.Chars, Events: w.Events, Finish: w.Finish, Gap: a.Gap,
	}
}

// called tells a call from a target that had no endpoint to be called.
func called(a *upstream.Attempt) bool { return a.Endpoint != "" }

// calls is the number of calls that were made.
func (x *exchange) calls() (n int) {
	for i := range x.result.Attempts {
		if called(&x.result.Attempts[i]) {
			n++
		}
	}
	return n
}

func (x *exchange) eventPlan(ev *metrics.Event) {
	p := &x.plan
	if p.Model == nil {
		return
	}
	ev.Model, ev.Notes = p.Model.Name, metrics.Note(p.Note)
	if x.cur != nil {
		ev.Version = x.cur.Version
		if up := x.cur.Target.Upstream; up != nil && (len(x.result.Attempts) > 0 || x.result.Outcome == upstream.QueueFull) {
			ev.Upstream = up.Name()
		}
	}
	if p.Experiment == nil {
		return
	}
	ev.Experiment, ev.Assigned, ev.Served = p.Experiment.Key, p.Variant.Name, x.cur.Name
	d := &p.Decision
	ev.Bucket, ev.HasUnit, ev.Unit, ev.Analysed = d.Bucket, d.HasUnit, d.Digest.Field, d.Analysed
	ev.Generation = p.Experiment.Generation
	ev.Notes |= metrics.Note(d.Note) // beside an override that was denied
}
