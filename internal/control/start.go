package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"sluice/internal/sticky"
	"sluice/router"
)

// Start makes the first table: from the database, after seeding what does not
// exist there; with the database away from Redis or the last good snapshot on
// disk, whichever is newer, read-only. Without any it tries again until
// StartTimeout, then its error says why.
func (c *Controller) Start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.o.StartTimeout)
	defer cancel()
	for {
		dbErr := c.startFromDatabase(ctx)
		if dbErr == nil || errors.Is(dbErr, errSeed) {
			return dbErr
		}
		copyErr := c.startFromCopy(ctx, dbErr)
		if copyErr == nil {
			return nil
		}
		err := errors.Join(dbErr, copyErr)
		if !isAway(dbErr) {
			return fmt.Errorf("start: %w", err)
		}
		c.log.Warn("no document to serve yet; trying again", "err", err)
		select {
		case <-ctx.Done():
			return fmt.Errorf("start: no document after %v: %w", c.o.StartTimeout, err)
		case <-time.After(time.Second):
		}
	}
}

func (c *Controller) startFromDatabase(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	seen, published := c.publishedRevision(ctx)
	snap, err := c.o.Store.Latest(ctx)
	if err != nil {
		return fmt.Errorf("database: %w", err)
	}
	if rev := snap.Document.Revision; rev < seen {
		// Revision 0 is a new database beside an old Redis: same cure.
		if snap, err = c.reissue(ctx, rev, seen); err != nil {
			return fmt.Errorf("database: %w", err)
		}
	}
	if c.o.Seed != nil || snap.Document.Revision == 0 {
		if snap, err = c.seed(ctx); err != nil {
			return err
		}
	}
	if err := c.apply(snap, c.startKills(ctx, snap, c.killsOnDisk()), fromDatabase); err != nil {
		return fmt.Errorf("database: %w", err)
	}
	c.degrade(CodeDatabase, "")
	if snap.Document.Revision > seen || !published {
		c.publish(ctx, snap)
	}
	return nil
}

func (c *Controller) publishedRevision(ctx context.Context) (rev int64, ok bool) {
	rev, _, err := c.o.Sticky.Latest(ctx)
	if err != nil {
		return c.o.Sticky.Stats().Revision, false
	}
	return rev, true
}

func (c *Controller) seed(ctx context.Context) (*router.Snapshot, error) {
	snap, audit, err := c.o.Store.CommitAbove(ctx, 0, router.Change{
		Actor: "system", Role: "system", Action: "document.seed", Object: "document", Reason: "resources of the configuration file",
		Mutate: func(s *router.Snapshot, revision int64) error {
			if c.o.Seed == nil {
				return nil
			}
			report, err := router.Seed(&s.Document, revision, c.o.Now(), c.o.Seed)
			for _, skip := range report.Skipped {
				if skip.Why != "exists" {
					c.log.Warn("not seeded", "object", skip.Object, "why", skip.Why)
				}
			}
			if err != nil {
				return err
			}
			return c.validate(s)
		},
	})
	var edit *router.EditError
	var problems router.Problems
	switch {
	case errors.As(err, &edit) || errors.As(err, &problems):
		return nil, fmt.Errorf("%w: %w", errSeed, err)
	case err != nil:
		return nil, fmt.Errorf("seed: %w", err)
	case audit != nil:
		c.log.Info("document seeded", "revision", snap.Document.Revision)
	}
	return snap, nil
}

// errSeed is a fault of the configuration file: no copy of the document cures it.
var errSeed = errors.New("the resources of the configuration file cannot be added")

// lateSeed seeds when the database is back after a start without it.
func (c *Controller) lateSeed(ctx context.Context) *router.Snapshot {
	c.mu.Lock()
	due := c.unseeded && c.o.Seed != nil
	c.unseeded = false
	c.mu.Unlock()
	if !due {
		return nil
	}
	snap, err := c.seed(ctx)
	if err != nil {
		c.log.Error("not seeded; restart to try again", "err", err)
		return nil
	}
	c.publish(ctx, snap)
	return snap
}

