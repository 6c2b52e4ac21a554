package upstream

import (
	"time"

	"sluice/upstream/wire"
)

// judging is by what the answer to a request with this patch is judged. It reads
// the body, so it has to be asked before that is given back.
func (r *Request) judging(patch *wire.Patch) wire.Judging {
	j := wire.Judging{Asks: r.Asks, Checks: r.Checks}
	if r.Checks&wire.CheckTools != 0 && r.Asks.Has(wire.AskTools) {
		j.Tools = r.Head.Tools(r.Body, patch)
	}
	if r.Checks&wire.CheckPrompt != 0 {
		j.Shingles = r.Head.Shingles(r.Body, patch)
	}
	return j
}

// since is the time from the start of the attempt to a time of the exchange.
func (c *call) since(at time.Duration) time.Duration {
	return max(at-c.att.Start.Sub(c.x.start), 1)
}

func (c *call) progress(answer bool) {
	if f := c.x.req.Progress; f != nil {
		f(answer, c.x.w.written)
	}
}

// pace notes how long the upstream was waited for since it last sent content, at
// the read at hand. What the client took to read is not the upstream's doing.
func (c *call) pace() {
	c.idle += c.waited()
	n := c.stream.ContentEvents()
	if n == c.content {
		return
	}
	if c.content > 0 {
		c.att.Gap = max(c.att.Gap, c.idle)
	}
	c.content, c.idle = n, 0
}

// waited is how long it took from the call before to the last touch.
func (c *call) waited() time.Duration {
	last := time.Duration(c.x.w.last.Load())
	d := last - c.from
	c.from = last
	return d
}

// appraise notes what the answer was like, also one that broke off.
func (c *call) appraise(a *Attempt) {
	if c.stream != nil {
		a.Answer = c.stream.Answer()
	}
	if a.Outcome == Truncated && a.Answer.Seen {
		a.Answer.Flaws |= wire.FlawTruncated
	}
}
