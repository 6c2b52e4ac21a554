// Package sticky keeps what must be the same on every replica and alive
// without a database write: the published snapshot and its change log, pins of
// units, the kill set, replicas' applied revisions and the leader lease. In
// Redis, or embedded in the process with the same behaviour. It hides keys,
// scripts, budgets and background queues.
package sticky

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"sluice/experiment"
)

// ErrDown reports that the shared store does not answer, or that its pins are
// still being refilled from the backup. A unit whose pin this replica has
// served is answered all the same; for others the caller decides without a pin.
var ErrDown = errors.New("the sticky store is away")

// ErrStale reports a publish that lost to an equal or higher revision.
var ErrStale = errors.New("the published revision is not newer")

// ErrNone reports that nothing has been published yet.
var ErrNone = errors.New("nothing is published")

// ErrFenced reports a checkpoint of an old leader: another one has written since.
var ErrFenced = errors.New("another replica leads since")

// ErrClosed reports a call after Close.
var ErrClosed = errors.New("the sticky store is closed")

// StaleError is the ErrStale of one publish.
type StaleError struct {
	Revision, Current int64
	// Differs is set when Current equals Revision but its document is another
	// one, which never happens while the database numbers the revisions.
	Differs bool
}

func (e *StaleError) Error() string {
	if e.Differs {
		return fmt.Sprintf("publish revision %d: another document is published under this revision", e.Revision)
	}
	return fmt.Sprintf("publish revision %d: revision %d is published already", e.Revision, e.Current)
}

// Is makes errors.Is(err, ErrStale) true.
func (e *StaleError) Is(target error) bool { return target == ErrStale }

// State is how much of the store works.
type State uint8

// The states. In Refilling the store answers, and everything but pins works.
const (
	Down State = iota
	Refilling
	Up
)

func (s State) String() string { return [...]string{"down", "refilling", "up"}[s] }

// Options configure Open. Zero values take the defaults in the comments.
type Options struct {
	// URL is redis://, rediss:// or unix:// as go-redis parses it. With
	// `addr=HOST:PORT` (repeatable) or `cluster=true` in its query it is a
	// cluster, with `master_name=NAME` the addresses are sentinels. Empty:
	// embedded in this process.
	URL string
	// TLS replaces the TLS configuration of a rediss:// URL (own CA, client
	// certificate); nil takes the system's roots.
	TLS *tls.Config
	// ReplicaID names this process among the replicas; required.
	ReplicaID string
	// Prefix starts every Redis key, for deployments that share one server; "sluice".
	Prefix string
	Log    *slog.Logger     // slog.Default()
	Backup PinBackup        // nil: pins have no copy
	Now    func() time.Time // time.Now; for times shown to people, and the periods of conversations

	PinBudget time.Duration // bound of Get and Put; 5 ms
	PinCache  int           // pins remembered for when Redis is away; 100,000
	PinQueue  int           // PutLater's queue; 100,000
	// PinTTL is renewed by each write to a shard of pins; 0 keeps pins until
	// DropPins or ExpirePins.
	PinTTL time.Duration

	// OnConflict is told that a queued pin lost against one written elsewhere:
	// the unit may have been shown both variants and leaves the analysis. It
	// must not block.
	OnConflict func(exp string, field [8]byte, lost, stored experiment.Pin)
	// Count is the metrics hook, called beside what Stats counts; it must not block.
	Count func(c Counter, n int64)
}

// Counter names what Options.Count counts.
type Counter string

// The counters.
const (
	CountPinDropped    Counter = "pin_dropped"    // queued pins lost to a full queue or an unfinished Close
	CountPinConflict   Counter = "pin_conflict"   // queued pins that lost to another writer
	CountPinTimeout    Counter = "pin_timeout"    // reads or writes over their budget or failed
	CountPinCached     Counter = "pin_cached"     // reads answered from memory while the store is away
	CountPinMissed     Counter = "pin_missed"     // reads not answered: ErrDown
	CountBackupDropped Counter = "backup_dropped" // copies of pins lost to a full buffer
	CountBackupError   Counter = "backup_error"   // failed writes to the backup, retried
)

// Stats is a momentary view for metrics and /readyz?verbose.
type Stats struct {
	State    State
	Since    time.Time // of State
	Reason   string    // of Down or Refilling
	Queue    int       // pins waiting in PutLater's queue
	Backup   int       // pins waiting for the backup
	Cached   int       // pins in memory
	Revision int64     // highest revision seen published
	// Published is the revision that the store held when it was last asked: below
	// Revision, it was emptied or comes from an older copy.
	Published int64
	Counters  map[Counter]int64
}

// PinRecord is a pin with its unit, as a backup keeps it.
type PinRecord struct {
	Experiment string
	Field      [8]byte
	Shard      uint16
	Pin        experiment.Pin
}

// PinBackup keeps the durable copy of the pins; implemented by internal/store.
type PinBackup interface {
	// SavePins upserts a batch of at most 1,000. Of two copies of one unit
	// (experiment, field) the higher generation stays, then the later revision
	// (experiment.Pin.Revision, compared modulo 2^32).
	SavePins(ctx context.Context, pins []PinRecord) error
	// LoadPins calls yield with batches of all copies until it returns an error.
	LoadPins(ctx context.Context, yield func([]PinRecord) error) error
	// DropPins removes the copies of one experiment.
	DropPins(ctx context.Context, experiment string) error
}

// Replica is what a replica tells about itself.
type Replica struct {
	ID       string    `json:"id"`
	Revision int64     `json:"revision"` // applied
	Started  time.Time `json:"started"`
	Addr     string    `json:"addr,omitempty"`
}

// KillEntry takes a variant, or with Variant "*" the whole experiment
// (rollback), out of service for one generation.
type KillEntry struct {
	Experiment string    `json:"experiment"`
	Generation int       `json:"generation"`
	Variant    string    `json:"variant"`
	Actor      string    `json:"actor,omitempty"`
	Time       time.Time `json:"time"`
	Reason     string    `json:"reason,omitempty"`
	CutStreams bool      `json:"cut_streams,omitempty"` // streams in flight end at once
	Details    string    `json:"details,omitempty"`     // JSON: the inputs of a decision, for the audit
	Code       string    `json:"code,omitempty"`        // of the decision, "" for a person's
	ID         string    `json:"id,omitempty"`          // of the decision, and of its row in the audit
	Written    bool      `json:"written,omitempty"`     // the database had it first
}

// ReplicaTTL is how long a silent replica stays listed.
const ReplicaTTL = 15 * time.Second

// maxRevision is the last integer that Lua's numbers hold exactly.
const maxRevision = 1<<53 - 1
