package control

import (
	"context"
	"slices"
	"strings"
	"time"

	"sluice/internal/sticky"
	"sluice/router"
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

// Status and its parts, as other packages see them too.
type (
	Degraded     = router.Degraded
	CompileError = router.CompileError
	Replica      = router.Replica
	Status       = router.Status
)

// Status reads the replicas from Redis and the rest from memory.
func (c *Controller) Status(ctx context.Context) Status {
	list, _ := c.liveReplicas(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	s := Status{
		Source: c.source, Compile: c.compile, Kills: []router.KillInForce{}, Reported: c.reported,
		StartedAt: c.started, ReplicaID: c.o.ReplicaID, Degraded: c.degradedLocked(), Replicas: []Replica{},
	}
	if c.doc != nil {
		s.Revision = c.doc.Document.Revision
	}
	_, s.ReadOnly = c.degraded[CodeDatabase]
	for _, k := range c.kills {
		s.Kills = append(s.Kills, router.KillInForce{
			Experiment: k.Experiment, Generation: k.Generation, Variant: k.Variant,
			Actor: k.Actor, Time: k.Time, Reason: k.Reason, CutStreams: k.CutStreams,
		})
	}
	for _, r := range list {
		s.Replicas = append(s.Replicas, Replica{
			ID: r.ID, Revision: r.Revision, Behind: r.Revision < s.Revision, Addr: r.Addr, Started: r.Started, Self: r.ID == c.o.ReplicaID,
		})
	}
	return s
}

// Skew is how many replicas live, and how far apart their revisions are; while
// Redis does not answer within ctx, as they were when it last did.
func (c *Controller) Skew(ctx context.Context) (replicas int, skew int64) {
	list, _ := c.liveReplicas(ctx)
	for i, r := range list {
		for _, o := range list[:i] {
			skew = max(skew, r.Revision-o.Revision, o.Revision-r.Revision)
		}
	}
	return len(list), skew
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
		c.degraded[code] = Degraded{Code: code, Message: message, Since: old.Since}
	default:
		c.degraded[code] = Degraded{Code: code, Message: message, Since: c.o.Now()}
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
// timeout. missing names those that did not. While Redis does not answer nobody
// knows who lives: then it is never applied, and missing says so.
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
	if err != nil && c.o.Shared && len(missing) == 0 {
		missing = append(missing, "unknown: redis did not answer")
	}
	return missing
}
