package trial

import (
	"fmt"
	"math"
	"time"

	"sluice/experiment/guardrail"
)

// State is where a trial stands.
type State uint8

// The states.
const (
	Pending State = iota // look again
	Good
	Bad
	None     // no trial, for Result.Why
	Measured // a mean: Result.Value
)

// Result is a request's standing under one guardrail.
type Result struct {
	State State
	Why   Why
	Value float64
}

// Setup is what a step fixes before it begins, the same in every replica.
type Setup struct {
	Since int64 `json:"since"` // Unix ms: older requests are in no trial
	// Thresholds are Fix's, one for each guardrail.
	Thresholds []Thresholds `json:"thresholds"`
	// Settled is the baseline's p99 duration: a mean leaves out what is younger,
	// for among the young only the short are over.
	Settled time.Duration `json:"settled"`
}

// Plan is what a step counts; immutable.
type Plan struct {
	since   int64
	settled time.Duration
	rules   []rule
}

type rule struct {
	metric     string
	thresholds Thresholds
	nature
}

// nature is what a metric is made of.
type nature struct {
	kind  kind
	past  past
	event event // byTime
	flag  Flags // byQuality: what makes an answer bad; 0: that it broke off
	asks  Flags // what a request must ask for to be a trial
}

// event is what a metric of time waits for.
type event uint8

const (
	answerToken event = iota
	firstToken
	lastToken
	everyToken
)

// kind is how a metric settles.
type kind uint8

const (
	notHere   kind = iota // limits and the experiment's own metrics: fed elsewhere
	byFault               // error
	byRefusal             // rejected
	byTime                // slow_*
	byQuality             // flags of the answer
	byCancel
	byValue // means
)

// past is the part of a unit's history that excludes it.
type past uint8

const (
	noPast past = iota
	pastOfErrors
	pastOfRejected
	pastOfSlow
	pastOfFlaws
)

// MaxGuardrails is how many a Plan can have: one bit each.
const MaxGuardrails = 64

var natures = map[string]nature{
	guardrail.Error:           {kind: byFault, past: pastOfErrors},
	guardrail.Rejected:        {kind: byRefusal, past: pastOfRejected},
	guardrail.SlowTTFA:        {kind: byTime, past: pastOfSlow, event: answerToken},
	guardrail.SlowTTFT:        {kind: byTime, past: pastOfSlow, event: firstToken},
	guardrail.SlowTotal:       {kind: byTime, past: pastOfSlow, event: lastToken},
	guardrail.SlowTPOT:        {kind: byTime, past: pastOfSlow, event: everyToken},
	guardrail.Truncated:       {kind: byQuality, past: pastOfFlaws},
	guardrail.Empty:           {kind: byQuality, past: pastOfFlaws, flag: EmptyAnswer},
	guardrail.InvalidJSON:     {kind: byQuality, past: pastOfFlaws, flag: BadJSON, asks: AskedJSON},
	guardrail.InvalidToolCall: {kind: byQuality, past: pastOfFlaws, flag: BadToolCall, asks: AskedTools},
	guardrail.ReasoningLeak:   {kind: byQuality, past: pastOfFlaws, flag: LeakedReasoning},
	guardrail.PromptLeak:      {kind: byQuality, past: pastOfFlaws, flag: LeakedPrompt, asks: AskedSystem},
	guardrail.FinishLength:    {kind: byQuality, past: pastOfFlaws, flag: StoppedByLength},
	guardrail.Canceled:        {kind: byCancel},
	guardrail.CostPerRequest:  {kind: byValue},
	guardrail.InputTokens:     {kind: byValue},
	guardrail.OutputTokens:    {kind: byValue},
	guardrail.OutputChars:     {kind: byValue},
	guardrail.TPOT:            {kind: byValue},
}

