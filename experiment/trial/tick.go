package trial

import (
	"encoding/json"
	"errors"

	"sluice/experiment/guardrail"
)

// Groups is how many parts the units are hashed into for means. A unit is served
// by many replicas, so that what each knows of it cannot be put together; sums
// over groups of units can, and their scatter has the correlation within units.
const Groups = 256

// Tick is what one replica counted of one experiment since its last one, in
// about a second. Ticks of one epoch add up, over time and over replicas, in any
// order.
type Tick struct {
	Generation int         `json:"gen"`
	Epoch      int64       `json:"epoch"`
	From       int64       `json:"from"` // Unix ms, on the replica's clock
	To         int64       `json:"to"`
	Variants   []ArmTick   `json:"variants"` // in the experiment's order
	Heavy      []HeavyUnit `json:"heavy,omitempty"`

	// Filled in by the sender.
	Replica string `json:"replica,omitempty"`
	Seq     int64  `json:"seq,omitempty"` // counts a replica's ticks of all experiments, so that a gap shows
}

// ArmTick is the part of one variant.
type ArmTick struct {
	Started int64              `json:"started,omitempty"` // requests that began, by assigned variant and analysed: the load
	Counts  []guardrail.Counts `json:"counts,omitempty"`  // one for each guardrail of the Watch
	// Units are those with their first request of the epoch here, up to MaxUnits
	// an epoch; a request without a unit is one of its own.
	Units    []uint64         `json:"units,omitempty"`
	BadUnits [][]uint64       `json:"bad_units,omitempty"` // for each guardrail
	Means    [][]Sum          `json:"means,omitempty"`     // for each guardrail, of those that are means
	Profile  *Profile         `json:"profile,omitempty"`   // of the baseline
	Asks     map[string]int64 `json:"asks,omitempty"`      // requests that ask for a feature: tools, json, image, …
	// Outside are requests by the reason for which they are left out of all
	// guardrails, or of some; each once under a reason.
	Outside map[Why]int64 `json:"outside,omitempty"`
	// Provisional says that at least a hundredth of the arm's units were answered
	// without their pin.
	Provisional bool `json:"provisional,omitempty"`

	// Filled in by the sender: of the variant's upstream as this replica sees it.
	Endpoints int  `json:"endpoints,omitempty"`
	Ready     int  `json:"ready,omitempty"`    // of them
	Capacity  int  `json:"capacity,omitempty"` // calls at once that the ready ones take; 0 = no limit is set
	InFlight  int  `json:"in_flight,omitempty"`
	NotReady  bool `json:"not_ready,omitempty"` // no endpoint is reachable
	Tripped   bool `json:"tripped,omitempty"`   // by the local breaker
}

// Sum is the mean's part of one group of units: requests and what they add up to.
// In JSON it is [group, n, x].
type Sum struct {
	Group uint8
	N, X  float64
}

// MarshalJSON writes it as short as it can be: a tick has hundreds.
func (s Sum) MarshalJSON() ([]byte, error) {
	return json.Marshal([3]float64{float64(s.Group), s.N, s.X})
}

// UnmarshalJSON reads it.
func (s *Sum) UnmarshalJSON(data []byte) error {
	var a [3]float64
	if err := json.Unmarshal(data, &a); err != nil {
		return err
	}
	if a[0] != float64(uint8(a[0])) {
		return errors.New("a sum of a group that is not from 0 to 255")
	}
	*s = Sum{uint8(a[0]), a[1], a[2]}
	return nil
}

// MaxUnits bounds the units that a Tick names in one epoch.
const MaxUnits = 1000

// HeavyUnit is a unit with a large share of a model's traffic.
type HeavyUnit struct {
	Field  string  `json:"field"` // hex of the pin field: who it is without saying it
	Key    string  `json:"key,omitempty"`
	Tenant string  `json:"tenant,omitempty"`
	Share  float64 `json:"share"` // 0 to 1, of this replica's
}
