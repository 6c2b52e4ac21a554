package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"sluice/internal/sticky"
	"sluice/router"
)

// CommitResult is what a commit came to.
type CommitResult = router.CommitResult

// Commit validates and writes a change, publishes it and applies it here
// before it returns. Errors of Mutate come back unchanged, faults of the new
// document are router.Problems; others are router.ErrConflict and ErrReadOnly.
func (c *Controller) Commit(ctx context.Context, ch router.Change) (CommitResult, error) {
	res, err := c.commit(ctx, ch)
	if err != nil || res.Audit == nil || ch.DryRun {
		return res, err
	}
	c.announce(ctx, res.Snapshot)
	if c.o.Hooks.Committed != nil {
		c.o.Hooks.Committed(res.Revision, ch.Action)
	}
	return res, nil
}

func (c *Controller) commit(ctx context.Context, ch router.Change) (CommitResult, error) {
	if ours := c.documentRevision(); ours > 0 && !ch.DryRun {
		// An emptied database must not become the truth by the first edit.
		if rev, err := c.o.Store.LatestRevision(ctx); err == nil && rev == 0 {
			return CommitResult{}, fmt.Errorf("%w: it is empty, but revision %d serves", ErrReadOnly, ours)
		}
	}
	mutate := ch.Mutate
	ch.Mutate = func(s *router.Snapshot, revision int64) error {
		if mutate != nil {
			if err := mutate(s, revision); err != nil {
				return err
			}
		}
		return c.validate(s)
	}
	snap, audit, err := c.o.Store.CommitAbove(ctx, 0, ch)
	if err != nil {
		if isAway(err) {
			poke(c.wake)
			err = fmt.Errorf("%w: %w", ErrReadOnly, err)
		}
		return CommitResult{}, err
	}
	return CommitResult{Snapshot: snap, Audit: audit, Revision: snap.Document.Revision}, nil
}

// announce publishes and applies what is committed. The caller's deadline no
// longer matters: it is the truth already.
func (c *Controller) announce(ctx context.Context, snap *router.Snapshot) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTimeout)
	defer cancel()
	c.publish(ctx, snap)
	if err := c.apply(snap, keepKills, fromDatabase); err != nil {
		poke(c.wake) // logged once by apply; the loop tries again
	}
}

// rollback is the variant of a kill entry that stands for the whole experiment.
const rollback = "*"

// Kill takes a variant out of service for the rest of its generation, on every
// replica, with the database or Redis alone. ch.Mutate nil is router.Kill.
func (c *Controller) Kill(ctx context.Context, experiment, variant string, ch router.Change) (CommitResult, error) {
	if ch.Action == "" {
		ch.Action = "experiment.kill"
	}
	return c.stop(ctx, experiment, variant, ch)
}

// Rollback sends everybody of an experiment to its baseline, on every replica,
// with the database or Redis alone. ch.Mutate nil is router.Rollback.
func (c *Controller) Rollback(ctx context.Context, experiment string, ch router.Change) (CommitResult, error) {
	if ch.Action == "" {
		ch.Action = "experiment.rollback"
	}
	return c.stop(ctx, experiment, rollback, ch)
}

// stopTimeout is how long a kill waits for the database before it takes effect
// without it.
const stopTimeout = 1500 * time.Millisecond

func (c *Controller) stop(ctx context.Context, experiment, variant string, ch router.Change) (CommitResult, error) {
	if ch.Object == "" {
		ch.Object = "experiment/" + experiment
	}
	if ch.ID == "" {
		// A commit whose answer is lost is the same decision as the entry that follows it.
		ch.ID = uuid.Must(uuid.NewV7()).String()
	}
	if ch.Mutate == nil {
		ch.Mutate = c.stopMutation(experiment, variant)
	}
	if ch.CutStreams {
		mutate := ch.Mutate
		ch.Mutate = func(s *router.Snapshot, revision int64) error {
			if err := mutate(s, revision); err != nil {
				return err
			}
			return router.CutStreams(&s.Document, revision, c.o.Now(), experiment, variant)
		}
	}
	var err error
	if !c.readOnly() || ch.DryRun {
		dctx, cancel := context.WithTimeout(ctx, stopTimeout)
		res, cerr := c.Commit(dctx, ch)
		cancel()
		if cerr == nil {
			if !ch.DryRun {
				c.remember(ctx, res.Snapshot, experiment, variant, ch)
			}
			return res, nil
		}
		if ctx.Err() != nil || !c.worthDeferring(cerr) {
			return CommitResult{}, cerr
		}
		err = cerr
	}
	if ch.DryRun {
		return CommitResult{}, err
	}
	return c.stopWithoutDatabase(ctx, experiment, variant, ch)
}

