package control

import (
	"context"
	"slices"
	"strings"
	"time"

	"sluice/internal/sticky"
)

// Codes of Degraded.
const (
	CodeDatabase   = "database"   // away: read-only
	CodeSticky     = "redis"      // away: news travel by polling
	CodeCompile    = "compile"    // the newest revision does not compile
	CodeSnapshot   = "snapshot"   // the last good snapshot cannot be written to disk
	CodeNeighbours = "neighbours" // another process shares the database without Redis
	CodeReissued   = "reissued"   // the document was issued again after a restored backup
)

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

// Status is a momentary view.
type Status struct {
	Revision  int64              `json:"revision"` // that serves
	Reported  int64              `json:"reported"` // told to the others as applied
	Source    string             `json:"source"`   // database | redis | disk
	ReadOnly  bool               `json:"read_only"`
	Degraded  []Degraded         `json:"degraded"` // by code
	Compile   *CompileError      `json:"compile_error,omitempty"`
	Replicas  []Replica          `json:"replicas"` // by id; the last known list while Redis is away
	Kills     []sticky.KillEntry `json:"kills"`
	StartedAt time.Time          `json:"started_at"`
	ReplicaID string             `json:"replica_id"`
}

// Status reads the replicas from Redis and the rest from memory.
func (c *Controller) Status(ctx context.Context) Status {
	list, _ := c.liveReplicas(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	s := Status{
		Source: c.source, Compile: c.compile, Kills: slices.Clone(c.kills), Reported: c.reported,
		StartedAt: c.started, ReplicaID: c.o.ReplicaID, Degraded: c.degradedLocked(), Replicas: []Replica{},
	}
	if c.doc != nil {
		s.Revision = c.doc.Document.Revision
	}
	_, s.ReadOnly = c.degraded[CodeDatabase]
	for _, r := range list {
		s.Replicas = append(s.Replicas, Replica{
			ID: r.ID, Revision: r.Revision, Behind: r.Revision < s.Revision, Addr: r.Addr, Started: r.Started, Self: r.ID == c.o.ReplicaID,
		})
	}
	return s
}

// Degraded lists what does not work, by code; from memory.
func (c *Controller) Degraded() []Degraded {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.degradedLocked()
}

func (c *Controller) degradedLocked() []Degraded {
	list := []Degraded{}
	for _, d := range c.degraded {
		list = append(list, d)
	}
	slices.SortFunc(list, func(a, b Degraded) int { return strings.Compare(a.Code, b.Code) })
	return list
}

// liveReplicas asks Redis and falls back to the last list.
func (c *Controller) liveReplicas(ctx context.Context) ([]sticky.Replica, error) {
	list, err := c.o.Sticky.Replicas(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		return c.replicas, err
	}
	c.replicas = list
	return list, nil
}

// degrade sets or, with an empty message, clears a reason; changes are logged once.
func (c *Controller) degrade(code, message string) {
	c.mu.Lock()
	old, was := c.degraded[code]
	switch {
	case message == "":
		delete(c.degraded, code)
	case was:
		c.degraded[code] = Degraded{code, message, old.Since}
	default:
		c.degraded[code] = Degraded{code, message, c.o.Now()}
	}
	c.mu.Unlock()
	on := message != ""
	switch {
	case on && (!was || code == CodeCompile && old.Message != message):
		c.log.Error("degraded", "reason", code, "message", message)
	case !on && was:
		c.log.Info("no longer degraded", "reason", code, "lasted", c.o.Now().Sub(old.Since).Round(time.Millisecond).String())
	}
	if on != was && c.o.Hooks.Degraded != nil {
		c.o.Hooks.Degraded(code, on)
	}
}

// WaitApplied waits until every live replica reported a revision, at most
// timeout. missing names those that did not; with Redis away these are the
// replicas last seen.
func (c *Controller) WaitApplied(ctx context.Context, revision int64, timeout time.Duration) (applied bool, missing []string) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		list, err := c.liveReplicas(ctx)
		missing = c.missing(list, revision, err)
		if len(missing) == 0 {
			return true, nil
		}
		select {
		case <-ctx.Done():
			return false, missing
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (c *Controller) missing(list []sticky.Replica, revision int64, err error) []string {
	c.mu.Lock()
	own := c.reported
	c.mu.Unlock()
	missing := []string{}
	if own < revision {
		missing = append(missing, c.o.ReplicaID)
	}
	for _, r := range list {
		// What others reported before Redis went away says nothing about now,
		// unless it is enough already.
		if r.ID != c.o.ReplicaID && r.Revision < revision {
			missing = append(missing, r.ID)
		}
	}
	if err != nil && c.o.Shared && len(missing) == 0 && len(list) == 0 {
		missing = append(missing, "unknown: redis is away")
	}
	return missing
}
