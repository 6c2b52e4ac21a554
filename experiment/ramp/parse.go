package ramp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"sluice/experiment/guardrail"
)

// Problem is one thing that is wrong with a ramp: Path points into it
// ("/steps/2/weight"), Text says what is wrong and what would be right.
type Problem struct {
	Path string
	Text string
}

// Error is all that is wrong with a ramp.
type Error []Problem

func (e Error) Error() string {
	var lines []string
	for _, p := range e {
		lines = append(lines, "ramp"+p.Path+": "+p.Text)
	}
	return strings.Join(lines, "\n")
}

// Parse reads the document's `ramp` and fills in the defaults. Its error is an
// Error that lists everything.
func Parse(raw json.RawMessage) (Config, error) {
	c := Default()
	r := &reader{}
	if raw = bytes.TrimSpace(raw); len(raw) > maxBytes {
		return c, Error{{"", fmt.Sprintf("%d bytes; a ramp has at most %d", len(raw), maxBytes)}}
	}
	r.object("", raw, func(at string, key string, v json.RawMessage) bool { return r.member(&c, at, key, v) })
	if len(r.problems) == 0 {
		c.relations(r)
	}
	if len(r.problems) > 0 {
		return Default(), r.problems
	}
	return c, nil
}

// maxBytes bounds what is read: 100 steps take 4 kB.
const maxBytes = 64 << 10

// member reads one key; false if there is none of that name.
func (r *reader) member(c *Config, at, key string, v json.RawMessage) bool {
	switch key {
	case "variant":
		r.text(at, v, &c.Variant)
		if c.Variant == "" {
			r.add(at, "the name of the variant that grows is empty; leave it out if there is one treatment only")
		}
	case "steps":
		r.steps(at, v, c)
	case "max_weight":
		r.whole(at, v, 1, Full, &c.MaxWeight)
	case "holdback":
		r.whole(at, v, 0, Full/2, &c.Holdback)
	case "holdback_percent":
		p := float64(c.Holdback) / 100
		r.number(at, v, 0, 50, &p)
		c.Holdback = int(math.Round(p * 100))
	case "min_duration":
		r.span(at, v, 0, &c.MinDuration)
	case "max_duration":
		r.span(at, v, time.Second, &c.MaxDuration)
	case "min_units":
		r.whole(at, v, 1, maxUnits, &c.MinUnits)
	case "bake":
		r.span(at, v, 0, &c.Bake)
	case "no_data_after":
		r.span(at, v, time.Second, &c.NoDataAfter)
	case "stale_after":
		r.span(at, v, 0, &c.StaleAfter)
	case "cooldown":
		r.span(at, v, 0, &c.Cooldown)
	case "ready":
		r.object(at, v, func(at, key string, v json.RawMessage) bool { return r.ready(&c.Ready, at, key, v) })
	case "trial":
		r.object(at, v, func(at, key string, v json.RawMessage) bool { return r.trial(&c.Trial, at, key, v) })
	case "alpha_false_rollback":
		r.level(at, v, &c.AlphaFalseRollback)
	case "alpha_pass":
		r.level(at, v, &c.AlphaPass)
	case "slo":
		r.slo(at, v, c)
	case "restarts":
		if string(v) == "false" {
			c.Restarts = -1
		} else {
			r.whole(at, v, 0, maxTrials, &c.Restarts)
		}
	case "pace":
		r.word(at, v, &c.Pace, PaceAll, PaceProportional)
	case "rollback":
		r.word(at, v, &c.Rollback, RollbackImmediate, RollbackPaced)
	case "on_unsupervised":
		r.word(at, v, &c.OnUnsupervised, UnsupervisedHold, UnsupervisedBaseline)
	case "shadow":
		c.Shadow = &Shadow{Percent: 5, MaxPerMinute: 60, BudgetUSDPerDay: 20}
		r.object(at, v, func(at, key string, v json.RawMessage) bool { return r.shadow(c.Shadow, at, key, v) })
	case "guardrails":
		r.add(at, "guardrails are a member of the experiment, beside ramp")
	default:
		return false
	}
	return true
}

func (r *reader) ready(c *Ready, at, key string, v json.RawMessage) bool {
	switch key {
	case "probes":
		r.whole(at, v, 0, 100, &c.Probes)
	case "interval":
		r.span(at, v, 10*time.Millisecond, &c.Interval)
	case "max_ttft":
		r.span(at, v, time.Millisecond, &c.MaxTTFT)
	case "not_ready_limit":
		r.span(at, v, time.Second, &c.NotReadyLimit)
	default:
		return false
	}
	return true
}

func (r *reader) trial(c *Trial, at, key string, v json.RawMessage) bool {
	switch key {
	case "min_bad_trials":
		r.whole(at, v, 1, maxTrials, &c.MinBadTrials)
	case "min_bad_units":
		r.whole(at, v, 1, maxTrials, &c.MinBadUnits)
	case "min_pass_units":
		r.whole(at, v, 1, maxTrials, &c.MinPassUnits)
	case "cap_window":
		r.span(at, v, time.Second, &c.CapWindow)
	case "cap_per_unit":
		r.add(at, "there is no fixed cap: the j-th request of a unit is a trial with probability 2/j; leave it out")
	default:
		return false
	}
	return true
}

