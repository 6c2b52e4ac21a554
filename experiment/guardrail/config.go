package guardrail

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Action is what a FAIL asks for.
type Action string

// The actions. Kill is that of an A/B test: it takes the arm out and nobody
// else moves.
const (
	ActionRollback Action = "rollback"
	ActionPause    Action = "pause"
	ActionWarn     Action = "warn"
	ActionKill     Action = "kill"
	ActionHold     Action = "hold" // of limits only
)

// Require is what a ramp asks of a guardrail before it takes a step.
type Require string

// The requirements.
const (
	RequirePass   Require = "pass"    // a proof that it is within tolerance
	RequireNoFail Require = "no_fail" // no proof that it is not
)

// Config is one guardrail, complete: Parse and Defaults fill in what is left
// out, and 0 means off from then on. Rates are fractions of 1.
type Config struct {
	Name    string  `json:"name"`   // unique in an experiment; the metric where left out
	Metric  string  `json:"metric"` // built-in, or of the experiment's own metrics
	Kind    Kind    `json:"kind"`
	Action  Action  `json:"action"`
	Require Require `json:"require"`

	// Of rates. FAIL: worse than TolerateRatio times the baseline and at least
	// MinEffectRate, or worse than MaxRate (0: relative only). PASS: better than
	// PassRatio times the baseline, or than OKRate (0: relative only).
	TolerateRatio float64 `json:"tolerate_ratio,omitempty"`
	PassRatio     float64 `json:"pass_ratio,omitempty"`
	MaxRate       float64 `json:"max_rate,omitempty"`
	OKRate        float64 `json:"ok_rate,omitempty"`
	MinEffectRate float64 `json:"min_effect_rate,omitempty"`

	Threshold Threshold `json:"threshold,omitzero"` // of slow_ metrics

	MaxLift float64 `json:"max_lift,omitempty"` // of means: the tolerated relative increase, 0.2 is 20 %

	// Of limits.
	Source string   `json:"source,omitempty"` // engine | prometheus
	URL    string   `json:"url,omitempty"`
	Query  string   `json:"query,omitempty"`
	Max    *float64 `json:"max,omitempty"`
}

// Latency reports a metric that depends on the load of the servers.
func (c *Config) Latency() bool {
	b, ok := lookup(c.Metric)
	return ok && b.latency
}

// Threshold is what counts as slow: a time, or a quantile of the baseline before
// the step times a factor (the form "baseline_p95*1.25"). The zero value is the
// latter at p95 and 1.25.
type Threshold struct {
	Fixed    time.Duration
	Quantile float64 // 0.95
	Factor   float64
}

// defaultThreshold is used where none is written.
var defaultThreshold = Threshold{Quantile: 0.95, Factor: 1.25}

// Default ratios and the smallest effect, of reference/experiments.md 5.2.
const (
	defaultTolerate  = 1.5
	defaultPass      = 2.0
	defaultMinEffect = 0.01
	defaultMaxLift   = 0.20
	defaultRestarts  = 3    // an hour
	slowOK           = 0.05 // slower than a threshold: that is what a p95 means
	// maxRatio keeps ratios to what a person can mean.
	maxRatio = 100
)

// complete fills in what raw left out.
func complete(raw *rawConfig, kill bool) Config {
	b, known := lookup(raw.Metric)
	c := Config{
		Name: raw.Name, Metric: raw.Metric, Kind: b.kind, Action: Action(raw.Action), Require: Require(raw.Require),
		Source: raw.Source, URL: raw.URL, Query: raw.Query, Max: raw.Max, Threshold: raw.Threshold,
	}
	switch {
	case raw.Source != "":
		c.Kind = Limit
	case !known && raw.MaxLift != nil:
		c.Kind, b.require = Mean, RequireNoFail
	case !known:
		c.Kind, b.require = Rate, RequireNoFail
	}
	if c.Name == "" {
		c.Name = c.Metric
	}
	if c.Kind == Limit {
		b.require = RequirePass
		c.Action = Action(raw.OnBreach)
	}
	if c.Require == "" {
		c.Require = b.require
	}
	switch {
	case c.Action != "":
	case c.Metric == Restarts && c.Kind == Limit:
		c.Action = ActionRollback
	case c.Kind == Limit:
		c.Action = ActionHold
	case kill:
		c.Action = ActionKill
	default:
		c.Action = ActionRollback
	}
	switch c.Kind {
	case Rate:
		completeRate(&c, raw, b)
	case Mean:
		c.MaxLift = or(raw.MaxLift, defaultMaxLift)
	case Limit:
		if c.Source == "" {
			c.Source = "engine"
		}
		if c.Metric == Restarts && c.Max == nil {
			most := float64(defaultRestarts)
			c.Max = &most
		}
	}
	return c
}

