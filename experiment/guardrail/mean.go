package guardrail

import (
	"errors"
	"fmt"
	"math"
)

// Moments are sums over the units of one arm: of n (a unit's requests) and x
// (what they cost, in any unit), for a ratio x/n whose variance is that of
// units, not of requests. They add up over arms and replicas as long as no unit
// is in two of them.
type Moments struct {
	Units int64   `json:"units"`
	N     float64 `json:"n"`
	X     float64 `json:"x"`
	NN    float64 `json:"nn"`
	NX    float64 `json:"nx"`
	XX    float64 `json:"xx"`
	// Clusters is how many the squares are over if they are of groups of units
	// instead of units (a unit is served by many replicas, whose squares do not
	// add up); 0 is Units.
	Clusters int64 `json:"clusters,omitempty"`
}

// clusters is how many independent parts the variance is of.
func (m Moments) clusters() int64 {
	if m.Clusters > 0 {
		return m.Clusters
	}
	return m.Units
}

// Observe adds dn requests worth dx to a unit that had n and x before.
func (m *Moments) Observe(n, x, dn, dx float64) {
	if n == 0 {
		m.Units++
	}
	after, worth := n+dn, x+dx
	m.N += dn
	m.X += dx
	m.NN += after*after - n*n
	m.NX += after*worth - n*x
	m.XX += worth*worth - x*x
}

// Plus is the sum of both.
func (m Moments) Plus(o Moments) Moments {
	sum := Moments{Units: m.Units + o.Units, N: m.N + o.N, X: m.X + o.X, NN: m.NN + o.NN, NX: m.NX + o.NX, XX: m.XX + o.XX}
	if m.Clusters > 0 || o.Clusters > 0 {
		sum.Clusters = m.clusters() + o.clusters()
	}
	return sum
}

// ratio is x/n and its variance by the delta method (reference/experiments.md
// 6.1): (s_xx - 2 R s_xn + R^2 s_nn)/(k nbar^2) with sample moments. ok is false
// where it is not defined.
func (m Moments) ratio() (r, variance float64, ok bool) {
	if m.clusters() < 2 || !(m.N > 0) {
		return 0, 0, false
	}
	k := float64(m.clusters())
	r = m.X / m.N
	snn := (m.NN - m.N*m.N/k) / (k - 1)
	snx := (m.NX - m.N*m.X/k) / (k - 1)
	sxx := (m.XX - m.X*m.X/k) / (k - 1)
	nbar := m.N / k
	variance = max((sxx-2*r*snx+r*r*snn)/(k*nbar*nbar), 0)
	return r, variance, finite(r) && finite(variance)
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// lift is the relative difference of c to b and its standard error.
func lift(c, b Moments) (d, se float64, ok bool) {
	rc, vc, okC := c.ratio()
	rb, vb, okB := b.ratio()
	if !okC || !okB || !(rb > 0) {
		return 0, 0, false
	}
	d = rc/rb - 1
	se = math.Sqrt(vc/(rb*rb) + vb*rc*rc/(rb*rb*rb*rb))
	return d, se, finite(d) && finite(se)
}

// multiplier is how many standard errors the one-sided bound of a confidence
// sequence lies away at n units, tuned for nStar: Waudby-Smith et al.,
// "Time-uniform central limit theory and asymptotic confidence sequences"
// (2021), in the form of GrowthBook (reference/experiments.md 6.2).
func multiplier(n, nStar, alpha float64) float64 {
	two := 2 * alpha
	rho2 := (-2*math.Log(two) + math.Log(1-2*math.Log(two))) / nStar
	q := n * rho2
	return math.Sqrt(2 * (q + 1) / q * math.Log(1+math.Sqrt(q+1)/two))
}

// MeanTest is a compiled guardrail of the kind mean; immutable. It keeps no
// state: the moments are the evidence.
type MeanTest struct {
	Config
	Gates
}

// NewMeanTest compiles a guardrail of the kind mean.
func NewMeanTest(c Config, g Gates) (*MeanTest, error) {
	if c.Kind != Mean {
		return nil, fmt.Errorf("guardrail %s is a %s, not a mean", clip(c.Name), clip(string(c.Kind)))
	}
	if err := errors.Join(c.check(), g.check()); err != nil {
		return nil, err
	}
	if g.AlphaFail >= 0.25 || g.AlphaPass >= 0.25 {
		return nil, fmt.Errorf("guardrail %s: levels %v and %v are too weak for a mean; give less than 0.25", clip(c.Name), g.AlphaFail, g.AlphaPass)
	}
	return &MeanTest{c, g}, nil
}

// Verdict compares the means: FAIL if the lift is surely above MaxLift, PASS if
// it is surely below, OPEN under 100 units an arm.
func (t *MeanTest) Verdict(canary, baseline Moments, c Conditions) Verdict {
	v := Verdict{
		Name: t.Name, Metric: t.Metric, Kind: Mean, Action: t.Action, Require: t.Require,
		Canary: Counts{N: count(canary.N)}, Baseline: Counts{N: count(baseline.N)},
		Units: int(min(canary.Units, math.MaxInt32)), NeedUnits: minMeanUnits,
		Bound: Bound{Max: t.MaxLift}, Decision: Open,
	}
	if c.Load > 0 && t.Latency() {
		v.Load = c.Load
	}
	switch {
	case canary.Units == 0:
		v.Code = NoData
		return v
	case canary.Units < minMeanUnits || baseline.Units < minMeanUnits:
		v.Code = FewUnits
		if baseline.Units < minMeanUnits {
			v.Code = NoBaseline
		}
		return v
	}
	d, se, ok := lift(canary, baseline)
	if !ok {
		v.Code = NoBaseline
		return v
	}
	n := float64(canary.Units + baseline.Units)
	v.Value = d
	v.Interval = Span{d - multiplier(n, meanUnitsStar, t.AlphaFail)*se, d + multiplier(n, meanUnitsStar, t.AlphaPass)*se}
	switch {
	case v.Interval.Lower > t.MaxLift && v.Load > heavyLoad:
		v.Code = NotComparable
	case v.Interval.Lower > t.MaxLift:
		v.Decision, v.Code = Fail, Lift
	case v.Interval.Upper < t.MaxLift:
		v.Decision, v.Code = Pass, Lift
		if v.Load > 0 && v.Load < lightLoad {
			v.Note = LightLoad
		}
	default:
		v.Code = Inconclusive
	}
	return v
}

// count is a sum of requests as a whole number.
func count(x float64) int64 {
	if !(x > 0) {
		return 0
	}
	return int64(min(x, maxCount))
}

// Read is the verdict of a guardrail of the kind limit on one reading. A reading
// that is not there, NaN or infinite says nothing: it is OPEN, which holds.
func (c *Config) Read(value float64, known bool) Verdict {
	v := Verdict{Name: c.Name, Metric: c.Metric, Kind: Limit, Action: c.Action, Require: c.Require, Decision: Open, Code: NoData}
	if c.Max == nil || !known || !finite(value) {
		return v
	}
	v.Value, v.Bound.Max = value, *c.Max
	if value > *c.Max {
		v.Decision, v.Code = Fail, OverMax
	} else {
		v.Decision, v.Code = Pass, UnderMax
	}
	return v
}
