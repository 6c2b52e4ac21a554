package rollout

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"sluice/experiment/guardrail"
	"sluice/experiment/ramp"
	"sluice/experiment/trial"
	"sluice/router"
)

// externals are what a decision rests on that is not in the stream: they are
// written down with it, so that a replay can be told.
type externals struct {
	Preflight ramp.Check         `json:"preflight"`
	Probes    ramp.Check         `json:"probes"`
	Readings  map[string]float64 `json:"readings,omitempty"`  // by "variant/guardrail"; those that are known
	Alone     bool               `json:"alone,omitempty"`     // no other replica lives
	NotReady  int64              `json:"not_ready,omitempty"` // since when the decisions before found the variant not ready, Unix ms of the stream
}

// inputs are the details of a decision in the audit log.
type inputs struct {
	Replica   string        `json:"replica"`
	Fence     int64         `json:"fence,omitempty"`
	Position  string        `json:"position,omitempty"` // in the stream, up to where it was folded
	Clock     int64         `json:"clock,omitempty"`    // the stream's, Unix ms
	Replicas  int           `json:"replicas,omitempty"` // that reported lately
	Externals externals     `json:"externals,omitzero"`
	Input     *ramp.Input   `json:"input"`
	Decision  ramp.Decision `json:"decision"`
}

// decided is a decision with what it rests on.
type decided struct {
	inputs   inputs
	headRoom ramp.Return
}

func details(in *inputs) json.RawMessage {
	raw, err := json.Marshal(in)
	if err != nil { // a number that JSON has not: the decision stands, and says so
		raw, _ = json.Marshal(map[string]any{"decision": in.Decision, "error": err.Error()})
	}
	return raw
}

// decide asks what the outside says and decides.
func (r *Rollouts) decide(s *subject, f *file) decided {
	x := externals{Preflight: ramp.Check{OK: true}, Probes: ramp.Check{OK: true}, NotReady: f.NotReady}
	if p := r.o.Probes; p != nil && s.ramp != nil && s.state == router.StateRunning {
		x.Probes = p.Ready(s.key, s.ramp.Variant, s.policy.Ready)
		if s.ramp.Phase == ramp.ReadyWait {
			x.Preflight = p.Check(s.key)
		}
	}
	if r.o.Readings != nil {
		x.Readings = map[string]float64{}
		for v, name := range s.variants {
			for g := range s.guardrails {
				c := &s.guardrails[g]
				if v == s.baseline || c.Kind != guardrail.Limit {
					continue
				}
				if value, known := r.o.Readings.Read(s.key, name, c); known && !math.IsNaN(value) && !math.IsInf(value, 0) {
					x.Readings[name+"/"+c.Name] = value
				}
			}
		}
	}
	r.mu.Lock()
	x.Alone = !r.peers.known.IsZero() && r.peers.count() == 1
	r.mu.Unlock()
	f.decided = f.decide(s, x)
	return f.decided
}

// decide is a pure function of the file and x; it keeps in the file since when
// things are as they are.
func (f *file) decide(s *subject, x externals) decided {
	in := &ramp.Input{State: s.state, Leader: true, Step: -1, Preflight: x.Preflight, Elapsed: ms(f.Clock - f.StepSince)}
	if s.ramp != nil {
		in.Phase, in.Step, in.Steps, in.Approved = s.ramp.Phase, s.ramp.Step, s.ramp.Steps, s.ramp.Approved
	}
	stand := func(c ramp.Check) {
		in.Ready, in.NotReadyFor, f.NotReady = c, 0, 0
		if !c.OK {
			if f.NotReady = x.NotReady; f.NotReady == 0 {
				f.NotReady = f.Clock
			}
			in.NotReadyFor = ms(f.Clock - f.NotReady)
		}
	}
	probes := x.Probes
	if in.Phase != ramp.ReadyWait {
		probes = ramp.Check{OK: true} // asked before a step, not during it
	}
	stand(f.ready(s, probes))
	f.judge.Fill(in, f.Evidence, f.Clock, func(variant string, g *guardrail.Config) (float64, bool) {
		v, ok := x.Readings[variant+"/"+g.Name]
		return v, ok
	})
	room := f.returning(s)
	in.HeadRoom = ramp.HeadRoom(room)
	in.HardFail = f.hardFails(s, in, x.Alone)
	d := ramp.Decide(in)
	if d.Action == ramp.Advance && !x.Probes.OK {
		stand(x.Probes)
		d = ramp.Decide(in)
	}
	code := ""
	if d.Action == ramp.Hold {
		code = d.Code
	}
	if code != f.Hold {
		f.Hold, f.HoldSince = code, f.Clock
	}
	return decided{headRoom: room, inputs: inputs{Position: f.Position, Clock: f.Clock, Replicas: len(f.standings()), Externals: x, Input: in, Decision: d}}
}

func ms(n int64) ramp.Seconds { return ramp.Seconds(time.Duration(max(n, 0)) * time.Millisecond) }

