package rollout_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"sluice/experiment/ramp"
	"sluice/router"
)

// arms has two arms and no ramp: nothing says before a step what is slow.
func arms(t testing.TB, guardrails string) *router.Document {
	t.Helper()
	d, err := router.ParseDocument(fmt.Appendf(nil, `{
  "upstreams": [{"name": "v1", "endpoints": ["http://127.0.0.1:1/v1"]}, {"name": "v2", "endpoints": ["http://127.0.0.1:1/v2"]}],
  "models": [{"name": "chat", "default": {"upstream": "v1"}}],
  "experiments": [{"key": "exp", "model": "chat", "kind": "ab", "state": "draft", "baseline": "control",
    "unit": {"from": ["header:x-user-id"]}, "guardrails": %s,
    "variants": [{"name": "control", "weight": 5000, "upstream": "v1"}, {"name": "canary", "weight": 5000, "upstream": "v2"}]}]
}`, guardrails))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestSlowWithoutARamp: what is slow is fixed from the baseline's first minutes,
// once a generation, and is judged by then on; what the guardrail did is known as
// the guardrail's, not as a person's.
func TestSlowWithoutARamp(t *testing.T) {
	r := start(t, settings{id: "a", db: sqliteURL(t), seed: arms(t, `[{"metric": "slow_ttfa", "action": "rollback"}]`), fixAfter: 3 * time.Second})
	c := traffic(t, r)
	r.begin(t)
	began := time.Now()
	eventually(t, 20*time.Second, "what is slow", func() bool { return r.experiment().Setup != nil })
	if d := time.Since(began); d < 2*time.Second {
		t.Errorf("fixed after %v, before the baseline's first 3 s were over", d)
	}
	setup := r.experiment().Setup
	if len(setup.Thresholds) == 0 || setup.Thresholds[0][0] < 40*time.Millisecond || setup.Thresholds[0][0] > 5*time.Second {
		t.Fatalf("%+v, of a baseline that answers within 20 to 50 ms", setup)
	}
	// Other weights keep what is slow, and the experiment is judged by it.
	r.must(t, "experiment.set_weights", func(d *router.Document, rev int64, now time.Time) error {
		return router.SetWeights(d, rev, now, key, map[string]int{"control": 6000, "canary": 4000})
	})
	time.Sleep(3 * time.Second)
	if e := r.experiment(); e.Setup == nil || e.Setup.Thresholds[0] != setup.Thresholds[0] || e.State != router.StateRunning {
		t.Fatalf("after a change of the weights: %s, %+v", e.State, e.Setup)
	}
	c.slower.Store(3 * setup.Thresholds[0][0].Milliseconds())
	eventually(t, 30*time.Second, "rolled back", func() bool { return r.experiment().State == router.StateRolledBack })
	rows := r.actions(t)
	if n := len(rows); n != 2 || rows[0].Action != "experiment.setup" || rows[1].Action != "ramp.rollback" || !strings.HasPrefix(rows[1].Reason, "rolled back: slow_ttfa") {
		t.Errorf("the controller did %+v", rows)
	}
	if m := r.experiment().LastRollback; m == nil || m.Reason != ramp.CodeGuardrail {
		t.Errorf("rolled back by %+v, want the guardrail", m)
	}
	// A new generation finds out anew.
	r.must(t, "experiment.start", func(d *router.Document, rev int64, now time.Time) error { return router.StartAnyway(d, rev, now, key) })
	if e := r.experiment(); e.Setup != nil {
		t.Errorf("a new generation begins with %+v", e.Setup)
	}
}

// TestWrittenThresholdsWaitForNobody: what a person has written is judged at once.
func TestWrittenThresholdsWaitForNobody(t *testing.T) {
	r := start(t, settings{id: "a", db: sqliteURL(t), seed: arms(t, `[{"metric": "slow_ttfa", "action": "rollback", "threshold": "100ms"}]`)})
	c := traffic(t, r)
	c.slower.Store(300)
	r.begin(t)
	eventually(t, 30*time.Second, "rolled back", func() bool { return r.experiment().State == router.StateRolledBack })
	if e := r.experiment(); e.Setup != nil {
		t.Errorf("%+v was fixed", e.Setup)
	}
}
