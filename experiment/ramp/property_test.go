package ramp_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"sluice/experiment/guardrail"
	"sluice/experiment/ramp"
)

// drawInput makes an input of any kind, sensible or not.
func drawInput(t *rapid.T) *ramp.Input {
	c := ramp.Default()
	c.MaxWeight = rapid.SampledFrom([]int{ramp.Full, 3000}).Draw(t, "max_weight")
	c.StaleAfter = time.Duration(rapid.SampledFrom([]int{0, 30}).Draw(t, "stale")) * time.Second
	steps := []ramp.Step{{Weight: 100}, {Weight: 500, Approve: rapid.Bool().Draw(t, "approve")}, {Weight: 9900}}
	long := func(name string) ramp.Seconds {
		return ramp.Seconds(time.Duration(rapid.SampledFrom([]int{0, 1, 59, 61, 301, 599, 601, 1801, 7201, 90000}).Draw(t, name)) * time.Second)
	}
	in := &ramp.Input{
		State:  rapid.SampledFrom([]string{"draft", "running", "paused", "promoted", "rolled_back", "completed", "archived", ""}).Draw(t, "state"),
		Phase:  rapid.SampledFrom([]ramp.Phase{"", ramp.ReadyWait, ramp.Ramping, ramp.Holding, ramp.Baking, ramp.Done}).Draw(t, "phase"),
		Leader: rapid.Bool().Draw(t, "leader"), Unsupervised: long("unsupervised"), Config: &c,
		Step: rapid.IntRange(-1, 3).Draw(t, "step"), Steps: steps[:rapid.IntRange(0, 3).Draw(t, "steps")], Approved: rapid.IntRange(0, 3).Draw(t, "approved"),
		Elapsed: long("elapsed"), DataAge: long("age"), Units: rapid.SampledFrom([]int{0, 49, 50, 5000}).Draw(t, "units"),
		Ready: ramp.Check{OK: rapid.Bool().Draw(t, "ready")}, NotReadyFor: long("not ready"), Preflight: ramp.Check{OK: rapid.Bool().Draw(t, "preflight")},
		HeadRoom: ramp.Check{OK: rapid.Bool().Draw(t, "room")}, BaselineUnhealthy: rapid.Bool().Draw(t, "unhealthy"),
		SRM: ramp.SRM{Alarm: rapid.Bool().Draw(t, "srm")}, Unmeasured: rapid.SampledFrom([]int{0, 0, 7}).Draw(t, "unmeasured"),
		Newcomers: rapid.SampledFrom([]float64{0, 1}).Draw(t, "newcomers"),
	}
	actions := []guardrail.Action{guardrail.ActionRollback, guardrail.ActionPause, guardrail.ActionWarn, guardrail.ActionKill}
	for i := range rapid.IntRange(0, 2).Draw(t, "treatments") {
		tr := ramp.Treatment{Name: fmt.Sprintf("v%d", i+2), Ramping: i == 0, Killed: rapid.Bool().Draw(t, "killed")}
		for k := range rapid.IntRange(0, 3).Draw(t, "guardrails") {
			v := verdict(rapid.SampledFrom([]string{"PASS", "PASS", "OPEN", "FAIL_REL", "FAIL_ABS"}).Draw(t, "verdict"), k, rapid.SampledFrom(actions).Draw(t, "action"))
			v.Require = rapid.SampledFrom([]guardrail.Require{guardrail.RequirePass, guardrail.RequireNoFail}).Draw(t, "require")
			if rapid.IntRange(0, 3).Draw(t, "limit") == 0 {
				g := guardrail.Config{Name: "waiting", Metric: guardrail.Waiting, Kind: guardrail.Limit, Require: v.Require, Max: new(float64),
					Action: rapid.SampledFrom([]guardrail.Action{guardrail.ActionHold, guardrail.ActionPause, guardrail.ActionRollback, guardrail.ActionWarn}).Draw(t, "on_breach")}
				v = g.Read(rapid.SampledFrom([]float64{-1, 1}).Draw(t, "reading"), rapid.Bool().Draw(t, "known"))
			}
			tr.Verdicts = append(tr.Verdicts, v)
		}
		in.Treatments = append(in.Treatments, tr)
	}
	if rapid.IntRange(0, 4).Draw(t, "trips") == 0 {
		in.HardFail = []ramp.Trip{{Variant: "v2", Guardrail: "error", Action: rapid.SampledFrom(actions).Draw(t, "trip"), Text: "9 in a row failed"}}
	}
	return in
}

