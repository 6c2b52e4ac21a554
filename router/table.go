package router

import (
	"context"
	"crypto/sha256"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"sluice/experiment"
	"sluice/experiment/guardrail"
	"sluice/experiment/ramp"
	"sluice/metrics"
	"sluice/upstream"
	"sluice/upstream/wire"
)

// Table is an immutable, compiled snapshot. Nothing reachable from it is ever
// written, but *upstream.Upstream, which has its own locks.
type Table struct {
	Revision int64
	// Epoch orders tables of one revision: a newer kill set laid over the same
	// snapshot has a higher one.
	Epoch    int64
	Snapshot *Snapshot // what it was compiled from; read-only
	table
}

// table is what Route reads.
type table struct {
	upstreams   []*upstream.Upstream      // in the document's order
	models      []*CompiledModel          // in the document's order
	exact       map[string]*CompiledModel // public names and exact aliases
	prefixes    []prefixAlias             // longest first
	experiments map[string]*CompiledExperiment
	keys        map[[sha256.Size]byte]*Key
	tenants     map[string]keyTenant // by key id
	headerAttrs map[string]string    // "header:x-plan" -> "X-Plan", of the targeting rules
	cuts        bool                 // a variant's streams in flight end
}

type prefixAlias struct {
	prefix string
	model  *CompiledModel
}

// keyTenant is a key's namespaces for unit ids: the tenant's, and the key's own
// for what a key without the scope identity only claims.
type keyTenant struct{ tenant, own string }

// CompiledModel is a public model of a Table.
type CompiledModel struct {
	Name          string
	EchoPublic    bool
	ExposeHeaders bool
	Default       *CompiledVariant
	Experiments   []*CompiledExperiment // on disjoint slices
	layerSeed     string                // "" without layer
	drawn         bool                  // an experiment draws per request
}

// CompiledExperiment joins the pure experiment with its variants' targets.
type CompiledExperiment struct {
	Key           string
	Exp           *experiment.Experiment
	Variants      []*CompiledVariant // same order and index as in Exp
	Baseline      int
	OverrideNames []string // lower-case header names, x-sluice-variant first
	Generation    int
	State         experiment.State // while a winner bakes: Running
	Ramp          *ramp.State      // as the document has it, nil without one
	Ramped        bool             // it is on: waiting, growing, resting or baking
	Policy        ramp.Config      // of the ramp; the defaults without one
	Guardrails    []guardrail.Config
	Checks        wire.Checks // of answers, that its guardrails need beside those that every answer gets
	Prompts       bool        // a variant brings a system prompt of its own: every request can have one
	stickiness    experiment.Stickiness
	merges        bool   // a user takes over the session's pin
	finishes      bool   // switch: conversation
	cut           []bool // by variant: its streams in flight end; nil: none
	slice         [2]int
	sources       []unitSource
	overrides     []string // OverrideNames as header keys
}

// CompiledVariant is a variant ready to be called.
type CompiledVariant struct {
	Name, Version string          // Name "" for a model's default
	Target        upstream.Target // Tag is the *CompiledVariant itself
	// Fallback is the declared fallback while it may serve: never masked, killed
	// or rolled back. nil: none.
	Fallback *CompiledVariant
	Price    *metrics.Price // nil: unknown
	Masked   bool           // weight 0
	Killed   bool
	Tripped  bool // out of service on this replica, for now
	// KeepAlive comments after and before the commit point; 0 = off.
	KeepAlive, KeepAliveBefore time.Duration
}

// Query is one request as routing sees it.
type Query struct {
	Model     string
	API       wire.API
	Head      *wire.Head // nil: nothing is known of the body
	Body      []byte
	Header    http.Header
	Key       *Key // nil without auth
	Loopback  bool // the peer is on loopback (overrides in auth: none)
	RequestID string
	AuthNone  bool
	// Unsupervised says of an experiment that nobody has led it for longer than
	// its policy allows; nil: all are led.
	Unsupervised func(e *CompiledExperiment) bool

	headerAttrs map[string]string // the Table's, for Attr
}

// Plan says where a request goes and why.
type Plan struct {
	Model      *CompiledModel
	Experiment *CompiledExperiment // nil: none applies
	Decision   experiment.Decision
	Variant    *CompiledVariant // assigned
	Note       string           // for x-sluice-note
	Revision   int64            // of the Table that decided

	table *Table // that decided
	query *Query // to decide again in Recheck
}

// RouteError is a request that goes nowhere; server maps it to the envelope.
type RouteError struct {
	Code    string // model_not_found | permission_denied | invalid_request
	Param   string
	Message string
}

func (e *RouteError) Error() string { return e.Message }

// The codes of a RouteError.
const (
	CodeModelNotFound    = "model_not_found"
	CodePermissionDenied = "permission_denied"
	CodeInvalidRequest   = "invalid_request"
)

