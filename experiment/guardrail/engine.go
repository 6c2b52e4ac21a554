// Package guardrail decides from counts whether a variant is worse than its
// baseline: FAIL (proved worse than tolerated), PASS (proved within tolerance)
// or OPEN, valid at every look. It hides the e-processes, the confidence
// sequence of means and their bookkeeping; it knows no clock and no store. What
// becomes a trial is decided in the package trial, what a verdict leads to in
// ramp.
package guardrail

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// Counts are trials of one arm.
type Counts struct {
	N int64 `json:"n"` // settled
	K int64 `json:"k"` // bad, 0 to N
	// Started are trials that began, whether they settled or not; read only with
	// Gates.Starts.
	Started int64 `json:"s,omitempty"`
}

func (c *Counts) add(o Counts) {
	c.N += o.N
	c.K += o.K
	c.Started += o.Started
}

// Rate is K/N, 0 without trials.
func (c Counts) Rate() float64 {
	if c.N <= 0 {
		return 0
	}
	return float64(c.K) / float64(c.N)
}

// Tick is what happened in both arms in the same stretch of time, of requests
// started in the step.
type Tick struct {
	At       int64  `json:"at"` // Unix ms
	Canary   Counts `json:"canary"`
	Baseline Counts `json:"baseline"`
	// Hashes of canary units with a settled trial, and with a bad one; repeats
	// do no harm, and no more than Gates ask for are kept.
	Units    []uint64 `json:"units,omitempty"`
	BadUnits []uint64 `json:"bad_units,omitempty"`
	// Suspended ticks count for nobody: one arm was not ready, or answered
	// provisionally, and comparing the rest would compare who was left.
	Suspended bool `json:"suspended,omitempty"`
}

// Gates are the conditions beside the e-values and their levels. The zero value
// is not usable; see DefaultGates.
type Gates struct {
	AlphaFail    float64 `json:"alpha_fail"` // per guardrail and step
	AlphaPass    float64 `json:"alpha_pass"`
	MinBadTrials int64   `json:"min_bad_trials"`
	MinBadUnits  int     `json:"min_bad_units"`
	MinPassUnits int     `json:"min_pass_units"`
	// Window is how far back the baseline's health is judged, ms.
	Window int64 `json:"window"`
	// Starts says that Counts.Started is filled. Then FAIL takes as exposed what
	// began, and PASS what was seen to its end. A fault shows at once and a good
	// answer when it is complete, so without it a canary that only answers at
	// greater length has its errors counted before its successes, and a good one
	// is rolled back in the first minute of a step.
	Starts bool `json:"starts"`
}

// DefaultGates are those of reference/experiments.md 5.2 for a rollout with so
// many steps and guardrails: alphaRollback is the probability of a false
// rollback in the whole rollout.
func DefaultGates(alphaRollback, alphaPass float64, steps, guardrails int) Gates {
	return Gates{
		AlphaFail: alphaRollback / float64(max(steps, 1)*max(guardrails, 1)), AlphaPass: alphaPass,
		MinBadTrials: 5, MinBadUnits: 3, MinPassUnits: 20, Window: 60_000,
	}
}

// maxUnits bounds the units that a State keeps.
const maxUnits = 1000

func (g *Gates) check() error {
	switch {
	case !(g.AlphaFail > 0 && g.AlphaFail < 1) || !(g.AlphaPass > 0 && g.AlphaPass < 1):
		return fmt.Errorf("levels %v and %v are not between 0 and 1", g.AlphaFail, g.AlphaPass)
	case g.MinBadTrials < 0 || g.MinBadUnits < 0 || g.MinBadUnits > maxUnits || g.MinPassUnits < 0 || g.MinPassUnits > maxUnits:
		return fmt.Errorf("min_bad_trials %d, min_bad_units %d, min_pass_units %d: give 0 to %d", g.MinBadTrials, g.MinBadUnits, g.MinPassUnits, maxUnits)
	case g.Window < slots:
		return fmt.Errorf("a window of %d ms is too short", g.Window)
	}
	return nil
}

// Test is a compiled guardrail of the kind rate; immutable.
type Test struct {
	Config
	Gates
	failAt, passAt float64 // thresholds of log e
	lnMax, lnOK    []float64
}

// NewTest compiles a guardrail of the kind rate.
func NewTest(c Config, g Gates) (*Test, error) {
	if c.Kind != Rate {
		return nil, fmt.Errorf("guardrail %s is a %s, not a rate", clip(c.Name), clip(string(c.Kind)))
	}
	if err := errors.Join(c.check(), g.check()); err != nil {
		return nil, err
	}
	// Two processes may each lead to the verdict, so each has half the level.
	return &Test{
		Config: c, Gates: g,
		failAt: math.Log(2 / g.AlphaFail), passAt: math.Log(2 / g.AlphaPass),
		lnMax: lnRest(psi[:], c.MaxRate), lnOK: lnRest(phi[:], c.OKRate),
	}, nil
}

// slots is how many parts the health window has: it moves by one at a time.
const slots = 6

