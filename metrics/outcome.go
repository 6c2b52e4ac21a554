package metrics

import "strings"

// Class says what an outcome means for the error ratio of a variant.
type Class struct {
	Outcome string
	Error   bool // in the numerator
	Counted bool // in the denominator
}

// Classes is the one classification of the closed outcome set: the recording
// rules, the alerts, the panels and the live figures are all made from it.
var Classes = [...]Class{
	{"success", false, true},
	{"client_error", false, false},
	{"canceled", false, false},
	{"rate_limited", false, false},
	{"budget_exceeded", false, false},
	{"queue_full", true, true},
	{"upstream_error", true, true},
	{"upstream_timeout", true, true},
	{"upstream_rate_limited", true, true},
	{"upstream_unreachable", true, true},
	{"upstream_truncated", true, true},
	{"upstream_invalid", true, true},
	{"no_endpoint", true, true},
	{"shutting_down", false, false},
	{"internal_error", true, true},
}

// other is what a label value becomes that is not one of the known.
const other = "other"

// outcomes is one more than the classes: the last is other.
const outcomes = len(Classes) + 1

// outcomeIndex returns the position in Classes, or the last for unknown words.
// Most requests succeed, and a scan of 15 words costs less than a map.
func outcomeIndex(s string) int {
	if s == Classes[0].Outcome {
		return 0
	}
	for i := 1; i < len(Classes); i++ {
		if Classes[i].Outcome == s {
			return i
		}
	}
	return len(Classes)
}

func outcomeName(i int) string {
	if i < len(Classes) {
		return Classes[i].Outcome
	}
	return other
}

// ErrorOutcomes is a regular expression of the outcomes that are errors of a
// variant, for a PromQL matcher.
func ErrorOutcomes() string { return pattern(func(c Class) bool { return c.Error }) }

// UncountedOutcomes is a regular expression of the outcomes that say nothing
// about a variant and are outside the error ratio.
func UncountedOutcomes() string { return pattern(func(c Class) bool { return !c.Counted }) }

func pattern(keep func(Class) bool) string {
	var words []string
	for _, c := range Classes {
		if keep(c) {
			words = append(words, c.Outcome)
		}
	}
	return strings.Join(words, "|")
}