// ready says whether anybody reaches the ramping variant's servers, and whether
// they have answered the probes.
func (f *file) ready(s *subject, probes ramp.Check) ramp.Check {
	if s.ramping < 0 {
		return ramp.Check{OK: true}
	}
	ids := f.standings()
	unready, endpoints := 0, 0
	for _, id := range ids {
		a := f.Latest[id].Arms[s.ramping]
		endpoints = max(endpoints, a.Endpoints)
		if a.NotReady {
			unready++
		}
	}
	if len(ids) > 0 && unready == len(ids) {
		return ramp.Check{Text: fmt.Sprintf("none of its %d endpoints is ready, as %d replicas see it", endpoints, len(ids))}
	}
	return probes
}

// returning is what a rollback would do to the baseline's servers. Each replica
// has its own part of their limit.
func (f *file) returning(s *subject) ramp.Return {
	out := ramp.Return{Baseline: s.variants[s.baseline], Shared: true}
	for v := range s.variants {
		if s.treats(v) && s.upstreams[v] != s.upstreams[s.baseline] {
			out.Shared = false
		}
	}
	counted := map[int]bool{}
	for v := range s.variants { // variants that share an upstream are counted once
		counted[v] = s.treats(v) && s.weights[v] > 0 && s.upstreams[v] != s.upstreams[s.baseline] && slices.Index(s.upstreams, s.upstreams[v]) == v
		if s.treats(v) && s.upstreams[v] != s.upstreams[s.baseline] {
			out.Rate += f.Evidence.Rate(v)
		}
	}
	for _, id := range f.standings() {
		arms := f.Latest[id].Arms
		b := arms[s.baseline]
		out.Ready = max(out.Ready, b.Ready)
		out.Capacity += b.Capacity
		out.InFlight += b.InFlight
		for v := range arms {
			if counted[v] {
				out.Treatments += arms[v].InFlight
			}
		}
	}
	var all trial.Histogram
	for _, p := range []*trial.Profile{&f.Evidence.Profile, &f.Profile} {
		for c := range p.Total {
			all.Merge(&p.Total[c])
		}
	}
	if median, ok := all.Quantile(0.5); ok {
		out.Lasts = ramp.Seconds(median)
	}
	return out
}

func (s *subject) treats(v int) bool { return v != s.baseline && !s.killed[v] }

// hardFails are open breakers that more than one replica's word stands for: a
// second one's, or the merged counts; or there is no second one.
func (f *file) hardFails(s *subject, in *ramp.Input, alone bool) (out []ramp.Trip) {
	g := slices.IndexFunc(s.guardrails, func(c guardrail.Config) bool { return c.Metric == guardrail.Error })
	if g < 0 {
		return nil
	}
	ids := f.standings()
	for v, name := range s.variants {
		if !s.treats(v) {
			continue
		}
		tripped := 0
		for _, id := range ids {
			if f.Latest[id].Arms[v].Tripped {
				tripped++
			}
		}
		why := ""
		switch {
		case tripped >= 2:
			why = fmt.Sprintf("the breakers of %d of %d replicas tripped", tripped, len(ids))
		case tripped == 1 && alone && len(ids) == 1:
			why = "the breaker of the only replica tripped"
		case tripped == 1 && leans(in, name, s.guardrails[g].Name):
			why = fmt.Sprintf("the breaker of one of %d replicas tripped, and the counts of all agree", len(ids))
		default:
			continue
		}
		out = append(out, s.tripOf(name, g, why+": "+name+" failed every request in a row"))
	}
	return out
}

// leans reports merged counts that speak against the variant at the level of a
// PASS, which is far below that of a FAIL.
func leans(in *ramp.Input, variant, name string) bool {
	for i := range in.Treatments {
		for _, v := range in.Treatments[i].Verdicts {
			if in.Treatments[i].Name == variant && v.Name == name {
				return max(v.LogE.FailRel, v.LogE.FailAbs) >= v.LogE.PassAt && v.LogE.PassAt > 0
			}
		}
	}
	return false
}

// heavy are the units that are left out of small steps: over 10 % of the
// traffic, on average over the replicas, and those that were named before.
func (f *file) heavy(s *subject) []ramp.HeavyUnit {
	const share, most = 0.10, 40
	ids := f.standings()
	sum := map[string]*ramp.HeavyUnit{}
	for _, id := range ids {
		for _, h := range f.Latest[id].Heavy {
			u := sum[h.Field]
			if u == nil {
				u = &ramp.HeavyUnit{Pin: h.Field, ID: h.Key}
				sum[h.Field] = u
			}
			u.Share += h.Share / float64(len(ids))
		}
	}
	var out []ramp.HeavyUnit
	named := map[string]bool{}
	if s.ramp != nil {
		for _, pin := range s.ramp.Heavy {
			u := ramp.HeavyUnit{Pin: pin}
			if h := sum[pin]; h != nil {
				u = *h
			}
			named[pin] = true
			out = append(out, u)
		}
	}
	for pin, u := range sum {
		if u.Share > share && !named[pin] {
			out = append(out, *u)
		}
	}
	slices.SortFunc(out, func(a, b ramp.HeavyUnit) int {
		switch {
		case a.Share != b.Share:
			return cmpFloat(b.Share, a.Share)
		case a.Pin < b.Pin:
			return -1
		}
		return 1
	})
	return out[:min(len(out), most)]
}

func cmpFloat(a, b float64) int {
	if a < b {
		return -1
	}
	return 1
}
