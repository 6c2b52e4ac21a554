package ramp_test

import (
	"strings"
	"testing"
	"time"

	"sluice/experiment/guardrail"
	"sluice/experiment/ramp"
)

func TestExtrapolate(t *testing.T) {
	for _, c := range []struct {
		n       int
		watched time.Duration
		want    []ramp.Seen
	}{
		{0, time.Hour, []ramp.Seen{}},
		{10, 0, []ramp.Seen{}},
		{100, 2 * time.Hour, []ramp.Seen{{In: time.Hour, Units: 100}, {In: 24 * time.Hour, Units: 400}}},
		{100, 15 * time.Minute, []ramp.Seen{{In: 15 * time.Minute, Units: 100}, {In: time.Hour, Units: 200}, {In: 24 * time.Hour, Units: 800}}},
	} {
		got := ramp.Extrapolate(c.n, c.watched)
		if len(got) != len(c.want) {
			t.Fatalf("%d in %s: %v, want %v", c.n, c.watched, got, c.want)
		}
		for i := range got {
			if got[i] != c.want[i] {
				t.Errorf("%d in %s: %v, want %v", c.n, c.watched, got, c.want)
			}
		}
	}
}

func policy(t *testing.T, s string) (*ramp.Config, []guardrail.Config) {
	t.Helper()
	c, err := ramp.Parse([]byte(s))
	if err != nil {
		t.Fatal(err)
	}
	list, err := c.Guardrails(nil, false)
	if err != nil {
		t.Fatal(err)
	}
	return &c, list
}

// What a step takes is said with what takes longest, and what can never be met
// with what would help.
func TestForecast(t *testing.T) {
	many := ramp.Traffic{PerSecond: 50, Seen: ramp.Extrapolate(20_000, time.Hour)}
	for _, c := range []struct {
		name, policy string
		traffic      ramp.Traffic
		ok           bool
		binds, text  string
	}{
		{"plenty", `{"steps":[2000,10000],"min_duration":"30m"}`, many, true, "min_duration", "20 %: about 30 min, 2,000 users, 10 requests a second"},
		{"proof takes longest", `{"steps":[2000,10000],"min_duration":"1m"}`, ramp.Traffic{PerSecond: 5, Seen: many.Seen}, true, "", " takes longest"},
		{"approval", `{"steps":[{"weight":2000,"approve":true},10000],"min_duration":"30m"}`, many, true, "min_duration", "; waits for a person first"},
		{"no traffic", `{"steps":[2000,10000]}`, ramp.Traffic{}, false, "min_units", "20 %: there is no traffic, and without traffic no step is ever taken"},
		{"few users", `{"steps":[100,10000]}`, ramp.Traffic{PerSecond: 5, Seen: ramp.Extrapolate(500, time.Hour)}, false, "min_units", "it can never be met; take 3 % or more, or lower min_units"},
		{"too few in all", `{"steps":[100,10000]}`, ramp.Traffic{PerSecond: 1, Seen: ramp.Extrapolate(5, time.Hour)}, false, "min_units", "20 users were seen in all, and a step needs 50"},
		{"longer than max_duration", `{"steps":[500,10000],"max_duration":"20m"}`, ramp.Traffic{PerSecond: 2, Seen: many.Seen}, false, "", "That is longer than max_duration, 20 min, when it would pause"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, list := policy(t, c.policy)
			f := ramp.Forecast(p, list, p.Ladder(), c.traffic)[0]
			if f.OK != c.ok || c.binds != "" && f.Binds != c.binds || !strings.Contains(f.Text, c.text) {
				t.Errorf("%+v", f)
			}
		})
	}
}

// A larger share of the same traffic never takes longer.
func TestForecastIsMonotone(t *testing.T) {
	p, list := policy(t, `{"min_duration":"1s","max_duration":"24h"}`)
	var last time.Duration
	for w := 9000; w >= 500; w -= 500 {
		f := ramp.Forecast(p, list, []ramp.Step{{Weight: w}}, ramp.Traffic{PerSecond: 20, Seen: ramp.Extrapolate(5000, time.Hour)})[0]
		if f.OK && f.Time.D() < last {
			t.Errorf("%d bp takes %s, more takes %s", w, f.Time.D(), last)
		}
		last = f.Time.D()
	}
}

// steps: auto begins as small as the traffic allows, and says why.
func TestAutoSteps(t *testing.T) {
	p, list := policy(t, `{"steps":"auto"}`)
	if steps, check := ramp.AutoSteps(p, list, ramp.Traffic{}); steps != nil || check.OK {
		t.Errorf("without traffic: %v %+v", steps, check)
	}
	first := 0
	for _, users := range []int{300_000, 20_000, 2_000, 500} {
		steps, check := ramp.AutoSteps(p, list, ramp.Traffic{PerSecond: float64(users) / 100, Seen: ramp.Extrapolate(users, time.Hour)})
		if len(steps) == 0 || steps[0].Weight < first {
			t.Errorf("%d users begin at %v, fewer than more users do (%d)", users, steps, first)
			continue
		}
		for i := range steps[1:] {
			if steps[i+1].Weight <= steps[i].Weight {
				t.Errorf("%d users: %v does not ascend", users, steps)
			}
		}
		if last := steps[len(steps)-1].Weight; last != ramp.Full-p.Holdback {
			t.Errorf("%d users: ends at %d", users, last)
		}
		if check.OK && !strings.HasPrefix(check.Text, "begins at ") {
			t.Errorf("%d users: %+v", users, check)
		}
		first = steps[0].Weight
	}
	if first < 500 {
		t.Errorf("500 users begin at %d bp", first)
	}
	if _, check := ramp.AutoSteps(p, list, ramp.Traffic{PerSecond: 0.01, Seen: ramp.Extrapolate(3, time.Hour)}); check.OK || !strings.HasPrefix(check.Text, "no step can be met") {
		t.Errorf("three users: %+v", check)
	}
	capped, list := policy(t, `{"steps":"auto","max_weight":2000}`)
	steps, _ := ramp.AutoSteps(capped, list, ramp.Traffic{PerSecond: 100, Seen: ramp.Extrapolate(100_000, time.Hour)})
	if len(steps) == 0 || steps[len(steps)-1].Weight != 2000 {
		t.Errorf("capped: %v", steps)
	}
}
