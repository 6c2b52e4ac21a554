package ramp

import (
	"sluice/experiment/guardrail"
)

// Decision is what to do now and why.
type Decision struct {
	Action    Action `json:"action"`
	Code      string `json:"code"`
	Variant   string `json:"variant,omitempty"`   // whose guardrail, or whom to advance, kill, promote
	Guardrail string `json:"guardrail,omitempty"` // its name
	Text      string `json:"text"`                // one sentence with the numbers, for people
}

// Check is a question with an answer in words; the zero value is a no without
// a reason.
type Check struct {
	OK   bool   `json:"ok"`
	Text string `json:"text,omitempty"` // why not, or a warning that goes with a yes
}

// Trip is a local breaker that agreed with another replica, or with the merged
// counters, or is the only one.
type Trip struct {
	Variant   string           `json:"variant"`
	Guardrail string           `json:"guardrail"`
	Action    guardrail.Action `json:"action"` // the guardrail's; a kill becomes a pause
	Text      string           `json:"text"`   // "11 requests in a row failed"
}

// Need is what an OPEN guardrail still wants, at today's traffic.
type Need struct {
	Guardrail string  `json:"guardrail"`
	Trials    int64   `json:"trials,omitempty"` // about so many more; negative: no number would do
	Time      Seconds `json:"time_s,omitempty"` // about so long; 0 unknown
}

// Treatment is one variant's standing in the step.
type Treatment struct {
	Name     string              `json:"name"`
	Ramping  bool                `json:"ramping,omitempty"`
	Killed   bool                `json:"killed,omitempty"`
	Weight   int                 `json:"weight"` // basis points
	Units    int                 `json:"units"`  // distinct, in the step
	Load     float64             `json:"load,omitempty"`
	Verdicts []guardrail.Verdict `json:"verdicts"`
	Needs    []Need              `json:"needs,omitempty"`
}

// SRM is the standing of the sample ratio.
type SRM struct {
	LogE  float64 `json:"log_e"`
	Alarm bool    `json:"alarm"`
	Text  string  `json:"text,omitempty"` // counts and expectations
}

// Input is all that a decision rests on; it is written into the audit.
type Input struct {
	State string `json:"state"` // the experiment's: running, paused, promoted, …
	Phase Phase  `json:"phase,omitempty"`
	// Leader is whether the caller holds the lease; who does not may only reduce.
	Leader       bool    `json:"leader"`
	Unsupervised Seconds `json:"unsupervised_s,omitempty"` // since anybody led
	Config       *Config `json:"config"`

	Step     int     `json:"step"`
	Steps    []Step  `json:"steps"`
	Approved int     `json:"approved"`
	Elapsed  Seconds `json:"elapsed_s"`  // since the step or the phase began
	DataAge  Seconds `json:"data_age_s"` // since the ramping variant's newest trial, or the step's beginning
	Units    int     `json:"units"`      // of the ramping variant

	Ready       Check   `json:"ready"`
	NotReadyFor Seconds `json:"not_ready_for_s,omitempty"`
	Preflight   Check   `json:"preflight"` // asked in ready_wait
	HeadRoom    Check   `json:"head_room"`
	// Unmeasured is how many more answers of the baseline it takes to know what
	// is slow; asked in ready_wait, for a step fixes it before it begins.
	Unmeasured int `json:"unmeasured,omitempty"`

	// Newcomers is the share of the baseline's requests that are of units not seen
	// before; asked in ready_wait, where it is learnt who fails anyway.
	Newcomers float64 `json:"newcomers,omitempty"`

	BaselineUnhealthy bool        `json:"baseline_unhealthy,omitempty"`
	SRM               SRM         `json:"srm,omitzero"`
	HardFail          []Trip      `json:"hard_fail,omitempty"`
	Treatments        []Treatment `json:"treatments"`
}
