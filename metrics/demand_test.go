package metrics

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What live requests ask for is counted by model, over its variants, and of
// clients alone.
func TestDemand(t *testing.T) {
	t.Parallel()
	r := New(Options{})
	for i := range 1000 {
		e := Event{Model: "chat", Experiment: "e", Assigned: []string{"a", "b"}[i%2], Outcome: "success", Prompt: 100}
		if i%4 == 0 {
			e.Asks = 1<<1 | 1 // tools, streamed
		}
		if i >= 980 {
			e.Prompt = 6000
		}
		r.Record(e)
	}
	for range 50 {
		r.Record(Event{Model: "chat", Experiment: "e", Assigned: "a", Role: RoleProbe, Asks: 0xffff, Prompt: 1 << 40})
		r.Record(Event{Model: "chat", Role: RoleShadow, Asks: 0xffff})
	}
	got := r.Demand("chat")
	want := Demand{Requests: 1000, PromptP99: got.PromptP99, Asks: map[string]int64{"stream": 250, "tools": 250,
		"tool_call": 0, "json": 0, "system": 0, "choices": 0, "logprobs": 0, "image": 0, "stop": 0, "long": 0}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got.PromptP99 < 6000 || got.PromptP99 > 7200 {
		t.Errorf("p99 of the prompts is %d, want 6000 to 7200", got.PromptP99)
	}
	if other := r.Demand("nobody"); other.Requests != 0 || other.PromptP99 != 0 {
		t.Errorf("got %+v of a model that nobody asked", other)
	}
}
