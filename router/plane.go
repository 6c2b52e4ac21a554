package router

import (
	"errors"
	"time"
)

// The types in this file are spoken between the packages that commit changes,
// keep them and show them, which do not import each other.

// ErrReadOnly reports that nothing can be committed now: the database is away.
// The data plane goes on serving.
var ErrReadOnly = errors.New("read-only: the database is away")

// CommitResult is what a commit came to.
type CommitResult struct {
	Snapshot *Snapshot // newest afterwards; of a dry run, what would be
	Audit    *Audit    // nil: nothing changed, or the commit is deferred
	Revision int64     // of Snapshot
	// Deferred says that a kill or rollback is in force through Redis alone;
	// document and audit follow when the database is back.
	Deferred bool
}

// AuditFilter selects audit rows; empty members match all.
type AuditFilter struct {
	Actor, Object, Action string
	// ObjectPrefix matches "experiment/" and the like.
	ObjectPrefix string
	// Before is the cursor of the last page, 0 = the newest rows.
	Before int64
	// Limit is 1..200, 0 = 50.
	Limit int
}

// Degraded is one thing that does not work, in words.
type Degraded struct {
	Code    string    `json:"code"`
	Message string    `json:"message"`
	Since   time.Time `json:"since"`
}

// CompileError is the newest revision that did not compile.
type CompileError struct {
	Revision int64     `json:"revision"`
	Message  string    `json:"message"`
	Time     time.Time `json:"time"`
}

// Replica is one live replica.
type Replica struct {
	ID       string    `json:"id"`
	Revision int64     `json:"revision"` // applied
	Behind   bool      `json:"behind"`   // of this replica
	Addr     string    `json:"addr,omitempty"`
	Started  time.Time `json:"started"`
	Self     bool      `json:"self"`
}

// KillInForce is an entry of the kill set as people see it.
type KillInForce struct {
	Experiment string    `json:"experiment"`
	Generation int       `json:"generation"`
	Variant    string    `json:"variant"` // "*" is a rollback
	Actor      string    `json:"actor,omitempty"`
	Time       time.Time `json:"time"`
	Reason     string    `json:"reason,omitempty"`
	CutStreams bool      `json:"cut_streams,omitempty"`
}

// Status is a momentary view of one replica.
type Status struct {
	Revision  int64         `json:"revision"` // that serves
	Reported  int64         `json:"reported"` // told to the others as applied
	Source    string        `json:"source"`   // database | redis | disk
	ReadOnly  bool          `json:"read_only"`
	Degraded  []Degraded    `json:"degraded"` // by code
	Compile   *CompileError `json:"compile_error,omitempty"`
	Replicas  []Replica     `json:"replicas"` // by id; the last known list while Redis is away
	Kills     []KillInForce `json:"kills"`
	StartedAt time.Time     `json:"started_at"`
	ReplicaID string        `json:"replica_id"`
}
