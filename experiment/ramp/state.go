package ramp

import (
	"encoding/json"
	"math"
	"slices"
	"time"

	"sluice/experiment/trial"
)

// Phase is where a ramp is; the experiment has its own state beside it.
type Phase string

// The phases.
const (
	ReadyWait Phase = "ready_wait" // started, the ramping variant has weight 0 until it is ready
	Ramping   Phase = "ramping"
	Holding   Phase = "holding" // as ramping, but something is in the way: State.Reason
	Baking    Phase = "baking"  // promoted, the holdback stays for comparison
	Done      Phase = "done"    // nothing more to decide
)

// State is a running ramp, kept in the document by the controller. The zero
// value is no ramp.
type State struct {
	Phase   Phase     `json:"phase"`
	Variant string    `json:"variant"` // the treatment that grows
	Steps   []Step    `json:"steps"`   // the ladder of this run
	Step    int       `json:"step"`    // index in Steps; -1 in ready_wait
	Since   time.Time `json:"since"`   // the step or phase began
	Epoch   int64     `json:"epoch"`   // revision at which it began
	// Setup is what is counted in the step, the same on every replica. Without
	// thresholds nothing is counted yet: a person took the step or the guardrails
	// changed, and the leader has to fix it (router.RampSetup).
	Setup    trial.Setup `json:"setup"`
	Reason   string      `json:"reason,omitempty"`   // code of holding or of the pause
	Approved int         `json:"approved,omitempty"` // highest step index that a person approved; the start approves 0
	// Heavy are pin fields, in hex, of units that carry too much of the traffic to
	// be let in below HeavyWeight.
	Heavy []string `json:"heavy,omitempty"`
}

// HeavyWeight is the step, in basis points, at which a unit with over 10 % of a
// model's traffic may enter.
const HeavyWeight = 2000

// Weight is the ramping variant's in this state, basis points.
func (s *State) Weight() int {
	if s.Step < 0 || s.Step >= len(s.Steps) {
		return 0
	}
	return s.Steps[s.Step].Weight
}

// Last reports that no step follows.
func (s *State) Last() bool { return s.Step >= len(s.Steps)-1 }

// transitions are those of controller.json: running and ramping are the state
// running without and with a ramp.
var transitions = map[string][]string{
	"draft":       {"ready_wait", "running", "archived"},
	"ready_wait":  {"ramping", "paused", "rolled_back"},
	"running":     {"paused", "completed", "promoted", "rolled_back"},
	"ramping":     {"ramping", "paused", "promoted", "rolled_back"},
	"paused":      {"ramping", "running", "rolled_back", "completed", "promoted"},
	"rolled_back": {"draft", "archived"},
	"promoted":    {"archived", "rolled_back"},
	"completed":   {"archived"},
	"archived":    {},
}

// Allowed reports whether an experiment may go from one state to another. From
// promoted to rolled_back it may during the bake only, from rolled_back to draft
// with a new revision of the variant or after the cooldown: those are the
// caller's to check.
func Allowed(from, to string) bool { return slices.Contains(transitions[from], to) }

// Seconds is a duration that is written as a number of seconds.
type Seconds time.Duration

// D is the duration.
func (s Seconds) D() time.Duration { return time.Duration(s) }

// MarshalJSON writes seconds to the millisecond.
func (s Seconds) MarshalJSON() ([]byte, error) {
	return json.Marshal(math.Round(time.Duration(s).Seconds()*1000) / 1000)
}

// UnmarshalJSON reads seconds.
func (s *Seconds) UnmarshalJSON(data []byte) error {
	var f float64
	if err := json.Unmarshal(data, &f); err != nil {
		return err
	}
	*s = Seconds(math.Round(min(max(f, -1e9), 1e9)*1000) * float64(time.Millisecond))
	return nil
}