// worthDeferring reports errors that must not stop a kill: the database is
// away, or its newest document has faults and another one serves.
func (c *Controller) worthDeferring(err error) bool {
	var ps router.Problems
	return isAway(err) || errors.Is(err, ErrReadOnly) || errors.As(err, &ps)
}

func (c *Controller) readOnly() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, away := c.degraded[CodeDatabase]
	return away
}

func (c *Controller) stopMutation(experiment, variant string) func(*router.Snapshot, int64) error {
	return func(s *router.Snapshot, revision int64) error {
		if variant == rollback {
			return router.Rollback(&s.Document, revision, c.o.Now(), experiment)
		}
		return router.Kill(&s.Document, revision, c.o.Now(), experiment, variant)
	}
}

func entryOf(snap *router.Snapshot, experiment, variant string, ch router.Change, now time.Time) (sticky.KillEntry, bool) {
	e := snap.Document.Experiment(experiment)
	if e == nil {
		return sticky.KillEntry{}, false
	}
	return sticky.KillEntry{Experiment: experiment, Generation: e.Generation, Variant: variant, Actor: ch.Actor, Time: now, Reason: ch.Reason, CutStreams: ch.CutStreams, Details: string(ch.Details), ID: ch.ID, Code: ch.Code}, true
}

// remember puts a committed kill into the kill set too, where a database that
// is restored from a backup cannot lose it.
func (c *Controller) remember(ctx context.Context, snap *router.Snapshot, experiment, variant string, ch router.Change) {
	k, ok := entryOf(snap, experiment, variant, ch, c.o.Now())
	if !ok {
		return
	}
	k.Written = true
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTimeout)
	defer cancel()
	if err := c.o.Sticky.Kill(ctx, k); err != nil {
		c.log.Warn("kill is committed, but not in Redis", "experiment", experiment, "variant", variant, "err", err)
	}
}

// stopWithoutDatabase checks the change on the document that serves and puts
// the entry into the kill set.
func (c *Controller) stopWithoutDatabase(ctx context.Context, experiment, variant string, ch router.Change) (CommitResult, error) {
	doc, _ := c.current()
	if doc == nil {
		return CommitResult{}, ErrReadOnly
	}
	k, ok := entryOf(doc, experiment, variant, ch, c.o.Now())
	if !ok {
		return CommitResult{}, &router.EditError{Code: "not_found", Object: "experiment/" + experiment, Message: "there is no such experiment"}
	}
	would := doc.Clone()
	if err := ch.Mutate(would, doc.Document.Revision); err != nil {
		return CommitResult{}, err
	}
	// As in a commit that changes nothing: the decision is an earlier one's.
	k.Written = !doc.Document.Lacks(routerKill(k))
	c.addRecent(k)
	if err := c.o.Sticky.Kill(ctx, k); err != nil {
		c.dropRecent(k)
		return CommitResult{}, fmt.Errorf("%w, and so is Redis: %w", ErrReadOnly, err)
	}
	_, kills := c.current()
	if err := c.apply(doc, mergeKills(kills, []sticky.KillEntry{k}), c.sourceNow()); err != nil {
		return CommitResult{}, err
	}
	if k.Written {
		return CommitResult{Snapshot: would, Revision: doc.Document.Revision}, nil
	}
	if c.o.Hooks.Deferred != nil {
		c.o.Hooks.Deferred(k)
	}
	c.log.Warn("in force without the database; document and audit follow when it is back",
		"experiment", experiment, "variant", variant, "actor", ch.Actor, "reason", ch.Reason)
	return CommitResult{Snapshot: would, Revision: doc.Document.Revision, Deferred: true}, nil
}
