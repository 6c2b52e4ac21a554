package sticky_test

import (
	"errors"
	"testing"
	"time"

	"sluice/experiment"
	"sluice/internal/sticky"
	"sluice/internal/testenv"
)

// TestOlderCopy: a Redis that comes back with what it had some time ago, as a
// server does that starts from its last dump, has the same pins' epoch, but
// neither the newest document nor the newest kills. No kill is forgotten, none
// that was dropped comes back for good, and whoever publishes can tell.
func TestOlderCopy(t *testing.T) {
	r := testenv.Redis(t)
	stores := openN(t, 2, sticky.Options{URL: r.URL})
	admin, ctx := client(t, r.URL), t.Context()
	kill := func(variant string, gen int) {
		t.Helper()
		if err := stores[0].Kill(ctx, sticky.KillEntry{Experiment: "e", Generation: gen, Variant: variant}); err != nil {
			t.Fatal(err)
		}
	}
	publish := func(rev int64) {
		t.Helper()
		if err := stores[0].Publish(ctx, rev, []byte("{}")); err != nil {
			t.Fatal(err)
		}
	}
	kill("early", 1)
	publish(7)
	kept := map[string]string{}
	for _, k := range admin.Keys(ctx, "*").Val() {
		kept[k] = admin.Dump(ctx, k).Val()
	}
	kill("late", 2)
	publish(9)
	if err := stores[0].DropKills(ctx, "e", 2); err != nil {
		t.Fatal(err)
	}
	restore := func() {
		p := admin.TxPipeline()
		p.FlushAll(ctx)
		for k, v := range kept {
			p.Restore(ctx, k, 0, v)
		}
		if _, err := p.Exec(ctx); err != nil {
			t.Fatal(err)
		}
	}
	variants := func(s *sticky.Store) (list string) {
		kills, err := s.Kills(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range kills {
			list += k.Variant + " "
		}
		return list
	}
	eventually(t, "both kills at the other", func() bool { return variants(stores[1]) == "late " })
	restore()
	for _, s := range stores {
		if got := variants(s); got != "early late " {
			t.Errorf("after the restore: %q", got)
		}
	}
	eventually(t, "the kill in Redis again", func() bool { return admin.HExists(ctx, "sluice:{x}:kills", "e/2/late").Val() })
	eventually(t, "word of the older document", func() bool { st := stores[1].Stats(); return st.Published == 7 && st.Revision == 9 })
	if err := stores[1].DropKills(ctx, "e", 2); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the drop", func() bool { return variants(stores[0]) == "late " && variants(stores[1]) == "late " })
}

// TestDropIsNotALoss: a replica that was cut off while a kill was dropped does
// not offer it again, but keeps one of the same name that came later.
func TestDropIsNotALoss(t *testing.T) {
	r := testenv.Redis(t)
	p := testenv.NewProxy(t, r.Addr)
	a, b := open(t, sticky.Options{URL: r.URL, ReplicaID: "a"}), open(t, sticky.Options{URL: "redis://" + p.Addr, ReplicaID: "b"})
	ctx, k := t.Context(), sticky.KillEntry{Experiment: "e", Generation: 1, Variant: "v", Time: time.Unix(1000, 0)}
	if err := a.Kill(ctx, k); err != nil {
		t.Fatal(err)
	}
	count := func(s *sticky.Store, n int) func() bool {
		return func() bool { kills, err := s.Kills(ctx); return err == nil && len(kills) == n }
	}
	eventually(t, "the kill at b", count(b, 1))
	p.Cut()
	if err := a.DropKills(ctx, "e", 2); err != nil {
		t.Fatal(err)
	}
	p.Mend()
	eventually(t, "the drop at b", count(b, 0))
	// The experiment was deleted, and one of its name begins anew.
	k.Time = k.Time.Add(time.Hour)
	if err := a.Kill(ctx, k); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the later kill at b", count(b, 1))
	if n := client(t, r.URL).HDel(ctx, "sluice:{x}:kills", "e/1/v").Val(); n != 1 {
		t.Fatal("no such field")
	}
	if !count(b, 1)() || !count(a, 1)() {
		t.Error("a lost kill was taken for the one that was dropped")
	}
}

// TestPinsOnTheirWayAreOfferedAgain: a pin that was in Redis, but not yet in the
// database, is offered again by the replica that wrote it, whether its unit is
// asked for or not. If another was pinned meanwhile, that is known as a conflict.
func TestPinsOnTheirWayAreOfferedAgain(t *testing.T) {
	r := testenv.Redis(t)
	slow, quick := &memBackup{}, &memBackup{}
	slow.setFail(errors.New("the database is slow"))
	a, b := open(t, sticky.Options{URL: r.URL, ReplicaID: "a", Backup: slow}), open(t, sticky.Options{URL: r.URL, ReplicaID: "b", Backup: quick})
	mustPut(t, a, "e", 1, pin(4, 1), nil)
	mustPut(t, a, "e", 2, pin(4, 1), nil)
	before := client(t, r.URL).Get(t.Context(), "sluice:{x}:pins").Val()
	// a cannot be the one that refills: it fails to read the copy.
	r.FlushAll()
	eventually(t, "another life", func() bool {
		_, _ = b.Put(t.Context(), "e", field(2), 2, pin(5, 1), nil) // somebody is quicker
		epoch := client(t, r.URL).Get(t.Context(), "sluice:{x}:pins").Val()
		return b.Up() && epoch != "" && epoch != before
	})
	eventually(t, "the pin", func() bool {
		p, found, err := b.Get(t.Context(), "e", field(1), 1)
		return err == nil && found && p == pin(4, 1)
	})
	eventually(t, "the conflict, or the pin before it", func() bool {
		p, found, err := b.Get(t.Context(), "e", field(2), 2)
		return err == nil && found && (p.Variant == 4 || p.Flags&experiment.PinExcluded != 0)
	})
}