// What must hold of every decision, whatever comes together.
func TestDecisionsAreSafe(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t)
		d := ramp.Decide(in)
		why := ramp.WhyNot(in)
		if strings.TrimSpace(d.Text) == "" || d.Code == "" || slices.ContainsFunc(why, func(s string) bool { return strings.TrimSpace(s) == "" }) {
			t.Fatalf("a decision without words: %+v, %q", d, why)
		}
		grows := d.Action == ramp.Advance || d.Action == ramp.Promote || d.Action == ramp.FinishBake
		watched := in.State == "running" && in.Phase != ramp.Done || in.State == "paused" || in.State == "promoted" && in.Phase == ramp.Baking
		fails, rolls := false, false // a comparison that failed
		satisfied := len(in.Treatments) > 0 && len(in.Treatments[0].Verdicts) > 0
		for i, tr := range in.Treatments {
			for _, v := range tr.Verdicts {
				satisfied = satisfied && (i > 0 || v.Satisfied())
				if v.Decision == guardrail.Fail && v.Code == guardrail.Relative && !tr.Killed {
					fails = fails || v.Action != guardrail.ActionWarn
					rolls = rolls || v.Action == guardrail.ActionRollback
				}
			}
		}
		switch {
		case grows && (!in.Leader || in.State == "paused" || !watched):
			t.Fatalf("grows without the lease, while paused, or when it is over: %+v", d)
		case grows && (in.BaselineUnhealthy || in.SRM.Alarm || !in.Ready.OK || fails):
			t.Fatalf("grows though something is wrong: %+v", d)
		case (d.Action == ramp.Promote || d.Action == ramp.FinishBake || d.Action == ramp.Advance && in.Phase != ramp.ReadyWait) && in.DataAge.D() > in.Config.NoDataAfter:
			t.Fatalf("grows on no data: %+v", d)
		case (d.Action == ramp.Promote || d.Action == ramp.Advance && in.Phase != ramp.ReadyWait) && (!satisfied || in.Units < in.Config.MinUnits):
			t.Fatalf("grows without a proof: %+v", d)
		case d.Action == ramp.Advance && (!in.HeadRoom.OK || in.Step+1 < len(in.Steps) && in.Phase != ramp.ReadyWait && in.Steps[in.Step+1].Approve && in.Approved <= in.Step):
			t.Fatalf("a step without room or approval: %+v", d)
		case watched && rolls && d.Action != ramp.Rollback:
			t.Fatalf("a rollback was overridden: %+v", d)
		case !watched && d.Action != ramp.None:
			t.Fatalf("acts when it is over: %+v", d)
		case d.Action == ramp.Pause && in.State != "running":
			t.Fatalf("a pause out of %s: %+v", in.State, d)
		}
		// Reducing needs no lease: the same failures are acted on by everybody.
		other := *in
		other.Leader = !in.Leader
		if o := ramp.Decide(&other); (d.Action == ramp.Rollback || d.Action == ramp.KillVariant) && o != d {
			t.Fatalf("one decides %+v, the other %+v", d, o)
		}
		// Whoever does not advance is told why.
		ramping := in.Leader && in.State == "running" && (in.Phase == ramp.Ramping || in.Phase == ramp.Holding)
		if ramping && !grows && len(why) == 0 {
			t.Fatalf("no reason for %+v", d)
		}
		if ramping && grows && len(why) > 0 {
			t.Fatalf("%+v in spite of %q", d, why)
		}
	})
}

func canary(change func(*ramp.Input)) *ramp.Input {
	c := ramp.Default()
	in := &ramp.Input{State: "running", Phase: ramp.Ramping, Leader: true, Config: &c, Step: 1,
		Steps:   []ramp.Step{{Weight: 100}, {Weight: 500}, {Weight: 2000, Approve: true}, {Weight: 9900}},
		Elapsed: ramp.Seconds(15 * time.Minute), Units: 200, Ready: ramp.Check{OK: true}, Preflight: ramp.Check{OK: true}, HeadRoom: ramp.Check{OK: true}, Approved: 2}
	v := verdict("PASS", 0, guardrail.ActionRollback)
	v.Name = "error"
	v.Canary, v.Baseline = guardrail.Counts{N: 220}, guardrail.Counts{N: 4180, K: 17}
	in.Treatments = []ramp.Treatment{{Name: "v2", Ramping: true, Verdicts: []guardrail.Verdict{v}}}
	change(in)
	return in
}

