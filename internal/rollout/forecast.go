package rollout

import (
	"slices"
	"time"

	"sluice/experiment/ramp"
	"sluice/router"
)

const (
	// forecastAfter is how long traffic is watched before it is said what a step
	// will take, ms.
	forecastAfter = 30_000
	// measured is how many trials of the baseline make a rate.
	measured = 200
)

// traffic is what the evidence shows of the experiment's traffic; false as long
// as that is too little to say anything by.
func (f *file) traffic(s *subject) (tr ramp.Traffic, ok bool) {
	span := f.Evidence.Newest - f.Evidence.Since
	if span < forecastAfter {
		return tr, false
	}
	units := 0
	for v := range s.variants {
		tr.PerSecond += f.Evidence.Rate(v)
		units += f.Evidence.Arms[v].Units.Count()
	}
	tr.Seen = []ramp.Seen{{In: time.Duration(span) * time.Millisecond, Units: units}}
	tr.Rates = map[string]float64{}
	if in := f.decided.inputs.Input; in != nil {
		for i := range in.Treatments {
			for j := range in.Treatments[i].Verdicts {
				if v := &in.Treatments[i].Verdicts[j]; v.Baseline.N >= measured {
					tr.Rates[v.Name] = v.Baseline.Rate()
				}
			}
		}
	}
	return tr, true
}

// ladder sizes the steps of `steps: auto` from live traffic, once. Where even the
// best ladder can hardly be met it waits for min_duration: more users may come.
func (f *file) ladder(s *subject) *edit {
	if !s.policy.Auto || s.ramp.Phase != ramp.ReadyWait || len(s.ramp.Steps) > 0 {
		return nil
	}
	tr, ok := f.traffic(s)
	if !ok {
		return nil
	}
	steps, check := ramp.AutoSteps(&s.policy, s.guardrails, tr)
	if len(steps) == 0 || !check.OK && f.Clock-f.StepSince < s.policy.MinDuration.Milliseconds() {
		return nil
	}
	text := "the steps are sized from live traffic"
	if check.Text != "" {
		text += ": " + check.Text
	}
	return &edit{"ramp.steps", text, "", func(doc *router.Document, rev int64, now time.Time) error {
		return router.RampSteps(doc, rev, now, s.key, slices.Clone(steps))
	}}
}

// forecast says how long the steps to come take at today's traffic.
func (f *file) forecast(s *subject, out *ramp.Report) {
	if s.ramp == nil || s.state == router.StatePromoted {
		return
	}
	tr, ok := f.traffic(s)
	if !ok {
		return
	}
	for _, step := range ramp.Forecast(&s.policy, s.guardrails, s.ramp.Steps, tr) {
		if step.Step > s.ramp.Step {
			out.Forecast = append(out.Forecast, step)
		}
	}
}
