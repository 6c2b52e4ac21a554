package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sluice/internal/sticky"
	"sluice/router"
)

// How long one look at a store may take, so that a hung one does not stop the other.
const lookTimeout = 2 * time.Second

// refresh looks at Redis, then at the database, and applies what is newest.
// The order matters: a commit is in the database before it is in Redis, so a
// revision seen in Redis that a later read of the database does not know is
// not one of its commits.
func (c *Controller) refresh(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*lookTimeout)
	defer cancel()
	seen := c.o.Sticky.Stats().Revision
	kills, err := c.killSet(ctx)
	if err != nil {
		c.degrade(CodeSticky, "news travel by polling: "+err.Error())
	} else {
		c.degrade(CodeSticky, "")
	}
	snap, err := c.fromDatabase(ctx, seen)
	switch {
	case ctx.Err() != nil && errors.Is(ctx.Err(), context.Canceled):
		return
	case err != nil:
		c.degrade(CodeDatabase, err.Error())
		c.withoutDatabase(ctx, seen, kills)
		return
	}
	c.degrade(CodeDatabase, "")
	if seeded := c.lateSeed(ctx); seeded != nil {
		snap = seeded
	}
	if snap == nil { // as it was; perhaps under another kill set
		snap, _ = c.current()
	}
	if snap == nil {
		return
	}
	if err := c.apply(snap, kills, fromDatabase); err != nil {
		c.applyKillsOnly(kills)
	}
	c.republish(ctx)
	if c.replay(ctx, snap, kills) {
		c.dropEnded(ctx, snap, kills)
	}
}

// killSet answers the last known set when Redis is away, with the error.
func (c *Controller) killSet(ctx context.Context) ([]sticky.KillEntry, error) {
	kills, err := c.o.Sticky.Kills(ctx)
	if err == nil {
		return mergeKills(kills, nil), nil // not nil
	}
	// Union with ours: a set that was read from disk is not forgotten.
	_, ours := c.current()
	return mergeKills(kills, ours), err
}

// fromDatabase answers the newest snapshot, nil when it is the one that serves.
func (c *Controller) fromDatabase(ctx context.Context, seen int64) (*router.Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	rev, err := c.o.Store.LatestRevision(ctx)
	if err != nil {
		return nil, err
	}
	ours := c.documentRevision()
	known := max(ours, seen)
	switch {
	case rev == 0 && ours > 0:
		return nil, fmt.Errorf("it is empty, but revision %d serves; restore it, or restart every replica to begin anew", ours)
	case rev > 0 && rev < known:
		return c.reissue(ctx, rev, known)
	case rev == ours:
		return nil, nil
	}
	return c.o.Store.Latest(ctx)
}

// reissue writes the database's document under a revision above one that was
// served: the database, or Redis, was restored from a backup. The database is
// the truth, and nobody goes backwards.
func (c *Controller) reissue(ctx context.Context, rev, known int64) (*router.Snapshot, error) {
	snap, audit, err := c.o.Store.CommitAbove(ctx, known, router.Change{
		Actor: "system", Role: "system", Action: "document.reissue", Object: "document",
		Reason: fmt.Sprintf("revision %d was served, the database is at %d: one of the stores was restored from a backup", known, rev),
	})
	if err != nil {
		return nil, err
	}
	if audit != nil {
		c.mu.Lock()
		c.reissued = snap.Document.Revision
		c.mu.Unlock()
		c.log.Error("a store was restored from a backup: the database's document is issued again under a higher revision",
			"served", known, "database", rev, "revision", snap.Document.Revision)
		c.degrade(CodeReissued, fmt.Sprintf("revision %d was served before, the database was at %d; its document is in force again as revision %d; check it",
			known, rev, snap.Document.Revision))
		c.publish(ctx, snap)
	}
	return snap, nil
}

// withoutDatabase follows what others published, which they had committed.
func (c *Controller) withoutDatabase(ctx context.Context, seen int64, kills []sticky.KillEntry) {
	doc, _ := c.current()
	source := c.sourceNow()
	if doc == nil || seen > doc.Document.Revision {
		if snap, err := c.published(ctx); err == nil && snap != nil && (doc == nil || snap.Document.Revision > doc.Document.Revision) {
			doc, source = snap, fromRedis
		}
	}
	if doc == nil {
		return
	}
	if err := c.apply(doc, kills, source); err != nil {
		c.applyKillsOnly(kills)
	}
	c.republish(ctx)
}

// applyKillsOnly puts the kill set over the document that serves: a newer one
// that does not compile must not hold up a kill.
func (c *Controller) applyKillsOnly(kills []sticky.KillEntry) {
	if doc, _ := c.current(); doc != nil {
		if err := c.apply(doc, kills, c.sourceNow()); err != nil {
			c.log.Error("the kill set cannot be applied", "err", err)
		}
	}
}

func (c *Controller) sourceNow() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.source
}

// republish offers the document to a Redis that came back, perhaps empty, or
// that has an older one: it was restored, or who committed could not publish.
func (c *Controller) republish(ctx context.Context) {
	st := c.o.Sticky.Stats()
	c.mu.Lock()
	asked := c.offer
	c.offer = false
	doc := c.doc
	c.mu.Unlock()
	if doc != nil && (asked || st.State != sticky.Down && st.Published < doc.Document.Revision) {
		c.publish(ctx, doc)
	}
}

// keepTelling tells the others what this replica serves.
func (c *Controller) keepTelling(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.untold:
			c.tell(ctx, c.documentRevision())
		}
	}
}

// keepSaving keeps the last good snapshot on disk, to the last when ctx ends.
func (c *Controller) keepSaving(ctx context.Context) {
	for {
		select {
		case <-c.unsaved:
		case <-ctx.Done():
			select {
			case <-c.unsaved:
			default:
				return
			}
		}
		c.save(c.current())
	}
}

// tell waits, at most 1 s, for the attempts decided under older revisions.
func (c *Controller) tell(ctx context.Context, rev int64) {
	if c.o.Quiesced != nil {
		qctx, cancel := context.WithTimeout(ctx, time.Second)
		c.o.Quiesced(qctx, rev)
		cancel()
	}
	c.mu.Lock()
	c.reported = max(c.reported, rev)
	c.mu.Unlock()
	r := sticky.Replica{ID: c.o.ReplicaID, Revision: rev, Started: c.started, Addr: c.o.Addr}
	if err := c.o.Sticky.Report(ctx, r); err != nil && ctx.Err() == nil {
		c.log.Debug("applied revision not reported; it is repeated when Redis is back", "revision", rev, "err", err)
	}
}

// watchNeighbours finds other processes on the same database, which without
// Redis neither share pins nor kills.
func (c *Controller) watchNeighbours(ctx context.Context) {
	const every = 5 * time.Second
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(every):
		}
		others, err := c.o.Store.ReportReplica(ctx, c.o.ReplicaID, c.documentRevision(), c.o.Now().Add(-3*every))
		switch {
		case err != nil: // the poll says so already
		case len(others) > 0 && c.o.Now().Sub(c.started) > 3*every:
			c.degrade(CodeNeighbours, fmt.Sprintf("%d other process(es) use this database without Redis (%v): they do not share pins, limits and kills; set redis.url on all, or stop them", len(others), others))
		default:
			c.degrade(CodeNeighbours, "")
		}
	}
}
