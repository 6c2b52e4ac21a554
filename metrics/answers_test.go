package metrics_test

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/metrics"
)

// TestAnswers: what requests ask for and what answers are like is counted for
// the assigned variant; what was not looked for is not in the denominator.
func TestAnswers(t *testing.T) {
	reg := prometheus.NewRegistry()
	r := metrics.New(metrics.Options{Registerer: reg, Log: quiet})
	ev := event("e1", "canary")
	ev.Served = "control"
	ev.Asks = 1<<1 | 1<<3
	ev.TTFA = 300 * time.Millisecond
	ev.Answer = metrics.Answer{Seen: true, Flaws: 1<<2 | 1<<4, Judged: 1 | 1<<2 | 1<<4, Chars: 77, Events: 3, Finish: [5]uint16{2, 1}, Gap: time.Second}
	r.Record(ev)
	ev.Answer = metrics.Answer{Seen: true, Judged: 1, Refusal: true}
	r.Record(ev)
	ev.Answer, ev.TTFA, ev.Asks = metrics.Answer{Flaws: 63, Judged: 63, Chars: 9, Refusal: true}, 0, 0 // none came
	r.Record(ev)
	for _, c := range []struct {
		name, label, value string
		want               float64
	}{
		{"sluice_request_asks_total", "ask", "tools", 2},
		{"sluice_request_asks_total", "ask", "json", 2},
		{"sluice_request_asks_total", "ask", "stream", 0},
		{"sluice_answers_judged_total", "flaw", "empty", 2},
		{"sluice_answers_judged_total", "flaw", "invalid_json", 1},
		{"sluice_answers_judged_total", "flaw", "prompt_leak", 0},
		{"sluice_answer_flaws_total", "flaw", "invalid_json", 1},
		{"sluice_answer_flaws_total", "flaw", "reasoning_leak", 1},
		{"sluice_answer_flaws_total", "flaw", "empty", 0},
		{"sluice_answer_finish_reasons_total", "reason", "stop", 2},
		{"sluice_answer_finish_reasons_total", "reason", "length", 1},
		{"sluice_answer_characters_total", "variant", "canary", 77},
		{"sluice_answer_refusals_total", "variant", "canary", 1},
	} {
		got, n := sums(t, reg, c.name, map[string]string{"variant": "canary", c.label: c.value})
		if got != c.want || n != 1 {
			t.Errorf("%s{%s=%q} = %v in %d series, want %v", c.name, c.label, c.value, got, n, c.want)
		}
	}
	for _, name := range []string{"sluice_time_to_first_answer_token_seconds", "sluice_answer_gap_seconds"} {
		var n uint64
		for _, f := range gather(t, reg) {
			if f.GetName() == name {
				n = f.GetMetric()[0].GetHistogram().GetSampleCount()
			}
		}
		if want := map[bool]uint64{true: 1, false: 2}[name == "sluice_answer_gap_seconds"]; n != want {
			t.Errorf("%s has %d observations, want %d", name, n, want)
		}
	}
}
