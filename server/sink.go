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
	at       time.Time // of the commit
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
	k.at = time.Now()
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
	if _, err := k.w.Write(p); err != nil {
		return err
	}
	if !k.stream {
		return nil
	}
	return k.rc.Flush()
}

// FailInBand writes the error event of a stream that has begun.
func (k *sink) FailInBand(f upstream.Failure) error {
	if !k.stream {
		return nil
	}
	b := wire.AppendErrorEvent(make([]byte, 0, 256), f.Message, typeOf(&f), f.Param, f.Code)
	return k.Write(b)
}

// answerHeaders adds what Sluice says about the answer.
func (x *exchange) answerHeaders(h http.Header, m upstream.Meta) {
	h["X-Request-Id"] = []string{x.id}
	p := &x.plan
	if p.Model == nil || !p.Model.ExposeHeaders {
		return
	}
	h["X-Sluice-Model"] = []string{p.Model.Name}
	h["X-Sluice-Reason"] = []string{x.reason}
	h["X-Sluice-Attempts"] = []string{strconv.Itoa(m.Attempts)}
	h["X-Sluice-Revision"] = []string{strconv.FormatInt(x.table.Revision, 10)}
	if p.Note != "" {
		h["X-Sluice-Note"] = []string{p.Note}
	}
	if p.Experiment == nil {
		return
	}
	h["X-Sluice-Experiment"] = []string{p.Experiment.Key}
	served := x.cur
	h["X-Sluice-Variant"] = []string{served.Name}
	if served.Version != "" {
		h["X-Sluice-Version"] = []string{served.Version}
	}
	if served != p.Variant {
		h["X-Sluice-Assigned"] = []string{p.Variant.Name}
	}
	if x.fellBack {
		h["X-Sluice-Fallback-From"] = []string{p.Variant.Name}
	}
	if p.Decision.Bucket >= 0 {
		h["X-Sluice-Bucket"] = []string{strconv.Itoa(p.Decision.Bucket)}
	}
}
