package admin

import (
	"context"
	"fmt"
	"time"

	"sluice/experiment/ramp"
	"sluice/router"
)

// noticeOf are the verbs that people outside are told of. A ramp tells of its
// start itself, when its first step begins.
var noticeOf = map[string]string{
	"start": ramp.NoticeStarted, "pause": ramp.NoticePaused, "resume": ramp.NoticeResumed, "advance": ramp.NoticeAdvanced,
	"rollback": ramp.NoticeRolledBack, "kill": ramp.NoticeKilled, "promote": ramp.NoticePromoted, "finish": ramp.NoticeCompleted,
}

// tell sends word of what a person did, from the replica that was asked: what the
// controller does it tells itself.
func (a *API) tell(ctx context.Context, verb, key string, body *verbBody) {
	event := noticeOf[verb]
	if a.cfg.Notify == nil || event == "" {
		return
	}
	t, e, err := a.find(key)
	if err != nil || verb == "start" && e.RampState != nil {
		return
	}
	who := actorOf(ctx).Name
	n := ramp.Notice{Event: event, At: time.Now().UTC(), Experiment: key, Model: e.Model, Generation: e.Generation, Revision: t.Revision,
		Variant: body.Variant, Baseline: e.Baseline, Step: -1, Code: "manual", Actor: who, Reason: body.Reason}
	if s := e.RampState; s != nil {
		n.Step, n.Steps, n.Weight, n.Epoch = s.Step, len(s.Steps), s.Weight(), s.Epoch
		if n.Variant == "" {
			n.Variant = s.Variant
		}
	}
	n.Text = deed(event, e, &n)
	a.cfg.Notify(n)
}

// deed is one sentence: who did what.
func deed(event string, e *router.Experiment, n *ramp.Notice) string {
	text := ""
	switch event {
	case ramp.NoticeStarted:
		text = fmt.Sprintf("%s started it as generation %d", n.Actor, e.Generation)
	case ramp.NoticePaused:
		text = n.Actor + " paused it: nobody moves"
	case ramp.NoticeResumed:
		text = n.Actor + " resumed it"
	case ramp.NoticeAdvanced:
		text = fmt.Sprintf("%s advanced %s to %s", n.Actor, n.Variant, share(n.Weight))
	case ramp.NoticeRolledBack:
		text = fmt.Sprintf("%s rolled it back: everybody gets %s", n.Actor, e.Baseline)
	case ramp.NoticeKilled:
		text = fmt.Sprintf("%s killed %s: its users get %s", n.Actor, n.Variant, e.Baseline)
	case ramp.NoticePromoted:
		text = fmt.Sprintf("%s promoted %s", n.Actor, n.Variant)
	case ramp.NoticeCompleted:
		text = fmt.Sprintf("%s finished it: everybody gets %s", n.Actor, e.Baseline)
	}
	if n.Reason != "" {
		text += " (" + n.Reason + ")"
	}
	return text
}
