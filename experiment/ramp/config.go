// Package ramp decides what a rollout does next: it holds the policy of a ramp
// (its steps, times and levels), folds what the replicas counted into evidence,
// and turns evidence and circumstances into one decision with its reason in
// words. It hides the order in which reasons win and the bookkeeping of the
// guardrails of several treatments; it knows no clock, no store and no lease.
package ramp

import (
	"encoding/json"
	"fmt"
	"maps"
	"time"

	"sluice/experiment/guardrail"
)

// Step is one rung: the ramping variant's weight in basis points, and whether a
// person must approve before the ramp takes it.
type Step struct {
	Weight  int  `json:"weight"`
	Approve bool `json:"approve,omitempty"`
}

// Ready is what is asked of the ramping variant before each step.
type Ready struct {
	Probes        int           // synthetic completions in a row; 0 asks none
	Interval      time.Duration // between them
	MaxTTFT       time.Duration // of each
	NotReadyLimit time.Duration // how long a hold may last before the ramp pauses
}

// Trial are the gates beside the e-values.
type Trial struct {
	MinBadTrials int // of a FAIL
	MinBadUnits  int // distinct units with a bad trial, of a FAIL
	MinPassUnits int // distinct units, of a PASS
	// CapWindow is the window in which a unit's requests are numbered: the j-th
	// is a trial with probability min(1, 2/j).
	CapWindow time.Duration
}

// Shadow is 5.2's optional step 0; it is read and kept for the shadow runner.
type Shadow struct {
	Percent         float64 `json:"percent"`
	MaxPerMinute    int     `json:"max_per_minute"`
	BudgetUSDPerDay float64 `json:"budget_usd_per_day"`
}

// What the servers of the ramping variant get.
const (
	PaceAll          = "all"          // all of its endpoints
	PaceProportional = "proportional" // as many as its weight deserves
)

// How a rollback moves users back.
const (
	RollbackImmediate = "immediate"
	RollbackPaced     = "paced" // as fast as the baseline's capacity takes them
)

// What happens when nobody has led for StaleAfter.
const (
	UnsupervisedHold     = "hold"     // everybody stays; local guardrails go on acting
	UnsupervisedBaseline = "baseline" // a canary's users get the baseline
)

// Config is a ramp's policy, complete: Parse fills in what is left out. It reads
// and writes the document's `ramp`, in its own words and units.
type Config struct {
	Variant string // the treatment that grows; "" is the only one there is
	Steps   []Step // ascending; empty with Auto
	Auto    bool   // sized from live traffic when the rollout starts
	// MaxWeight caps the ramping variant, basis points, 10000 is no cap: steps
	// above it become it, and a ramp that got there waits for a person.
	MaxWeight int
	Holdback  int // basis points that stay on the baseline at the last step and through the bake

	MinDuration time.Duration // of a step
	MaxDuration time.Duration // of a step: then it pauses, it never promotes
	MinUnits    int           // distinct units of the ramping variant in a step
	Bake        time.Duration
	NoDataAfter time.Duration
	StaleAfter  time.Duration // 0 is off
	Cooldown    time.Duration // after a rollback, before the next start of the same revision

	Ready Ready
	Trial Trial

	AlphaFalseRollback float64 // of a whole rollout
	AlphaPass          float64 // of one guardrail in one step

	SLO      map[string]float64 // by metric: a rate that is promised, sets ok_rate and min_effect_rate
	Restarts int                // of the engine in an hour that are tolerated; negative is off

	Pace           string
	Rollback       string
	OnUnsupervised string
	Shadow         *Shadow
}

// Limits of what a configuration can say.
const (
	Full      = 10000 // basis points of everybody
	maxSteps  = 100
	maxDays   = 366 * 24 * time.Hour
	maxUnits  = 1_000_000
	maxTrials = 1000
)

