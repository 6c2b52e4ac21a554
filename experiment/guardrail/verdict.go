package guardrail

import "math"

// Decision is what the evidence says.
type Decision string

// The decisions. No data is OPEN, never PASS and never FAIL.
const (
	Fail Decision = "FAIL"
	Pass Decision = "PASS"
	Open Decision = "OPEN"
)

// Code is why a decision is what it is.
type Code string

// The codes of FAIL and PASS.
const (
	Relative Code = "relative" // against the baseline
	Absolute Code = "absolute" // against max_rate or ok_rate
	OverMax  Code = "over_max" // a limit
	UnderMax Code = "under_max"
	Lift     Code = "lift" // of a mean
)

// The codes of OPEN.
const (
	NoData            Code = "no_data"            // no trial of the canary, or no reading
	NoBaseline        Code = "no_baseline"        // nothing to compare with
	NotComparable     Code = "not_comparable"     // the canary's servers carry more than twice the load
	FewBadTrials      Code = "few_bad_trials"     // bad enough, but too few trials to act on
	FewBadUnits       Code = "few_bad_units"      // bad enough, but one or two units make it
	OneUnit           Code = "one_unit"           // bad enough, but without its worst unit it would not be
	SmallEffect       Code = "small_effect"       // worse, but below min_effect_rate
	AsBaseline        Code = "as_baseline"        // above max_rate, as is the baseline
	FewUnits          Code = "few_units"          // good enough, but too few units say so
	BaselineUnhealthy Code = "baseline_unhealthy" // its own rate is above max_rate
	Inconclusive      Code = "inconclusive"
)

// Note is what goes with a decision without changing it.
type Note string

// LightLoad: the canary's servers carry less than half the baseline's load, so
// that a latency PASS says less than it seems to.
const LightLoad Note = "light_load"

// LogE are the four processes of a rate as logarithms of e-values.
type LogE struct {
	FailRel float64 `json:"fail_rel"`
	FailAbs float64 `json:"fail_abs"`
	PassRel float64 `json:"pass_rel"`
	PassAbs float64 `json:"pass_abs"`
	FailAt  float64 `json:"fail_at"` // what the first two must reach
	PassAt  float64 `json:"pass_at"` // what the last two must reach
}

// Verdict is a guardrail's standing with the numbers behind it.
type Verdict struct {
	Name     string   `json:"name"`
	Metric   string   `json:"metric"`
	Kind     Kind     `json:"kind"`
	Decision Decision `json:"decision"`
	Code     Code     `json:"code"`
	Note     Note     `json:"note,omitempty"`
	Action   Action   `json:"action"`
	Require  Require  `json:"require"`

	Canary            Counts  `json:"canary"`
	Baseline          Counts  `json:"baseline"`
	LogE              LogE    `json:"log_e,omitzero"`
	BaselineUnhealthy bool    `json:"baseline_unhealthy,omitempty"`
	Load              float64 `json:"load,omitempty"` // canary's requests per ready replica over the baseline's
	Units             int     `json:"units"`          // of the canary, up to those that a PASS needs
	BadUnits          int     `json:"bad_units"`      // up to those that a FAIL needs
	NeedUnits         int64   `json:"need_units,omitempty"`
	NeedBadUnits      int64   `json:"need_bad_units,omitempty"`
	NeedBadTrials     int64   `json:"need_bad_trials,omitempty"`
	Bound             Bound   `json:"bound,omitzero"` // what the decision was held against
	Interval          Span    `json:"interval,omitzero"`
	Value             float64 `json:"value,omitempty"` // the mean's lift, or the reading of a limit
}

// Bound repeats the settings that a verdict was reached with.
type Bound struct {
	TolerateRatio float64 `json:"tolerate_ratio,omitempty"`
	PassRatio     float64 `json:"pass_ratio,omitempty"`
	MaxRate       float64 `json:"max_rate,omitempty"`
	OKRate        float64 `json:"ok_rate,omitempty"`
	MinEffectRate float64 `json:"min_effect_rate,omitempty"`
	Max           float64 `json:"max,omitempty"` // of a lift or a reading
}

// Span is a mean's lift between its one-sided bounds: the lower one at the level
// of FAIL, the upper one at that of PASS.
type Span struct {
	Lower float64 `json:"lower"`
	Upper float64 `json:"upper"`
}

// Satisfied reports whether the guardrail lets a ramp take a step.
func (v *Verdict) Satisfied() bool {
	switch {
	case v.Action == ActionWarn:
		return true // it tells people, it does not steer
	case v.Decision == Pass:
		return true
	}
	return v.Decision == Open && v.Require == RequireNoFail
}

// Conditions are what a verdict depends on beside the counts.
type Conditions struct {
	// Load is how many requests were started per ready replica of the canary, over
	// the same of the baseline; 0, negative or NaN is unknown.
	Load float64
}

