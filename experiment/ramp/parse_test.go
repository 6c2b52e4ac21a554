package ramp_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/experiment/guardrail"
	"sluice/experiment/ramp"
)

func TestParse(t *testing.T) {
	t.Parallel()
	c, err := ramp.Parse([]byte(`{"variant":"v2","steps":[100,{"weight":2000,"approve":true},5000,10000],"holdback_percent":2,"max_weight":3000,"min_duration":"5m",
		"ready":{"probes":0},"trial":{"min_bad_units":2},"slo":{"error":"0.1%"},"restarts":5,"pace":"proportional","rollback":"paced","cooldown":0}`))
	if err != nil {
		t.Fatal(err)
	}
	want := ramp.Default()
	want.Variant, want.Steps = "v2", []ramp.Step{{Weight: 100}, {Weight: 2000, Approve: true}, {Weight: 5000}, {Weight: 10000}}
	want.Holdback, want.MaxWeight, want.MinDuration, want.Cooldown = 200, 3000, 5*time.Minute, 0
	want.Ready.Probes, want.Trial.MinBadUnits, want.SLO, want.Restarts = 0, 2, map[string]float64{"error": 0.001}, 5
	want.Pace, want.Rollback = ramp.PaceProportional, ramp.RollbackPaced
	if diff := cmp.Diff(want, c); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]ramp.Step{{Weight: 100}, {Weight: 2000, Approve: true}, {Weight: 3000}}, c.Ladder()); diff != "" {
		t.Error(diff)
	}
	d, err := ramp.Parse([]byte(`{}`))
	if err != nil || cmp.Diff(ramp.Default(), d) != "" {
		t.Errorf("%v %+v", err, d)
	}
	if last := d.Ladder()[4]; last.Weight != 9900 {
		t.Errorf("the last step leaves no holdback: %+v", last)
	}
}

func TestParseSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ raw, path, text string }{
		{`[]`, "", "want an object"}, {`{}{`, "", "follows"}, {`{`, "", "not valid JSON"}, {`null`, "", "want an object"}, {``, "", "want an object"},
		{`{"stps":[]}`, "/stps", "there is no such member; there are alpha_false_rollback"},
		{`{"ready":{"probe":1}}`, "/ready/probe", "interval, max_ttft, not_ready_limit, probes"},
		{`{"steps":[]}`, "/steps", "give 1 to 100"}, {`{"steps":"fast"}`, "/steps", `write "auto"`}, {`{"steps":7}`, "/steps", `want "auto"`},
		{`{"steps":[500,500]}`, "/steps/1", "does not rise above"}, {`{"steps":[0,500]}`, "/steps/0", "from 1 to 10000, not 0"},
		{`{"steps":[100.5]}`, "/steps/0", "whole number"}, {`{"steps":[10001]}`, "/steps/0", "from 1 to 10000"}, {`{"steps":["1%"]}`, "/steps/0", "whole number"},
		{`{"steps":[1,5,20,50,100]}`, "/steps", "basis points"}, {`{"steps":[{"approve":true}]}`, "/steps/0", "needs weight"},
		{`{"steps":[{"weight":100,"aprove":true}]}`, "/steps/0/aprove", "approve, weight"}, {`{"steps":[{"weight":100,"approve":1}]}`, "/steps/0/approve", "true or false"},
		{`{"steps":[100,9950,10000]}`, "/holdback", "leaves nothing"},
		{`{"min_duration":600}`, "/min_duration", `like "10m"`}, {`{"min_duration":"10"}`, "/min_duration", `like "10m"`}, {`{"min_duration":"-1s"}`, "/min_duration", "from 0s"},
		{`{"min_duration":"3h"}`, "/max_duration", "not longer than min_duration"}, {`{"no_data_after":"0s"}`, "/no_data_after", "from 1s"},
		{`{"no_data_after":0}`, "/no_data_after", "unit"}, {`{"min_units":0}`, "/min_units", "from 1"}, {`{"min_units":"50"}`, "/min_units", "whole number"},
		{`{"alpha_pass":0}`, "/alpha_pass", "probability"}, {`{"alpha_false_rollback":1}`, "/alpha_false_rollback", "probability"},
		{`{"slo":{"error":2}}`, "/slo/error", "from 0 to 1"}, {`{"slo":{"error":"200%"}}`, "/slo/error", "below 100 %"}, {`{"slo":{"cost_per_request":0.1}}`, "/slo/cost_per_request", "is not a rate"},
		{`{"slo":[]}`, "/slo", "want an object"}, {`{"pace":"fast"}`, "/pace", "all or proportional"}, {`{"rollback":1}`, "/rollback", "immediate or paced"},
		{`{"on_unsupervised":"baseline"}`, "/on_unsupervised", "needs stale_after"}, {`{"guardrails":[]}`, "/guardrails", "beside ramp"},
		{`{"trial":{"cap_per_unit":5}}`, "/trial/cap_per_unit", "2/j"}, {`{"trial":{"min_bad_units":9}}`, "/trial/min_bad_units", "min_bad_trials is 5"},
		{`{"bake":"1h","bake":"2h"}`, "/bake", "twice"}, {`{"bake":null}`, "/bake", "leave it out"}, {`{"variant":""}`, "/variant", "empty"},
		{`{"max_weight":0}`, "/max_weight", "from 1"}, {`{"holdback":9000}`, "/holdback", "from 0 to 5000"}, {`{"restarts":true}`, "/restarts", "whole number"},
		{`{"shadow":{"percent":101}}`, "/shadow/percent", "from 0 to 100"},
	} {
		_, err := ramp.Parse([]byte(c.raw))
		var all ramp.Error
		if !errors.As(err, &all) || len(all) == 0 {
			t.Errorf("%s: %v", c.raw, err)
			continue
		}
		if all[0].Path != c.path || !strings.Contains(all[0].Text, c.text) {
			t.Errorf("%s: %s: %s; want %s: …%s…", c.raw, all[0].Path, all[0].Text, c.path, c.text)
		}
	}
	if _, err := ramp.Parse([]byte(`{"pace":"x","bake":1,"min_units":0}`)); strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("not everything at once: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{`{}`, `{"steps":"auto"}`, `{"steps":[100,{"weight":2000,"approve":true},10000],"slo":{"error":"0.1%"},"restarts":false}`,
		`{"max_weight":300,"holdback":0,"shadow":{},"ready":{"interval":"1s"},"trial":{"cap_window":"1m"}}`, `{"min_duration":"1h0m0.5s"}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := ramp.Parse(raw)
		if err != nil {
			if err.Error() == "" {
				t.Fatalf("%q: an error without words", raw)
			}
			return
		}
		written, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		again, err := ramp.Parse(written)
		if err != nil {
			t.Fatalf("%q was written as %s: %v", raw, written, err)
		}
		if diff := cmp.Diff(c, again); diff != "" {
			t.Fatalf("%q: %s", raw, diff)
		}
		ladder := c.Ladder()
		for i, s := range ladder {
			if s.Weight > c.MaxWeight || s.Weight < 1 || i > 0 && s.Weight <= ladder[i-1].Weight {
				t.Fatalf("%q: ladder %v", raw, ladder)
			}
		}
	})
}

func TestGuardrailsOfARamp(t *testing.T) {
	t.Parallel()
	c, _ := ramp.Parse([]byte(`{"slo":{"error":0.001}}`))
	list, err := c.Guardrails(nil, false)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, g := range list {
		names = append(names, g.Name)
	}
	if diff := cmp.Diff([]string{guardrail.Error, guardrail.Rejected, guardrail.SlowTTFA, guardrail.Restarts}, names); diff != "" {
		t.Error(diff)
	}
	if list[0].OKRate != 0.001 || list[0].MinEffectRate != 0.001 || list[3].Require != guardrail.RequireNoFail {
		t.Errorf("%+v", list)
	}
	if _, err := c.Guardrails([]byte(`[{"metric":"empty"}]`), false); err == nil || !strings.Contains(err.Error(), "add {metric: error}") {
		t.Errorf("an slo without a guardrail: %v", err)
	}
	c.Restarts = -1
	if list, _ := c.Guardrails([]byte(`[{"metric":"error"}]`), true); len(list) != 2 || list[0].Action != guardrail.ActionKill {
		t.Errorf("%+v", list)
	}
}
