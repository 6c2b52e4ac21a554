package router

import (
	"context"
	"net/http"
	"sync/atomic"

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