// The amendments to the vectors, each with what a person reads.
func TestDecisionsInWords(t *testing.T) {
	t.Parallel()
	v := func(in *ramp.Input) *guardrail.Verdict { return &in.Treatments[0].Verdicts[0] }
	for _, c := range []struct {
		name   string
		change func(*ramp.Input)
		want   string
		text   string
	}{
		{"passes", func(*ramp.Input) {}, "advance", "advanced from 5 % to 20 %: 200 users of v2 in 15 min: error 0 % of 220 requests against 0.407 % of 4,180"},
		{"waits for approval", func(in *ramp.Input) { in.Approved = 1 }, "hold:approval", "the step to 20 % waits for a person to approve it"},
		{"no room", func(in *ramp.Input) { in.HeadRoom = ramp.Check{Text: "no room"} }, "hold:head_room", "no room"},
		{"at its cap", func(in *ramp.Input) { in.Steps, in.Config.MaxWeight = in.Steps[:2], 500 }, "hold:max_weight", "max_weight keeps v2 at 5 %"},
		{"fails", func(in *ramp.Input) {
			*v(in) = verdict("FAIL_REL", 0, guardrail.ActionRollback)
			v(in).Name, v(in).Canary, v(in).Baseline = "error", guardrail.Counts{N: 220, K: 40}, guardrail.Counts{N: 4180, K: 17}
			v(in).LogE.FailRel, v(in).LogE.FailAt = 41.93, 8.29
		}, "rollback", "rolled back: error 18.2 % of 220 requests against 0.407 % of 4,180 of the baseline; the proof needs 8.3, it is 41.9"},
		{"a failure that pauses", func(in *ramp.Input) { *v(in) = verdict("FAIL_REL", 0, guardrail.ActionPause) }, "pause:guardrail", "paused: "},
		{"a failure that warns", func(in *ramp.Input) { *v(in) = verdict("FAIL_REL", 0, guardrail.ActionWarn) }, "advance", "advanced"},
		{"a failure that kills", func(in *ramp.Input) { *v(in) = verdict("FAIL_REL", 0, guardrail.ActionKill) }, "kill_variant", "v2 killed: "},
		{"breakers never kill", func(in *ramp.Input) {
			in.HardFail = []ramp.Trip{{Variant: "v2", Guardrail: "error", Action: guardrail.ActionKill, Text: "9 in a row failed"}}
		}, "pause:hard_fail", "paused: 9 in a row failed"},
		{"breakers while the baseline fails", func(in *ramp.Input) {
			in.HardFail, in.BaselineUnhealthy = []ramp.Trip{{Variant: "v2", Action: guardrail.ActionRollback, Text: "9 in a row failed"}}, true
		}, "hold:baseline_unhealthy", "not blamed"},
		{"no reading", func(in *ramp.Input) {
			g := guardrail.New(guardrail.KVUse)
			most := 0.9
			g.Max = &most
			in.Treatments[0].Verdicts = append(in.Treatments[0].Verdicts, g.Read(0, false))
		}, "hold:limit", "there is no reading"},
		{"needs more", func(in *ramp.Input) {
			*v(in) = verdict("OPEN", 0, guardrail.ActionRollback)
			v(in).Name = "error"
			in.Treatments[0].Needs = []ramp.Need{{Guardrail: "error", Trials: 338, Time: ramp.Seconds(6 * time.Minute)}}
		}, "continue", "needs about 340 more requests of v2, about 6 min at today's traffic"},
		{"few users", func(in *ramp.Input) { in.Units = 12 }, "continue", "only 12 users of v2 in this step, min_units is 50"},
		{"nothing is judged", func(in *ramp.Input) { in.Treatments[0].Verdicts = nil }, "continue", "no guardrail has said anything yet"},
		{"preflight", func(in *ramp.Input) { in.Phase, in.Preflight = ramp.ReadyWait, ramp.Check{Text: "v2 rejects tools"} }, "hold:preflight", "v2 rejects tools"},
		{"begins", func(in *ramp.Input) { in.Phase, in.Step = ramp.ReadyWait, -1 }, "advance", "ready: v2 begins with 1 %"},
		{"learns", func(in *ramp.Input) {
			in.Phase, in.Step, in.Newcomers, in.Elapsed = ramp.ReadyWait, -1, 0.4, ramp.Seconds(time.Minute)
		}, "hold:unmeasured", "40 % of the last minute's are of users not seen before"},
		{"has learnt for long", func(in *ramp.Input) { in.Phase, in.Step, in.Newcomers = ramp.ReadyWait, -1, 0.4 }, "advance", "ready"},
		{"bakes", func(in *ramp.Input) { in.State, in.Phase = "promoted", ramp.Baking }, "continue", "baked for 15 min of 30 min"},
		{"is baked", func(in *ramp.Input) {
			in.State, in.Phase, in.Elapsed = "promoted", ramp.Baking, ramp.Seconds(31*time.Minute)
		}, "finish_bake", "everybody gets it"},
		{"bakes without traffic", func(in *ramp.Input) {
			in.State, in.Phase, in.Elapsed, in.DataAge = "promoted", ramp.Baking, ramp.Seconds(31*time.Minute), ramp.Seconds(2*time.Minute)
		}, "hold:no_data", "no request of v2"},
		{"nobody leads", func(in *ramp.Input) {
			in.Leader, in.Unsupervised, in.Config.StaleAfter, in.Config.OnUnsupervised = false, ramp.Seconds(41*time.Second), 30*time.Second, ramp.UnsupervisedBaseline
		}, "none", "nobody has led for 41 s; until somebody does, everybody gets the baseline"},
		{"an arm of two", func(in *ramp.Input) {
			in.Treatments = append(in.Treatments, ramp.Treatment{Name: "v3", Verdicts: []guardrail.Verdict{verdict("FAIL_REL", 0, guardrail.ActionKill)}})
		}, "kill_variant", "v3 killed"},
		{"an arm that is dead already", func(in *ramp.Input) {
			in.Treatments = append(in.Treatments, ramp.Treatment{Name: "v3", Killed: true, Verdicts: []guardrail.Verdict{verdict("FAIL_REL", 0, guardrail.ActionKill)}})
		}, "advance", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := ramp.Decide(canary(c.change))
			if got := word(d); got != c.want || !strings.Contains(d.Text, c.text) {
				t.Errorf("got %s, %q; want %s, %q", got, d.Text, c.want, c.text)
			}
		})
	}
}
