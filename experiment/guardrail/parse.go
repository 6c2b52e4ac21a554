package guardrail

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// rawConfig is a guardrail as it is written: a pointer tells 0 from absent.
type rawConfig struct {
	Metric        string    `json:"metric"`
	Name          string    `json:"name"`
	Source        string    `json:"source"`
	URL           string    `json:"url"`
	Query         string    `json:"query"`
	Max           *float64  `json:"max"`
	OnBreach      string    `json:"on_breach"`
	Threshold     Threshold `json:"threshold"`
	TolerateRatio *float64  `json:"tolerate_ratio"`
	PassRatio     *float64  `json:"pass_ratio"`
	MaxRate       *float64  `json:"max_rate"`
	OKRate        *float64  `json:"ok_rate"`
	MinEffectRate *float64  `json:"min_effect_rate"`
	Action        string    `json:"action"`
	MaxLift       *float64  `json:"max_lift"`
	Require       string    `json:"require"`
}

// maxGuardrails bounds an experiment's list.
const maxGuardrails = 50

// Parse reads the guardrails of an experiment's document and fills in the
// defaults. kill says that a FAIL kills the arm (an A/B test) where no action is
// written. The built-in guardrail rejected is added if it is not in the list; a
// list that is absent or null stays empty, for without guardrails nothing is
// watched. The error joins all that is wrong.
func Parse(raw json.RawMessage, kill bool) ([]Config, error) {
	if raw = bytes.TrimSpace(raw); len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	var items []rawConfig
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&items); err != nil {
		return nil, fmt.Errorf("guardrails: %w", err)
	}
	if len(items) > maxGuardrails {
		return nil, fmt.Errorf("%d guardrails; give at most %d", len(items), maxGuardrails)
	}
	rejected := false
	for i := range items {
		rejected = rejected || items[i].Metric == Rejected
	}
	if !rejected && len(items) > 0 {
		items = append(items, rawConfig{Metric: Rejected})
	}
	var errs []error
	out := make([]Config, 0, len(items))
	seen := map[string]bool{}
	for i := range items {
		c := complete(&items[i], kill)
		if seen[c.Name] {
			errs = append(errs, fmt.Errorf("two guardrails are named %s; give one another name", clip(c.Name)))
		}
		seen[c.Name] = true
		errs = append(errs, c.check())
		out = append(out, c)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return out, nil
}

// New is the guardrail of a built-in metric with its defaults.
func New(metric string) Config {
	return complete(&rawConfig{Metric: metric}, false)
}

// Defaults are the guardrails of a ramp for which none are written: they cost
// nothing to measure and every service has them.
func Defaults(kill bool) []Config {
	var out []Config
	for _, metric := range []string{Error, Rejected, SlowTTFA} {
		out = append(out, complete(&rawConfig{Metric: metric}, kill))
	}
	return out
}

// String is the written form.
func (t Threshold) String() string {
	switch {
	case t == Threshold{}:
		return ""
	case t.Fixed > 0:
		return t.Fixed.String()
	}
	return fmt.Sprintf("baseline_p%s*%s", trim(t.Quantile*100), trim(t.Factor))
}

func trim(x float64) string { return strconv.FormatFloat(x, 'g', 6, 64) }

// MarshalJSON writes the written form.
func (t Threshold) MarshalJSON() ([]byte, error) { return json.Marshal(t.String()) }

// UnmarshalJSON reads "2s" or "baseline_p95*1.25" ("baseline_p95" is times 1).
func (t *Threshold) UnmarshalJSON(data []byte) error {
	var s string
	if err := json.Unmarshal(data, &s); err != nil {
		return Threshold{Fixed: -1}.check()
	}
	if s == "" {
		*t = Threshold{}
		return nil
	}
	v := Threshold{Factor: 1}
	if rest, ok := strings.CutPrefix(s, "baseline_p"); ok {
		q, f, times := strings.Cut(rest, "*")
		var err, err2 error
		v.Quantile, err = strconv.ParseFloat(strings.TrimSpace(q), 64)
		if times {
			v.Factor, err2 = strconv.ParseFloat(strings.TrimSpace(f), 64)
		}
		if err != nil || err2 != nil {
			return Threshold{Fixed: -1}.check()
		}
		v.Quantile /= 100
	} else {
		d, err := time.ParseDuration(s)
		if err != nil {
			return Threshold{Fixed: -1}.check()
		}
		v = Threshold{Fixed: d}
	}
	if err := v.check(); err != nil {
		return err
	}
	*t = v
	return nil
}
