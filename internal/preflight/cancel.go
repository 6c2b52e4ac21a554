package preflight

import (
	"bytes"
	"context"
	"time"

	"sluice/experiment/ramp"
	"sluice/upstream"
	"sluice/upstream/wire"
)

const (
	// noticeWithin is how long an engine may take to notice that its client went:
	// SGLang looks every few seconds.
	noticeWithin = 6 * time.Second
	noticeEvery  = 500 * time.Millisecond
)

// cancelled begins a stream and goes away after its first event with content.
// Where the engine counts such requests, its count must rise: otherwise it goes
// on generating for nobody.
func (p *Prober) cancelled(ctx context.Context, s *subject, b *probe, out *ramp.ProbeResult) {
	u := s.variant.Target.Upstream
	before := map[string]float64{}
	for _, e := range u.Status() {
		if n, ok := u.Aborts(ctx, e.URL); ok {
			before[e.URL] = n
		}
	}
	cctx, cancel := context.WithCancel(ctx)
	defer cancel()
	gone := false
	r := p.call(cctx, s, wire.Chat, b.encode(s.model, s.limit, 0), func(body []byte) {
		if !gone && bytes.Contains(body, []byte(`"content":"`)) {
			gone = true
			cancel()
		}
	})
	out.Status = r.status
	switch {
	case ctx.Err() != nil:
		out.State, out.Text = ramp.ProbeFailed, "no answer in time"
	case r.outcome == upstream.Canceled && gone:
		p.noticed(ctx, s, r.endpoint, before, out)
	case r.outcome == upstream.Success:
		out.State, out.Text = ramp.ProbeSkipped, "not judged: the answer was over before it could be cancelled"
	case r.busy():
		out.Text = "not judged: it is busy (" + r.failure() + ")"
	default:
		out.State, out.Text = ramp.ProbeFailed, r.failure()
	}
}

// noticed waits for the engine's count of given-up requests to rise.
func (p *Prober) noticed(ctx context.Context, s *subject, endpoint string, before map[string]float64, out *ramp.ProbeResult) {
	n, counts := before[endpoint]
	if !counts {
		out.State, out.Text = ramp.ProbePassed, "the stream ended at once; whether the engine noticed it does not tell"
		return
	}
	for end := time.Now().Add(noticeWithin); time.Now().Before(end); {
		if now, ok := s.variant.Target.Upstream.Aborts(ctx, endpoint); ok && now > n {
			out.State = ramp.ProbePassed
			return
		}
		if !pause(ctx, noticeEvery) {
			break
		}
	}
	out.State, out.Text = ramp.ProbeFailed, "the engine does not notice that its client has gone, and goes on generating"
}
