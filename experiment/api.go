// Package experiment decides which variant a unit gets. It is pure: values in,
// values out, no clock, no I/O, no logger. It holds bucketing, the ownership
// table with minimal movement, targeting and the precedence of
// reference/experiments.md section 3 as amended by design.md section 7.
package experiment

// Buckets is the number of slices of the units.
const Buckets = 10000

// Outside owns the buckets that belong to no variant.
const Outside uint8 = 255

// Unit identifies who is assigned. Type matches [a-z0-9_]{1,16}, Tenant
// [A-Za-z0-9_.-]{0,64}; ID is 1..512 bytes taken as they come.
type Unit struct{ Type, Tenant, ID string }

// Digest is what one hash of (seed, unit) gives.
type Digest struct {
	Bucket int // 0..9999
	Field  [8]byte
	Shard  uint16 // bytes 16..17 big-endian; masked by the store
}

// Rule is one targeting condition; all of an experiment's must hold.
// Attr: tenant, key, model, api, tag:NAME, header:NAME. Op:
//
//	in          the value is one of Values
//	not_in      it is none of them; a request without the attribute passes
//	prefix      it begins with one of them
//	semver_gte  it is a version at or above Values[0], by semver precedence
//	percent     Values[0] percent ("10", "12.5", at most 2 decimals) of the
//	            attribute's values; Attr "unit" or "" takes the unit. The hash
//	            has its own domain, so it is independent of the bucketing;
//	            Values[1], if given, replaces the experiment's seed.
//
// A request without the attribute fails every op but not_in.
type Rule struct {
	Attr   string   `json:"attr"`
	Op     string   `json:"op"`
	Values []string `json:"values"`
}

// Segment fixes the units that match all rules to one variant; they are served, not analysed.
type Segment struct {
	Name    string `json:"name,omitempty"`
	Rules   []Rule `json:"rules"`
	Variant string `json:"variant"`
}

// Pin is the remembered variant of one unit, 8 bytes in a store:
// variant, generation (u16 BE), revision low 32 bits (BE), flags.
type Pin struct {
	Variant  uint8
	Gen      uint16
	Revision uint32
	Flags    uint8 // 1 excluded, 2 merged
}

// Pin flags.
const (
	PinExcluded uint8 = 1
	PinMerged   uint8 = 2
)

// Allocation is an ownership table, run-length coded: [start, end, owner, prev, since].
type Allocation struct {
	Revision int64      `json:"revision"`
	Runs     [][5]int64 `json:"runs"`
}

// Reason says why a unit got its variant.
type Reason string

// The reasons, of reference/experiments.md 3.3 and design.md section 5.
const (
	ReasonBucket          Reason = "bucket"
	ReasonPin             Reason = "pin"
	ReasonMerged          Reason = "merged"
	ReasonEvicted         Reason = "evicted"
	ReasonOverride        Reason = "override"
	ReasonTargeting       Reason = "targeting"
	ReasonNoUnit          Reason = "no_unit"
	ReasonHoldout         Reason = "holdout"
	ReasonLayer           Reason = "layer"
	ReasonNotRunning      Reason = "not_running"
	ReasonRolledBack      Reason = "rolled_back"
	ReasonPromoted        Reason = "promoted"
	ReasonUnsupervised    Reason = "unsupervised"
	ReasonBlocked         Reason = "blocked"
	ReasonEnrolmentPaused Reason = "enrolment_paused"
	ReasonUnallocated     Reason = "unallocated"
	ReasonKilled          Reason = "killed"
	ReasonNotReady        Reason = "not_ready"
	ReasonProvisional     Reason = "provisional"
	ReasonRandom          Reason = "random" // stickiness: none
	ReasonFixed           Reason = "fixed"
	ReasonHeavy           Reason = "heavy"        // too much of the traffic for an early step
	ReasonConversation    Reason = "conversation" // finishes on the variant that it began on
	ReasonDefault         Reason = "default"      // no experiment
)

