package server

import (
	"encoding/binary"
	"net/http"
	"strconv"
	"time"

	"sluice/experiment"
	"sluice/experiment/trial"
	"sluice/metrics"
	"sluice/upstream"
	"sluice/upstream/wire"
)

// witness is what an exchange tells of itself to the trials of its experiment
// (design.md section 7, "What one trial is").
type witness struct {
	trial *trial.Request // nil: nobody watches
	over  bool           // the first attempt is: what comes later says nothing of its variant
	most  int64          // tokens that the answer may have, 0 unknown
}

// conversationFrom is from how many prompt tokens on a request is told apart by
// its conversation: below, what a cache has of it changes no class.
const conversationFrom = 500

// testify takes the request up when its first attempt begins, with what was
// known before any variant had a part in it. What was decided instead of the
// assignment is no exposure; n is Next's.
func (x *exchange) testify(n int) {
	e, d := x.plan.Experiment, &x.plan.Decision
	if n > 0 {
		x.stray()
		return
	}
	if x.s.cfg.Trials == nil || e == nil || !d.Exposure || x.cur != x.plan.Variant || x.s.cfg.Trials.Watch(e.Key) == nil {
		return
	}
	in := trial.Start{
		Experiment: e.Key, Generation: e.Generation, Variant: d.Variant, Analysed: d.Analysed,
		Provisional: d.Reason == experiment.ReasonProvisional, At: x.began, ID: x.id,
		Unit: d.Digest.Field, HasUnit: d.HasUnit, Retry: retryCount(x.r.Header), Prompt: int(x.prompt), Asks: trial.Asks(x.asks),
	}
	for _, f := range asked {
		if x.asks.Has(f.ask) {
			in.Flags |= f.flag
		}
	}
	if e.Prompts { // then every request may have one to leak, in either arm
		in.Flags |= trial.AskedSystem
	}
	if x.key != nil {
		in.Key, in.Tenant = x.key.ID, x.key.Tenant
	}
	if x.prompt >= conversationFrom {
		if id, ok := x.head.Conversation(x.query.Body); ok {
			in.Talk = binary.BigEndian.Uint64(id[:]) ^ trial.Hash(in.Key)
		}
	}
	if x.cur.Price != nil {
		x.most = x.head.MaxTokens(x.query.Body, x.cur.Target.Patch)
	}
	x.trial = x.s.cfg.Trials.Begin(&in)
}

// stray ends what a request tells of a variant that was taken away while the
// request waited for its turn: who is called instead is no witness.
func (x *exchange) stray() {
	if x.trial != nil && !x.over && x.cur.Name != x.plan.Variant.Name {
		x.over = true
		x.trial.Ended(trial.End{After: time.Since(x.began), Ending: trial.Ours})
	}
}

// retryCount is how often the client's SDK has sent the request before.
func retryCount(h http.Header) int {
	if v := h["X-Stainless-Retry-Count"]; len(v) == 1 {
		if n, err := strconv.Atoi(v[0]); err == nil && n > 0 && n < 1000 {
			return n
		}
	}
	return 0
}

// progress is upstream.Request.Progress.
func (x *exchange) progress(answer bool, at time.Duration) {
	switch {
	case x.over:
	case answer:
		x.trial.Answer(at)
	default:
		x.trial.First(at)
	}
}

// ended is upstream.Request.Ended.
func (x *exchange) ended(a *upstream.Attempt) {
	if x.trial == nil || x.over {
		return
	}
	x.over = true
	at := a.Start.Add(a.Duration)
	call := trial.Call{Outcome: string(a.Outcome), Status: a.Status, Unreached: a.Unreached, Expired: x.expired(a.Outcome, at)}
	end := trial.End{After: at.Sub(x.began), Ending: call.Ending(), Chars: a.Answer.Chars}
	end.Flags, end.Unjudged = flags(&a.Answer)
	if a.HasUsage && !a.Estimated {
		end.Usage, end.Input, end.Output = true, a.Usage.Input, a.Usage.Output
	}
	x.trial.Ended(end)
}

// expired reports an end by the deadline that the client had set, which is its
// patience and not the server's fault.
func (x *exchange) expired(o upstream.Outcome, at time.Time) bool {
	return o == upstream.Timeout && !x.deadline.IsZero() && !at.Before(x.deadline)
}

// asked are the flags of what a request asks for.
var asked = [...]struct {
	ask  wire.Asks
	flag trial.Flags
}{{wire.AskJSON, trial.AskedJSON}, {wire.AskTools, trial.AskedTools}, {wire.AskSystem, trial.AskedSystem}}

// flaws are the flags of what an answer is like. A broken one is known by its
// outcome.
var flaws = [...]struct {
	flaw wire.Flaws
	flag trial.Flags
}{
	{wire.FlawEmpty, trial.EmptyAnswer}, {wire.FlawJSON, trial.BadJSON}, {wire.FlawToolCall, trial.BadToolCall},
	{wire.FlawReasoning, trial.LeakedReasoning}, {wire.FlawPrompt, trial.LeakedPrompt},
}

// flags are what an answer is like, and what cannot be told of it.
func flags(a *wire.Answer) (has, unjudged trial.Flags) {
	for _, f := range flaws {
		switch {
		case a.Flaws&f.flaw != 0:
			has |= f.flag
		case a.Judged&f.flaw == 0:
			unjudged |= f.flag
		}
	}
	if a.Finish[wire.FinishLength] > 0 {
		has |= trial.StoppedByLength
	} else if a.Finish == [wire.FinishKinds]uint16{} {
		unjudged |= trial.StoppedByLength
	}
	return has, unjudged
}

// rest ends what the request tells: how it ended if nothing was called at all,
// and what all of its attempts cost.
func (x *exchange) rest(ev *metrics.Event) {
	if x.trial == nil {
		return
	}
	now := time.Now()
	after := now.Sub(x.began)
	if !x.over {
		x.over = true
		call := trial.Call{Outcome: string(x.result.Outcome), Gateway: x.refused != nil, Expired: x.expired(x.result.Outcome, now)}
		x.trial.Ended(trial.End{After: after, Ending: call.Ending()})
	}
	cost, known := costOf(ev.Attempts)
	x.trial.Close(after, cost, known, x.mostCost(len(ev.Attempts)))
}

// costOf is what the attempts cost in nano-USD; unknown with one that has no
// price, whose tokens are a guess, or when none has any tokens.
func costOf(list []metrics.Attempt) (cost float64, known bool) {
	for i := range list {
		a := &list[i]
		if !a.HasUsage {
			continue
		}
		if !a.Priced || a.Estimated {
			return 0, false
		}
		cost, known = cost+float64(a.CostNano), true
	}
	return cost, known
}

// mostCost is what so many attempts could have cost at most, in nano-USD, by the
// assigned variant's price; 0 unknown.
func (x *exchange) mostCost(attempts int) float64 {
	if x.most == 0 || attempts == 0 {
		return 0
	}
	input := int64(0)
	for i := range x.result.Attempts {
		input = max(input, x.result.Attempts[i].Usage.Input)
	}
	nano, ok := x.plan.Variant.Price.Cost(metrics.Tokens{Input: input, Output: x.most})
	if !ok {
		return 0
	}
	return float64(nano) * float64(attempts)
}
