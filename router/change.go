package router

import (
	"encoding/json"
	"errors"
	"time"
)

// Change is one write to the snapshot. Mutate gets a private copy of the
// newest snapshot and the revision that the write will have; it may be called
// again on a lost race. An error from it is returned to the caller unchanged
// and nothing is written.
type Change struct {
	// ID is a UUID for the audit row, by which a decision is found again whose
	// answer was lost; a new one where it is empty or has its row already.
	ID                         string
	Actor, Role, IP, RequestID string
	Action                     string // "experiment.set_weights", "document.apply", "key.create", …
	Object                     string // "experiment/chat-v2"
	Reason                     string
	DryRun                     bool
	// CutStreams says of a kill or rollback that streams in flight end at once.
	CutStreams bool
	// Fence is the leadership that a leader acts under: a commit below the highest
	// that the database has seen is ErrFenced, and a higher one raises it. 0 is a
	// person, or a change that only reduces.
	Fence int64
	// Code is that of the decision that asked for a kill or rollback; "" is a person's.
	Code string
	// Details are the inputs of a decision, JSON; kept in the audit row.
	Details json.RawMessage
	Mutate  func(s *Snapshot, revision int64) error
}

// Audit is one row of the append-only, hash-chained audit log, written in the
// same transaction as the change.
type Audit struct {
	ID        string          `json:"id"` // UUIDv7
	Revision  int64           `json:"revision"`
	Time      time.Time       `json:"time"`
	Actor     string          `json:"actor"`
	Role      string          `json:"role,omitempty"`
	IP        string          `json:"ip,omitempty"`
	RequestID string          `json:"request_id,omitempty"`
	Action    string          `json:"action"`
	Object    string          `json:"object"`
	Reason    string          `json:"reason,omitempty"`
	Before    json.RawMessage `json:"before,omitempty"` // the object before and after
	After     json.RawMessage `json:"after,omitempty"`
	Details   json.RawMessage `json:"details,omitempty"` // the inputs of a decision
	Prev      string          `json:"prev"`              // hash of the row before
	Hash      string          `json:"hash"`
}

// ErrConflict reports that the newest revision moved too often to commit.
var ErrConflict = errors.New("the document changed at the same time; read it again and retry")

// ErrFenced reports a write of an old leader: another one leads since.
var ErrFenced = errors.New("another replica leads since; this change is too late")

// Problem is one fault of a document, with a JSON pointer to it.
type Problem struct {
	Path    string `json:"path"` // "/experiments/0/variants/1/weight"
	Code    string `json:"code"` // "weights_sum"
	Message string `json:"message"`
}

// Problems are all faults found; it is an error.
type Problems []Problem