// Default is the policy of `ramp: {}` (reference/experiments.md 5.2).
func Default() Config {
	return Config{
		Steps:     []Step{{Weight: 100}, {Weight: 500}, {Weight: 2000}, {Weight: 5000}, {Weight: Full}},
		MaxWeight: Full, Holdback: 100,
		MinDuration: 10 * time.Minute, MaxDuration: 2 * time.Hour, MinUnits: 50,
		Bake: 30 * time.Minute, NoDataAfter: time.Minute, Cooldown: time.Hour,
		Ready:              Ready{Probes: 3, Interval: 5 * time.Second, MaxTTFT: 10 * time.Second, NotReadyLimit: 5 * time.Minute},
		Trial:              Trial{MinBadTrials: 5, MinBadUnits: 3, MinPassUnits: 20, CapWindow: 10 * time.Minute},
		AlphaFalseRollback: 0.01, AlphaPass: 0.05,
		Restarts: 3, Pace: PaceAll, Rollback: RollbackImmediate, OnUnsupervised: UnsupervisedHold,
	}
}

// Ladder is the steps as they will be taken: clipped to MaxWeight, the last one
// without the holdback. Empty with Auto, whose steps AutoSteps sizes.
func (c *Config) Ladder() []Step { return c.clip(c.Steps) }

func (c *Config) clip(steps []Step) []Step {
	var out []Step
	for _, s := range steps {
		most := min(c.MaxWeight, Full-c.Holdback)
		clipped := s.Weight >= most
		s.Weight = min(s.Weight, most)
		out = append(out, s)
		if clipped {
			break
		}
	}
	return out
}

// Capped reports that the ramp ends at MaxWeight: it holds there, and a person
// promotes or leaves it.
func (c *Config) Capped() bool { return c.MaxWeight < Full }

// Warnings are what is allowed and seldom meant, for people.
func (c *Config) Warnings() []string {
	var out []string
	ladder := c.Ladder()
	if n := len(ladder); n > 0 && !c.Capped() && ladder[n-1].Weight < Full/2 {
		out = append(out, fmt.Sprintf("the last step is %s: what passes there is promoted to everybody at once; add steps, or max_weight to stay there",
			percent(ladder[n-1].Weight)))
	}
	if c.MinUnits < c.Trial.MinPassUnits {
		out = append(out, fmt.Sprintf("min_units %d is below trial.min_pass_units %d, which a step needs anyway", c.MinUnits, c.Trial.MinPassUnits))
	}
	return out
}

// Guardrails are those of the experiment as the ramp runs them: the written
// ones or the defaults, held to the SLO, with the limit on restarts. written is
// the document's `guardrails`, kill says that a FAIL kills the arm where no
// action is written (an A/B test).
func (c *Config) Guardrails(written json.RawMessage, kill bool) ([]guardrail.Config, error) {
	list, err := guardrail.Parse(written, kill)
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		list = guardrail.Defaults(kill)
	}
	unused := maps.Clone(c.SLO)
	restarts := false
	for i := range list {
		g := &list[i]
		if rate, ok := c.SLO[g.Metric]; ok && g.Kind == guardrail.Rate {
			g.SetSLO(rate)
			delete(unused, g.Metric)
		}
		restarts = restarts || g.Metric == guardrail.Restarts
	}
	for metric := range unused {
		return nil, fmt.Errorf("ramp/slo/%s: there is no guardrail of that rate; add {metric: %s} to guardrails", clip(metric), clip(metric))
	}
	if !restarts && c.Restarts >= 0 {
		g := guardrail.New(guardrail.Restarts)
		most := float64(c.Restarts)
		g.Max = &most
		// An engine that does not tell its restarts is no reason to wait.
		g.Require = guardrail.RequireNoFail
		list = append(list, g)
	}
	return list, nil
}

// Gates are the levels and gates of the guardrails' tests. A rollout with so
// many steps and treatments rolls back falsely with at most AlphaFalseRollback
// in all, so each test has its share.
func (c *Config) Gates(list []guardrail.Config, steps, treatments int) guardrail.Gates {
	tests := 0
	for i := range list {
		if list[i].Kind != guardrail.Limit {
			tests++
		}
	}
	g := guardrail.DefaultGates(c.AlphaFalseRollback, c.AlphaPass, steps, tests*max(treatments, 1))
	g.MinBadTrials, g.MinBadUnits, g.MinPassUnits = int64(c.Trial.MinBadTrials), c.Trial.MinBadUnits, c.Trial.MinPassUnits
	g.Starts = true
	return g
}
