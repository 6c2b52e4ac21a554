package experiment

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Experiment is a compiled, immutable Definition; Decide may be called from
// any number of goroutines.
type Experiment struct {
	key, seed   string
	hash        HashKind
	canary      bool
	state       State
	sticky      Stickiness
	gen         uint16
	blockBelow  uint16
	merge       bool
	states      []VariantState
	baseline    int
	winner      int
	rules       []rule
	fixed       []segment
	layerSeed   string
	slice       [2]int
	holdoutSeed string
	holdout     int
	heavy       [][8]byte // sorted
	ramping     int
	genRevision int64
	runsFrom    int64
	// The part of the ownership table that a decision reads: 11 kB instead of
	// the whole 100.
	own       [Buckets]uint8
	contested [(Buckets + 63) / 64]uint64
}

// segment is a compiled Segment.
type segment struct {
	rules   []rule
	variant int
}

// New compiles def. The error joins all that is wrong with it.
func New(def Definition) (*Experiment, error) {
	e := &Experiment{
		key: def.Key, seed: def.Seed, canary: def.Canary, state: def.State, sticky: def.Stickiness,
		gen: def.Generation, blockBelow: def.BlockBelow, merge: def.Merge,
		baseline: def.Baseline, winner: def.Winner,
		layerSeed: def.LayerSeed, slice: def.Slice, holdoutSeed: def.HoldoutSeed, holdout: def.Holdout,
		heavy: slices.SortedFunc(slices.Values(def.Heavy), compareFields), ramping: def.Ramping,
		genRevision: def.GenRevision, runsFrom: cmp.Or(def.RunsFrom, def.GenRevision),
	}
	for _, v := range def.Variants {
		e.states = append(e.states, v.State)
	}
	var errs []error
	add := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	var err error
	e.hash, err = ParseHash(def.Hash)
	add(err)
	add(checkSeeds(&def, e.hash))
	add(checkVariants(&def))
	add(checkRules(&def))
	e.rules, err = compileRules(def.Targeting, def.Seed)
	if err != nil {
		add(fmt.Errorf("targeting: %w", err))
	}
	e.fixed, err = compileSegments(&def)
	add(err)
	add(e.setTable(&def))
	if len(errs) > 0 {
		return nil, fmt.Errorf("experiment %s: %w", def.Key, errors.Join(errs...))
	}
	return e, nil
}

func compareFields(a, b [8]byte) int { return bytes.Compare(a[:], b[:]) }

func (e *Experiment) isHeavy(d *Decision) bool {
	if len(e.heavy) == 0 || !d.HasUnit {
		return false
	}
	_, found := slices.BinarySearchFunc(e.heavy, d.Digest.Field, compareFields)
	return found
}

// validName reports whether s may name an experiment or a variant:
// [a-z0-9][a-z0-9-]{0,62}.
func validName(s string) bool {
	if len(s) == 0 || len(s) > 63 || s[0] == '-' {
		return false
	}
	return validSeed(s)
}

func errSeed(s string) error {
	return fmt.Errorf("seed %q is not 1 to %d of a-z, 0-9 and hyphen", s, maxSeed)
}

// maxForeignSeed bounds the seed of an imported experiment.
const maxForeignSeed = 256

func checkSeeds(def *Definition, hash HashKind) error {
	var errs []error
	if hash == SHA256 && !validSeed(def.Seed) {
		errs = append(errs, errSeed(def.Seed))
	}
	if hash != SHA256 && (def.Seed == "" || len(def.Seed) > maxForeignSeed) {
		errs = append(errs, fmt.Errorf("the seed of an imported experiment is 1 to %d bytes", maxForeignSeed))
	}
	for _, other := range []struct{ what, seed string }{{"layer", def.LayerSeed}, {"holdout", def.HoldoutSeed}} {
		switch {
		case other.seed == "":
		case !validSeed(other.seed):
			errs = append(errs, fmt.Errorf("%s: %w", other.what, errSeed(other.seed)))
		case other.seed == def.Seed:
			// The slice would then hold only some of the variants' buckets.
			errs = append(errs, fmt.Errorf("the %s has the experiment's own seed; give it another", other.what))
		}
	}
	if lo, hi := def.Slice[0], def.Slice[1]; def.LayerSeed != "" && (lo < 0 || hi < lo || hi > Buckets) {
		errs = append(errs, fmt.Errorf("slice [%d, %d) is not within [0, %d)", lo, hi, Buckets))
	}
	if def.Holdout < 0 || def.Holdout > Buckets {
		errs = append(errs, fmt.Errorf("holdout of %d buckets; give 0 to %d", def.Holdout, Buckets))
	}
	return errors.Join(errs...)
}

