package trial

import (
	"encoding/json"
	"errors"
	"math"
	"time"

	"sluice/experiment/guardrail"
)

// Classes of uncached prompt tokens: below 1k, 4k, 16k, and more. A long prompt
// takes long to read on any server, so that who sends long prompts would be
// slow under one threshold for all.
const Classes = 4

// Class is the class of a prompt of so many tokens that no cache has; -1 for a
// negative number, which is unknown.
func Class(tokens int) int {
	switch {
	case tokens < 0:
		return -1
	case tokens < 1000:
		return 0
	case tokens < 4000:
		return 1
	case tokens < 16000:
		return 2
	}
	return 3
}

// Thresholds are what is slow in each class; 0 is not known.
type Thresholds [Classes]time.Duration

// of is the threshold of a prompt. One threshold for all classes needs no class.
func (t Thresholds) of(tokens int) time.Duration {
	if c := Class(tokens); c >= 0 {
		return t[c]
	}
	if t[0] == t[1] && t[0] == t[2] && t[0] == t[3] {
		return t[0]
	}
	return 0
}

// Profile is how long the baseline took before a step, by class.
type Profile struct {
	TTFA  [Classes]Histogram `json:"ttfa"`
	TTFT  [Classes]Histogram `json:"ttft"`
	Total [Classes]Histogram `json:"total"`
	TPOT  [Classes]Histogram `json:"tpot"`

	used bool // something was added
}

// Add counts a request of the baseline that was answered.
func (p *Profile) Add(f *Facts) {
	c := Class(f.Prompt)
	if f.Ending != Answered || f.left() || c < 0 {
		return
	}
	p.used = true
	add := func(h *Histogram, d time.Duration) {
		if d > 0 {
			h.Add(d)
		}
	}
	add(&p.TTFA[c], f.Answer)
	add(&p.TTFT[c], f.First)
	add(&p.Total[c], f.End)
	if per, ok := f.perToken(); ok {
		add(&p.TPOT[c], time.Duration(per))
	}
}

// Merge adds another replica's profile.
func (p *Profile) Merge(o *Profile) {
	p.used = p.used || o.used
	for c := range Classes {
		p.TTFA[c].Merge(&o.TTFA[c])
		p.TTFT[c].Merge(&o.TTFT[c])
		p.Total[c].Merge(&o.Total[c])
		p.TPOT[c].Merge(&o.TPOT[c])
	}
}

func (p *Profile) reset() {
	for c := range Classes {
		p.TTFA[c].reset()
		p.TTFT[c].reset()
		p.Total[c].reset()
		p.TPOT[c].reset()
	}
	p.used = false
}

// minSamples is how many requests make a class's own quantile.
const minSamples = 100

// Fix is what a step takes as slow, for each guardrail, and the age from which
// means count: the baseline's p99 duration. A class with few requests takes the
// quantile of all, or the threshold of the class below if that is longer; with
// few requests in all, a guardrail has no threshold and its trials wait for the
// next step.
func Fix(configs []guardrail.Config, p *Profile) (thresholds []Thresholds, settled time.Duration) {
	for _, c := range configs {
		var t Thresholds
		switch {
		case natures[c.Metric].kind != byTime:
		case c.Threshold.Fixed > 0:
			t = Thresholds{c.Threshold.Fixed, c.Threshold.Fixed, c.Threshold.Fixed, c.Threshold.Fixed}
		default:
			t = quantiles(p.of(c.Metric), c.Threshold.Quantile, c.Threshold.Factor)
		}
		thresholds = append(thresholds, t)
	}
	settled, _ = pooled(&p.Total).Quantile(0.99)
	return thresholds, settled
}

// Lacks is how many more answers of the baseline it takes until every guardrail
// that has no threshold written knows what is slow; 0 if all do.
func (p *Profile) Lacks(configs []guardrail.Config) int {
	lack := 0
	for _, c := range configs {
		if natures[c.Metric].kind == byTime && c.Threshold.Fixed == 0 {
			lack = max(lack, minSamples-int(min(pooled(p.of(c.Metric)).Count(), minSamples)))
		}
	}
	return lack
}