// Pins reads and writes pins of units for `stickiness: user`; implemented by
// internal/sticky. Get must answer within the caller's budget (5 ms).
type Pins interface {
	Get(ctx context.Context, exp string, field [8]byte, shard uint16) (pin experiment.Pin, found bool, err error)
	// Put writes first-come (put rule of reference/experiments.md 3.2) and
	// answers what is stored afterwards.
	Put(ctx context.Context, exp string, field [8]byte, shard uint16, pin experiment.Pin, expect *experiment.Pin) (experiment.Pin, error)
	// PutLater queues a Put; it never blocks.
	PutLater(exp string, field [8]byte, shard uint16, pin experiment.Pin)
	Conversations
}

// Conversations remembers for a day what running conversations are served by,
// for `switch: conversation`. Get must answer as Pins.Get; Put writes over what
// is there and never blocks.
type Conversations interface {
	GetConversation(ctx context.Context, exp string, field [8]byte, shard uint16) (pin experiment.Pin, found bool, err error)
	PutConversation(exp string, field [8]byte, shard uint16, pin experiment.Pin)
}

// CutsAny reports whether Cuts may be true of anything.
func (t *Table) CutsAny() bool { return t.cuts }

// Cuts reports that streams in flight which the variant serves for e end now: it
// was killed or rolled back that way. e is of this table or an older one.
func (t *Table) Cuts(e *CompiledExperiment, v *CompiledVariant) bool {
	if !t.cuts || e == nil || v == nil {
		return false
	}
	now := t.experiments[e.Key]
	if now == nil || now.cut == nil {
		return false
	}
	i := now.index(v.Name)
	return i >= 0 && now.cut[i]
}

// Live is the current Table: an atomic pointer that only moves forward.
type Live struct{ p atomic.Pointer[Table] }

// Load returns the current Table, nil before the first.
func (l *Live) Load() *Table { return l.p.Load() }

// Store swaps t in unless the current table is newer or as new (by revision,
// then epoch); it reports whether it did.
func (l *Live) Store(t *Table) bool {
	for {
		old := l.p.Load()
		if old != nil && (old.Revision > t.Revision || old.Revision == t.Revision && old.Epoch >= t.Epoch) {
			return false
		}
		if l.p.CompareAndSwap(old, t) {
			return true
		}
	}
}

// Why a key is not accepted.
const (
	KeyExpired = "expired"
	KeyRevoked = "revoked"
	KeyUnknown = "unknown"
)

// Scopes of a key.
const (
	ScopeOverride = "override"
	ScopeIdentity = "identity"
)

// Key finds a key by its secret. ok is false for an unknown, revoked or
// expired key; KeyStatus tells them apart.
func (t *Table) Key(secret string, now time.Time) (k *Key, ok bool) {
	k = t.key(secret)
	if k == nil || k.status(now) != "" {
		return nil, false
	}
	return k, true
}

// KeyStatus is "" for a key that is accepted, else KeyUnknown, KeyExpired or KeyRevoked.
func (t *Table) KeyStatus(secret string, now time.Time) string {
	k := t.key(secret)
	if k == nil {
		return KeyUnknown
	}
	return k.status(now)
}

func (t *Table) key(secret string) *Key {
	// Looking up a hash leaks nothing of a secret by its timing.
	var buf [256]byte
	return t.keys[sha256.Sum256(append(buf[:0], secret...))]
}

func (k *Key) status(now time.Time) string {
	switch {
	case !k.RevokedAt.IsZero() && !now.Before(k.RevokedAt):
		return KeyRevoked
	case !k.ExpiresAt.IsZero() && !now.Before(k.ExpiresAt):
		return KeyExpired
	}
	return ""
}

// HasScope says whether k has a scope; a nil key has none.
func (k *Key) HasScope(scope string) bool { return k != nil && slices.Contains(k.Scopes, scope) }

func (k *Key) mayUse(m *CompiledModel) bool {
	return k == nil || len(k.Models) == 0 || slices.Contains(k.Models, m.Name)
}

// Upstreams are the upstreams of the table in the document's order. The caller
// must not change the slice.
func (t *Table) Upstreams() []*upstream.Upstream { return t.upstreams }

// Models are the public models in the document's order that key may use (nil: all).
func (t *Table) Models(key *Key) []*CompiledModel {
	out := make([]*CompiledModel, 0, len(t.models))
	for _, m := range t.models {
		if key.mayUse(m) {
			out = append(out, m)
		}
	}
	return out
}

// Model finds a model by its public name or an alias: exact name, exact alias,
// longest prefix alias.
func (t *Table) Model(name string) (*CompiledModel, bool) {
	if m := t.exact[name]; m != nil {
		return m, true
	}
	if name == "" {
		return nil, false
	}
	for _, p := range t.prefixes {
		if strings.HasPrefix(name, p.prefix) {
			return p.model, true
		}
	}
	return nil, false
}

// Experiment finds a compiled experiment that is not archived.
func (t *Table) Experiment(key string) (*CompiledExperiment, bool) {
	e, ok := t.experiments[key]
	return e, ok
}
