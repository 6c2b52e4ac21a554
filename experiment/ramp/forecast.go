package ramp

import (
	"fmt"
	"math"
	"strings"
	"time"

	"sluice/experiment/guardrail"
)

// StepForecast is what a step is expected to take at today's traffic.
type StepForecast struct {
	Step    int     `json:"step"`
	Weight  int     `json:"weight"` // basis points
	Approve bool    `json:"approve,omitempty"`
	Rate    float64 `json:"rate"`  // requests a second of the ramping variant
	Users   int     `json:"users"` // distinct, in the step's expected time; in max_duration if it cannot be met
	// Trials are what the guardrails that must pass need if the variant is as good
	// as the baseline; about half of all rollouts take longer.
	Trials []TrialForecast `json:"trials,omitempty"`
	Time   Seconds         `json:"time_s"` // expected; 0 if it cannot be met
	Binds  string          `json:"binds"`  // what takes longest: min_duration, min_units or a guardrail's name
	OK     bool            `json:"ok"`     // it can be met within max_duration
	Text   string          `json:"text"`
}

// TrialForecast is one guardrail's part of it.
type TrialForecast struct {
	Guardrail string  `json:"guardrail"`
	Trials    int64   `json:"trials"` // negative: no number would do
	Time      Seconds `json:"time_s"` // 0 with a negative number
}

// Seen is how many distinct units came in a length of time.
type Seen struct {
	In    time.Duration `json:"in"`
	Units int           `json:"units"`
}

// Traffic is what the experiment's model has today.
type Traffic struct {
	PerSecond float64 `json:"per_second"` // requests
	// Seen ascends; it is taken as straight in between, and nobody else comes
	// after the last.
	Seen []Seen `json:"seen"`
	// Rates are the baseline's, by the guardrail's name; one that is not there is
	// taken as a fifth of ok_rate.
	Rates map[string]float64 `json:"rates,omitempty"`
}

// Extrapolate is Seen of n distinct units that came while traffic was watched for
// so long, an hour at most. Users come back: in four times the time twice as many
// are taken to come, and in a day four times those of an hour.
func Extrapolate(n int, watched time.Duration) []Seen {
	watched = min(watched, time.Hour)
	if n <= 0 || watched <= 0 {
		return []Seen{}
	}
	hour := int(float64(n) * math.Sqrt(float64(time.Hour)/float64(watched)))
	out := []Seen{{In: time.Hour, Units: hour}, {In: 24 * time.Hour, Units: 4 * hour}}
	if watched < time.Hour {
		out = append([]Seen{{In: watched, Units: n}}, out...)
	}
	return out
}

// units is how many distinct units come in t.
func (tr *Traffic) units(t time.Duration) float64 {
	last := Seen{}
	for _, s := range tr.Seen {
		if t <= s.In && s.In > last.In {
			return float64(last.Units) + float64(s.Units-last.Units)*float64(t-last.In)/float64(s.In-last.In)
		}
		last = s
	}
	return float64(last.Units)
}

// until is how long it takes until n units have come; false if they never do.
func (tr *Traffic) until(n float64) (time.Duration, bool) {
	last := Seen{}
	for _, s := range tr.Seen {
		if n <= float64(s.Units) && s.Units > last.Units {
			return last.In + time.Duration((n-float64(last.Units))/float64(s.Units-last.Units)*float64(s.In-last.In)), true
		}
		last = s
	}
	return 0, n <= 0
}

// admitted is about the share of requests that are trials: a unit with n of them
// in a window gives 2 + 2 ln(n/2).
func (tr *Traffic) admitted(window time.Duration) float64 {
	u := tr.units(window)
	if u < 1 {
		return 1
	}
	n := tr.PerSecond * window.Seconds() / u
	if n <= 2 {
		return 1
	}
	return (2 + 2*math.Log(n/2)) / n
}

// Forecast is what each step takes at today's traffic, and which can never be
// met: to be shown before the start.
func Forecast(c *Config, list []guardrail.Config, steps []Step, tr Traffic) []StepForecast {
	gates := c.Gates(list, len(steps), 1)
	out := make([]StepForecast, len(steps))
	for i, s := range steps {
		out[i] = forecast(c, list, gates, s, &tr)
		out[i].Step = i
	}
	return out
}