// Decision is the answer for one request.
type Decision struct {
	Variant  int // index
	Reason   Reason
	Bucket   int // -1 when no bucket was computed
	Digest   Digest
	HasUnit  bool
	Unit     Unit
	Exposure bool
	Analysed bool
	// Note is what was ignored or is worth counting: override_killed,
	// override_masked, override_unknown_variant, merge_conflict, or "".
	Note string
	// NeedPin asks the caller to read the pin and decide again with Query.Pin set.
	// Until then Variant is the baseline.
	NeedPin bool
	// NeedSession (with NeedPin) asks for the session's pin too, at
	// SessDigest, as Query.SessPin.
	NeedSession bool
	SessDigest  Digest
	// WritePin says what to write at Digest: WriteNone, WriteAsync, WriteSync
	// or WriteReplace. After WriteSync and WriteReplace the caller compares
	// what is stored with Pin: if another pin won, it decides again with that
	// one, so that the loser of a race serves the winner.
	WritePin string
	Pin      Pin // what to write
}

// The values of Decision.WritePin.
const (
	WriteNone    = ""
	WriteAsync   = "async"   // in the background: the bucket is not contested
	WriteSync    = "sync"    // first-come through the store before serving
	WriteReplace = "replace" // over Query.Pin, which is the expected pin
)

// State of an experiment.
type State uint8

// The states.
const (
	Draft State = iota
	Running
	Paused
	Promoted
	RolledBack
	Completed
	Archived
)

// Stickiness says how a unit keeps its variant.
type Stickiness uint8

// The kinds of stickiness.
const (
	ByBucket Stickiness = iota // the table alone
	ByUser                     // a pin per unit
	None                       // drawn per request
)

// VariantState is a variant's standing within a generation.
type VariantState uint8

// The variant states. Masked is weight 0: reversible, pins are kept and
// flagged excluded; Killed is terminal within a generation.
const (
	Active VariantState = iota
	Masked
	Killed
	Draining
	NotReady
)

// VariantDef is one variant of a Definition.
type VariantDef struct {
	Name  string
	State VariantState
}

// Definition is what New compiles. Indexes refer to Variants.
type Definition struct {
	Key, Seed   string
	Hash        string // "" sha256, growthbook1, growthbook2
	Canary      bool   // kind: canary (else ab)
	State       State
	Stickiness  Stickiness
	Generation  uint16
	GenRevision int64 // buckets whose owner changed since are contested
	BlockBelow  uint16
	Merge       bool
	Variants    []VariantDef
	Baseline    int
	Winner      int // after promote, else -1
	Allocation  *Ownership
	Targeting   []Rule
	Fixed       []Segment
	LayerSeed   string // "" = no layer
	Slice       [2]int // half-open, of the layer's buckets
	HoldoutSeed string // "" = none
	Holdout     int    // buckets held out
	// Heavy are units (Digest.Field) that carry too much of the traffic for an
	// early step: where Ramping owns their bucket they get the baseline, and they
	// are in no analysis.
	Heavy   [][8]byte
	Ramping int // variant index; read with Heavy only
	// RunsFrom is the revision since which conversations may still run, 0 is
	// GenRevision; see Finish.
	RunsFrom int64
}

// Attrs answers targeting attributes; ok false when the request has none.
type Attrs interface {
	Attr(name string) (value string, ok bool)
}

// Store says whether the pin store was asked and answered.
type Store uint8

// The states of the pin read.
const (
	NotAsked Store = iota
	Up             // asked: Query.Pin is valid if HasPin
	Down           // asked and failed, or over its budget
)

// Query is one request as the experiment sees it.
type Query struct {
	Unit         Unit
	HasUnit      bool
	Session      Unit // second id, for Merge
	HasSession   bool
	Attrs        Attrs  // nil: no attribute is known
	Override     int    // authorised override, variant index; -1 none
	Draw         uint64 // 64 random bits of this request, for stickiness None
	Store        Store
	HasPin       bool
	Pin          Pin
	HasSessPin   bool
	SessPin      Pin
	Revision     int64 // of the snapshot; goes into pins
	Unsupervised bool  // no supervision for longer than stale_after
}