func (r *reader) shadow(c *Shadow, at, key string, v json.RawMessage) bool {
	switch key {
	case "percent":
		r.number(at, v, 0, 100, &c.Percent)
	case "max_per_minute":
		r.whole(at, v, 0, maxUnits, &c.MaxPerMinute)
	case "budget_usd_per_day":
		r.number(at, v, 0, 1e6, &c.BudgetUSDPerDay)
	default:
		return false
	}
	return true
}

func (r *reader) steps(at string, v json.RawMessage, c *Config) {
	if len(v) > 0 && v[0] == '"' {
		var s string
		if r.text(at, v, &s); s == "auto" {
			c.Steps, c.Auto = nil, true
		} else {
			r.add(at, `%q is no list of steps; write "auto", or weights in basis points like [100, 500, 2000, 5000, 10000]`, clip(s))
		}
		return
	}
	var list []json.RawMessage
	if json.Unmarshal(v, &list) != nil || list == nil {
		r.add(at, `want "auto", or weights in basis points like [100, 500, {"weight": 2000, "approve": true}, 10000]`)
		return
	}
	if len(list) == 0 || len(list) > maxSteps {
		r.add(at, "%d steps; give 1 to %d", len(list), maxSteps)
		return
	}
	c.Steps, c.Auto = make([]Step, len(list)), false
	for i, item := range list {
		s, p := &c.Steps[i], at+"/"+strconv.Itoa(i)
		if len(item) > 0 && item[0] == '{' {
			s.Weight = -1
			r.object(p, item, func(at, key string, v json.RawMessage) bool {
				switch key {
				case "weight":
					r.whole(at, v, 1, Full, &s.Weight)
				case "approve":
					r.flag(at, v, &s.Approve)
				default:
					return false
				}
				return true
			})
			if s.Weight < 0 && len(r.problems) == 0 {
				r.add(p, "a step needs weight, basis points from 1 to 10000")
			}
			continue
		}
		r.whole(p, item, 1, Full, &s.Weight)
	}
}

func (r *reader) slo(at string, v json.RawMessage, c *Config) {
	c.SLO = map[string]float64{}
	r.object(at, v, func(at, key string, v json.RawMessage) bool {
		rate := 0.0
		if s, ok := unquote(v); ok && strings.HasSuffix(s, "%") {
			p, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(s, "%")), 64)
			if err != nil || !(p > 0 && p < 100) {
				r.add(at, `%q is not above 0 %% and below 100 %%, like "0.1%%"`, clip(s))
				return true
			}
			rate = p / 100
		} else {
			r.number(at, v, 0, 1, &rate)
			if rate == 0 || rate == 1 {
				r.add(at, `want a rate above 0 and below 1, like 0.001 or "0.1%%"`)
			}
		}
		if known := guardrail.Names(guardrail.Rate); slices.Contains(guardrail.Names(""), key) && !slices.Contains(known, key) {
			r.add(at, "%s is not a rate; an slo is of one of %s", key, strings.Join(known, ", "))
		}
		c.SLO[key] = rate
		return true
	})
	if len(c.SLO) == 0 {
		c.SLO = nil
	}
}

// relations are what the values must be to each other.
func (c *Config) relations(r *reader) {
	for i := 1; i < len(c.Steps); i++ {
		if c.Steps[i].Weight <= c.Steps[i-1].Weight {
			r.add("/steps/"+strconv.Itoa(i), "%d does not rise above the step before it, %d", c.Steps[i].Weight, c.Steps[i-1].Weight)
		}
	}
	if n := len(c.Steps); n > 0 && c.Steps[n-1].Weight <= 100 && c.MaxWeight > 100 {
		r.add("/steps", "steps are basis points (100 is 1 %%): these would end at %s; write 100 for 1 %%, or set max_weight to say that it ends there",
			percent(c.Steps[n-1].Weight))
	}
	if n := len(c.Steps); n > 1 && c.Steps[n-1].Weight == Full && c.Steps[n-2].Weight >= Full-c.Holdback {
		r.add("/holdback", "a holdback of %s leaves nothing for the last step to add to %s", percent(c.Holdback), percent(c.Steps[n-2].Weight))
	}
	if c.MaxDuration <= c.MinDuration {
		r.add("/max_duration", "%s is not longer than min_duration, %s", c.MaxDuration, c.MinDuration)
	}
	if c.NoDataAfter > c.MaxDuration {
		r.add("/no_data_after", "%s is longer than max_duration, %s", c.NoDataAfter, c.MaxDuration)
	}
	if c.Trial.MinBadUnits > c.Trial.MinBadTrials {
		r.add("/trial/min_bad_units", "%d units cannot have less than as many bad trials, min_bad_trials is %d", c.Trial.MinBadUnits, c.Trial.MinBadTrials)
	}
	if c.OnUnsupervised == UnsupervisedBaseline && c.StaleAfter == 0 {
		r.add("/on_unsupervised", "baseline needs stale_after, the time without a leader after which it happens, like 30s")
	}
}
