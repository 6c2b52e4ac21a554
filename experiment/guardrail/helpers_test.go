package guardrail_test

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"

	"sluice/experiment/guardrail"
)

// load reads testdata/name into v.
func load(t testing.TB, name string, v any) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, v); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// near reports equality to a relative 1e-9, the tolerance of the vectors.
func near(got, want float64) bool {
	return got == want || math.Abs(got-want) <= 1e-9*max(math.Abs(want), 1e-3)
}

// errorTest is the guardrail of the vectors: 1.5, 10 %, 2 and 2 %.
func errorTest(t testing.TB, change ...func(*guardrail.Config, *guardrail.Gates)) *guardrail.Test {
	t.Helper()
	c, g := guardrail.New(guardrail.Error), guardrail.DefaultGates(0.01, 0.05, 5, 4)
	for _, f := range change {
		f(&c, &g)
	}
	test, err := guardrail.NewTest(c, g)
	if err != nil {
		t.Fatal(err)
	}
	return test
}

// tick has distinct units for all its canary trials.
func tick(i int, nc, kc, nb, kb int64) *guardrail.Tick {
	tk := &guardrail.Tick{
		At:     1_700_000_000_000 + int64(i)*10_000,
		Canary: guardrail.Counts{N: nc, K: kc}, Baseline: guardrail.Counts{N: nb, K: kb},
	}
	for j := range min(nc, 40) {
		tk.Units = append(tk.Units, uint64(i)*1000+uint64(j))
		if j < kc {
			tk.BadUnits = append(tk.BadUnits, uint64(i)*1000+uint64(j))
		}
	}
	return tk
}
