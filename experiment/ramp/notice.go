package ramp

import (
	"time"

	"sluice/experiment/guardrail"
)

// The events that people are told of outside.
const (
	NoticeStarted    = "started"
	NoticeAdvanced   = "advanced"
	NoticeHeld       = "held" // no step is taken, for the reason that Code says
	NoticeApproval   = "approval_needed"
	NoticePaused     = "paused"
	NoticeResumed    = "resumed"
	NoticeRolledBack = "rolled_back"
	NoticePromoted   = "promoted"
	NoticeCompleted  = "completed" // the bake is over, or it was finished
	NoticeKilled     = "killed"
	NoticeSRM        = "srm"
	NoticeBudget     = "budget"
)

// Notices are all of them.
var Notices = []string{
	NoticeStarted, NoticeAdvanced, NoticeHeld, NoticeApproval, NoticePaused, NoticeResumed,
	NoticeRolledBack, NoticePromoted, NoticeCompleted, NoticeKilled, NoticeSRM, NoticeBudget,
}

// Notice is one event of a rollout, told outside once. Two notices with the same
// event, experiment, generation, revision, epoch, step, variant, guardrail and
// code are the same event, whoever tells it.
type Notice struct {
	Event      string    `json:"event"` // of Notices
	At         time.Time `json:"at"`
	Experiment string    `json:"experiment"`
	Model      string    `json:"model,omitempty"`
	Generation int       `json:"generation"`
	Revision   int64     `json:"revision,omitempty"` // of the document, where it changed
	Epoch      int64     `json:"epoch,omitempty"`    // revision at which the step began

	Variant  string `json:"variant,omitempty"`
	Baseline string `json:"baseline,omitempty"`
	Step     int    `json:"step"` // index, -1 before the first
	Steps    int    `json:"steps,omitempty"`
	Weight   int    `json:"weight"` // the variant's now, basis points

	Code      string `json:"code,omitempty"` // of Decision
	Guardrail string `json:"guardrail,omitempty"`
	Text      string `json:"text"`             // one sentence with the numbers
	Actor     string `json:"actor,omitempty"`  // a person, or controller@replica
	Reason    string `json:"reason,omitempty"` // as the person gave it

	Guardrails []guardrail.Verdict `json:"guardrails,omitempty"` // of the variant, as they stood
}
