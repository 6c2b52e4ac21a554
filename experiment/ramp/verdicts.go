package ramp

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"sluice/experiment/guardrail"
	"sluice/experiment/stats"
	"sluice/experiment/trial"
)

// Readings answers a limit's reading for a variant; known is false without one.
type Readings func(variant string, g *guardrail.Config) (value float64, known bool)

// Fill writes into in what the evidence shows at now (Unix ms): treatments,
// units, data age, health of the baseline, sample ratio. What it does not know
// (lease, readiness, head-room, breakers) is the caller's.
func (j *Judge) Fill(in *Input, e *Evidence, now int64, readings Readings) {
	in.Config = j.Config
	in.Treatments, in.BaselineUnhealthy, in.Units = nil, false, 0
	for v, name := range j.Variants {
		if v == j.Baseline {
			continue
		}
		t := Treatment{Name: name, Ramping: v == j.Ramping, Killed: j.killed(v), Weight: j.Weights[v],
			Units: e.Arms[v].Units.Count(), Load: e.comparable(v, j.Baseline)}
		if t.Ramping {
			in.Units = t.Units
		}
		for g := range j.Guardrails {
			verdict := j.verdict(e, v, g, t.Load, readings)
			in.BaselineUnhealthy = in.BaselineUnhealthy || j.blames(&verdict) && !t.Killed
			t.Verdicts = append(t.Verdicts, verdict)
		}
		in.Treatments = append(in.Treatments, t)
	}
	if j.Ramping >= 0 {
		newest := max(e.Arms[j.Ramping].Newest, e.Since)
		in.DataAge = Seconds(time.Duration(max(now-newest, 0)) * time.Millisecond)
	}
	in.SRM = j.SRM(e)
	in.Unmeasured = e.Profile.Lacks(j.Guardrails)
	in.Newcomers = e.newcomers(j.Baseline)
}

// Estimate adds to what Fill filled in how much the open guardrails still want:
// for people, it decides nothing.
func (j *Judge) Estimate(in *Input, e *Evidence) {
	for i := range in.Treatments {
		t := &in.Treatments[i]
		v := slices.Index(j.Variants, t.Name)
		if t.Needs = nil; v < 0 || len(t.Verdicts) != len(j.Guardrails) {
			continue
		}
		for g := range t.Verdicts {
			if n, ok := j.need(e, v, g, &t.Verdicts[g]); ok {
				t.Needs = append(t.Needs, n)
			}
		}
	}
}

// blames reports a baseline whose health stands in the way of everything.
func (j *Judge) blames(v *guardrail.Verdict) bool {
	return v.BaselineUnhealthy && v.Action != guardrail.ActionWarn
}

// comparable is the load of each ready server of v over the baseline's; 0
// unknown.
func (e *Evidence) comparable(v, baseline int) float64 {
	c, b := e.Arms[v].Load, e.Arms[baseline].Load
	if c.ReadyMs <= 0 || b.ReadyMs <= 0 || b.Started <= 0 {
		return 0
	}
	return float64(c.Started) / float64(c.ReadyMs) / (float64(b.Started) / float64(b.ReadyMs))
}

func (j *Judge) verdict(e *Evidence, v, g int, load float64, readings Readings) guardrail.Verdict {
	c, tr := guardrail.Conditions{Load: load}, &e.Tracks[v][g]
	switch {
	case j.rates[g] != nil:
		verdict := alone(j.rates[g], &tr.Step, tr, c)
		if late, ok := j.late(tr, g, c); ok && verdict.Decision != guardrail.Fail {
			return late
		}
		return verdict
	case j.means[g] != nil:
		return j.means[g].Verdict(moments(tr.Canary, e.Arms[v].Units.Count()), moments(tr.Baseline, e.Arms[j.Baseline].Units.Count()), c)
	}
	value, known := 0.0, false
	if readings != nil {
		value, known = readings(j.Variants[v], &j.Guardrails[g])
	}
	return j.Guardrails[g].Read(value, known)
}

// alone is the verdict of a test, where a FAIL must stand without the unit that
// has the most bad trials: a user whose app breaks in the middle of a step is no
// fault of the variant that it is on, however often it calls.
func alone(test *guardrail.Test, s *guardrail.State, tr *Track, c guardrail.Conditions) guardrail.Verdict {
	v := test.Verdict(s, c)
	if v.Decision != guardrail.Fail {
		return v
	}
	without := test.Without(s, tr.worst(s.Canary.K))
	if w := test.Verdict(&without, c); w.Decision != guardrail.Fail {
		v.Decision, v.Code = guardrail.Open, guardrail.OneUnit
	}
	return v
}