func (c *Controller) validate(s *router.Snapshot) error {
	ps := router.Validate(&s.Document, router.ValidateOptions{Secrets: func(name string) bool { _, ok := c.o.Secrets(name); return ok }})
	if len(ps) > 0 {
		return ps
	}
	return nil
}

// startFromCopy serves without the database.
func (c *Controller) startFromCopy(ctx context.Context, why error) error {
	disk, diskKills, diskErr := c.load()
	redis, redisErr := c.published(ctx)
	snap, source := disk, fromDisk
	if redis != nil && (snap == nil || redis.Document.Revision > snap.Document.Revision) {
		snap, source = redis, fromRedis
	}
	if snap == nil {
		return errors.Join(diskErr, redisErr)
	}
	if err := c.apply(snap, c.startKills(ctx, snap, diskKills), source); err != nil {
		return err
	}
	c.mu.Lock()
	c.unseeded = true
	c.mu.Unlock()
	if isAway(why) {
		c.degrade(CodeDatabase, fmt.Sprintf("serving revision %d from %s, read-only: %v", snap.Document.Revision, source, why))
	} else if c.failed == 0 {
		c.degrade(CodeCompile, fmt.Sprintf("serving revision %d from %s: %v", snap.Document.Revision, source, why))
	}
	return nil
}

// startKills is the kill set with what this replica knew before it stopped,
// offered again to a store that forgot it.
func (c *Controller) startKills(ctx context.Context, snap *router.Snapshot, disk []sticky.KillEntry) []sticky.KillEntry {
	kills, _ := c.o.Sticky.Kills(ctx)
	known := killSetKey(kills)
	for _, k := range disk {
		e := snap.Document.Experiment(k.Experiment)
		if e == nil || e.Generation != k.Generation || killSetKey(mergeKills(kills, []sticky.KillEntry{k})) == known {
			continue
		}
		if err := c.o.Sticky.Kill(ctx, k); err != nil {
			c.log.Warn("a kill of the last run could not be offered again", "experiment", k.Experiment, "variant", k.Variant, "err", err)
		}
	}
	return mergeKills(kills, disk)
}

// recentFor is longer than any read of the kill set may take.
const recentFor = 2 * lookTimeout

func (c *Controller) addRecent(k sticky.KillEntry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.recent = append(c.recent, k)
}

func (c *Controller) dropRecent(k sticky.KillEntry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.recent = slices.DeleteFunc(c.recent, func(r sticky.KillEntry) bool { return r == k })
}

func (c *Controller) recentKills() []sticky.KillEntry {
	c.mu.Lock()
	defer c.mu.Unlock()
	limit := c.o.Now().Add(-recentFor)
	c.recent = slices.DeleteFunc(c.recent, func(r sticky.KillEntry) bool { return r.Time.Before(limit) })
	return slices.Clone(c.recent)
}

// mergeKills is the union, ours first where both have an entry.
func mergeKills(ours, more []sticky.KillEntry) []sticky.KillEntry {
	type key struct {
		exp     string
		gen     int
		variant string
		cut     bool
	}
	have := map[key]bool{}
	out := []sticky.KillEntry{}
	for _, list := range [][]sticky.KillEntry{ours, more} {
		for _, k := range list {
			id := key{k.Experiment, k.Generation, k.Variant, k.CutStreams}
			if !have[id] {
				have[id] = true
				out = append(out, k)
			}
		}
	}
	sortKills(out)
	return out
}

// isAway reports a store that does not answer, as opposed to one that says no.
func isAway(err error) bool {
	var u interface{ Unavailable() bool }
	return errors.As(err, &u) && u.Unavailable() || errors.Is(err, context.DeadlineExceeded)
}