func forecast(c *Config, list []guardrail.Config, gates guardrail.Gates, s Step, tr *Traffic) StepForecast {
	share := float64(s.Weight) / Full
	f := StepForecast{Weight: s.Weight, Approve: s.Approve, Rate: tr.PerSecond * share, OK: true, Binds: "min_duration", Time: Seconds(c.MinDuration)}
	bind := func(what string, t time.Duration, ok bool) {
		if !ok {
			if f.OK {
				f.Binds = what
			}
			f.OK = false
		} else if f.OK && t > f.Time.D() {
			f.Binds, f.Time = what, Seconds(t)
		}
	}
	need := max(c.MinUnits, c.Trial.MinPassUnits)
	t, ok := tr.until(float64(need) / share)
	bind("min_units", t, ok)
	trials := f.Rate * tr.admitted(c.Trial.CapWindow)
	for i := range list {
		g := &list[i]
		if g.Require != guardrail.RequirePass || g.Action == guardrail.ActionWarn || g.Kind != guardrail.Rate {
			continue
		}
		test, err := guardrail.NewTest(*g, gates)
		if err != nil {
			continue
		}
		rate, known := tr.Rates[g.Name]
		if !known {
			rate = g.OKRate / 5
		}
		n := test.TrialsToPass(rate, share)
		tf := TrialForecast{Guardrail: g.Name, Trials: -1}
		if ok := n < 1e12 && trials > 0; ok {
			t := time.Duration(min(n/trials, maxDays.Seconds()) * float64(time.Second))
			tf.Trials, tf.Time = int64(n), Seconds(t)
			bind(g.Name, t, true)
		} else {
			bind(g.Name, 0, false)
		}
		f.Trials = append(f.Trials, tf)
	}
	f.finish(c, tr, need)
	return f
}

// finish says it in words.
func (f *StepForecast) finish(c *Config, tr *Traffic, need int) {
	share := float64(f.Weight) / Full
	head := percent(f.Weight) + ": "
	all := tr.units(maxDays)
	if !f.OK {
		f.Users = int(share * tr.units(c.MaxDuration))
		f.Time = 0
		switch {
		case tr.PerSecond <= 0:
			f.Text = head + "there is no traffic, and without traffic no step is ever taken"
		case f.Binds == "min_units":
			f.Text = head + fmt.Sprintf("about %s of the %s users seen would be in it, and it needs %s: it can never be met; take %s or more, or lower min_units",
				group(int64(math.Round(share*all))), group(int64(all)), group(int64(need)), percent(f.enough(need, all)))
			if all < float64(need) {
				f.Text = head + fmt.Sprintf("%s users were seen in all, and a step needs %s: it can never be met; lower min_units", group(int64(all)), group(int64(need)))
			}
		default:
			f.Text = head + fmt.Sprintf("%s can never pass at the baseline's rate: raise its ok_rate, or give it require: no_fail", f.Binds)
		}
		return
	}
	f.Users = int(share * tr.units(f.Time.D()))
	f.Text = head + fmt.Sprintf("about %s, %s users, %s requests a second", span(f.Time.D()), group(int64(f.Users)), digits(f.Rate))
	if f.Binds != "min_duration" {
		f.Text += "; " + f.Binds + " takes longest"
	}
	if f.Approve {
		f.Text += "; waits for a person first"
	}
	if f.Time.D() > c.MaxDuration {
		f.OK = false
		f.Text += fmt.Sprintf(". That is longer than max_duration, %s, when it would pause: make the step or max_duration larger", span(c.MaxDuration))
	}
}

// enough is the weight at which all units that are seen make need.
func (f *StepForecast) enough(need int, all float64) int {
	return min(int(math.Ceil(float64(need)/max(all, 1)*100))*100, Full)
}

// ladders that `auto` begins somewhere in.
var candidates = []int{100, 200, 500, 1000, 2000, 3000, 5000, Full}

// AutoSteps sizes `steps: auto`: it begins at the smallest weight that has half
// of max_duration to spare and more units than it needs, for chance, and goes on
// by the default ladder. It returns nil without traffic, and with a check that is
// not OK the best there is if even half of everybody is too few.
func AutoSteps(c *Config, list []guardrail.Config, tr Traffic) ([]Step, Check) {
	if tr.PerSecond <= 0 || tr.units(maxDays) < 1 {
		return nil, Check{Text: "steps: auto waits for traffic to size the steps by"}
	}
	spare := *c
	spare.MinUnits = c.MinUnits + int(2*math.Sqrt(float64(c.MinUnits)))
	spare.MaxDuration = c.MaxDuration / 2
	ladder := func(first int) (steps []Step) {
		steps = append(steps, Step{Weight: first})
		for _, s := range Default().Steps {
			if s.Weight > first+first/2 || s.Weight == Full {
				steps = append(steps, s)
			}
		}
		return c.clip(steps)
	}
	for _, first := range candidates[:len(candidates)-1] {
		steps := ladder(first)
		if f := Forecast(&spare, list, steps[:1], tr); f[0].OK {
			return steps, Check{OK: true, Text: fmt.Sprintf("begins at %s: %s", percent(first), f[0].Text)}
		}
		if first >= c.MaxWeight {
			break
		}
	}
	steps := ladder(5000)
	var why []string
	for _, f := range Forecast(c, list, steps[:1], tr) {
		why = append(why, f.Text)
	}
	return steps, Check{Text: "no step can be met at today's traffic; " + strings.Join(why, "; ")}
}
