package server

import (
	"strconv"
	"time"

	"sluice/experiment/trial"
	"sluice/metrics"
	"sluice/upstream"
	"sluice/upstream/wire"
)

// try takes the request up as a trial of its assigned variant, when its first
// attempt is about to begin and the table has had its last word.
func (x *exchange) try() {
	p := &x.plan
	if x.trial != nil {
		if x.cur != x.trialOf && !x.tried { // decided again while it waited in a queue
			x.tried = true
			x.trial.Ended(trial.End{After: time.Since(x.began), Ending: trial.Ours})
		}
		return
	}
	if x.s.cfg.Trials == nil || p.Experiment == nil || !p.Decision.Exposure {
		return
	}
	d := &p.Decision
	s := trial.Start{
		Experiment: p.Experiment.Key, Generation: p.Experiment.Generation, Variant: d.Variant,
		// What stands for a variant that was taken out meanwhile is nobody's trial.
		Analysed: d.Analysed && x.cur == p.Variant,
		At:       x.began, ID: x.id, Unit: d.Digest.Field, HasUnit: d.HasUnit, Retry: x.retries(),
		Prompt: int(x.prompt), Flags: askedFlags(x.asks), Asks: trial.Asks(x.asks),
	}
	if x.key != nil {
		s.Key, s.Tenant = x.key.ID, x.key.Tenant
	}
	x.trial, x.trialOf = x.s.cfg.Trials.Begin(&s), x.cur
}

// progress is upstream.Request.Progress: only the first attempt counts.
func (x *exchange) progress(answer bool, at time.Duration) {
	switch {
	case x.trial == nil || x.tried:
	case answer:
		x.trial.Answer(at)
	default:
		x.trial.First(at)
	}
}

// judge ends the trial's first attempt, which a later one does not change: a
// fallback hides a failure from the user and must not hide it from the ramp.
func (x *exchange) judge(a *upstream.Attempt) {
	if x.trial == nil || x.tried {
		return
	}
	x.tried = true
	e := trial.End{After: time.Since(x.began), Ending: x.ending(a.Outcome, a.Status),
		Flags: answerFlags(&a.Answer), Chars: a.Answer.Chars, Usage: a.HasUsage, Input: a.Usage.Input, Output: a.Usage.Output}
	x.trial.Ended(e)
}

// ending is what an attempt's outcome means for its variant. Who set a deadline
// of its own that has passed has left.
func (x *exchange) ending(o upstream.Outcome, status int) trial.Ending {
	if o == upstream.Timeout && !x.deadline.IsZero() && !time.Now().Before(x.deadline) {
		return trial.Abandoned
	}
	return trial.Call{Outcome: string(o), Status: status}.Ending()
}

// close ends the trial with what the request cost.
func (x *exchange) close(ev *metrics.Event) {
	if x.trial == nil {
		return
	}
	if a := x.result.Attempts; len(a) > 0 {
		x.judge(&a[0])
	} else {
		x.judge(&upstream.Attempt{Outcome: x.result.Outcome, Status: x.result.Status})
	}
	sum := ev.Totals()
	x.trial.Close(time.Since(x.began), float64(sum.CostNano), sum.Priced, 0)
}

// retries is how often the SDK says it has tried before.
func (x *exchange) retries() int {
	if v := x.r.Header["X-Stainless-Retry-Count"]; len(v) == 1 {
		if n, err := strconv.Atoi(v[0]); err == nil && n >= 0 && n < 1000 {
			return n
		}
	}
	return 0
}

func askedFlags(a wire.Asks) (f trial.Flags) {
	if a.Has(wire.AskJSON) {
		f |= trial.AskedJSON
	}
	if a.Has(wire.AskTools) {
		f |= trial.AskedTools
	}
	if a.Has(wire.AskSystem) {
		f |= trial.AskedSystem
	}
	return f
}

func answerFlags(a *wire.Answer) (f trial.Flags) {
	for _, m := range [...]struct {
		from wire.Flaws
		to   trial.Flags
	}{
		{wire.FlawEmpty, trial.EmptyAnswer}, {wire.FlawJSON, trial.BadJSON}, {wire.FlawToolCall, trial.BadToolCall},
		{wire.FlawReasoning, trial.LeakedReasoning}, {wire.FlawPrompt, trial.LeakedPrompt},
	} {
		if a.Flaws&m.from != 0 {
			f |= m.to
		}
	}
	if a.Finish[wire.FinishLength] > 0 {
		f |= trial.StoppedByLength
	}
	return f
}
