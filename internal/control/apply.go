package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"sluice/internal/sticky"
	"sluice/router"
)

// Where a document came from.
const (
	fromDatabase = "database"
	fromRedis    = "redis"
	fromDisk     = "disk"
)

// keepKills tells apply to leave the kill set as it is.
var keepKills []sticky.KillEntry

// apply compiles a document with the kill set over it and swaps the table in.
// An older document than the current one is ignored; a document that does not
// compile leaves the old table and is told once.
func (c *Controller) apply(snap *router.Snapshot, kills []sticky.KillEntry, source string) error {
	c.applyMu.Lock()
	defer c.applyMu.Unlock()
	if kills == nil {
		_, kills = c.current()
	} else {
		// A set that was read just before a kill of this replica must not undo it.
		kills = mergeKills(kills, c.recentKills())
	}
	trips := c.tripped()
	rev, set := snap.Document.Revision, killSetKey(effective(snap, kills))+fmt.Sprint(trips)
	if rev < c.compiled.revision {
		return nil
	}
	if rev == c.compiled.revision && set == c.compiled.kills && c.o.Live.Load() != nil {
		c.note(snap, kills, source)
		return nil
	}
	table, err := c.build(snap, kills, trips)
	if err != nil {
		c.compileFailed(rev, err)
		return fmt.Errorf("revision %d does not compile: %w", rev, err)
	}
	if !c.o.Live.Store(table) {
		return fmt.Errorf("revision %d: a newer table is live", rev)
	}
	c.compiled.revision, c.compiled.kills, c.compiled.epoch = rev, set, table.Epoch
	c.note(snap, kills, source)
	c.settle(rev)
	if c.o.Hooks.Revision != nil {
		c.o.Hooks.Revision(rev)
	}
	c.log.Info("table swapped", "revision", rev, "source", source, "kills", len(kills))
	poke(c.unsaved)
	poke(c.untold)
	return nil
}

// settle takes down the banners that a served revision answers. A kill over the
// old table leaves the banner of a newer document that does not compile.
func (c *Controller) settle(rev int64) {
	c.mu.Lock()
	looked := c.reissued > 0 && rev > c.reissued
	healed := rev >= c.failed
	if healed {
		c.compile, c.failed = nil, 0
	}
	c.mu.Unlock()
	if looked {
		c.degrade(CodeReissued, "") // somebody changed the document since
	}
	if healed {
		c.degrade(CodeCompile, "")
	}
}

func (c *Controller) note(snap *router.Snapshot, kills []sticky.KillEntry, source string) {
	c.mu.Lock()
	c.doc, c.kills, c.source = snap, kills, source
	c.mu.Unlock()
}

func (c *Controller) build(snap *router.Snapshot, kills []sticky.KillEntry, trips []router.KillEntry) (*router.Table, error) {
	secretKnown := func(name string) bool { _, ok := c.o.Secrets(name); return ok }
	// Validate before the pool changes: the living connections belong to the old table.
	if ps := router.Validate(&snap.Document, router.ValidateOptions{Secrets: secretKnown}); len(ps) > 0 {
		return nil, ps
	}
	configs, ps := router.UpstreamConfigs(&snap.Document, c.o.Secrets)
	if len(ps) > 0 {
		return nil, ps
	}
	for i := range configs {
		configs[i].Timeouts = configs[i].Timeouts.Or(c.o.Timeouts)
	}
	ups, err := c.o.Pool.Apply(configs)
	if err != nil {
		return nil, err
	}
	table, err := router.Compile(snap.Clone(), ups, router.CompileOptions{
		OverrideHeaders: c.o.OverrideHeaders,
		Validated:       true,
		Secrets:         secretKnown, Kills: routerKills(kills), Trips: trips, Epoch: c.compiled.epoch + 1,
	})
	if err != nil {
		if c.o.Live.Load() != nil {
			if _, back := c.o.Pool.Apply(c.configs); back != nil {
				err = errors.Join(err, fmt.Errorf("take the upstreams back: %w", back))
			}
		}
		return nil, err
	}
	c.configs = configs
	return table, nil
}

func (c *Controller) compileFailed(rev int64, err error) {
	if c.failed == rev {
		return
	}
	c.failed = rev
	c.mu.Lock()
	c.compile = &CompileError{Revision: rev, Message: err.Error(), Time: c.o.Now()}
	c.mu.Unlock()
	c.degrade(CodeCompile, fmt.Sprintf("revision %d does not compile; the table before it goes on serving: %v", rev, err))
	if c.o.Hooks.CompileFailed != nil {
		c.o.Hooks.CompileFailed(rev, err)
	}
}

func routerKills(kills []sticky.KillEntry) []router.KillEntry {
	out := make([]router.KillEntry, len(kills))
	for i, k := range kills {
		out[i] = routerKill(k)
	}
	return out
}

func routerKill(k sticky.KillEntry) router.KillEntry {
	return router.KillEntry{Experiment: k.Experiment, Generation: k.Generation, Variant: k.Variant, CutStreams: k.CutStreams, Code: k.Code}
}

// effective are the kills that change what snap alone says: one that is in the
// document too asks for no new table.
func effective(snap *router.Snapshot, kills []sticky.KillEntry) []sticky.KillEntry {
	var out []sticky.KillEntry
	for _, k := range kills {
		if snap.Document.Lacks(routerKill(k)) {
			out = append(out, k)
		}
	}
	return out
}

// killSetKey is equal for equal sets; sticky keeps them in order.
func killSetKey(kills []sticky.KillEntry) string {
	var b strings.Builder
	for _, k := range kills {
		fmt.Fprintf(&b, "%s/%d/%s %v\n", k.Experiment, k.Generation, k.Variant, k.CutStreams)
	}
	return b.String()
}

func encode(snap *router.Snapshot) ([]byte, error) {
	b, err := json.Marshal(snap)
	if err != nil {
		return nil, fmt.Errorf("encode revision %d: %w", snap.Document.Revision, err)
	}
	return b, nil
}

// published reads the document that Redis holds; nil without one.
func (c *Controller) published(ctx context.Context) (*router.Snapshot, error) {
	rev, doc, err := c.o.Sticky.Latest(ctx)
	if errors.Is(err, sticky.ErrNone) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var snap router.Snapshot
	if err := json.Unmarshal(doc, &snap); err != nil {
		return nil, fmt.Errorf("published revision %d is not readable: %w", rev, err)
	}
	if snap.Document.Revision != rev {
		return nil, fmt.Errorf("published revision %d holds a document of revision %d", rev, snap.Document.Revision)
	}
	return &snap, nil
}

// publish offers a committed document to the other replicas; failing is no
// fault of the commit, since they poll.
func (c *Controller) publish(ctx context.Context, snap *router.Snapshot) {
	doc, err := encode(snap)
	if err == nil {
		err = c.o.Sticky.Publish(ctx, snap.Document.Revision, doc)
	}
	var stale *sticky.StaleError
	if errors.As(err, &stale) && !stale.Differs {
		err = nil
	}
	if err != nil {
		c.degrade(CodeSticky, "a revision could not be published; replicas poll: "+err.Error())
		c.mu.Lock()
		c.offer = true
		c.mu.Unlock()
		return
	}
	c.degrade(CodeSticky, "")
}
