package guardrail_test

import (
	"testing"

	"sluice/experiment/guardrail"
)

// The figures of reference/experiments.md 5.6, and the edges.
func TestBreakerLimit(t *testing.T) {
	tests := []struct {
		bad, trials int64
		want        int
	}{
		{0, 1000, 5}, {50, 1000, 7}, {200, 1000, 13}, {500, 1000, 20},
		{0, 0, 20}, {1000, 1000, 20}, {2000, 1000, 20}, {-1, 10, 20}, {0, -5, 20}, {0, 1, 20}, {0, 1 << 40, 5},
	}
	for _, tt := range tests {
		if got := guardrail.BreakerLimit(tt.bad, tt.trials); got != tt.want {
			t.Errorf("%d bad in %d: %d, want %d", tt.bad, tt.trials, got, tt.want)
		}
	}
}

func TestStreak(t *testing.T) {
	tests := []struct {
		name  string
		units []uint64
		good  int // this one is good, -1 none
		trips int // at this trial, -1 never
	}{
		{"two users", []uint64{1, 2, 1, 2, 1, 2}, -1, 4},
		{"one user needs twice as many", []uint64{1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, -1, 9},
		{"the second user comes late", []uint64{1, 1, 1, 1, 1, 1, 2}, -1, 6},
		{"a success breaks the run", []uint64{1, 2, 1, 2, 3, 1, 2, 1}, 3, -1},
		{"a unit of hash 0", []uint64{0, 1, 0, 1, 0}, -1, 4},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var s guardrail.Streak
			at := -1
			for i, u := range tt.units {
				if s.Add(u, i != tt.good, 5) && at < 0 {
					at = i
				}
			}
			if at != tt.trips {
				t.Errorf("tripped at %d, want %d", at, tt.trips)
			}
		})
	}
}
