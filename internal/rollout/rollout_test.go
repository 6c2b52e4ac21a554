package rollout_test

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/experiment/ramp"
	"sluice/experiment/trial"
	"sluice/internal/control"
	"sluice/internal/rollout"
	"sluice/router"
)

// notes keeps what people were told.
type notes struct {
	mu   sync.Mutex
	list []ramp.Notice
}

func (n *notes) Notify(x ramp.Notice) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.list = append(n.list, x)
}

func (n *notes) events() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []string
	for _, x := range n.list {
		out = append(out, x.Event)
	}
	return strings.Join(out, " ")
}

// TestHealthyRampReachesEverybody: without a person, every step on proof, the
// bake, and the end; each decision is in the audit with what it rests on.
func TestHealthyRampReachesEverybody(t *testing.T) {
	told := &notes{}
	r := start(t, settings{id: "a", db: sqliteURL(t), notify: told})
	traffic(t, r)
	r.begin(t)
	if w := r.experiment().Variants[1].Weight; w != 0 {
		t.Fatalf("the ramp begins with weight %d", w)
	}
	eventually(t, 20*time.Second, "the first step", func() bool { return r.ramp().Step == 0 })
	eventually(t, 60*time.Second, "the bake", func() bool { return r.ramp().Phase == ramp.Baking })
	if e := r.experiment(); e.State != "promoted" || e.Variants[1].Weight != 9900 {
		t.Errorf("baking: %s at %d", e.State, e.Variants[1].Weight)
	}
	eventually(t, 60*time.Second, "the end of the bake", func() bool { return r.ramp().Phase == ramp.Done })
	var got []string
	for _, a := range r.actions(t) {
		got = append(got, a.Action)
		var d struct {
			Input    ramp.Input
			Decision ramp.Decision
			Fence    int64
		}
		if err := json.Unmarshal(a.Details, &d); err != nil || d.Decision.Action == "" || d.Fence == 0 || a.Actor != "controller@a" || a.Reason == "" {
			t.Errorf("%s by %s: details %.200s, %v", a.Action, a.Actor, a.Details, err)
		}
	}
	if s := strings.Join(got, " "); !strings.HasSuffix(s, "ramp.advance ramp.advance ramp.promote ramp.finish_bake") {
		t.Errorf("the controller did %s", s)
	}
	if n, err := r.store.VerifyAudit(t.Context()); err != nil || n == 0 {
		t.Errorf("the audit does not hold: %v", err)
	}
	eventually(t, 5*time.Second, "people are told", func() bool { return told.events() == "started advanced advanced promoted completed" })
}

// TestBrokenCanaryIsRolledBack within seconds, in words and numbers.
func TestBrokenCanaryIsRolledBack(t *testing.T) {
	told := &notes{}
	r := start(t, settings{id: "a", db: sqliteURL(t), notify: told})
	c := traffic(t, r)
	c.canary.Store(all(trial.Fault))
	r.begin(t)
	eventually(t, 20*time.Second, "the first step", func() bool { return r.ramp().Step == 0 })
	eventually(t, 10*time.Second, "rolled back", func() bool { return r.experiment().State == "rolled_back" })
	t.Logf("%d requests of the canary", c.n[1].Load())
	rows := r.actions(t)
	last := rows[len(rows)-1]
	if last.Action != "ramp.rollback" || !strings.HasPrefix(last.Reason, "rolled back: error") || len(last.Details) == 0 {
		t.Errorf("%s: %s", last.Action, last.Reason)
	}
	eventually(t, 5*time.Second, "people are told", func() bool { return told.events() == "started rolled_back" })
	time.Sleep(2 * time.Second) // a decision too many would come now
	if n := len(r.actions(t)); n != len(rows) {
		t.Errorf("%d more decisions after the rollback", n-len(rows))
	}
}

// TestManyErrorsAreProved: too few in a row for a breaker, enough for the proof.
func TestManyErrorsAreProved(t *testing.T) {
	r := start(t, settings{id: "a", db: sqliteURL(t)})
	c := traffic(t, r)
	c.canary.Store(often(0.2))
	c.control.Store(often(0.01))
	r.begin(t)
	eventually(t, 20*time.Second, "the first step", func() bool { return r.ramp().Step == 0 })
	eventually(t, 20*time.Second, "rolled back", func() bool { return r.experiment().State == "rolled_back" })
	rows := r.actions(t)
	if last := rows[len(rows)-1]; !strings.Contains(last.Reason, "of the baseline") {
		t.Errorf("%s", last.Reason)
	}
}

