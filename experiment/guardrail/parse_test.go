package guardrail_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/experiment/guardrail"
)

func TestParse(t *testing.T) {
	// The file of the contract.
	got, err := guardrail.Parse(json.RawMessage(`[
		{"metric": "error", "tolerate_ratio": 1.5, "pass_ratio": 2.0, "max_rate": 0.10, "ok_rate": 0.02, "action": "rollback"},
		{"metric": "slow_ttft", "threshold": "2s", "tolerate_ratio": 1.5, "pass_ratio": 2.0, "max_rate": 0.30, "action": "rollback"},
		{"metric": "slow_ttfa", "action": "warn", "require": "no_fail"},
		{"metric": "cost_per_request", "max_lift": 0.2, "action": "pause"},
		{"metric": "thumbs_down"},
		{"metric": "satisfaction", "max_lift": 0.1},
		{"source": "engine", "metric": "waiting", "max": 50},
		{"source": "prometheus", "name": "gpu", "metric": "gpu_temperature", "url": "http://prom:9090", "query": "max(t)", "max": 90, "on_breach": "rollback"},
		{"metric": "restarts"}
	]`), false)
	if err != nil {
		t.Fatal(err)
	}
	most := func(x float64) *float64 { return &x }
	rate := func(metric string, max, ok float64, require guardrail.Require) guardrail.Config {
		return guardrail.Config{
			Name: metric, Metric: metric, Kind: guardrail.Rate, Action: guardrail.ActionRollback, Require: require,
			TolerateRatio: 1.5, PassRatio: 2, MaxRate: max, OKRate: ok, MinEffectRate: 0.01,
		}
	}
	slow, first := rate("slow_ttft", 0.30, 0.05, guardrail.RequirePass), rate("slow_ttfa", 0.30, 0.05, guardrail.RequireNoFail)
	slow.Threshold = guardrail.Threshold{Fixed: 2 * time.Second}
	first.Threshold, first.Action = guardrail.Threshold{Quantile: 0.95, Factor: 1.25}, guardrail.ActionWarn
	want := []guardrail.Config{
		rate("error", 0.10, 0.02, guardrail.RequirePass), slow, first,
		{Name: "cost_per_request", Metric: "cost_per_request", Kind: guardrail.Mean, Action: guardrail.ActionPause, Require: guardrail.RequireNoFail, MaxLift: 0.2},
		rate("thumbs_down", 0, 0.01, guardrail.RequireNoFail),
		{Name: "satisfaction", Metric: "satisfaction", Kind: guardrail.Mean, Action: guardrail.ActionRollback, Require: guardrail.RequireNoFail, MaxLift: 0.1},
		{Name: "waiting", Metric: "waiting", Kind: guardrail.Limit, Action: guardrail.ActionHold, Require: guardrail.RequirePass, Source: "engine", Max: most(50)},
		{Name: "gpu", Metric: "gpu_temperature", Kind: guardrail.Limit, Action: guardrail.ActionRollback, Require: guardrail.RequirePass,
			Source: "prometheus", URL: "http://prom:9090", Query: "max(t)", Max: most(90)},
		{Name: "restarts", Metric: "restarts", Kind: guardrail.Limit, Action: guardrail.ActionRollback, Require: guardrail.RequirePass, Source: "engine", Max: most(3)},
		rate("rejected", 0, 0.01, guardrail.RequirePass), // by itself
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, c := range got {
		raw, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		var back guardrail.Config
		if err := json.Unmarshal(raw, &back); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c, back); diff != "" {
			t.Errorf("%s after a round trip:\n%s", c.Name, diff)
		}
	}
}