type slot struct {
	Index int64 `json:"i"` // of the window's part, At/(Window/slots)
	N     int64 `json:"n"`
	K     int64 `json:"k"`
}

// State is all that a Test remembers of a step: a value that can be copied,
// written as JSON and read back bit for bit. The zero value is the beginning.
type State struct {
	FailRel  [len(psi)]float64 `json:"fail_rel"`
	PassRel  [len(phi)]float64 `json:"pass_rel"`
	Canary   Counts            `json:"canary"` // all ticks but the suspended
	Baseline Counts            `json:"baseline"`
	// The same without the ticks in which the baseline was unhealthy.
	SoundCanary   Counts      `json:"sound_canary"`
	SoundBaseline Counts      `json:"sound_baseline"`
	LateCanary    int64       `json:"late_canary,omitempty"` // bad, waiting for a tick with exposures
	LateBaseline  int64       `json:"late_baseline,omitempty"`
	Units         []uint64    `json:"units,omitempty"`
	BadUnits      []uint64    `json:"bad_units,omitempty"`
	Health        [slots]slot `json:"health"`
	Last          int64       `json:"last"`      // At of the newest tick
	Unhealthy     bool        `json:"unhealthy"` // the baseline, as of Last
	Suspended     int64       `json:"suspended,omitempty"`
}

// Restart forgets the evidence, as every step does, so that a long healthy
// history cannot hide a late fault. The baseline's health is kept: it is about
// the last minute, not about the step.
func (s *State) Restart() {
	*s = State{Health: s.Health, Last: s.Last, Unhealthy: s.Unhealthy}
}

// Add counts one tick. A tick with impossible counts changes nothing and is an
// error.
func (t *Test) Add(s *State, tick *Tick) error {
	for _, c := range [...]Counts{tick.Canary, tick.Baseline} {
		if c.N < 0 || c.K < 0 || c.K > c.N || c.Started < 0 || max(c.N, c.Started) > maxCount {
			return fmt.Errorf("guardrail %s: a tick of %d trials, %d bad, %d started is impossible", t.Name, c.N, c.K, c.Started)
		}
	}
	if tick.Suspended {
		s.Suspended++
		return nil
	}
	s.health(t, tick)
	s.Canary.add(tick.Canary)
	s.Baseline.add(tick.Baseline)
	s.Units = remember(s.Units, tick.Units, t.MinPassUnits)
	s.BadUnits = remember(s.BadUnits, tick.BadUnits, t.MinBadUnits)

	nc, nb := float64(tick.Canary.N), float64(tick.Baseline.N)
	kc, kb := float64(tick.Canary.K), float64(tick.Baseline.K)
	if !s.Unhealthy {
		s.SoundCanary.add(tick.Canary)
		s.SoundBaseline.add(tick.Baseline)
		relative(s.PassRel[:], phi[:], lnPhi, t.PassRatio, nc, kc, nb, kb)
	}
	if t.Starts {
		nc, nb = float64(tick.Canary.Started), float64(tick.Baseline.Started)
		kc, kb = late(&s.LateCanary, tick.Canary, nb > 0), late(&s.LateBaseline, tick.Baseline, nc > 0)
	}
	relative(s.FailRel[:], psi[:], lnPsi, t.TolerateRatio, nc, kc, nb, kb)
	return nil
}

// maxCount bounds a tick, so that sums neither overflow nor lose a unit in a float64.
const maxCount = 1 << 40

// late is how many bad trials a tick has to compare: with none begun in the
// same tick they wait for the next that has, for they are of earlier starts.
func late(waiting *int64, c Counts, other bool) float64 {
	if c.Started == 0 {
		*waiting += c.K
		return 0
	}
	k := c.K
	if other {
		k += *waiting
		*waiting = 0
	}
	return float64(k)
}

// health moves the window on and judges the baseline: unhealthy is a one-sided
// 95 % Clopper-Pearson lower bound above max_rate.
func (s *State) health(t *Test, tick *Tick) {
	part := t.Window / slots
	// A clock that is set back by less than the window stands still here; by
	// more, the window begins anew.
	if tick.At < s.Last-t.Window {
		s.Health = [slots]slot{}
		s.Last = tick.At
	}
	s.Last = max(s.Last, tick.At)
	index := floorDiv(s.Last, part)
	at := &s.Health[index-floorDiv(index, slots)*slots]
	if at.Index != index {
		*at = slot{Index: index}
	}
	at.N += tick.Baseline.N
	at.K += tick.Baseline.K
	var n, k int64
	for _, sl := range s.Health {
		if sl.Index > index-slots && sl.Index <= index {
			n, k = n+sl.N, k+sl.K
		}
	}
	s.Unhealthy = t.MaxRate > 0 && lowerAbove(k, n, t.MaxRate, 0.05)
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// remember adds to set what is new, up to most.
func remember(set, units []uint64, most int) []uint64 {
	for _, u := range units {
		if len(set) >= most {
			return set
		}
		if !slices.Contains(set, u) {
			set = append(set, u)
		}
	}
	return set
}
