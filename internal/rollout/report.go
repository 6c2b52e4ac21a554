package rollout

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"sluice/experiment/guardrail"
	"sluice/experiment/ramp"
	"sluice/internal/sticky"
	"sluice/metrics"
)

// ErrNotWatched reports an experiment without guardrails, or that does not run.
var ErrNotWatched = errors.New("the experiment is not watched: it does not run, or has no guardrails")

// Report is how an experiment's rollout stands: what its leader wrote last, on
// any replica. Without a leader, or with the store away, it is what the document
// says, with nobody who supervises. ErrNotWatched otherwise.
func (r *Rollouts) Report(ctx context.Context, key string) (ramp.Report, error) {
	s := subjects(r.o.Live.Load())[key]
	if s == nil {
		return ramp.Report{}, fmt.Errorf("%w: %s", ErrNotWatched, key)
	}
	var f file
	out := s.base()
	body, err := r.o.Sticky.LoadCheckpoint(ctx, key)
	if err == nil && json.Unmarshal(body, &f) == nil && len(f.Report) > 0 {
		var written ramp.Report
		if json.Unmarshal(f.Report, &written) == nil && written.Generation == s.generation && written.Epoch == s.epoch {
			out = written
		}
	}
	// The document may be newer than the leader's last look.
	now := s.base()
	out.State, out.Phase, out.Reason, out.Approved, out.Weights = now.State, now.Phase, now.Reason, now.Approved, now.Weights
	if err != nil && !errors.Is(err, sticky.ErrNone) {
		out.Warnings = append(out.Warnings, "the shared store does not answer: "+err.Error())
	}
	ago, led, err := r.o.Sticky.Supervised(ctx)
	out.Supervised, out.Unsupervised = err == nil && led, 0
	if led && ago > 2*beatEvery {
		out.Supervised, out.Unsupervised = false, ramp.Seconds(ago)
	}
	if !out.Supervised {
		out.WhyNot = append([]string{"nobody leads at present, so nothing grows; a local breaker still keeps a broken variant away"}, out.WhyNot...)
	}
	return out, nil
}

// base is what the document alone says.
func (s *subject) base() ramp.Report {
	out := ramp.Report{Experiment: s.key, Generation: s.generation, State: s.state, Step: -1, Steps: []ramp.Step{}, Epoch: s.epoch,
		Weights: map[string]int{}, Baseline: s.variants[s.baseline], Arms: []ramp.Arm{}, Treatments: []ramp.Treatment{}}
	for v, name := range s.variants {
		out.Weights[name] = s.weights[v]
		out.Arms = append(out.Arms, ramp.Arm{Name: name, Baseline: v == s.baseline, Weight: s.weights[v], Killed: s.killed[v]})
	}
	if p := s.ramp; p != nil {
		out.Phase, out.Reason, out.Variant, out.Step, out.Since, out.Approved = p.Phase, p.Reason, p.Variant, p.Step, p.Since, p.Approved
		out.Steps = append(out.Steps, p.Steps...)
		if next := p.Step + 1; next < len(p.Steps) && p.Steps[next].Approve && p.Approved < next {
			step := p.Steps[next]
			out.Approval = &step
		}
	}
	return out
}

// report is what people see, made by the leader.
func (r *Rollouts) report(s *subject, f *file, v decided) json.RawMessage {
	in, out := *v.inputs.Input, s.base()
	in.Treatments = slices.Clone(in.Treatments) // what is estimated is no input of the decision
	f.judge.Estimate(&in, f.Evidence)
	out.At = time.UnixMilli(f.Clock).UTC()
	out.Decision, out.WhyNot = v.inputs.Decision, ramp.WhyNot(&in)
	out.DataAge, out.Treatments, out.SRM = in.DataAge, in.Treatments, in.SRM
	out.Ready, out.Preflight, out.HeadRoom = in.Ready, in.Preflight, in.HeadRoom
	out.Leader, out.Fence, out.Supervised = v.inputs.Replica, v.inputs.Fence, true
	out.Position, out.Ticks, out.Suspended, out.Replicas = f.Position, f.Evidence.Ticks, f.Evidence.Suspended, v.inputs.Replicas
	out.Heavy, out.Warnings = f.heavy(s), s.policy.Warnings()
	f.arms(s, &out)
	f.forecast(s, &out)
	raw, err := json.Marshal(out)
	if err != nil {
		r.log.Error("the report is not JSON", "experiment", s.key, "err", err)
		return nil
	}
	return raw
}

// arms adds the traffic of each variant and what is in no trial.
func (f *file) arms(s *subject, out *ramp.Report) {
	ids := f.standings()
	for v := range s.variants {
		a, e := &out.Arms[v], &f.Evidence.Arms[v]
		a.Units, a.Started, a.Rate = e.Units.Count(), e.Started, f.Evidence.Rate(v)
		if e.Load.ReadyMs > 0 {
			a.PerReady = float64(e.Load.Started) / (float64(e.Load.ReadyMs) / 1000)
		}
		unready := 0
		for _, id := range ids {
			st := f.Latest[id].Arms[v]
			a.Ready = max(a.Ready, st.Ready)
			a.Capacity += st.Capacity
			if st.NotReady {
				unready++
			}
			if st.Tripped {
				a.Tripped++
			}
		}
		a.NotReady = len(ids) > 0 && unready == len(ids)
		for _, why := range slices.Sorted(maps.Keys(e.Outside)) {
			out.Outside = append(out.Outside, ramp.Outside{Variant: s.variants[v], Why: why, Count: e.Outside[why]})
		}
	}
}

// info is what the gauges show of it.
func (f *file) info(s *subject) metrics.RolloutInfo {
	out := metrics.RolloutInfo{Experiment: s.key, Step: -1}
	if f.Clock > 0 {
		out.DataAt = time.UnixMilli(f.Clock)
	}
	if p := s.ramp; p != nil {
		out.Phase, out.Step, out.Steps, out.Target, out.Since, out.Hold = string(p.Phase), p.Step, len(p.Steps), p.Weight(), p.Since, f.Hold
	}
	in := f.decided.inputs.Input
	if in == nil {
		return out
	}
	for i := range in.Treatments {
		for j := range in.Treatments[i].Verdicts {
			v := &in.Treatments[i].Verdicts[j]
			g := metrics.GuardrailInfo{Variant: in.Treatments[i].Name, Name: v.Name, State: "pending",
				Trials:   metrics.Trials{N: v.Canary.N, Bad: v.Canary.K},
				Baseline: metrics.Trials{N: v.Baseline.N, Bad: v.Baseline.K}}
			switch v.Decision {
			case guardrail.Pass:
				g.State = "passing"
			case guardrail.Fail:
				g.State = "breached"
			}
			g.Value, g.Threshold = v.Reading()
			out.Guardrails = append(out.Guardrails, g)
		}
	}
	return out
}