// Bounds of comparable load, and how many trials make a baseline usable.
const (
	heavyLoad     = 2.0
	lightLoad     = 0.5
	usableTrials  = 20
	minMeanUnits  = 100
	meanUnitsStar = 5000
)

// Verdict is what s says now. It does not remember: a proof stands for as long
// as the numbers make it, and who acts on it acts at once.
func (t *Test) Verdict(s *State, c Conditions) Verdict {
	v := Verdict{
		Name: t.Name, Metric: t.Metric, Kind: Rate, Action: t.Action, Require: t.Require,
		Canary: s.Canary, Baseline: s.Baseline, BaselineUnhealthy: s.Unhealthy,
		Units: len(s.Units), BadUnits: len(s.BadUnits),
		NeedUnits: int64(t.MinPassUnits), NeedBadUnits: int64(t.MinBadUnits), NeedBadTrials: t.MinBadTrials,
		Bound: Bound{TolerateRatio: t.TolerateRatio, PassRatio: t.PassRatio, MaxRate: t.MaxRate, OKRate: t.OKRate, MinEffectRate: t.MinEffectRate},
		LogE: LogE{
			FailRel: logMean(s.FailRel[:]),
			FailAbs: absolute(lnPsi, t.lnMax, t.exposed(s.SoundCanary), float64(s.SoundCanary.K)),
			PassRel: logMean(s.PassRel[:]),
			PassAbs: absolute(lnPhi, t.lnOK, float64(s.SoundCanary.N), float64(s.SoundCanary.K)),
			FailAt:  t.failAt, PassAt: t.passAt,
		},
	}
	if c.Load > 0 && t.Latency() {
		v.Load = c.Load
	}
	v.Decision, v.Code = t.decide(s, &v)
	switch {
	case v.Load > heavyLoad && v.Decision == Fail:
		v.Decision, v.Code = Open, NotComparable
	case v.Load > 0 && v.Load < lightLoad && v.Decision == Pass:
		v.Note = LightLoad
	}
	return v
}

// Without is s as if so many of the canary's bad trials, those of one unit, had
// not been: what a FAIL must survive, for the trials of one user are not
// independent. The relative process is corrected at the exposures of all ticks
// together.
func (t *Test) Without(s *State, bad int64) State {
	out := *s
	bad = min(max(bad, 0), out.Canary.K)
	nc, nb := t.exposed(out.Canary), t.exposed(out.Baseline)
	if nc > 0 && nb > 0 {
		at := float64(t.TolerateRatio*nc) + nb
		for i, g := range psi {
			out.FailRel[i] -= float64(bad) * (lnPsi[i] + math.Log(at/(float64(g*t.TolerateRatio*nc)+nb)))
		}
	}
	for _, c := range []*Counts{&out.Canary, &out.SoundCanary} {
		n := min(bad, c.K)
		c.K, c.N, c.Started = c.K-n, c.N-n, max(c.Started-n, 0)
	}
	return out
}

// exposed is the denominator of a FAIL.
func (t *Test) exposed(c Counts) float64 {
	if t.Starts {
		return float64(max(c.Started, c.K))
	}
	return float64(c.N)
}

func (t *Test) decide(s *State, v *Verdict) (Decision, Code) {
	kc := float64(s.Canary.K)
	worse := v.LogE.FailRel >= t.failAt
	effect := kc >= t.MinEffectRate*t.exposed(s.Canary)
	above := v.LogE.FailAbs >= t.failAt
	alone := above && !t.explained(s)
	short := Code("")
	if worse && effect || alone {
		switch {
		case s.Canary.K < t.MinBadTrials:
			short = FewBadTrials
		case len(s.BadUnits) < t.MinBadUnits:
			short = FewBadUnits
		case worse && effect:
			return Fail, Relative
		default:
			return Fail, Absolute
		}
	}
	rel, abs := v.LogE.PassRel >= t.passAt, v.LogE.PassAbs >= t.passAt
	switch {
	case short != "": // nothing that is bad enough to fail passes for being few
		return Open, short
	case (rel || abs) && len(s.Units) < t.MinPassUnits:
		return Open, FewUnits
	case rel:
		return Pass, Relative
	case abs:
		return Pass, Absolute
	case s.Canary.N == 0:
		return Open, NoData
	case s.Unhealthy:
		return Open, BaselineUnhealthy
	case above:
		return Open, AsBaseline
	case worse:
		return Open, SmallEffect
	case s.Baseline.N == 0:
		return Open, NoBaseline
	}
	return Open, Inconclusive
}

// explained reports that the baseline does about as badly as the canary, within
// tolerate_ratio: then max_rate is wrong, or the fault is shared, and neither is
// the canary's. Without enough of a baseline there is nobody else to ask.
func (t *Test) explained(s *State) bool {
	b, c := s.SoundBaseline, s.SoundCanary
	if b.N < usableTrials {
		return false
	}
	return float64(c.K)*t.exposed(b) <= t.TolerateRatio*float64(b.K)*t.exposed(c)
}
