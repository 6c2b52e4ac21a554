package trial

import (
	"sync/atomic"
	"time"

	"sluice/experiment/guardrail"
)

// teacher says what is slow while pasts are learnt and no step has fixed it yet:
// users who are slow anyway must be known before the first step, or they are
// counted against whichever variant they fall to. It goes by what this replica
// has seen of the baseline, which is good enough to tell the slow users by.
type teacher struct {
	profile Profile // of the baseline since the watch began; Collector.mu
	taught  time.Time
	slow    atomic.Pointer[[]Thresholds] // by guardrail
}

// teachEvery is how often the thresholds are made anew.
const teachEvery = 10 * time.Second

// add takes the shards' profile of one drain.
func (t *teacher) add(configs []guardrail.Config, p *Profile, now time.Time) {
	t.profile.Merge(p)
	if now.Sub(t.taught) < teachEvery {
		return
	}
	t.taught = now
	thresholds, _ := Fix(configs, &t.profile)
	t.slow.Store(&thresholds)
}

// forget is for another watch, whose guardrails are others.
func (t *teacher) forget() { t.slow.Store(nil) }

// learnSlow adds an answer of the baseline to the past of its unit, for the
// guardrails that have no threshold yet; s.mu is held.
func (r *Request) learnSlow() {
	p := r.d.teacher.slow.Load()
	if p == nil || r.u == nil || r.s.units.frozen {
		return
	}
	for i := range r.watch.Plan.rules {
		rule := r.watch.Plan.rules[i]
		if rule.kind != byTime || rule.thresholds != (Thresholds{}) || i >= len(*p) {
			continue
		}
		rule.thresholds = (*p)[i]
		if rule.thresholds.of(r.f.Prompt) <= 0 {
			continue
		}
		if res := slow(&rule, &r.f); res.State == Good || res.State == Bad {
			r.u.learn(rule.past, res.State == Bad)
		}
	}
}
