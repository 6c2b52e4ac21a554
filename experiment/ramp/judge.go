package ramp

import (
	"fmt"

	"sluice/experiment/guardrail"
	"sluice/experiment/trial"
)

// Case is what a Judge judges: one epoch of one experiment.
type Case struct {
	Generation int
	Epoch      int64
	Since      int64    // Unix ms at which the epoch began
	Variants   []string // names, in the experiment's order
	Weights    []int    // basis points
	Killed     []bool   // nil: none is
	Baseline   int      // index
	Ramping    int      // index of the treatment that grows; negative without a ramp
	Steps      int      // of the ladder; 1 without a ramp
	Config     *Config
	Guardrails []guardrail.Config // of Config.Guardrails: those that the ticks count
}

// Judge folds ticks into Evidence and says what it shows. It is immutable and
// keeps nothing: the same ticks in the same order give the same evidence, bit
// for bit, on any replica and at any time, which is what a new leader and a
// replay rely on.
type Judge struct {
	Case
	gates guardrail.Gates
	rates []*guardrail.Test     // by guardrail, nil for those of another kind
	means []*guardrail.MeanTest // by guardrail
}

// NewJudge compiles the guardrails of c.
func NewJudge(c Case) (*Judge, error) {
	n := len(c.Variants)
	switch {
	case c.Config == nil:
		return nil, fmt.Errorf("a judge without a policy; give Default's")
	case n < 2 || c.Baseline < 0 || c.Baseline >= n || c.Ramping >= n || c.Ramping == c.Baseline:
		return nil, fmt.Errorf("%d variants, baseline %d, ramping %d: there must be a baseline and another", n, c.Baseline, c.Ramping)
	case len(c.Weights) != n || c.Killed != nil && len(c.Killed) != n:
		return nil, fmt.Errorf("%d weights, %d kill flags for %d variants", len(c.Weights), len(c.Killed), n)
	}
	j := &Judge{Case: c, gates: c.Config.Gates(c.Guardrails, c.Steps, n-1)}
	j.rates, j.means = make([]*guardrail.Test, len(c.Guardrails)), make([]*guardrail.MeanTest, len(c.Guardrails))
	for i, g := range c.Guardrails {
		var err error
		switch g.Kind {
		case guardrail.Rate:
			j.rates[i], err = guardrail.NewTest(g, j.gates)
		case guardrail.Mean:
			j.means[i], err = guardrail.NewMeanTest(g, j.gates)
		}
		if err != nil {
			return nil, err
		}
	}
	return j, nil
}

// treats reports a variant that is judged.
func (j *Judge) treats(v int) bool { return v != j.Baseline && !j.killed(v) }

func (j *Judge) killed(v int) bool { return j.Killed != nil && j.Killed[v] }

// Evidence is all that a leader remembers of an epoch: a checkpoint that is
// written as JSON and read back bit for bit.
type Evidence struct {
	Generation int           `json:"generation"`
	Epoch      int64         `json:"epoch"`
	Since      int64         `json:"since"` // Unix ms
	Arms       []ArmEvidence `json:"arms"`  // by variant
	// Tracks are by variant and guardrail; those of the baseline are empty.
	Tracks  [][]Track     `json:"tracks"`
	Profile trial.Profile `json:"profile"` // of the baseline in this epoch, for the next one's thresholds

	Newest    int64           `json:"newest"` // At of the newest tick, Unix ms
	Ticks     int64           `json:"ticks"`
	Suspended int64           `json:"suspended,omitempty"` // of them: an arm was not ready, or provisional
	Foreign   int64           `json:"foreign,omitempty"`   // of another epoch or generation, not folded
	Damaged   int64           `json:"damaged,omitempty"`   // that made no sense, not folded
	Gaps      int64           `json:"gaps,omitempty"`      // ticks that never came, by their numbers
	Replicas  map[string]Mark `json:"replicas,omitempty"`

	Ratio Ratio `json:"ratio"`
}

// ArmEvidence is one variant's traffic in the epoch.
type ArmEvidence struct {
	Started int64            `json:"started"`          // requests, with an arm not ready too
	Units   Sample           `json:"units"`            // distinct
	Newest  int64            `json:"newest,omitempty"` // when a trial settled last, Unix ms
	Load    Load             `json:"load,omitzero"`
	Recent  [6]Slot          `json:"recent"` // starts of the last minute
	Asks    map[string]int64 `json:"asks,omitempty"`
	Outside map[string]int64 `json:"outside,omitempty"`
}

// Load is requests started while endpoints were ready, in ticks that count.
type Load struct {
	Started int64 `json:"started"`
	ReadyMs int64 `json:"ready_ms"` // endpoints times ms
}

