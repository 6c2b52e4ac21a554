package control

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"sluice/internal/sticky"
	"sluice/router"
)

// replay writes kills into the document that does not have them yet, and each
// that was in force without the database into the audit, with their actor and
// reason, in the order in which they happened: also those whose generation has
// ended since. Replicas may race: the second finds nothing to write. It reports
// whether the database has them all.
func (c *Controller) replay(ctx context.Context, snap *router.Snapshot, kills []sticky.KillEntry) bool {
	kills = slices.Clone(kills)
	slices.SortStableFunc(kills, func(a, b sticky.KillEntry) int { return a.Time.Compare(b.Time) })
	ok := true
	for _, k := range kills {
		lacks := snap.Document.Lacks(routerKill(k))
		if !lacks && (k.Written || k.ID == "" || c.audited[k.ID]) {
			continue
		}
		if err := c.replayOne(ctx, k, lacks); err != nil {
			ok = false
			c.log.Warn("kill is in force, but not in the database yet", "experiment", k.Experiment, "variant", k.Variant, "err", err)
		}
	}
	maps.DeleteFunc(c.audited, func(id string, _ bool) bool {
		return !slices.ContainsFunc(kills, func(k sticky.KillEntry) bool { return k.ID == id })
	})
	return ok
}

func (c *Controller) replayOne(ctx context.Context, k sticky.KillEntry, lacks bool) error {
	entry := routerKill(k)
	ch := router.Change{
		ID: k.ID, Actor: k.Actor, Action: "experiment.kill", Object: "experiment/" + k.Experiment, Details: json.RawMessage(k.Details),
		Reason: strings.TrimPrefix(k.Reason+"; in force since "+k.Time.UTC().Format(time.RFC3339)+", written when the database was back", "; "),
		Mutate: func(s *router.Snapshot, revision int64) error {
			return router.Stop(&s.Document, revision, c.o.Now(), entry)
		},
	}
	if k.Variant == rollback {
		ch.Action = "experiment.rollback"
	}
	if lacks {
		// Not validated: it only reduces, and the rest may have faults of its own.
		next, audit, err := c.o.Store.CommitAbove(ctx, 0, ch)
		if err != nil {
			return err
		}
		if audit != nil {
			c.log.Info("kill written to the document", "experiment", k.Experiment, "variant", k.Variant, "revision", next.Document.Revision)
			c.announce(ctx, next)
		}
	}
	if k.Written || k.ID == "" {
		return nil
	}
	_, err := c.o.Store.AppendAudit(ctx, router.Audit{
		ID: ch.ID, Actor: ch.Actor, Action: ch.Action, Object: ch.Object, Reason: ch.Reason, Details: ch.Details,
	})
	if err == nil {
		c.audited[k.ID] = true
	}
	return err
}

// dropEnded removes kills of generations that have ended.
func (c *Controller) dropEnded(ctx context.Context, snap *router.Snapshot, kills []sticky.KillEntry) {
	done := map[string]bool{}
	for _, k := range kills {
		// kills were read before snap: an experiment that snap lacks is deleted,
		// and one of the same name begins anew.
		e, before := snap.Document.Experiment(k.Experiment), k.Generation+1
		if e != nil {
			before = e.Generation
		}
		if k.Generation >= before || done[k.Experiment] {
			continue
		}
		done[k.Experiment] = e != nil
		if err := c.o.Sticky.DropKills(ctx, k.Experiment, before); err != nil {
			c.log.Debug("kills of ended generations stay for now", "experiment", k.Experiment, "err", err)
		}
	}
}
