package ramp

import (
	"fmt"
	"math"
)

// Return is what a rollback would do to the baseline's servers, over all
// replicas of the gateway.
type Return struct {
	Baseline string // the variant's name
	// Shared: both variants are served by the same upstream, so that a rollback
	// moves no load.
	Shared bool
	Ready  int // the baseline's endpoints that get traffic, as one replica sees them
	// Capacity is how many calls at once the ready ones take; 0: no limit is set.
	Capacity int
	InFlight int // of the baseline's upstream now
	// What the treatments would give back: their calls in flight now, and how many
	// the baseline would make of their requests: Rate a second, each as long as the
	// baseline's last. The larger counts.
	Treatments int
	Rate       float64
	Lasts      Seconds
}

// Returning is how many calls at once a rollback would give back.
func (r *Return) Returning() int {
	if r.Shared {
		return 0
	}
	little := r.Rate * r.Lasts.D().Seconds() // Little's law
	if math.IsNaN(little) || little < 0 || little > 1e9 {
		little = 0
	}
	return max(r.Treatments, int(math.Ceil(little)), 0)
}

// HeadRoom says whether the baseline could take back what a rollback returns.
// What is not known is no obstacle: without max_in_flight it passes with a
// warning.
func HeadRoom(r Return) Check {
	n := r.Returning()
	switch {
	case r.Shared:
		return Check{OK: true}
	case r.Ready == 0:
		return Check{Text: fmt.Sprintf("no endpoint of %s is ready: a rollback would have nowhere to go", r.Baseline)}
	case r.Capacity <= 0:
		return Check{OK: true, Text: fmt.Sprintf("%s has no max_in_flight, so nobody knows whether it could take back %d calls at once", r.Baseline, n)}
	}
	if room := max(r.Capacity-r.InFlight, 0); room < n {
		return Check{Text: fmt.Sprintf("a rollback would return about %d calls at once to %s, and its ready endpoints (%d) have room for %d: %d of %d are in use; add endpoints or wait",
			n, r.Baseline, r.Ready, room, r.InFlight, r.Capacity)}
	}
	return Check{OK: true}
}

// Cost is what a rollback would do now, in words.
func (r *Return) Cost() string {
	n := r.Returning()
	switch {
	case r.Shared:
		return "the same servers serve both variants: a rollback moves no load"
	case r.Capacity <= 0:
		return fmt.Sprintf("a rollback returns about %d calls at once to %s, whose capacity is not known", n, r.Baseline)
	}
	return fmt.Sprintf("a rollback returns about %d calls at once to %s, which has room for %d (%d of %d in use)",
		n, r.Baseline, max(r.Capacity-r.InFlight, 0), r.InFlight, r.Capacity)
}