// late is the verdict of the newest part of a long epoch, if that is a FAIL.
// Part k spends 1/(4k(k+1)) of the level: all of them together a quarter of what
// the epoch itself has.
func (j *Judge) late(tr *Track, g int, c guardrail.Conditions) (guardrail.Verdict, bool) {
	if tr.Late == nil {
		return guardrail.Verdict{}, false
	}
	gates, k := j.gates, float64(tr.Stage)
	gates.AlphaFail /= 4 * k * (k + 1)
	test, err := guardrail.NewTest(j.Guardrails[g], gates)
	if err != nil {
		return guardrail.Verdict{}, false
	}
	v := alone(test, tr.Late, tr, c)
	return v, v.Decision == guardrail.Fail
}

// moments are those of groups of units as clusters.
func moments(sums []trial.Sum, units int) guardrail.Moments {
	m := guardrail.Moments{Units: int64(units)}
	for _, s := range sums {
		if s.N <= 0 {
			continue
		}
		m.Clusters++
		m.N += s.N
		m.X += s.X
		m.NN += float64(s.N * s.N)
		m.NX += float64(s.N * s.X)
		m.XX += float64(s.X * s.X)
	}
	if m.Clusters == 0 {
		m.Units = 0
	}
	return m
}

// need estimates what an open rate still wants if the variant is as good as
// both arms are on average.
func (j *Judge) need(e *Evidence, v, g int, verdict *guardrail.Verdict) (Need, bool) {
	test := j.rates[g]
	if test == nil || verdict.Satisfied() || verdict.Decision != guardrail.Open || verdict.Code == guardrail.FewUnits {
		return Need{}, false
	}
	c, b := verdict.Canary, verdict.Baseline
	share := float64(j.Weights[v]) / Full
	if c.N+b.N > 0 && c.N > 0 {
		share = float64(c.N) / float64(c.N+b.N)
	}
	total := test.TrialsToPass(float64(c.K+b.K)/float64(max(c.N+b.N, 1)), min(max(share, 1e-4), 1))
	n := Need{Guardrail: verdict.Name}
	if math.IsInf(total, 0) || math.IsNaN(total) || total > 1e12 {
		n.Trials = -1
		return n, true
	}
	// The process has come this far; what is behind the start has to be made up.
	done := max(verdict.LogE.PassRel, verdict.LogE.PassAbs) / verdict.LogE.PassAt
	n.Trials = int64(math.Ceil(total * (1 - min(done, 0.99))))
	if elapsed := e.Newest - e.Since; c.N > 0 && elapsed > 0 {
		n.Time = Seconds(min(float64(n.Trials)*float64(elapsed)/float64(c.N)*float64(time.Millisecond), float64(maxDays)))
	}
	return n, true
}

// SRM is the standing of the sample ratio with its numbers.
func (j *Judge) SRM(e *Evidence) SRM {
	s := SRM{LogE: e.Ratio.LogE, Alarm: e.Ratio.LogE >= math.Log(stats.SRMAlarm)}
	if !s.Alarm {
		return s
	}
	epoch, _ := j.epoch(e)
	total, all, i := int64(0), 0.0, 0
	for k := range epoch.Counts {
		total, all = total+epoch.Counts[k], all+epoch.Weights[k]
	}
	var parts []string
	for v, name := range j.Variants {
		if j.Weights[v] <= 0 || j.killed(v) {
			continue
		}
		parts = append(parts, fmt.Sprintf("%s has %s of %s new users, %s by its weight",
			name, group(epoch.Counts[i]), group(total), group(int64(math.Round(float64(total)*epoch.Weights[i]/all)))))
		i++
	}
	s.Text = strings.Join(parts, "; ") + fmt.Sprintf(" (e-value %s, alarm at %s)", evalue(s.LogE), group(stats.SRMAlarm))
	return s
}

// newcomers is the share of v's requests of the last minute that were of units
// not seen before in the epoch; 1 with too few to tell, or where the replicas
// name no more.
func (e *Evidence) newcomers(v int) float64 {
	if e.Ratio.Full {
		return 1
	}
	var n, fresh int64
	newest := e.Newest / 10_000
	for _, s := range e.Arms[v].Recent {
		if s.Index > newest-int64(len(e.Arms[v].Recent)) && s.Index <= newest {
			n, fresh = n+s.N, fresh+s.New
		}
	}
	if n < fewRequests {
		return 1
	}
	return float64(fresh) / float64(n)
}

// fewRequests of a minute say nothing about who comes.
const fewRequests = 100

// Rate is how many requests a second began on v in the last minute.
func (e *Evidence) Rate(v int) float64 {
	n := int64(0)
	newest := e.Newest / 10_000
	for _, s := range e.Arms[v].Recent {
		if s.Index > newest-int64(len(e.Arms[v].Recent)) && s.Index <= newest {
			n += s.N
		}
	}
	span := min(e.Newest-e.Since, int64(len(e.Arms[v].Recent)-1)*10_000+e.Newest%10_000)
	if span <= 0 {
		return 0
	}
	return float64(n) * 1000 / float64(span)
}