// TestSharedOutageHolds: both arms fail, so the canary is not blamed, and goes on
// when it is over.
func TestSharedOutageHolds(t *testing.T) {
	r := start(t, settings{id: "a", db: sqliteURL(t), policy: strings.Replace(quick, `"min_duration": "1s"`, `"min_duration": "8s"`, 1)})
	c := traffic(t, r)
	r.begin(t)
	eventually(t, 20*time.Second, "the first step", func() bool { return r.ramp().Step == 0 })
	c.control.Store(often(0.6))
	c.canary.Store(often(0.6))
	eventually(t, 30*time.Second, "the hold", func() bool { return r.ramp().Reason == ramp.CodeBaselineUnhealthy })
	if e := r.experiment(); e.State != "running" || r.ramp().Phase != ramp.Holding {
		t.Errorf("%s, %s", e.State, r.ramp().Phase)
	}
	rep, err := r.roll.Report(t.Context(), key)
	if err != nil || rep.Decision.Action != ramp.Hold || len(rep.WhyNot) == 0 || rep.Leader != "a" || !rep.Supervised {
		t.Errorf("report: %+v, %v", rep.Decision, err)
	}
}

// TestNoTrafficHoldsThenPauses: no timer promotes.
func TestNoTrafficHoldsThenPauses(t *testing.T) {
	r := start(t, settings{id: "a", db: sqliteURL(t), policy: `{"steps": [1000, 10000], "min_duration": "1s", "max_duration": "12s", "min_units": 20, "no_data_after": "3s", "ready": {"probes": 0}}`})
	c := traffic(t, r)
	r.begin(t)
	eventually(t, 20*time.Second, "the first step", func() bool { return r.ramp().Step == 0 })
	c.quiet.Store(true)
	eventually(t, 20*time.Second, "the hold", func() bool { return r.ramp().Reason == ramp.CodeNoData })
	eventually(t, 30*time.Second, "the pause", func() bool { return r.experiment().State == "paused" })
	if s := r.ramp(); s.Reason != ramp.CodeNoData && s.Reason != ramp.CodeInconclusive {
		t.Errorf("paused for %s", s.Reason)
	}
	if w := r.experiment().Variants[1].Weight; w != 1000 {
		t.Errorf("weight %d", w)
	}
	// Only a person goes on: nothing is left to do for the controller.
	n := len(r.actions(t))
	c.quiet.Store(false)
	time.Sleep(2 * time.Second)
	if m := len(r.actions(t)); m != n {
		t.Errorf("%d decisions while paused", m-n)
	}
}

// TestPersonGoesOn: a step that needs approval waits for it, and a person may
// take one at any time.
func TestPersonGoesOn(t *testing.T) {
	r := start(t, settings{id: "a", db: sqliteURL(t), policy: `{"steps": [{"weight": 1000}, {"weight": 5000, "approve": true}, {"weight": 10000}], "min_duration": "1s", "max_duration": "5m", "min_units": 20, "ready": {"probes": 0}}`})
	traffic(t, r)
	r.begin(t)
	eventually(t, 40*time.Second, "approval is asked for", func() bool { return r.ramp().Reason == ramp.CodeApproval })
	if rep, err := r.roll.Report(t.Context(), key); err != nil || rep.Approval == nil || rep.Approval.Weight != 5000 {
		t.Errorf("report: %+v, %v", rep.Approval, err)
	}
	r.must(t, "experiment.approve", func(d *router.Document, rev int64, now time.Time) error { return router.RampApprove(d, rev, now, key) })
	eventually(t, 20*time.Second, "the step", func() bool { return r.ramp().Step == 1 })
	// Somebody who advances by hand leaves to the leader what counts as slow.
	r.must(t, "experiment.advance", func(d *router.Document, rev int64, now time.Time) error { return router.RampAdvance(d, rev, now, key) })
	eventually(t, 20*time.Second, "what is slow is fixed", func() bool { return len(r.ramp().Setup.Thresholds) > 0 || r.ramp().Phase == ramp.Baking })
}

// rival changes the experiment between the controller's decision and its commit.
type rival struct {
	*control.Controller
	once   sync.Once
	before func(ctx context.Context)
}

func (r *rival) Commit(ctx context.Context, ch router.Change) (router.CommitResult, error) {
	if ch.Action == "ramp.advance" {
		r.once.Do(func() { r.before(ctx) })
	}
	return r.Controller.Commit(ctx, ch)
}

// TestPersonWins: who pauses in the very moment in which a step was decided has
// paused.
func TestPersonWins(t *testing.T) {
	paused := make(chan error, 1)
	r := start(t, settings{id: "a", db: sqliteURL(t), control: func(c *control.Controller) rollout.Control {
		return &rival{Controller: c, before: func(ctx context.Context) {
			_, err := c.Commit(ctx, router.Change{Actor: "ada", Action: "experiment.pause", Object: "experiment/" + key,
				Mutate: func(s *router.Snapshot, rev int64) error { return router.Pause(&s.Document, rev, time.Now(), key) }})
			paused <- err
		}}
	}})
	traffic(t, r)
	r.begin(t)
	if err := <-paused; err != nil {
		t.Fatal(err)
	}
	time.Sleep(3 * time.Second)
	if e := r.experiment(); e.State != "paused" || e.Variants[1].Weight != 0 || len(r.actions(t)) != 0 {
		t.Errorf("%s at %d, the controller did %d things", e.State, e.Variants[1].Weight, len(r.actions(t)))
	}
}
