package ramp_test

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/experiment/guardrail"
	"sluice/experiment/ramp"
)

type vectorInput struct {
	State             string
	Leader            bool
	Step, Steps       int
	Elapsed           float64
	MinDuration       float64 `json:"min_duration"`
	MaxDuration       float64 `json:"max_duration"`
	DataAge           float64 `json:"data_age"`
	NoDataAfter       float64 `json:"no_data_after"`
	Units             int
	MinUnits          int `json:"min_units"`
	Ready             bool
	NotReadyFor       float64 `json:"not_ready_for"`
	NotReadyLimit     float64 `json:"not_ready_limit"`
	Guardrails        []string
	BaselineUnhealthy bool `json:"baseline_unhealthy"`
	HardFail          bool `json:"hard_fail"`
	SRM               bool
}

func seconds(f float64) time.Duration { return time.Duration(f * float64(time.Second)) }

// verdict makes one of a word of the vectors.
func verdict(word string, i int, action guardrail.Action) guardrail.Verdict {
	v := guardrail.Verdict{Name: fmt.Sprintf("g%d", i), Metric: guardrail.Error, Kind: guardrail.Rate, Action: action, Require: guardrail.RequirePass}
	switch word {
	case "FAIL_REL":
		v.Decision, v.Code = guardrail.Fail, guardrail.Relative
	case "FAIL_ABS":
		v.Decision, v.Code = guardrail.Fail, guardrail.Absolute
	case "PASS":
		v.Decision, v.Code = guardrail.Pass, guardrail.Relative
	default:
		v.Decision, v.Code = guardrail.Open, guardrail.Inconclusive
	}
	return v
}

func (v *vectorInput) input() *ramp.Input {
	c := ramp.Default()
	c.MinDuration, c.MaxDuration, c.NoDataAfter = seconds(v.MinDuration), seconds(v.MaxDuration), seconds(v.NoDataAfter)
	c.MinUnits, c.Ready.NotReadyLimit = v.MinUnits, seconds(v.NotReadyLimit)
	in := &ramp.Input{
		State: v.State, Leader: v.Leader, Config: &c, Step: v.Step, Elapsed: ramp.Seconds(seconds(v.Elapsed)),
		DataAge: ramp.Seconds(seconds(v.DataAge)), Units: v.Units, Ready: ramp.Check{OK: v.Ready}, NotReadyFor: ramp.Seconds(seconds(v.NotReadyFor)),
		Preflight: ramp.Check{OK: true}, HeadRoom: ramp.Check{OK: true}, BaselineUnhealthy: v.BaselineUnhealthy, SRM: ramp.SRM{Alarm: v.SRM},
	}
	for i := range v.Steps {
		in.Steps = append(in.Steps, ramp.Step{Weight: 1000 * (i + 1)})
	}
	action := guardrail.ActionRollback
	switch v.State {
	case "ramping":
		in.State, in.Phase = "running", ramp.Ramping
	case "running":
		action = guardrail.ActionKill
	case "promoted":
		in.Phase = ramp.Baking
	case "paused":
		in.Phase = ramp.Ramping
	}
	t := ramp.Treatment{Name: "v2", Ramping: true}
	for i, g := range v.Guardrails {
		t.Verdicts = append(t.Verdicts, verdict(g, i, action))
	}
	in.Treatments = []ramp.Treatment{t}
	if v.HardFail {
		in.HardFail = []ramp.Trip{{Variant: "v2", Guardrail: "error", Action: action, Text: "11 requests in a row failed"}}
	}
	return in
}

// word is a decision in the words of the vectors.
func word(d ramp.Decision) string {
	switch d.Action {
	case ramp.Hold, ramp.Pause:
		return string(d.Action) + ":" + d.Code
	}
	return string(d.Action)
}

func TestVectors(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("testdata/controller.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Transitions map[string][]string
		Decide      []struct {
			Name  string
			Input vectorInput
			Want  string
		}
	}
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Decide) != 29 {
		t.Fatalf("%d cases, want 29", len(file.Decide))
	}
	for _, c := range file.Decide {
		t.Run(c.Name, func(t *testing.T) {
			d := ramp.Decide(c.Input.input())
			if got := word(d); got != c.Want {
				t.Errorf("got %s (%s), want %s", got, d.Text, c.Want)
			}
			if strings.TrimSpace(d.Text) == "" || d.Code == "" {
				t.Errorf("a decision without words: %+v", d)
			}
		})
	}
	for from, list := range file.Transitions {
		for to := range file.Transitions {
			if got, want := ramp.Allowed(from, to), slices.Contains(list, to); got != want {
				t.Errorf("Allowed(%s, %s) = %v, want %v", from, to, got, want)
			}
		}
	}
}

func TestPolicyRoundTrip(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{`{}`, `{"steps":"auto","restarts":false,"shadow":{}}`,
		`{"steps":[100,{"weight":2000,"approve":true},10000],"slo":{"error":"0.1%"},"max_weight":3000,"stale_after":"30s","on_unsupervised":"baseline"}`} {
		c, err := ramp.Parse([]byte(raw))
		if err != nil {
			t.Fatalf("%s: %v", raw, err)
		}
		again, _ := json.Marshal(c)
		d, err := ramp.Parse(again)
		if err != nil {
			t.Fatalf("%s: %v", again, err)
		}
		if diff := cmp.Diff(c, d); diff != "" {
			t.Errorf("%s: %s", raw, diff)
		}
	}
}

// A step whose thresholds are not known would have no trial of slowness, and
// never pass.
func TestStartWaitsForTheBaseline(t *testing.T) {
	c := ramp.Default()
	in := ramp.Input{State: "running", Phase: ramp.ReadyWait, Leader: true, Config: &c, Step: -1, Steps: []ramp.Step{{Weight: 500}},
		Ready: ramp.Check{OK: true}, Preflight: ramp.Check{OK: true}, HeadRoom: ramp.Check{OK: true},
		Treatments: []ramp.Treatment{{Name: "v2", Ramping: true}}, Unmeasured: 43}
	if d := ramp.Decide(&in); d.Action != ramp.Hold || d.Code != ramp.CodeUnmeasured || !strings.Contains(d.Text, "43 more answers") {
		t.Errorf("%+v", d)
	}
	in.Unmeasured = 0
	if d := ramp.Decide(&in); d.Action != ramp.Advance {
		t.Errorf("%+v", d)
	}
}
