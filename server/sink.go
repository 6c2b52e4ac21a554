package server

import (
	"net/http"
	"strconv"
	"time"

	"sluice/upstream"
	"sluice/upstream/wire"
)

// sink is the client's side of one answer. Calls never overlap (upstream.Sink).
type sink struct {
	x        *exchange
	w        http.ResponseWriter
	rc       *http.ResponseController
	deadline time.Time // until which writes may take now
	renew    time.Duration
	stream   bool
}

// Commit sends the headers of design.md section 5.
func (k *sink) Commit(m upstream.Meta) {
	h := k.w.Header()
	for name, v := range m.Header {
		h[name] = v
	}
	k.x.answerHeaders(h, m)
	if m.Stream {
		k.stream = true
		h["Content-Type"] = sseContentType
		h["Cache-Control"] = sseCacheControl
		h["X-Accel-Buffering"] = sseNoBuffer
	} else if m.Length >= 0 {
		h["Content-Length"] = []string{strconv.FormatInt(m.Length, 10)}
	}
	// Do says so too, but not if it panics.
	k.x.result.Committed, k.x.result.Status = true, m.Status
	k.w.WriteHeader(m.Status)
}

var (
	sseContentType  = []string{"text/event-stream"}
	sseCacheControl = []string{"no-cache, no-transform"}
	sseNoBuffer     = []string{"no"}
)

// Write sends p now. The write deadline rolls: it is renewed when a quarter of
// it has passed, which spares a timer per event.
func (k *sink) Write(p []byte) error {
	now := time.Now()
	if k.deadline.Sub(now) < k.renew-k.renew/4 {
		k.deadline = now.Add(k.renew)
		k.rc.SetWriteDeadline(k.deadline)
	}
	_, err := k.w.Write(p)
	if err == nil && k.stream {
		err = k.rc.Flush()
	}
	if k.x.r.ProtoMajor >= 2 {
		// There the deadline is a timer that resets the stream also while nothing
		// is written: an upstream may well be silent for longer.
		k.deadline = time.Time{}
		k.rc.SetWriteDeadline(k.deadline)
	}
	return err
}

// FailInBand writes the error event of a stream that has begun.
func (k *sink) FailInBand(f upstream.Failure) error {
	if !k.stream {
		return nil
	}
	b := wire.AppendErrorEvent(make([]byte, 0, 256), f.Message, typeOf(&f), f.Param, f.Code)
	return k.Write(b)
}

// answerHeaders adds what Sluice says about the answer. The values share one
// array: a slice for each of a dozen headers is a sixth of a request's garbage.
func (x *exchange) answerHeaders(h http.Header, m upstream.Meta) {
	room := make([]string, 0, 13)
	set := func(name, value string) {
		room = append(room, value)
		h[name] = room[len(room)-1 : len(room) : len(room)]
	}
	set("X-Request-Id", x.id)
	p := &x.plan
	if p.Model == nil || !p.Model.ExposeHeaders {
		return
	}
	set("X-Sluice-Model", p.Model.Name)
	set("X-Sluice-Reason", x.reason)
	set("X-Sluice-Attempts", strconv.Itoa(m.Attempts))
	set("X-Sluice-Revision", strconv.FormatInt(x.table.Revision, 10))
	if p.Note != "" {
		set("X-Sluice-Note", p.Note)
	}
	if p.Experiment == nil {
		return
	}
	set("X-Sluice-Experiment", p.Experiment.Key)
	served := x.cur
	set("X-Sluice-Variant", served.Name)
	if served.Version != "" {
		set("X-Sluice-Version", served.Version)
	}
	if served != p.Variant {
		set("X-Sluice-Assigned", p.Variant.Name)
	}
	if x.fellBack {
		set("X-Sluice-Fallback-From", p.Variant.Name)
	}
	if p.Decision.Bucket >= 0 {
		set("X-Sluice-Bucket", strconv.Itoa(p.Decision.Bucket))
	}
}
