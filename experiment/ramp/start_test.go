package ramp_test

import (
	"strings"
	"testing"
	"time"

	"sluice/experiment/ramp"
)

func TestPreflightJudge(t *testing.T) {
	t.Parallel()
	third := 0.31
	result := func(variant, state, text string) ramp.ProbeResult {
		return ramp.ProbeResult{Variant: variant, State: state, Status: 400, Text: text}
	}
	cases := []struct {
		name         string
		base, canary string
		share        *float64
		ok           bool
		text         string
	}{
		{"only the variant fails", ramp.ProbePassed, ramp.ProbeFailed, &third, false, "31 % of your requests use tools; v2 rejects them (400: no tools)"},
		{"no traffic yet", ramp.ProbePassed, ramp.ProbeFailed, nil, false, "requests that use tools: v2 rejects them (400: no tools)"},
		{"both fail", ramp.ProbeFailed, ramp.ProbeFailed, nil, true, "nothing fails that passes on v1; 2 answers failed in all"},
		{"only the baseline fails", ramp.ProbeFailed, ramp.ProbePassed, nil, true, "nothing fails that passes on v1; 1 answers failed in all"},
		{"the baseline was not asked", ramp.ProbeSkipped, ramp.ProbeFailed, nil, true, "nothing fails that passes on v1; 1 answers failed in all"},
		{"both pass", ramp.ProbePassed, ramp.ProbePassed, nil, true, "v1 and v2 passed every probe that was asked"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			p := &ramp.Preflight{Baseline: "v1", Variants: []string{"v1", "v2"}, Probes: []ramp.Probe{{
				Name: "tools_auto", Asks: "use tools", Share: c.share,
				Results: []ramp.ProbeResult{result("v1", c.base, "400: no tools"), result("v2", c.canary, "400: no tools")},
			}}}
			p.Judge()
			if p.OK != c.ok || p.Text != c.text {
				t.Errorf("got %v %q, want %v %q", p.OK, p.Text, c.ok, c.text)
			}
			if got := p.Check(); got.OK != c.ok || got.Text != c.text {
				t.Errorf("Check = %+v", got)
			}
			blocks := 0
			if !c.ok {
				blocks = 1
			}
			if _, _, n := p.Count("v2"); n != blocks {
				t.Errorf("%d probes block, want %d", n, blocks)
			}
			if _, _, n := p.Count("v1"); n != 0 {
				t.Errorf("the baseline blocks itself %d times", n)
			}
		})
	}
}

func TestHeadRoom(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name string
		in   ramp.Return
		ok   bool
		text string // a part
	}{
		{"room", ramp.Return{Baseline: "v1", Ready: 2, Capacity: 64, InFlight: 40, Treatments: 20}, true, ""},
		{"exactly full", ramp.Return{Baseline: "v1", Ready: 2, Capacity: 64, InFlight: 44, Treatments: 20}, true, ""},
		{"one too many", ramp.Return{Baseline: "v1", Ready: 2, Capacity: 64, InFlight: 45, Treatments: 20}, false, "have room for 19: 45 of 64"},
		{"by Little's law", ramp.Return{Baseline: "v1", Ready: 2, Capacity: 64, InFlight: 44, Treatments: 1, Rate: 10, Lasts: ramp.Seconds(2100 * time.Millisecond)}, false, "about 21 calls"},
		{"over its limit already", ramp.Return{Baseline: "v1", Ready: 1, Capacity: 8, InFlight: 12, Treatments: 1}, false, "room for 0"},
		{"no limit", ramp.Return{Baseline: "v1", Ready: 2, InFlight: 40, Treatments: 20}, true, "nobody knows"},
		{"nothing ready", ramp.Return{Baseline: "v1", Capacity: 64}, false, "nowhere to go"},
		{"nothing ready, nothing returns", ramp.Return{Baseline: "v1", Shared: true}, true, ""},
		{"shared and full", ramp.Return{Baseline: "v1", Shared: true, Ready: 1, Capacity: 4, InFlight: 4, Treatments: 2}, true, ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got := ramp.HeadRoom(c.in)
			if got.OK != c.ok || !strings.Contains(got.Text, c.text) || !got.OK && got.Text == "" {
				t.Errorf("got %+v, want %v with %q", got, c.ok, c.text)
			}
			if c.in.Cost() == "" {
				t.Error("the cost has no words")
			}
		})
	}
}
