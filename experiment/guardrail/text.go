package guardrail

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Text says the verdict in one sentence with its numbers, for people.
func (v Verdict) Text() string {
	var head string
	switch v.Kind {
	case Limit:
		return v.Name + ": " + v.limitText()
	case Mean:
		head = v.Name + ": " + v.meanText()
	default:
		head = fmt.Sprintf("%s: canary %s, baseline %s; %s", v.Name, share(v.Canary), share(v.Baseline), v.rateText())
	}
	if v.Note == LightLoad {
		head += fmt.Sprintf(" (at %s times the baseline's load for each server)", num(v.Load))
	}
	return head
}

func (v *Verdict) rateText() string {
	switch v.Code {
	case Relative:
		if v.Decision == Fail {
			return fmt.Sprintf("more than %s times the baseline (e-value %s, needs %s)", num(v.Bound.TolerateRatio), e(v.LogE.FailRel), e(v.LogE.FailAt))
		}
		return fmt.Sprintf("less than %s times the baseline (e-value %s, needs %s)", num(v.Bound.PassRatio), e(v.LogE.PassRel), e(v.LogE.PassAt))
	case Absolute:
		if v.Decision == Fail {
			return fmt.Sprintf("above %s (e-value %s, needs %s)", percent(v.Bound.MaxRate), e(v.LogE.FailAbs), e(v.LogE.FailAt))
		}
		return fmt.Sprintf("below %s (e-value %s, needs %s)", percent(v.Bound.OKRate), e(v.LogE.PassAbs), e(v.LogE.PassAt))
	case NoData:
		if v.Canary.Started > 0 {
			return fmt.Sprintf("none of %s trials of the canary that began has settled", group(v.Canary.Started))
		}
		return "the canary has had no trial in this step"
	case NoBaseline:
		return "the baseline has had no trial to compare with"
	case NotComparable:
		return fmt.Sprintf("worse, but each of the canary's servers gets %s times the requests of the baseline's", num(v.Load))
	case FewBadTrials:
		return fmt.Sprintf("worse, but %s bad trials are too few to act on, %s are needed", group(v.Canary.K), group(v.NeedBadTrials))
	case FewBadUnits:
		return fmt.Sprintf("worse, but all bad trials are of %s users, %s are needed", group(int64(v.BadUnits)), group(v.NeedBadUnits))
	case OneUnit:
		return "worse, but without the one user with the most bad trials it would not be"
	case SmallEffect:
		return fmt.Sprintf("more than %s times the baseline, but less than the %s that matter", num(v.Bound.TolerateRatio), percent(v.Bound.MinEffectRate))
	case AsBaseline:
		return fmt.Sprintf("above %s, but so is the baseline", percent(v.Bound.MaxRate))
	case FewUnits:
		return fmt.Sprintf("good, but only %s users say so, %s are needed", group(int64(v.Units)), group(v.NeedUnits))
	case BaselineUnhealthy:
		return fmt.Sprintf("the baseline itself is above %s", percent(v.Bound.MaxRate))
	}
	text := fmt.Sprintf("not decided (e-value against the baseline %s", e(v.LogE.PassRel))
	if v.Bound.OKRate > 0 {
		text += fmt.Sprintf(", against %s %s", percent(v.Bound.OKRate), e(v.LogE.PassAbs))
	}
	return text + fmt.Sprintf("; one must reach %s)", e(v.LogE.PassAt))
}

func (v *Verdict) meanText() string {
	between := fmt.Sprintf("%s %% against the baseline, between %s and %s", signed(v.Value), signed(v.Interval.Lower), signed(v.Interval.Upper))
	most := signed(v.Bound.Max) + " %"
	switch v.Code {
	case NoData:
		return "the canary has had no request to measure"
	case FewUnits:
		return fmt.Sprintf("only %s users of the canary, %s are needed", group(int64(v.Units)), group(v.NeedUnits))
	case NoBaseline:
		return fmt.Sprintf("the baseline has not the %s users with a mean above 0 that a comparison needs", group(v.NeedUnits))
	case NotComparable:
		return fmt.Sprintf("%s: above %s, but each of the canary's servers gets %s times the requests of the baseline's", between, most, num(v.Load))
	}
	switch v.Decision {
	case Fail:
		return fmt.Sprintf("%s: above %s", between, most)
	case Pass:
		return fmt.Sprintf("%s: below %s", between, most)
	}
	return fmt.Sprintf("%s: not decided against %s", between, most)
}

func (v *Verdict) limitText() string {
	switch v.Decision {
	case Fail:
		return fmt.Sprintf("%s is above the limit of %s", num(v.Value), num(v.Bound.Max))
	case Pass:
		return fmt.Sprintf("%s is within the limit of %s", num(v.Value), num(v.Bound.Max))
	}
	return "there is no reading"
}

// share writes "12 of 300 (4 %)".
func share(c Counts) string {
	if c.N == 0 {
		return "0 of 0"
	}
	return fmt.Sprintf("%s of %s (%s)", group(c.K), group(c.N), percent(c.Rate()))
}

func percent(rate float64) string { return num(100*rate) + " %" }

func signed(x float64) string { return fmt.Sprintf("%+.3g", 100*x) }

// num writes three digits of a number, whole ones in full.
func num(x float64) string {
	if x == math.Trunc(x) && math.Abs(x) < 1e15 {
		return group(int64(x))
	}
	return strconv.FormatFloat(x, 'g', 3, 64)
}

// e writes an e-value of which ln is the logarithm.
func e(ln float64) string {
	switch v := math.Exp(min(ln, 50)); {
	case ln > 50:
		return "over 1e21"
	case v >= 100:
		return group(int64(math.Round(v)))
	default:
		return strconv.FormatFloat(v, 'g', 2, 64)
	}
}

// group writes 12,345.
func group(n int64) string {
	s := strconv.FormatInt(n, 10)
	var b strings.Builder
	for i, c := range s {
		if i > 0 && (len(s)-i)%3 == 0 && s[i-1] != '-' {
			b.WriteByte(',')
		}
		b.WriteRune(c)
	}
	return b.String()
}