func (p *Profile) of(metric string) *[Classes]Histogram {
	switch metric {
	case guardrail.SlowTTFT:
		return &p.TTFT
	case guardrail.SlowTotal:
		return &p.Total
	case guardrail.SlowTPOT:
		return &p.TPOT
	}
	return &p.TTFA
}

func pooled(hs *[Classes]Histogram) *Histogram {
	var all Histogram
	for i := range hs {
		all.Merge(&hs[i])
	}
	return &all
}

func quantiles(hs *[Classes]Histogram, q, factor float64) (t Thresholds) {
	all := pooled(hs)
	if all.Count() < minSamples {
		return t
	}
	rest, _ := all.Quantile(q)
	for c := range hs {
		at := rest
		if hs[c].Count() >= minSamples {
			at, _ = hs[c].Quantile(q)
		}
		t[c] = time.Duration(float64(at) * factor)
		if c > 0 && hs[c].Count() < minSamples {
			t[c] = max(t[c], t[c-1])
		}
	}
	return t
}

// Histogram counts durations in cells 4 % wide, from 1 ms to about two hours:
// quantiles are off by 2 % at most. The zero value is empty.
type Histogram struct {
	cells []uint32
	n     int64
}

const (
	firstCell = float64(time.Millisecond)
	cellRatio = 1.04
	lastCell  = 400
)

// Add counts d.
func (h *Histogram) Add(d time.Duration) {
	i := 0
	if x := float64(d) / firstCell; x > 1 {
		i = min(1+int(math.Log(x)/math.Log(cellRatio)), lastCell)
	}
	h.grow(i + 1)
	if h.cells[i] < math.MaxUint32 {
		h.cells[i]++
		h.n++
	}
}

func (h *Histogram) grow(n int) {
	if len(h.cells) < n {
		h.cells = append(h.cells, make([]uint32, n-len(h.cells))...)
	}
}

// Count is how many were counted.
func (h *Histogram) Count() int64 { return h.n }

// Merge adds what o counted.
func (h *Histogram) Merge(o *Histogram) {
	h.grow(len(o.cells))
	for i, n := range o.cells {
		h.put(i, n)
	}
}

// put counts n in a cell that is there; a full one takes no more.
func (h *Histogram) put(i int, n uint32) {
	n = min(n, math.MaxUint32-h.cells[i])
	h.cells[i] += n
	h.n += int64(n)
}

// reset forgets what was counted, but keeps its room.
func (h *Histogram) reset() {
	clear(h.cells)
	h.n = 0
}

// Quantile is the middle of the cell of the q-th part of all, 0 < q < 1; false
// if there are none.
func (h *Histogram) Quantile(q float64) (time.Duration, bool) {
	if h.n == 0 || !(q > 0 && q < 1) {
		return 0, false
	}
	rank := int64(math.Ceil(q * float64(h.n)))
	for i, n := range h.cells {
		if rank -= int64(n); rank <= 0 {
			if i == 0 {
				return time.Duration(firstCell), true
			}
			return time.Duration(firstCell * math.Pow(cellRatio, float64(i)-0.5)), true
		}
	}
	return 0, false
}

// MarshalJSON writes pairs of cell and count.
func (h Histogram) MarshalJSON() ([]byte, error) {
	pairs := [][2]uint32{}
	for i, n := range h.cells {
		if n > 0 {
			pairs = append(pairs, [2]uint32{uint32(i), n})
		}
	}
	return json.Marshal(pairs)
}

// UnmarshalJSON reads them.
func (h *Histogram) UnmarshalJSON(data []byte) error {
	var pairs [][2]uint32
	if err := json.Unmarshal(data, &pairs); err != nil {
		return err
	}
	*h = Histogram{}
	for _, p := range pairs {
		if p[0] > lastCell {
			return errors.New("a histogram has a cell that is out of range")
		}
		h.grow(int(p[0]) + 1)
		h.put(int(p[0]), p[1])
	}
	return nil
}
