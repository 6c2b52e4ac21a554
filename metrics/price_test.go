package metrics_test

import (
	"encoding/json"
	"math"
	"math/big"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"sluice/metrics"
)

type costVector struct {
	In       *string `json:"in"`
	CachedIn *string `json:"cached_in"`
	Out      *string `json:"out"`
	Usage    struct {
		Prompt     int64 `json:"prompt_tokens"`
		Completion int64 `json:"completion_tokens"`
		PDetails   struct {
			Cached int64 `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
		CDetails struct {
			Reasoning int64 `json:"reasoning_tokens"`
		} `json:"completion_tokens_details"`
	} `json:"usage"`
	Times int     `json:"times"`
	USD   *string `json:"usd"`
	Error string  `json:"error"`
	Note  string  `json:"note"`
}

func TestCostVectors(t *testing.T) {
	raw, err := os.ReadFile("testdata/cost_vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Cases []costVector `json:"cases"`
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Cases) < 10 {
		t.Fatalf("%d cases, want at least 10", len(file.Cases))
	}
	for i, c := range file.Cases {
		p, err := metrics.ParsePrice(metrics.PriceStrings{Input: c.In, CachedInput: c.CachedIn, Output: c.Out})
		if (err != nil) != (c.Error != "") {
			t.Errorf("case %d: error %v, want %q", i, err, c.Error)
		}
		if err != nil {
			if !strings.HasPrefix(err.Error(), "price.input: ") {
				t.Errorf("case %d: %q does not name the member", i, err)
			}
			continue
		}
		var sum int64
		priced := true
		for range max(c.Times, 1) {
			nano, ok := p.Cost(metrics.Tokens{
				Input: c.Usage.Prompt, Cached: c.Usage.PDetails.Cached,
				Output: c.Usage.Completion, Reasoning: c.Usage.CDetails.Reasoning,
			})
			sum += nano
			priced = priced && ok
		}
		switch {
		case c.USD == nil && priced:
			t.Errorf("case %d: priced %s, want unknown", i, metrics.FormatUSD(sum))
		case c.USD != nil && !priced:
			t.Errorf("case %d: unknown, want %s", i, *c.USD)
		case c.USD != nil && metrics.FormatUSD(sum) != *c.USD:
			t.Errorf("case %d (%s): %s, want %s", i, c.Note, metrics.FormatUSD(sum), *c.USD)
		}
	}
}

func ptr(s string) *string { return &s }

func TestParsePriceRejects(t *testing.T) {
	for _, s := range []string{
		"", " ", "-1", "+1", "-0", "NaN", "Inf", "1e3", "1E-3", "0x10", "1_000", "1,5", ".5", "5.", ".", "1.2.3",
		" 1", "1 ", "1\n", "０.5", "0.0000001", "0.1000000", "1000000.000001", "9999999999999999999999", "$1", "1%",
	} {
		for name, p := range map[string]metrics.PriceStrings{
			"input": {Input: &s}, "cached_input": {CachedInput: &s}, "cache_write": {CacheWrite: &s},
			"output": {Output: &s}, "reasoning": {Reasoning: &s}, "request": {Request: &s},
		} {
			if _, err := metrics.ParsePrice(p); err == nil || !strings.HasPrefix(err.Error(), "price."+name+": ") {
				t.Errorf("%s %q: error %v, want one that names the member", name, s, err)
			}
		}
	}
}

func TestCostFallbacks(t *testing.T) {
	full := metrics.PriceStrings{Input: ptr("1"), CachedInput: ptr("0.1"), CacheWrite: ptr("1.25"), Output: ptr("2"), Reasoning: ptr("3"), Request: ptr("0.01")}
	for _, c := range []struct {
		name   string
		price  metrics.PriceStrings
		tokens metrics.Tokens
		want   string // "" unknown
	}{
		{"every part", full, metrics.Tokens{Input: 100, Cached: 20, CacheWrite: 30, Output: 10, Reasoning: 4}, "0.0101135"},
		{"no tokens pay the fee", full, metrics.Tokens{}, "0.01"},
		{"cached and cache write fall back to input", metrics.PriceStrings{Input: ptr("1"), Output: ptr("2")}, metrics.Tokens{Input: 10, Cached: 3, CacheWrite: 3}, "0.00001"},
		{"reasoning falls back to output", metrics.PriceStrings{Input: ptr("1"), Output: ptr("2")}, metrics.Tokens{Output: 10, Reasoning: 10}, "0.00002"},
		{"output unknown", metrics.PriceStrings{Input: ptr("1")}, metrics.Tokens{Input: 1, Output: 1}, ""},
		{"output unknown but unused", metrics.PriceStrings{Input: ptr("1")}, metrics.Tokens{Input: 7}, "0.000007"},
		{"input unknown", metrics.PriceStrings{Output: ptr("1")}, metrics.Tokens{Input: 1}, ""},
		{"input unknown, all of it cached", metrics.PriceStrings{CachedInput: ptr("1")}, metrics.Tokens{Input: 5, Cached: 5}, "0.000005"},
		{"fee alone does not price tokens", metrics.PriceStrings{Request: ptr("1")}, metrics.Tokens{Input: 1}, ""},
		{"nothing known", metrics.PriceStrings{}, metrics.Tokens{}, ""},
		{"negative counts", full, metrics.Tokens{Input: -5, Cached: -1, Output: -9}, "0.01"},
		{"cached and write beyond input", metrics.PriceStrings{Input: ptr("1"), CachedInput: ptr("0"), CacheWrite: ptr("0"), Output: ptr("0")}, metrics.Tokens{Input: 5, Cached: 4, CacheWrite: 4}, "0"},
		{"half to even, down", metrics.PriceStrings{Input: ptr("0.0005"), Output: ptr("0")}, metrics.Tokens{Input: 1}, "0"},
		{"half to even, up", metrics.PriceStrings{Input: ptr("0.0015"), Output: ptr("0")}, metrics.Tokens{Input: 1}, "0.000000002"},
		{"absurd counts stop at the bound", metrics.PriceStrings{Input: ptr("1000000"), Output: ptr("1000000")}, metrics.Tokens{Input: math.MaxInt64, Output: math.MaxInt64}, "9223372.036854776"},
	} {
		p, err := metrics.ParsePrice(c.price)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		nano, ok := p.Cost(c.tokens)
		got := ""
		if ok {
			got = metrics.FormatUSD(nano)
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// TestCostAgainstRationals compares with exact arithmetic.
func TestCostAgainstRationals(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		var strs [5]*string
		var rates [5]*big.Rat
		for i := range strs {
			s := metrics.FormatUSD(rng.Int64N(1<<rng.IntN(40)+1) * 1000)
			strs[i] = &s
			rates[i], _ = new(big.Rat).SetString(s)
		}
		p, err := metrics.ParsePrice(metrics.PriceStrings{Input: strs[0], CachedInput: strs[1], CacheWrite: strs[2], Output: strs[3], Reasoning: strs[4]})
		if err != nil {
			t.Fatal(err)
		}
		in, out := rng.Int64N(1<<20), rng.Int64N(1<<16)
		cached := rng.Int64N(in + 1)
		write, reason := rng.Int64N(in-cached+1), rng.Int64N(out+1)
		got, ok := p.Cost(metrics.Tokens{Input: in, Cached: cached, CacheWrite: write, Output: out, Reasoning: reason})
		if !ok {
			t.Fatal("priced tokens came out unknown")
		}
		sum := new(big.Rat)
		for i, n := range []int64{in - cached - write, cached, write, out - reason, reason} {
			sum.Add(sum, new(big.Rat).Mul(rates[i], big.NewRat(n*1000, 1))) // nano-USD
		}
		diff := new(big.Rat).Sub(sum, big.NewRat(got, 1))
		switch diff.Abs(diff).Cmp(big.NewRat(1, 2)) {
		case 1:
			if sum.Cmp(big.NewRat(math.MaxInt64/1000, 1)) < 0 {
				t.Fatalf("got %d nano, exact %s", got, sum.FloatString(3))
			}
		case 0:
			if got%2 != 0 {
				t.Fatalf("got %d nano for the half %s, want the even neighbour", got, sum.FloatString(3))
			}
		}
	}
}

func TestFormatUSD(t *testing.T) {
	for nano, want := range map[int64]string{
		0: "0", 1: "0.000000001", 10: "0.00000001", 1227450: "0.00122745", 1e9: "1", 12_500_000_000: "12.5",
		-1: "-0.000000001", -1_500_000_000: "-1.5", math.MaxInt64: "9223372036.854775807", math.MinInt64: "-9223372036.854775808",
	} {
		if got := metrics.FormatUSD(nano); got != want {
			t.Errorf("FormatUSD(%d) = %q, want %q", nano, got, want)
		}
	}
}
