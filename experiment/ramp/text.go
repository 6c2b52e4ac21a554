package ramp

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"sluice/experiment/guardrail"
)

// WhyNot is every reason for which the ramp does not take its next step, with
// what it still needs, in words; empty when nothing is in the way.
func WhyNot(in *Input) []string {
	if in.over() {
		return nil
	}
	var out []string
	add := func(when bool, format string, args ...any) {
		if when {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	c := in.Config
	add(in.State == "paused", "it is paused: only a person goes on")
	if d, failed := in.failures(); failed {
		out = append(out, d.Text)
	}
	add(in.BaselineUnhealthy, "the baseline itself fails: nothing can be said of %s, and it is not blamed", in.ramping())
	add(in.SRM.Alarm, "%s", in.SRM.words())
	if in.Phase == ReadyWait {
		add(!in.Preflight.OK, "preflight: %s", or(in.Preflight.Text, "it has not passed yet"))
	}
	if !in.Ready.OK {
		out = append(out, in.notReady().Text)
	}
	if in.Phase == ReadyWait {
		if d := in.start(); d.Action == Hold && !slices.Contains(out, d.Text) {
			out = append(out, d.Text)
		}
		return out
	}
	if in.Phase == "" {
		return out
	}
	add(in.DataAge.D() > c.NoDataAfter, "%s", in.noData())
	least, what := c.MinDuration, "min_duration"
	if in.Phase == Baking {
		least, what = c.Bake, "bake"
	}
	add(in.Elapsed.D() < least, "the step lasts for %s, %s is %s", span(in.Elapsed.D()), what, span(least))
	if in.Phase == Baking {
		if v := in.failing(); v != nil {
			out = append(out, failure(v))
		}
		return out
	}
	out = append(out, in.lacking()...)
	if in.Step+1 < len(in.Steps) {
		return append(out, in.gateTexts(in.Step+1)...)
	}
	add(c.Capped(), "max_weight keeps %s at %s; promote it, or raise max_weight", in.ramping(), percent(in.weight()))
	return out
}

func (in *Input) gateTexts(next int) (out []string) {
	if d, stop := in.gates(next); stop {
		out = append(out, d.Text)
		if d.Code == CodeApproval && !in.HeadRoom.OK && in.HeadRoom.Text != "" {
			out = append(out, in.HeadRoom.Text)
		}
	}
	return out
}

// ramping is the name of the variant that grows.
func (in *Input) ramping() string {
	if t := in.treatment(); t != nil {
		return t.Name
	}
	return "the variant"
}

// treatment is the one that grows: the marked one, or the only one.
func (in *Input) treatment() *Treatment {
	for i := range in.Treatments {
		if in.Treatments[i].Ramping {
			return &in.Treatments[i]
		}
	}
	if len(in.Treatments) == 1 {
		return &in.Treatments[0]
	}
	return nil
}

func (in *Input) weight() int {
	if in.Step >= 0 && in.Step < len(in.Steps) {
		return in.Steps[in.Step].Weight
	}
	return 0
}

// unsatisfied are the guardrails that do not let the ramp take a step; all is
// unsatisfied where nothing is judged.
func (in *Input) unsatisfied() (out []*guardrail.Verdict) {
	t := in.treatment()
	if t == nil || len(t.Verdicts) == 0 {
		return []*guardrail.Verdict{nil}
	}
	for i := range t.Verdicts {
		if v := &t.Verdicts[i]; !v.Satisfied() {
			out = append(out, v)
		}
	}
	return out
}

// failing is a guardrail of the ramping variant that failed without consequence.
func (in *Input) failing() *guardrail.Verdict {
	for _, v := range in.unsatisfied() {
		if v != nil && v.Decision == guardrail.Fail {
			return v
		}
	}
	return nil
}

// limit is a limit that holds: above its maximum, or without a reading.
func (in *Input) limit() *guardrail.Verdict {
	for _, v := range in.unsatisfied() {
		if v != nil && v.Kind == guardrail.Limit {
			return v
		}
	}
	return nil
}

// lacking is what the evidence does not show yet, in words.
func (in *Input) lacking() (out []string) {
	if u := in.Units; u < in.Config.MinUnits {
		out = append(out, fmt.Sprintf("only %s users of %s in this step, min_units is %s", group(int64(u)), in.ramping(), group(int64(in.Config.MinUnits))))
	}
	for _, v := range in.unsatisfied() {
		if v == nil {
			out = append(out, "no guardrail has said anything yet")
			continue
		}
		out = append(out, v.Text()+in.need(v.Name))
	}
	return out
}

// need says how much more an open guardrail wants.
func (in *Input) need(name string) string {
	t := in.treatment()
	for _, n := range t.Needs {
		if n.Guardrail != name {
			continue
		}
		switch {
		case n.Trials < 0:
			return fmt.Sprintf("; at these rates no number of requests of %s would do", t.Name)
		case n.Trials > 0 && n.Time > 0:
			return fmt.Sprintf("; needs about %s more requests of %s, about %s at today's traffic", about(n.Trials), t.Name, span(n.Time.D()))
		case n.Trials > 0:
			return fmt.Sprintf("; needs about %s more requests of %s", about(n.Trials), t.Name)
		}
	}
	return ""
}

// evidence is what a passed step rests on.
func (in *Input) evidence() string {
	t := in.treatment()
	var parts []string
	for i := range t.Verdicts {
		v := &t.Verdicts[i]
		if v.Decision == guardrail.Pass && v.Kind == guardrail.Rate {
			parts = append(parts, fmt.Sprintf("%s %s of %s requests against %s of %s", v.Name,
				share(v.Canary), group(v.Canary.N), share(v.Baseline), group(v.Baseline.N)))
		}
	}
	text := fmt.Sprintf("%s users of %s in %s", group(int64(in.Units)), t.Name, span(in.Elapsed.D()))
	if len(parts) > 0 {
		text += ": " + strings.Join(parts, ", ")
	}
	return text
}

func (in *Input) noData() string {
	return fmt.Sprintf("no request of %s has been counted for %s (no_data_after is %s)", in.ramping(), span(in.DataAge.D()), span(in.Config.NoDataAfter))
}

func (s *SRM) words() string {
	return "the users are not divided as the weights say: " + or(s.Text, fmt.Sprintf("e-value %s, alarm at %s", evalue(s.LogE), "2,000"))
}

// failure says a FAIL in numbers.
func failure(v *guardrail.Verdict) string {
	if v.Kind != guardrail.Rate {
		return v.Text()
	}
	at := v.LogE.FailRel
	if v.Code == guardrail.Absolute {
		at = v.LogE.FailAbs
	}
	text := fmt.Sprintf("%s %s of %s requests against %s of %s of the baseline", v.Name,
		share(v.Canary), group(v.Canary.N), share(v.Baseline), group(v.Baseline.N))
	if v.Code == guardrail.Absolute {
		text += fmt.Sprintf(", and max_rate is %s %%", digits(100*v.Bound.MaxRate))
	}
	return text + fmt.Sprintf("; the proof needs %.1f, it is %.1f", v.LogE.FailAt, at)
}

// share writes a rate of trials: "18.2 %".
func share(c guardrail.Counts) string { return digits(100*c.Rate()) + " %" }

// percent writes basis points: "20 %".
func percent(bp int) string { return digits(float64(bp)/100) + " %" }

func digits(x float64) string { return strconv.FormatFloat(x, 'g', 3, 64) }

// evalue writes an e-value of which ln is the logarithm.
func evalue(ln float64) string {
	if ln > 30 {
		return "over 1e13"
	}
	return group(int64(math.Round(math.Exp(ln))))
}

// about rounds to two digits: an estimate should not look like a count.
func about(n int64) string {
	unit := int64(1)
	for n/unit >= 100 {
		unit *= 10
	}
	return group((n + unit/2) / unit * unit)
}

// span writes a duration for people: "2 h", "6 min", "1 min 30 s", "41 s".
func span(d time.Duration) string {
	switch {
	case d < 0:
		return "0 s"
	case d < 10*time.Second && d%time.Second != 0:
		return digits(d.Round(100*time.Millisecond).Seconds()) + " s"
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < 10*time.Minute && d.Round(time.Second)%time.Minute != 0:
		return fmt.Sprintf("%d min %d s", d/time.Minute, d%time.Minute/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", d.Round(time.Minute)/time.Minute)
	case d < 48*time.Hour:
		return digits(d.Round(6*time.Minute).Hours()) + " h"
	}
	return digits(d.Hours()/24) + " days"
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

// clip shortens what a caller wrote, for an error.
func clip(s string) string {
	if len(s) > 64 {
		return strings.ToValidUTF8(s[:64], "") + "…"
	}
	return s
}
