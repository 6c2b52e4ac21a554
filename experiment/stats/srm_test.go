package stats_test

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"pgregory.net/rapid"

	"sluice/experiment/stats"
)

func load(t *testing.T, name string, v any) {
	t.Helper()
	data, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatal(err)
	}
}

// near is the tolerance of the vectors: 1e-9 relative. The logarithms are
// differences of numbers of the size of lnG(A+n), which costs some of it.
func near(got, want float64) bool { return math.Abs(got-want) <= 1e-9*math.Max(1, math.Abs(want)) }

func TestSRMVectors(t *testing.T) {
	t.Parallel()
	var v struct {
		Chi2 []struct {
			Observed []int64
			Weights  []float64
			Chi2     float64
			DF       int
			LogBF10k float64 `json:"log_bf_kappa_10000"`
			LogBF1k  float64 `json:"log_bf_kappa_1000"`
			LogBF100 float64 `json:"log_bf_kappa_100"`
			LogE     float64 `json:"log_e"`
		}
		Sequential [][]struct {
			Counts  []int64
			Weights []float64
			LogE    float64 `json:"log_e"`
			P       float64
		}
		Optimizely struct {
			Data  [][]int64
			Null  []float64
			Alpha []float64
			LogBF []float64 `json:"log_bf"`
		} `json:"optimizely_ssrm_published"`
	}
	load(t, "srm.json", &v)
	if len(v.Chi2) != 11 || len(v.Sequential) != 2 || len(v.Optimizely.LogBF) != 5 {
		t.Fatal("srm.json has other vectors than expected")
	}
	for _, c := range v.Chi2 {
		e := stats.Epoch{Counts: c.Observed, Weights: c.Weights}
		got, err := stats.SRM(e)
		if err != nil || !near(got, c.LogE) {
			t.Errorf("%v: log e %v, want %v (%v)", c.Observed, got, c.LogE, err)
		}
		for kappa, want := range map[float64]float64{100: c.LogBF100, 1000: c.LogBF1k, 10000: c.LogBF10k} {
			prior := make([]float64, len(c.Weights))
			for i, w := range c.Weights {
				prior[i] = kappa * w
			}
			if got := stats.LogBF(c.Observed, c.Weights, prior); !near(got, want) {
				t.Errorf("%v, kappa %v: %v, want %v", c.Observed, kappa, got, want)
			}
		}
		if x, df, err := stats.ChiSquare(e); err != nil || !near(x, c.Chi2) || df != c.DF {
			t.Errorf("%v: chi-square %v with %d, want %v with %d (%v)", c.Observed, x, df, c.Chi2, c.DF, err)
		}
	}
	for _, looks := range v.Sequential {
		var epochs []stats.Epoch
		p := 1.0
		for i, look := range looks {
			if n := len(epochs); n == 0 || epochs[n-1].Weights[0] != look.Weights[0] {
				epochs = append(epochs, stats.Epoch{Counts: make([]int64, len(look.Counts)), Weights: look.Weights})
			}
			for j, k := range look.Counts {
				epochs[len(epochs)-1].Counts[j] += k
			}
			got, err := stats.SRM(epochs...)
			if p = min(p, math.Exp(-got)); err != nil || !near(got, look.LogE) || !near(p, look.P) {
				t.Errorf("look %d: log e %v, p %v; want %v, %v (%v)", i, got, p, look.LogE, look.P, err)
			}
		}
	}
	sum := make([]int64, 3)
	for i, one := range v.Optimizely.Data {
		for j := range sum {
			sum[j] += one[j]
		}
		if got := stats.LogBF(sum, v.Optimizely.Null, v.Optimizely.Alpha); !near(got, v.Optimizely.LogBF[i]) {
			t.Errorf("Optimizely's look %d: %v, want %v", i, got, v.Optimizely.LogBF[i])
		}
	}
}

// A ratio that matches raises no alarm however often one looks; a canary that
// loses a fifth of its users does.
func TestSRMFindsMismatchAndNothingElse(t *testing.T) {
	t.Parallel()
	alarm := math.Log(stats.SRMAlarm)
	run := func(seed uint64, want, really float64, looks, each int) (at int) {
		r := rand.New(rand.NewPCG(seed, 7))
		e := stats.Epoch{Counts: make([]int64, 2), Weights: []float64{1 - want, want}}
		for look := range looks {
			for range each {
				if r.Float64() < really {
					e.Counts[1]++
				} else {
					e.Counts[0]++
				}
			}
			if got, err := stats.SRM(e); err != nil || got >= alarm {
				return look + 1
			}
		}
		return 0
	}
	for seed := range uint64(200) {
		if at := run(seed, 0.01, 0.01, 100, 200); at > 0 {
			t.Errorf("seed %d: a false alarm at look %d", seed, at)
		}
	}
	found := 0
	for seed := range uint64(20) {
		if run(seed, 0.5, 0.45, 60, 200) > 0 {
			found++
		}
	}
	if found < 19 {
		t.Errorf("45 %% for 50 %% found in %d of 20 by 12,000 units", found)
	}
}

func TestSRMRefusesNonsense(t *testing.T) {
	t.Parallel()
	for _, e := range []stats.Epoch{
		{Counts: []int64{1}, Weights: []float64{1, 2}}, {Counts: []int64{-1, 2}, Weights: []float64{1, 1}},
		{Counts: []int64{1, 2}, Weights: []float64{0, 0}}, {Counts: []int64{1, 2}, Weights: []float64{math.NaN(), 1}},
		{Counts: []int64{1, 2}, Weights: []float64{math.Inf(1), 1}}, {Counts: []int64{1, 2}, Weights: []float64{-1, 1}},
	} {
		if got, err := stats.SRM(e); err == nil {
			t.Errorf("%v gave %v", e, got)
		}
	}
	if got, err := stats.SRM(stats.Epoch{Counts: []int64{5, 1}, Weights: []float64{1, 0}}); err != nil || !math.IsInf(got, 1) {
		t.Errorf("a unit on a variant of weight 0: %v, %v; want +Inf", got, err)
	}
	if got, err := stats.SRM(stats.Epoch{Counts: []int64{5, 0}, Weights: []float64{1, 0}}); err != nil || got != 0 {
		t.Errorf("one variant alone: %v, %v; want 0", got, err)
	}
}

// Whatever the counts: finite or +Inf, never NaN, the same for weights in
// another scale, and 0 for no units.
func TestSRMProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 8).Draw(t, "variants")
		e := stats.Epoch{Counts: make([]int64, n), Weights: make([]float64, n)}
		scaled := make([]float64, n)
		total := int64(0)
		for i := range n {
			e.Counts[i] = rapid.Int64Range(0, 1<<40).Draw(t, "count")
			w := rapid.IntRange(1, 10000).Draw(t, "weight")
			e.Weights[i], scaled[i] = float64(w), float64(w)/10000
			total += e.Counts[i]
		}
		got, err := stats.SRM(e)
		if err != nil || math.IsNaN(got) {
			t.Fatalf("%v: %v, %v", e, got, err)
		}
		again, _ := stats.SRM(stats.Epoch{Counts: e.Counts, Weights: scaled})
		if math.Abs(got-again) > 1e-6*math.Max(1, math.Abs(got)+float64(total)*1e-9) {
			t.Fatalf("%v in another scale: %v and %v", e, got, again)
		}
		if none, err := stats.SRM(stats.Epoch{Counts: make([]int64, n), Weights: e.Weights}); err != nil || none != 0 {
			t.Fatalf("no units: %v, %v", none, err)
		}
	})
}
