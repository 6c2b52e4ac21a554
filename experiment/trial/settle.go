package trial

import (
	"math"
	"time"

	"sluice/experiment/guardrail"
)

var (
	pending = Result{}
	good    = Result{State: Good}
	bad     = Result{State: Bad}
)

func none(why Why) Result { return Result{State: None, Why: why} }

// left reports that the client went before the attempt was over.
func (f *Facts) left() bool {
	return f.Cancel > 0 && (f.End == 0 || f.Cancel <= f.End) || f.Ending == Abandoned
}

// over is what ended the attempt without an answer that could be judged; "" for
// an answer, or while it runs.
func (f *Facts) over() Why {
	switch {
	case f.left():
		return Withdrawn
	case f.Ending == Refusal:
		return Refused
	case f.Ending == Fault:
		return Failed
	case f.Ending == Ours:
		return Gateway
	case f.Ending == Unreached:
		return NotReady
	}
	return ""
}

// fault: no answer, half an answer, an empty one, or no JSON where JSON was
// demanded. A fault that came before the client left is a fault.
func fault(f *Facts) Result {
	switch f.over() {
	case Failed:
		return bad
	case "":
	default:
		return none(f.over())
	}
	switch {
	case f.Ending == Running:
		return pending
	case f.Ending == Broken, f.Flags&EmptyAnswer != 0, f.Flags&(AskedJSON|BadJSON) == AskedJSON|BadJSON:
		return bad
	}
	return good
}

// refusal: refused, or taken, which the first token shows.
func refusal(f *Facts) Result {
	switch {
	case f.First > 0 || f.Answer > 0 || f.Ending == Answered || f.Ending == Broken:
		return good
	case f.over() == Refused:
		return bad
	case f.over() != "":
		return none(f.over())
	}
	return pending
}

// slow settles at min(event, threshold), also while the request runs: a hung
// variant is slow at the threshold, not without data. Who leaves after the
// threshold left a slow answer; before it, nobody knows.
func slow(r *rule, f *Facts) Result {
	limit := r.thresholds.of(f.Prompt)
	var event time.Duration
	switch r.event {
	case answerToken:
		event = f.Answer
	case firstToken:
		event = f.First
	case lastToken:
		if f.Ending == Answered {
			event = f.End
		}
	case everyToken:
		return slowTokens(f, limit)
	}
	stop := f.End
	if f.Cancel > 0 && (stop == 0 || f.Cancel < stop) {
		stop = f.Cancel
	}
	if event > 0 && (stop == 0 || event <= stop) {
		if event <= limit {
			return good
		}
		return bad
	}
	switch {
	case stop >= limit, stop == 0 && f.Age >= limit:
		return bad
	case stop > 0:
		if why := f.over(); why != "" {
			return none(why)
		}
		return none(Unknown) // over without the event: an answer without a token
	}
	return pending
}

func slowTokens(f *Facts, limit time.Duration) Result {
	per, ok := f.perToken()
	switch {
	case f.over() != "":
		return none(f.over())
	case f.Ending == Running:
		return pending
	case !ok:
		return none(Unknown)
	case per <= float64(limit):
		return good
	}
	return bad
}

// perToken is the time per output token after the first, ns.
func (f *Facts) perToken() (float64, bool) {
	if !f.HasUsage || f.Output < 2 || f.First <= 0 || f.End < f.First || f.Ending != Answered {
		return 0, false
	}
	return float64(f.End-f.First) / float64(f.Output-1), true
}

// quality judges answers; a broken one only for being broken, which has no flag.
func quality(r *rule, f *Facts) Result {
	if why := f.over(); why != "" {
		return none(why)
	}
	switch f.Ending {
	case Running:
		return pending
	case Broken:
		if r.flag == 0 {
			return bad
		}
		return none(Failed)
	}
	switch {
	case f.Flags&r.flag != 0:
		return bad
	case f.Unjudged&r.flag != 0:
		return none(Unknown)
	}
	return good
}

// cancel: clients that leave are no fault of the variant by themselves, but a
// difference between the arms is worth knowing.
func cancel(f *Facts) Result {
	switch {
	case f.left():
		return bad
	case f.Ending == Running:
		return pending
	case f.over() != "":
		return none(f.over())
	}
	return good
}

// measure waits for the age from which both arms' answers are over, so that the
// short ones do not count first.
func (p *Plan) measure(metric string, f *Facts) Result {
	if f.Ending == Running && !f.left() {
		return pending
	}
	// What a request cost counts even if it failed: a fallback was paid for.
	why := f.over()
	if why == Failed && metric == guardrail.CostPerRequest {
		why = ""
	}
	if why != "" {
		return none(why)
	}
	if f.Age < p.settled || !f.Closed && metric == guardrail.CostPerRequest {
		return pending
	}
	value, ok := 0.0, f.HasUsage
	switch metric {
	case guardrail.CostPerRequest:
		value, ok = f.Cost, f.HasCost
		if f.MaxCost > 0 {
			value = min(value, f.MaxCost)
		}
	case guardrail.InputTokens:
		value = float64(f.Input)
	case guardrail.OutputTokens:
		value = float64(f.Output)
	case guardrail.OutputChars:
		value, ok = float64(f.Chars), true
	case guardrail.TPOT:
		value, ok = f.perToken()
	}
	if !ok || math.IsNaN(value) || math.IsInf(value, 0) || value < 0 {
		return none(Unknown)
	}
	return Result{State: Measured, Value: value}
}