func TestParseNothing(t *testing.T) {
	for _, raw := range []string{"", "  ", "null", "[]"} {
		got, err := guardrail.Parse(json.RawMessage(raw), false)
		if err != nil || len(got) != 0 {
			t.Errorf("%q: %v, %v", raw, got, err)
		}
	}
	for _, kill := range []bool{false, true} {
		var names []string
		for _, c := range guardrail.Defaults(kill) {
			names = append(names, c.Name)
			if _, err := guardrail.NewTest(c, guardrail.DefaultGates(0.01, 0.05, 5, 3)); err != nil {
				t.Error(err)
			}
			if (c.Action == guardrail.ActionKill) != kill {
				t.Errorf("kill %t: action %s", kill, c.Action)
			}
		}
		if diff := cmp.Diff([]string{"error", "rejected", "slow_ttfa"}, names); diff != "" {
			t.Error(diff)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	tests := []struct{ raw, want string }{
		{`{}`, "guardrails:"},
		{`[null]`, `metric ""`},
		{`[{"metric": "error", "tolerate": 1.5}]`, "tolerate"},
		{`[{"metric": "Error Rate"}]`, "the built-in ones are error, rejected"},
		{`[{"metric": "error", "tolerate_ratio": 0.9}]`, "tolerate_ratio 0.9"},
		{`[{"metric": "error", "pass_ratio": 1}]`, "pass_ratio 1"},
		{`[{"metric": "error", "max_rate": 1}]`, "max_rate 1"},
		{`[{"metric": "error", "ok_rate": -0.1}]`, "ok_rate -0.1"},
		{`[{"metric": "error", "ok_rate": 0.2, "max_rate": 0.1}]`, "above max_rate"},
		{`[{"metric": "error", "min_effect_rate": 2}]`, "min_effect_rate 2"},
		{`[{"metric": "error", "action": "hold"}]`, "none of rollback, pause, warn, kill"},
		{`[{"metric": "error", "require": "maybe"}]`, "neither pass nor no_fail"},
		{`[{"metric": "error"}, {"metric": "error"}]`, "two guardrails are named error"},
		{`[{"metric": "slow_ttfa", "threshold": "fast"}]`, "threshold is neither"},
		{`[{"metric": "slow_ttfa", "threshold": "-2s"}]`, "threshold is neither"},
		{`[{"metric": "slow_ttfa", "threshold": 2}]`, "threshold is neither"},
		{`[{"metric": "slow_ttfa", "threshold": "baseline_p100"}]`, "threshold is neither"},
		{`[{"metric": "slow_ttfa", "threshold": "baseline_p95*NaN"}]`, "threshold is neither"},
		{`[{"metric": "cost_per_request", "max_lift": 0}]`, "max_lift 0"},
		{`[{"metric": "waiting"}]`, "a limit needs max"},
		{`[{"source": "nagios", "metric": "x", "max": 1}]`, "neither engine nor prometheus"},
		{`[{"source": "prometheus", "metric": "x", "max": 1}]`, "needs url and query"},
		{`[{"source": "engine", "metric": "waiting", "max": 1, "on_breach": "kill"}]`, "none of hold, pause, rollback, warn"},
		{`[` + strings.Repeat(`{"metric":"error"},`, 60) + `{"metric":"error"}]`, "61 guardrails"},
	}
	for _, tt := range tests {
		_, err := guardrail.Parse(json.RawMessage(tt.raw), false)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.raw, err, tt.want)
		}
	}
}

func TestThresholdForms(t *testing.T) {
	for in, want := range map[string]string{
		`"2s"`: `"2s"`, `"1500ms"`: `"1.5s"`, `"baseline_p95"`: `"baseline_p95*1"`, `"baseline_p95*1.25"`: `"baseline_p95*1.25"`,
		`"baseline_p99.5 * 2"`: `"baseline_p99.5*2"`, `""`: `""`,
	} {
		var th guardrail.Threshold
		if err := json.Unmarshal([]byte(in), &th); err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		if got, err := json.Marshal(th); err != nil || string(got) != want {
			t.Errorf("%s: %s, %v, want %s", in, got, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(`[{"metric": "slow_ttfa", "threshold": "baseline_p95*1.25"}]`)
	f.Add(`[{"source": "prometheus", "metric": "x", "url": "u", "query": "q", "max": 1e308}]`)
	f.Fuzz(func(t *testing.T, raw string) {
		configs, err := guardrail.Parse(json.RawMessage(raw), true)
		if err != nil {
			return
		}
		for _, c := range configs {
			if _, err := json.Marshal(c); err != nil {
				t.Errorf("%+v: %v", c, err)
			}
			g := guardrail.DefaultGates(0.01, 0.05, 5, len(configs))
			switch c.Kind {
			case guardrail.Rate:
				_, err = guardrail.NewTest(c, g)
			case guardrail.Mean:
				_, err = guardrail.NewMeanTest(c, g)
			}
			if err != nil {
				t.Errorf("Parse accepts what cannot be compiled: %v", err)
			}
		}
	})
}