func checkVariants(def *Definition) error {
	n := len(def.Variants)
	if n == 0 || n > MaxVariants {
		return fmt.Errorf("%d variants; give 1 to %d", n, MaxVariants)
	}
	var errs []error
	seen := make(map[string]bool, n)
	for _, v := range def.Variants {
		if !validName(v.Name) {
			errs = append(errs, fmt.Errorf("variant name %q is not 1 to 63 of a-z, 0-9 and hyphen", v.Name))
		}
		if seen[v.Name] {
			errs = append(errs, fmt.Errorf("two variants are named %s", v.Name))
		}
		if v.State > NotReady {
			errs = append(errs, fmt.Errorf("variant %s has the unknown state %d", v.Name, v.State))
		}
		seen[v.Name] = true
	}
	switch {
	case def.Baseline < 0 || def.Baseline >= n:
		errs = append(errs, fmt.Errorf("the baseline is variant %d of %d", def.Baseline, n))
	case def.Variants[def.Baseline].State == Killed:
		errs = append(errs, fmt.Errorf("the baseline %s is killed, but it must serve who has no variant; roll back, or promote another",
			def.Variants[def.Baseline].Name))
	}
	if def.State == Promoted {
		switch {
		case def.Winner < 0 || def.Winner >= n:
			errs = append(errs, fmt.Errorf("promoted, but the winner is variant %d of %d", def.Winner, n))
		case def.Variants[def.Winner].State == Masked && def.Winner != def.Baseline:
			errs = append(errs, fmt.Errorf("promoted, but the winner %s has weight 0; give it weight", def.Variants[def.Winner].Name))
		}
	}
	return errors.Join(errs...)
}

// checkRules tests what depends on kind, state and stickiness.
func checkRules(def *Definition) error {
	var errs []error
	if !validName(def.Key) {
		errs = append(errs, errors.New("the key is not 1 to 63 of a-z, 0-9 and hyphen"))
	}
	if def.State > Archived {
		errs = append(errs, fmt.Errorf("unknown state %d", def.State))
	}
	switch {
	case def.Stickiness > None:
		errs = append(errs, fmt.Errorf("unknown stickiness %d", def.Stickiness))
	case def.Stickiness == None && !def.Canary:
		errs = append(errs, errors.New("stickiness none is for canaries only: an A/B test needs units that stay"))
	case def.Stickiness != ByUser && (def.Merge || def.BlockBelow > 0):
		errs = append(errs, errors.New("merge and block_below read pins; they need stickiness user"))
	}
	if def.BlockBelow > def.Generation {
		errs = append(errs, fmt.Errorf("block_below %d is above generation %d", def.BlockBelow, def.Generation))
	}
	return errors.Join(errs...)
}

func compileSegments(def *Definition) ([]segment, error) {
	var errs []error
	var out []segment
	for i, s := range def.Fixed {
		variant := -1
		for j, v := range def.Variants {
			if v.Name == s.Variant {
				variant = j
			}
		}
		if variant < 0 {
			errs = append(errs, fmt.Errorf("fixed segment %d: no variant is named %q", i, s.Variant))
		}
		if len(s.Rules) == 0 {
			errs = append(errs, fmt.Errorf("fixed segment %d has no rules and would take everybody", i))
		}
		rules, err := compileRules(s.Rules, def.Seed)
		if err != nil {
			errs = append(errs, fmt.Errorf("fixed segment %d: %w", i, err))
		}
		out = append(out, segment{rules, variant})
	}
	return out, errors.Join(errs...)
}

// setTable copies what Decide needs of the ownership table. Only an experiment
// that assigns needs one.
func (e *Experiment) setTable(def *Definition) error {
	o := def.Allocation
	if o == nil {
		if def.State == Running || def.State == Paused {
			return errors.New("no allocation; make one with NewOwnership")
		}
		for b := range e.own {
			e.own[b] = Outside
		}
		return nil
	}
	for b, owner := range o.own {
		if int(owner) >= len(def.Variants) && owner != Outside {
			return fmt.Errorf("bucket %d is owned by variant %d of %d", b, owner, len(def.Variants))
		}
		if o.since[b] > def.GenRevision {
			e.contested[b/64] |= 1 << (b % 64)
		}
	}
	e.own = o.own
	return nil
}

// Key is the experiment's key.
func (e *Experiment) Key() string { return e.key }

// Owner is the variant that owns bucket b, or -1 for none.
func (e *Experiment) Owner(b int) int {
	if b < 0 || b >= Buckets || e.own[b] == Outside {
		return -1
	}
	return int(e.own[b])
}

// Contested reports whether the owner of bucket b changed since the generation
// began. In any other bucket a pin can only say what the table says.
func (e *Experiment) Contested(b int) bool {
	return b >= 0 && b < Buckets && e.contested[b/64]>>(b%64)&1 == 1
}
