package router

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"sluice/experiment"
	"sluice/metrics"
	"sluice/upstream"
	"sluice/upstream/wire"
)

// Table is an immutable, compiled snapshot. Nothing reachable from it is ever
// written, but *upstream.Upstream, which has its own locks.
type Table struct {
	Revision int64
	Snapshot *Snapshot // what it was compiled from; read-only
	table
}

type table struct{}

// CompiledModel is a public model of a Table.
type CompiledModel struct {
	Name          string
	EchoPublic    bool
	ExposeHeaders bool
	Default       *CompiledVariant
	Experiments   []*CompiledExperiment // on disjoint slices
}

// CompiledExperiment joins the pure experiment with its variants' targets.
type CompiledExperiment struct {
	Key           string
	Exp           *experiment.Experiment
	Variants      []*CompiledVariant // same order and index as in Exp
	Baseline      int
	OverrideNames []string // lower-case header names, x-sluice-variant first
}

// CompiledVariant is a variant ready to be called.
type CompiledVariant struct {
	Name, Version string // Name "" for a model's default
	Target        upstream.Target
	Fallback      *CompiledVariant
	Price         *metrics.Price // nil: unknown
	Masked        bool           // weight 0
	Killed        bool
}

// Query is one request as routing sees it.
type Query struct {
	Model     string
	API       wire.API
	Head      *wire.Head
	Body      []byte
	Header    http.Header
	Key       *Key // nil without auth
	Loopback  bool // the peer is on loopback (overrides in auth: none)
	RequestID string
	AuthNone  bool
}

// Plan says where a request goes and why.
type Plan struct {
	Model      *CompiledModel
	Experiment *CompiledExperiment // nil: none applies
	Decision   experiment.Decision
	Variant    *CompiledVariant // assigned
	Note       string           // for x-sluice-note
	Revision   int64            // of the Table that decided
	// query is kept to decide again in Recheck.
	query *Query
}

// Sentinels of Route, mapped to the envelope by server.
type RouteError struct {
	Code    string // model_not_found | permission_denied | invalid_request
	Param   string
	Message string
}

func (e *RouteError) Error() string { return e.Message }

// Pins reads and writes pins of units for `stickiness: user`; implemented by
// internal/sticky. Get must answer within the caller's budget (5 ms).
type Pins interface {
	Get(ctx context.Context, exp string, field [8]byte, shard uint16) (pin experiment.Pin, found bool, err error)
	// Put writes first-come (put rule of reference/experiments.md 3.2) and
	// answers what is stored afterwards.
	Put(ctx context.Context, exp string, field [8]byte, shard uint16, pin experiment.Pin, expect *experiment.Pin) (experiment.Pin, error)
	// PutLater queues a Put; it never blocks.
	PutLater(exp string, field [8]byte, shard uint16, pin experiment.Pin)
}

// Live is the current Table: an atomic pointer that only moves forward.
type Live struct{ p atomic.Pointer[Table] }

// Load returns the current Table, nil before the first.
func (l *Live) Load() *Table { return l.p.Load() }

// Store swaps t in unless the current revision is newer or equal; it reports whether it did.
func (l *Live) Store(t *Table) bool {
	for {
		old := l.p.Load()
		if old != nil && old.Revision >= t.Revision {
			return false
		}
		if l.p.CompareAndSwap(old, t) {
			return true
		}
	}
}

// Kill is an entry of the shared kill set, laid over a snapshot: it counts as
// long as the experiment is in that generation.
type KillEntry struct {
	Experiment string
	Generation int
	Variant    string // "*" is a rollback
}

// CompileOptions are what Compile cannot know from the snapshot.
type CompileOptions struct {
	Secrets func(name string) bool // does a credential resolve; nil: not checked
	Kills   []KillEntry
}

// Compile validates s and builds its Table; ups holds every upstream of the
// document by name. The error is Problems, all of them. s must not be written
// afterwards.
func Compile(s *Snapshot, ups map[string]*upstream.Upstream, o CompileOptions) (*Table, error) {
	return nil, errBuilding
}

// UpstreamConfigs are the upstreams of d, ready for upstream.New, with their
// credentials resolved.
func UpstreamConfigs(d *Document, secrets func(name string) (string, bool)) ([]upstream.Config, Problems) {
	return nil, nil
}

// Route answers where a request goes and why. pins may be nil. The error is a
// *RouteError. q must stay unchanged as long as the Plan is used.
func (t *Table) Route(ctx context.Context, q *Query, pins Pins) (Plan, error) {
	return Plan{}, errBuilding
}

// Recheck says which variant a request planned under an older table must use
// now, on the current one: the same while it is alive (reason ""), the baseline
// when it was killed or rolled back ("killed"), a new decision when its weight
// fell to 0 ("evicted").
func Recheck(t *Table, p *Plan) (v *CompiledVariant, reason string) { return p.Variant, "" }

// Fallback is the declared fallback of the assigned variant on the current
// table, nil without one that is alive.
func Fallback(t *Table, p *Plan) *CompiledVariant { return nil }

// Why a key is not accepted.
const (
	KeyExpired = "expired"
	KeyRevoked = "revoked"
	KeyUnknown = "unknown"
)

// Key finds a key by its secret. ok is false for an unknown, revoked or
// expired key; KeyStatus tells them apart.
func (t *Table) Key(secret string, now time.Time) (k *Key, ok bool) { return nil, false }

// KeyStatus is "" for a key that is accepted, else KeyUnknown, KeyExpired or KeyRevoked.
func (t *Table) KeyStatus(secret string, now time.Time) string { return KeyUnknown }

// HasKeys says whether any key is configured.
func (t *Table) HasKeys() bool { return false }

// Models are the public models in the document's order that key may use (nil: all).
func (t *Table) Models(key *Key) []*CompiledModel { return nil }

// Model finds a model by its public name or an alias: exact name, exact alias,
// longest prefix alias.
func (t *Table) Model(name string) (*CompiledModel, bool) { return nil, false }

// Experiment finds a compiled experiment that is not archived.
func (t *Table) Experiment(key string) (*CompiledExperiment, bool) { return nil, false }
