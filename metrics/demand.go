package metrics

import (
	"math"
	"sync/atomic"
)

// Demand is what clients have asked of a model since the start of the process.
type Demand struct {
	Requests  int64
	Asks      map[string]int64 // by AskNames
	PromptP99 int64            // tokens as estimated, rounded up by a fifth at most; 0 unknown
}

const (
	perOctave     = 4
	promptBuckets = 20*perOctave + 1 // up to a million tokens
)

// demand counts it, for all variants of one model together.
type demand struct {
	requests atomic.Int64
	asks     [len(AskNames)]atomic.Int64
	prompts  [promptBuckets]atomic.Int64
}

func (d *demand) observe(e *Event) {
	d.requests.Add(1)
	for i := range d.asks {
		if e.Asks>>i&1 == 1 {
			d.asks[i].Add(1)
		}
	}
	if e.Prompt > 0 {
		at := int(math.Ceil(perOctave * math.Log2(float64(e.Prompt))))
		d.prompts[min(max(at, 0), promptBuckets-1)].Add(1)
	}
}

func (d *demand) read() Demand {
	out := Demand{Requests: d.requests.Load(), Asks: make(map[string]int64, len(AskNames))}
	for i, n := range AskNames {
		out.Asks[n] = d.asks[i].Load()
	}
	var counts [promptBuckets]int64
	var all int64
	for i := range counts {
		counts[i] = d.prompts[i].Load()
		all += counts[i]
	}
	for i, left := promptBuckets-1, all/100; i >= 0 && all > 0; i-- {
		if left -= counts[i]; left < 0 {
			out.PromptP99 = int64(math.Round(math.Exp2(float64(i) / perOctave)))
			break
		}
	}
	return out
}

// Demand reads what clients have asked of a public model.
func (r *Recorder) Demand(model string) Demand {
	if d, ok := r.arms.demands.Load(model); ok {
		return d.(*demand).read()
	}
	return Demand{}
}
