package guardrail

// For the vectors of the parts.
var (
	UpperBound = upperBound
	LowerAbove = lowerAbove
	LiftOf     = lift
	Multiplier = multiplier
)

// Ratio is the ratio of sums and its variance.
func (m Moments) Ratio() (float64, float64, bool) { return m.ratio() }
