package ramp

import (
	"fmt"
	"strings"
	"time"
)

// Preflight is what the probes of every variant of an experiment found: each is
// a small request of a kind that clients send, through the path that theirs take.
type Preflight struct {
	Experiment string    `json:"experiment"`
	Generation int       `json:"generation"`
	Revision   int64     `json:"revision"` // of the document that was probed
	At         time.Time `json:"at"`       // when it began
	Took       Seconds   `json:"took_s"`
	Baseline   string    `json:"baseline"`
	Variants   []string  `json:"variants"` // that were probed, the baseline first
	Requests   int64     `json:"requests"` // of live traffic that the shares are of; 0: none was seen yet
	Probes     []Probe   `json:"probes"`
	OK         bool      `json:"ok"`   // nothing stands in the way of a start
	Text       string    `json:"text"` // one sentence
}

// Probe is one kind of request and how each variant answered it.
type Probe struct {
	Name string `json:"name"` // tools_auto
	Asks string `json:"asks"` // in words, behind "requests that": "use tools"
	// Share of the live requests that ask for this, 0 to 1; nil: not known.
	Share   *float64      `json:"share,omitempty"`
	Results []ProbeResult `json:"results"` // in the order of Preflight.Variants
	Text    string        `json:"text,omitempty"`
}

// How a variant answered a probe.
const (
	ProbePassed  = "passed"
	ProbeFailed  = "failed"
	ProbeSkipped = "skipped" // not asked, or its answer says nothing
)

// ProbeResult is one variant's answer to one probe.
type ProbeResult struct {
	Variant string  `json:"variant"`
	State   string  `json:"state"`            // of the three above
	Status  int     `json:"status,omitempty"` // of HTTP; 0 without an answer
	Text    string  `json:"text,omitempty"`   // what was wrong, or why it was skipped
	Took    Seconds `json:"took_s,omitempty"`
	Blocks  bool    `json:"blocks,omitempty"` // the baseline passes and this variant fails
}

// Judge says what the results mean: a probe stands in the way of a start only
// where the baseline passes it and a variant fails it.
func (p *Preflight) Judge() {
	p.OK = true
	var blocking []string
	failed := 0
	for i := range p.Probes {
		b := &p.Probes[i]
		b.Text = ""
		passes := false
		for _, r := range b.Results {
			passes = passes || r.Variant == p.Baseline && r.State == ProbePassed
		}
		for j := range b.Results {
			r := &b.Results[j]
			r.Blocks = passes && r.State == ProbeFailed && r.Variant != p.Baseline
			if r.State == ProbeFailed {
				failed++
			}
			if !r.Blocks {
				continue
			}
			p.OK = false
			if b.Text == "" {
				b.Text = b.sentence(r)
				blocking = append(blocking, b.Text)
			}
		}
	}
	switch n := len(blocking); {
	case n == 1:
		p.Text = blocking[0]
	case n > 1:
		p.Text = fmt.Sprintf("%s; and %d more kinds of requests that %s answers", blocking[0], n-1, p.Baseline)
	case failed > 0:
		p.Text = fmt.Sprintf("nothing fails that passes on %s; %d answers failed in all", p.Baseline, failed)
	default:
		p.Text = fmt.Sprintf("%s passed every probe that was asked", strings.Join(p.Variants, " and "))
	}
}

// sentence is "31 % of your requests use tools; v2 rejects them (400: …)".
func (b *Probe) sentence(r *ProbeResult) string {
	does := "answers them wrongly"
	switch {
	case r.Status >= 400 && r.Status < 500:
		does = "rejects them"
	case r.Status == 0 || r.Status >= 500:
		does = "fails on them"
	}
	if b.Share != nil {
		return fmt.Sprintf("%s of your requests %s; %s %s (%s)", portion(*b.Share), b.Asks, r.Variant, does, r.Text)
	}
	return fmt.Sprintf("requests that %s: %s %s (%s)", b.Asks, r.Variant, does, r.Text)
}

func portion(f float64) string {
	switch p := f * 100; {
	case p == 0:
		return "none"
	case p < 1:
		return "under 1 %"
	case p < 10:
		return fmt.Sprintf("%.1f %%", p)
	default:
		return fmt.Sprintf("%.0f %%", p)
	}
}

// Check is the answer to whether the rollout may start.
func (p *Preflight) Check() Check { return Check{OK: p.OK, Text: p.Text} }

// Count is how many probes a variant passed, how many it failed as the baseline
// did, and how many stand in the way.
func (p *Preflight) Count(variant string) (passed, failed, blocking int) {
	for _, b := range p.Probes {
		for _, r := range b.Results {
			switch {
			case r.Variant != variant:
			case r.Blocks:
				blocking++
			case r.State == ProbeFailed:
				failed++
			case r.State == ProbePassed:
				passed++
			}
		}
	}
	return passed, failed, blocking
}