func completeRate(c *Config, raw *rawConfig, b info) {
	c.TolerateRatio = or(raw.TolerateRatio, defaultTolerate)
	c.PassRatio = or(raw.PassRatio, defaultPass)
	c.MinEffectRate = or(raw.MinEffectRate, defaultMinEffect)
	c.MaxRate = or(raw.MaxRate, b.maxRate)
	if strings.HasPrefix(c.Metric, "slow_") && c.Threshold == (Threshold{}) {
		c.Threshold = defaultThreshold
	}
	// A rate below min_effect_rate never fails, so a proof of that is a proof
	// of health. Without it a service with no bad trial in either arm (nobody
	// slow, nothing rejected) gives the relative process nothing to count, and
	// would never pass. For a threshold of time the promise is the quantile: less
	// than 5 % slower than 1.25 times the baseline's p95 says that the canary's
	// p95 is no more than that. At the last step it is all that can be said, for
	// the holdback is too small to compare with.
	ok := b.okRate
	switch {
	case ok == 0 && c.Threshold.Quantile > 0:
		ok = max(math.Round((1-c.Threshold.Quantile)*1e6)/1e6, c.MinEffectRate)
	case ok == 0 && c.Threshold.Fixed > 0:
		ok = max(slowOK, c.MinEffectRate)
	case ok == 0:
		ok = c.MinEffectRate
	}
	c.OKRate = or(raw.OKRate, ok)
	if raw.OKRate == nil && c.MaxRate > 0 && c.OKRate > c.MaxRate {
		c.OKRate = c.MaxRate
	}
}

func or(p *float64, otherwise float64) float64 {
	if p != nil {
		return *p
	}
	return otherwise
}

// SetSLO makes rate the promise that the metric is held to: what is proved
// below it passes, and nothing below it fails.
func (c *Config) SetSLO(rate float64) {
	c.OKRate, c.MinEffectRate = rate, rate
}

// check tells all that is wrong with c.
func (c *Config) check() error {
	var errs []error
	add := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	add(validName(c.Metric, '_'), "metric %q is not 1 to 63 of a-z, 0-9 and underscore; the built-in ones are %s", clip(c.Metric), strings.Join(Names(""), ", "))
	add(validName(c.Name, '_') || validName(c.Name, '-'), "name %q is not 1 to 63 of a-z, 0-9, underscore and hyphen", clip(c.Name))
	add(c.Require == RequirePass || c.Require == RequireNoFail, "require %q is neither pass nor no_fail", clip(string(c.Require)))
	actions := []Action{ActionRollback, ActionPause, ActionWarn, ActionKill}
	if c.Kind == Limit {
		actions = []Action{ActionHold, ActionPause, ActionRollback, ActionWarn}
	}
	add(slices.Contains(actions, c.Action), "action %q is none of %s", clip(string(c.Action)), join(actions))
	switch c.Kind {
	case Rate:
		add(in(c.TolerateRatio, 1, maxRatio), "tolerate_ratio %v is not from 1 to %d", c.TolerateRatio, maxRatio)
		add(in(c.PassRatio, 1, maxRatio) && c.PassRatio > 1, "pass_ratio %v is not above 1 and up to %d", c.PassRatio, maxRatio)
		for _, r := range []struct {
			name  string
			value float64
		}{{"max_rate", c.MaxRate}, {"ok_rate", c.OKRate}, {"min_effect_rate", c.MinEffectRate}} {
			add(in(r.value, 0, 1) && r.value < 1, "%s %v is not a fraction from 0 (off) to below 1", r.name, r.value)
		}
		add(c.MaxRate == 0 || c.OKRate <= c.MaxRate, "ok_rate %v is above max_rate %v, so that one rate would pass and fail", c.OKRate, c.MaxRate)
		if c.Threshold != (Threshold{}) {
			errs = append(errs, c.Threshold.check())
		}
	case Mean:
		add(in(c.MaxLift, 0, maxRatio) && c.MaxLift > 0, "max_lift %v is not above 0 and up to %d", c.MaxLift, maxRatio)
	case Limit:
		add(c.Max != nil, "a limit needs max, the highest reading that is still good")
		if c.Max != nil {
			add(!math.IsNaN(*c.Max) && !math.IsInf(*c.Max, 0), "max is not a finite number")
		}
		add(c.Source == "engine" || c.Source == "prometheus", "source %q is neither engine nor prometheus", clip(c.Source))
		add(c.Source != "prometheus" || c.Query != "" && c.URL != "", "a guardrail of Prometheus needs url and query")
	default:
		add(false, "unknown kind %q", clip(string(c.Kind)))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("guardrail %s: %w", clip(c.Name), err)
	}
	return nil
}

func in(x, lo, hi float64) bool { return x >= lo && x <= hi } // false for NaN

func (t Threshold) check() error {
	switch {
	case t.Fixed > 0 && t.Quantile == 0 && t.Factor == 0:
		return nil
	case t.Fixed == 0 && t.Quantile > 0 && t.Quantile < 1 && in(t.Factor, 0.1, maxRatio):
		return nil
	}
	return errors.New(`threshold is neither a time above 0, like "2s", nor a quantile of the baseline, like "baseline_p95*1.25"`)
}

func join(actions []Action) string {
	var out []string
	for _, a := range actions {
		out = append(out, string(a))
	}
	return strings.Join(out, ", ")
}

// validName reports 1 to 63 of a-z, 0-9 and extra, beginning with a letter or digit.
func validName(s string, extra byte) bool {
	if len(s) == 0 || len(s) > 63 || s[0] == extra {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != extra {
			return false
		}
	}
	return true
}

// clip shortens what a caller wrote, for an error.
func clip(s string) string {
	if len(s) > 64 {
		return s[:64] + "…"
	}
	return s
}
