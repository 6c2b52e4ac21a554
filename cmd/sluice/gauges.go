package main

import (
	"time"

	"sluice/experiment/ramp"
	"sluice/metrics"
	"sluice/router"
)

// swapped tells the gauges about the table that serves now.
func (a *app) swapped(revision int64) {
	a.rec.SetConfig(revision, true, time.Now())
	a.data.CutStreams()
	a.rollouts.Swapped()
	t := a.live.Load()
	var infos []metrics.ExperimentInfo
	for _, e := range t.Snapshot.Document.Experiments {
		in := metrics.ExperimentInfo{Key: e.Key, Model: e.Model, State: e.State, Revision: e.UpdatedRevision, Baseline: e.Baseline, Trigger: trigger(&e)}
		if !e.Ramping() { // in a bake the weights hold still
			in.Winner = e.Winner
		}
		for _, v := range e.Variants {
			in.Variants = append(in.Variants, metrics.VariantInfo{Name: v.Name, Weight: v.Weight})
		}
		infos = append(infos, in)
	}
	a.rec.SetExperiments(infos)
}

// trigger is what rolled an experiment back, as the metrics call it.
func trigger(e *router.Experiment) string {
	code := ""
	switch {
	case e.LastRollback != nil && e.LastRollback.Reason != "":
		code = e.LastRollback.Reason
	case e.RampState != nil:
		code = e.RampState.Reason
	}
	switch code {
	case ramp.CodeGuardrail:
		return "guardrail"
	case ramp.CodeHardFail:
		return "breaker"
	case ramp.CodeLimit:
		return "limit"
	}
	return "manual"
}

func (a *app) upstreamStates() []metrics.UpstreamState {
	t := a.live.Load()
	if t == nil {
		return nil
	}
	var list []metrics.UpstreamState
	for _, u := range t.Upstreams() {
		q := u.QueueStatus()
		s := metrics.UpstreamState{Name: u.Name(), InFlight: q.InFlight, Queued: q.Queued}
		for _, e := range u.Status() {
			st := metrics.EndpointState{
				Endpoint: e.URL, Ready: e.Ready, InFlight: e.InFlight, Breaker: e.Breaker, Drained: e.Drained,
				Cooling: !e.CoolUntil.IsZero(), Weight: e.Weight, Waiting: -1, KVUse: -1,
			}
			if l := e.Load; l != nil {
				st.Running, st.Waiting, st.KVUse = l.Running, l.Waiting, l.KVUse
			}
			s.Endpoints = append(s.Endpoints, st)
		}
		list = append(list, s)
	}
	return list
}
