package ramp

import (
	"time"
)

// Report is what people see of a rollout: made by the leader, read anywhere.
type Report struct {
	Experiment string    `json:"experiment"`
	Generation int       `json:"generation"`
	At         time.Time `json:"at"` // when it was made; what it says is as of then

	State    string         `json:"state"`
	Phase    Phase          `json:"phase,omitempty"`
	Reason   string         `json:"reason,omitempty"` // code of holding or of the pause
	Variant  string         `json:"variant,omitempty"`
	Step     int            `json:"step"` // index in Steps, -1 in ready_wait
	Steps    []Step         `json:"steps"`
	Since    time.Time      `json:"since,omitzero"`
	Epoch    int64          `json:"epoch,omitempty"`
	Approved int            `json:"approved,omitempty"`
	Weights  map[string]int `json:"weights"` // basis points by variant
	Baseline string         `json:"baseline"`

	Decision Decision `json:"decision"`          // the latest
	WhyNot   []string `json:"why_not,omitempty"` // why not advancing, in words
	// Approval is the step that waits for a person; nil for none.
	Approval *Step `json:"approval,omitempty"`

	DataAge    Seconds     `json:"data_age_s"` // since the ramping variant's newest trial
	Arms       []Arm       `json:"arms"`       // every variant, the baseline too
	Treatments []Treatment `json:"treatments"` // with their guardrails
	SRM        SRM         `json:"srm,omitzero"`
	Heavy      []HeavyUnit `json:"heavy,omitempty"`
	Outside    []Outside   `json:"outside,omitempty"` // requests that are no trials

	Ready     Check          `json:"ready"`
	Preflight Check          `json:"preflight,omitzero"`
	HeadRoom  Check          `json:"head_room,omitzero"`
	Forecast  []StepForecast `json:"forecast,omitempty"` // of the steps to come
	Warnings  []string       `json:"warnings,omitempty"`

	Leader       string  `json:"leader,omitempty"`
	Fence        int64   `json:"fence,omitempty"`
	Supervised   bool    `json:"supervised"` // somebody leads
	Unsupervised Seconds `json:"unsupervised_s,omitempty"`
	Position     string  `json:"position,omitempty"` // in the stream of observations
	Ticks        int64   `json:"ticks"`              // folded in this epoch
	Suspended    int64   `json:"suspended"`          // of them left out: an arm was not ready
	Replicas     int     `json:"replicas"`           // that report
}

// Arm is one variant's traffic in the step.
type Arm struct {
	Name     string  `json:"name"`
	Baseline bool    `json:"baseline,omitempty"`
	Weight   int     `json:"weight"`
	Killed   bool    `json:"killed,omitempty"`
	Units    int     `json:"units"`   // distinct, in the step
	Started  int64   `json:"started"` // requests, in the step
	Rate     float64 `json:"rate"`    // requests started a second, lately
	PerReady float64 `json:"per_ready"`
	Ready    int     `json:"ready"`    // endpoints
	Capacity int     `json:"capacity"` // their max_in_flight; 0 unknown
	NotReady bool    `json:"not_ready,omitempty"`
	Tripped  int     `json:"tripped,omitempty"` // replicas whose local breaker is open
}

// HeavyUnit is a unit with over 10 % of a model's traffic.
type HeavyUnit struct {
	Pin   string  `json:"pin"`          // pin field, hex
	ID    string  `json:"id,omitempty"` // as the client sent it, where it is known
	Share float64 `json:"share"`        // of the requests
}

// Outside counts requests that are in no trial.
type Outside struct {
	Variant string `json:"variant"`
	Why     string `json:"why"`
	Count   int64  `json:"count"`
}