// Slot is a part of a minute.
type Slot struct {
	Index int64 `json:"i"` // Unix ms / 10,000
	N     int64 `json:"n"`
	New   int64 `json:"new,omitempty"` // units that were not seen before in the epoch
}

// Mark is how far a replica's ticks were folded.
type Mark struct {
	Seq   int64 `json:"seq"`
	At    int64 `json:"at"`              // Unix ms
	Units []int `json:"units,omitempty"` // that it named, by variant; they are capped
}

// Ratio is what the sample ratio rests on: units that were never seen before
// this epoch, which were assigned by this epoch's weights.
type Ratio struct {
	Before    Sample  `json:"before"`              // units seen in earlier epochs
	LogBefore float64 `json:"log_before"`          // log e of earlier epochs, which add up
	LogE      float64 `json:"log_e"`               // with this epoch
	Full      bool    `json:"full,omitempty"`      // a replica names no more units of a variant, in this epoch or an earlier one: no more looks
	Disturbed int64   `json:"disturbed,omitempty"` // when units were last answered otherwise than assigned, Unix ms
	Stale     bool    `json:"stale,omitempty"`     // a look is due once that is over
	On        bool    `json:"on,omitempty"`        // two arms had weight
}

// Track is one guardrail's evidence against one treatment.
type Track struct {
	Step guardrail.State `json:"step,omitzero"` // a rate's, since the epoch began
	// Late is a second look at the newest part of a long epoch, so that hours of
	// health do not hide a late fault.
	Late     *guardrail.State `json:"late,omitempty"`
	Stage    int              `json:"stage,omitempty"`     // how many such parts there were
	LateFrom int64            `json:"late_from,omitempty"` // Unix ms
	Waiting  *guardrail.Tick  `json:"waiting,omitempty"`   // counts that are not compared yet

	Blame  []Blame `json:"blame,omitempty"`  // the canary's units with the most bad trials
	Blamed int64   `json:"blamed,omitempty"` // of all units

	Canary   []trial.Sum `json:"canary,omitempty"` // a mean's, ascending by group
	Baseline []trial.Sum `json:"baseline,omitempty"`
}

// Blame is how often a unit was named for bad trials, at least once a tick.
type Blame struct {
	Unit uint64 `json:"u"`
	N    int64  `json:"n"`
}

// Begin is the evidence with which the epoch begins: nothing, but for the units
// and the sample ratio of the epoch before (nil for none, or of another
// generation).
func (j *Judge) Begin(before *Evidence) *Evidence {
	e := &Evidence{Generation: j.Generation, Epoch: j.Epoch, Since: j.Since,
		Arms: make([]ArmEvidence, len(j.Variants)), Tracks: make([][]Track, len(j.Variants))}
	for v := range e.Tracks {
		if v != j.Baseline {
			e.Tracks[v] = make([]Track, len(j.Guardrails))
		}
	}
	if before == nil || before.Generation != j.Generation {
		return e
	}
	if before.Ratio.On {
		e.Ratio.Before, e.Ratio.LogBefore = before.Ratio.Before.clone(), before.Ratio.LogE
		for i := range before.Arms {
			e.Ratio.Before.Merge(&before.Arms[i].Units)
		}
		// Units that were seen and not named would be taken for new ones, by the
		// weights of an epoch that did not assign them.
		e.Ratio.Full = before.Ratio.Full
	} else {
		e.Ratio.LogBefore = before.Ratio.LogBefore
	}
	e.Ratio.LogE = e.Ratio.LogBefore
	return e
}

// Fits reports whether e is of the judge's epoch and shape: a checkpoint of
// another one is only good for Begin.
func (j *Judge) Fits(e *Evidence) bool {
	if e == nil || e.Generation != j.Generation || e.Epoch != j.Epoch || len(e.Arms) != len(j.Variants) || len(e.Tracks) != len(j.Variants) {
		return false
	}
	for v := range e.Tracks {
		if v != j.Baseline && len(e.Tracks[v]) != len(j.Guardrails) {
			return false
		}
	}
	return true
}

// NextSetup is what the epoch after e counts as slow, from the baseline's
// profile in e; what e knows too little of stays as it was.
func NextSetup(list []guardrail.Config, e *Evidence, before trial.Setup, since int64) trial.Setup {
	s := trial.Setup{Since: since}
	s.Thresholds, s.Settled = trial.Fix(list, &e.Profile)
	if s.Settled == 0 {
		s.Settled = before.Settled
	}
	for i := range s.Thresholds {
		if s.Thresholds[i] == (trial.Thresholds{}) && i < len(before.Thresholds) {
			s.Thresholds[i] = before.Thresholds[i]
		}
	}
	return s
}
