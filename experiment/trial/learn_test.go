package trial_test

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"sluice/experiment/guardrail"
	"sluice/experiment/trial"
)

// Who is slow anyway is known before the first step, though what is slow is
// fixed only with it.
func TestSlowPastsAreLearntWithoutThresholds(t *testing.T) {
	t.Parallel()
	configs := []guardrail.Config{guardrail.New(guardrail.Error), guardrail.New(guardrail.SlowTTFA)}
	plan, err := trial.NewPlan(configs, trial.Setup{Thresholds: make([]trial.Thresholds, 2)})
	if err != nil {
		t.Fatal(err)
	}
	c := trial.NewCollector(nil)
	c.Set(map[string]*trial.Watch{"x": {Experiment: "x", Generation: 1, Epoch: 1, Variants: 2, Configs: configs, Plan: plan}})
	now := time.Unix(1_700_000_000, 0)
	const slow = 7
	for i := range 2000 {
		now = now.Add(50 * time.Millisecond)
		in := trial.Start{Experiment: "x", Generation: 1, Analysed: true, At: now, ID: fmt.Sprint(i), HasUnit: true, Prompt: 100}
		u := uint64(i % 40)
		binary.BigEndian.PutUint64(in.Unit[:], u<<40|u)
		r, after := c.Begin(&in), 100*time.Millisecond
		if u == slow {
			after = 5 * time.Second
		}
		r.Answer(after)
		r.Ended(trial.End{After: after + time.Second, Ending: trial.Answered})
		r.Close(after+time.Second, 0, false, 0)
		if i%20 == 0 {
			c.Drain(now)
		}
	}
	if got := c.Failing("x").Slow; len(got) != 1 || got[0] != slow<<40|slow {
		t.Errorf("slow units %v, want the one", got)
	}
}
