package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"sluice/experiment/ramp"
)

func looked(step int) *watched {
	v := &watched{}
	v.ramp.Report = ramp.Report{Experiment: "chat", State: "running", Phase: ramp.Ramping, Variant: "canary", Step: step,
		Steps: []ramp.Step{{Weight: 100}, {Weight: 2000, Approve: true}}, Since: time.Now(), Weights: map[string]int{"control": 9900, "canary": 100},
		Arms:   []ramp.Arm{{Name: "control", Weight: 9900, Units: 990}, {Name: "canary", Weight: 100, Units: 10, Tripped: 1}},
		WhyNot: []string{"error: not decided\x1b[31m " + strings.Repeat("x", 200), "only 10 users"}}
	value := 0.02
	v.guards = []guarded{{Variant: "canary", State: "OPEN", Value: &value}}
	v.guards[0].Config.Name = "error"
	v.past = []past{{Time: time.Unix(1000, 0), Text: "advanced"}}
	return v
}

// On a terminal each look is drawn over the last one, in lines that do not wrap
// and say nothing to the terminal themselves.
func TestWatchRedraws(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	w := &watcher{out: &out, live: true}
	w.draw(looked(0))
	first := out.String()
	n := strings.Count(first, "\n")
	for l := range strings.SplitSeq(first, "\n") {
		if l = strings.TrimPrefix(l, "\r\x1b[2K"); len([]rune(l)) > watchWidth || strings.Contains(l, "\x1b[31m") {
			t.Errorf("line %q", l)
		}
	}
	for _, want := range []string{"chat  running, ramping: step 1 of 2, for ", "[#---", "[1 %] · 20 %?", "breaker open on 1 replicas", "OPEN  error", "2 %", "not advancing: error", "only 10 users", "advanced"} {
		if !strings.Contains(first, want) {
			t.Errorf("no %q in\n%s", want, first)
		}
	}
	out.Reset()
	w.draw(looked(1))
	if up := fmt.Sprintf("\x1b[%dA", n); n < 8 || !strings.HasPrefix(out.String(), up) {
		t.Errorf("after %d lines it goes up by %q", n, out.String()[:6])
	}
}

// Where several variants are guarded, each line says whose it is.
func TestWatchNamesTheVariants(t *testing.T) {
	t.Parallel()
	v := looked(0)
	v.guards = append(v.guards, v.guards[0])
	v.guards[1].Variant = "third"
	text := strings.Join(view(v, time.Now()), "\n")
	for _, want := range []string{"OPEN  canary         error", "OPEN  third          error"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestWatchTellsChangesOnce(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	w := &watcher{out: &out}
	for _, step := range []int{0, 0, 1, 1} {
		w.draw(looked(step))
	}
	if n := strings.Count(out.String(), "\n"); n != 2 || strings.Contains(out.String(), "\x1b") {
		t.Errorf("%d lines: %q", n, out.String())
	}
}

func TestOutcomes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		state string
		phase ramp.Phase
		code  int
		over  bool
	}{
		{"running", ramp.Ramping, 0, false}, {"paused", ramp.Ramping, 0, false}, {"promoted", ramp.Baking, 0, false},
		{"promoted", ramp.Done, 0, true}, {"promoted", "", 0, true}, {"rolled_back", ramp.Done, 3, true}, {"completed", ramp.Done, 3, true}, {"running", ramp.Done, 3, true},
	} {
		code, over := outcome(&ramp.Report{State: c.state, Phase: c.phase})
		if over != c.over || over && code != c.code {
			t.Errorf("%s %s: %d %v", c.state, c.phase, code, over)
		}
	}
}