// NewPlan compiles the guardrails of an experiment for one step. Guardrail i of
// configs is bit i of the masks.
func NewPlan(configs []guardrail.Config, s Setup) (*Plan, error) {
	if len(configs) > MaxGuardrails {
		return nil, fmt.Errorf("%d guardrails; give at most %d", len(configs), MaxGuardrails)
	}
	if len(s.Thresholds) != len(configs) {
		return nil, fmt.Errorf("%d thresholds for %d guardrails; make them with Fix", len(s.Thresholds), len(configs))
	}
	p := &Plan{since: s.Since, settled: s.Settled}
	for i, c := range configs {
		r := rule{metric: c.Metric, thresholds: s.Thresholds[i]}
		if c.Kind != guardrail.Limit {
			r.nature = natures[c.Metric]
		}
		p.rules = append(p.rules, r)
	}
	return p, nil
}

// Begin tells for which guardrails a request that starts is a trial: those are
// the ones to count as started, and to Collect later. out are the reasons for
// which it is not one of the others; with nothing open it is in no trial at all.
func (p *Plan) Begin(f *Facts) (open uint64, out Reasons) {
	if why := p.outside(f); why != "" {
		return 0, out.with(why)
	}
	for i := range p.rules {
		if p.rules[i].kind == notHere {
			continue
		}
		if why := p.excluded(&p.rules[i], f); why != "" {
			out = out.with(why)
		} else {
			open |= 1 << i
		}
	}
	return open, out
}

// outside is the reason for which a request is in no trial at all.
func (p *Plan) outside(f *Facts) Why {
	switch {
	case f.Arm == Neither || !f.Analysed:
		return Outside
	case f.Retry > 0:
		return SDKRetry
	case f.Started < p.since:
		return BeforeStep
	}
	return ""
}

// excluded is the reason for which a request that is in some trials is not in
// those of r. Means take every request: their variance is that of units.
func (p *Plan) excluded(r *rule, f *Facts) Why {
	if r.kind == byValue {
		return ""
	}
	if !Admitted(f.Request, f.Ordinal) {
		return NotAdmitted
	}
	switch {
	case f.History.fails(r.past):
		return PreTreatment
	case f.Moved && r.kind == byTime && (r.event == answerToken || r.event == firstToken):
		return SwitchCost
	case r.kind == byTime && r.thresholds.of(f.Prompt) <= 0:
		return NoThreshold
	case r.asks&^f.Flags != 0:
		return NotAsked
	}
	return ""
}

// Settle is the result of the request under guardrail i as of f.Age. Once it is
// not Pending it stays.
func (p *Plan) Settle(f *Facts, i int) Result {
	if i < 0 || i >= len(p.rules) {
		return Result{State: None, Why: Outside}
	}
	r := &p.rules[i]
	why := p.outside(f)
	if why == "" && r.kind == notHere {
		why = Outside
	}
	if why == "" {
		why = p.excluded(r, f)
	}
	if why != "" {
		return Result{State: None, Why: why}
	}
	switch r.kind {
	case byFault:
		return fault(f)
	case byRefusal:
		return refusal(f)
	case byTime:
		return slow(r, f)
	case byQuality:
		return quality(r, f)
	case byCancel:
		return cancel(f)
	}
	return p.measure(r.metric, f)
}

// Collect settles the guardrails in open (Begin's, then Collect's own) and calls
// emit once for each that is no longer pending. It returns those that are. Call
// it when the first token comes, when the attempt is over, when the client
// leaves and at Next.
func (p *Plan) Collect(f *Facts, open uint64, emit func(i int, r Result)) (still uint64) {
	for i := range p.rules {
		if open&(1<<i) == 0 {
			continue
		}
		if r := p.Settle(f, i); r.State == Pending {
			still |= 1 << i
		} else {
			emit(i, r)
		}
	}
	return still
}

// Next is the age at which the request settles something by time alone: the
// next threshold, or the age from which its means count. 0 is never.
func (p *Plan) Next(f *Facts, open uint64) time.Duration {
	next := time.Duration(math.MaxInt64)
	for i := range p.rules {
		if open&(1<<i) == 0 {
			continue
		}
		var at time.Duration
		switch r := &p.rules[i]; {
		case r.kind == byTime && r.event != everyToken:
			at = r.thresholds.of(f.Prompt)
		case r.kind == byValue && f.End > 0:
			at = p.settled
		}
		if at > f.Age {
			next = min(next, at)
		}
	}
	if next == math.MaxInt64 {
		return 0
	}
	return next
}
