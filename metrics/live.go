package metrics

import (
	"cmp"
	"math/bits"
	"slices"
	"sync"
	"time"
)

// ArmStats are one arm's figures of the last minutes on this replica, for the
// UI. Ratios and quantiles are over the window of five minutes; a pointer is
// nil where there is nothing to say.
type ArmStats struct {
	Model         string           `json:"model"`
	Experiment    string           `json:"experiment"`
	Variant       string           `json:"variant"`
	Role          string           `json:"role"`
	Requests      int64            `json:"requests"` // since the replica started
	RPS1m         float64          `json:"rps_1m"`
	RPS5m         float64          `json:"rps_5m"`
	SuccessRatio  *float64         `json:"success_ratio"` // 1 − errors ÷ counted, by Classes
	DurationP50   *float64         `json:"duration_p50_seconds"`
	DurationP95   *float64         `json:"duration_p95_seconds"`
	TTFTP50       *float64         `json:"ttft_p50_seconds"`
	TTFTP95       *float64         `json:"ttft_p95_seconds"`
	InputPerSec   float64          `json:"input_tokens_per_second"`  // 1 min
	OutputPerSec  float64          `json:"output_tokens_per_second"` // 1 min
	CostPerHour   float64          `json:"cost_usd_per_hour"`        // the window's cost, projected
	Units         int64            `json:"units"`                    // distinct, last hour, about 2 % off
	Outcomes      map[string]int64 `json:"outcomes"`                 // in the window
	LastRequestAt time.Time        `json:"last_request_at,omitzero"`
}

const (
	slotLen   = 10 * time.Second
	slots     = 31 // five minutes of whole slots and the one being filled
	window1m  = 6
	window5m  = 30
	unitSlots = 12
	unitLen   = 5 * time.Minute
)

// live keeps an arm's sliding window. Its mutex is held for the few additions
// of one event.
type live struct {
	mu       sync.Mutex
	requests int64
	last     time.Time
	started  time.Time
	slot     [slots]liveSlot
	units    [unitSlots]unitSlot
}

type liveSlot struct {
	epoch    int64 // slot number since 1970; another number means stale
	outcome  [outcomes]uint32
	input    int64
	output   int64
	nano     int64
	duration spread
	ttft     spread
}

type unitSlot struct {
	epoch int64
	set   hll
}

func (l *live) init() { l.started = time.Now() }

func (l *live) observe(now time.Time, e *Event, t *Totals, oc int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests++
	l.last = now
	epoch := now.UnixNano() / int64(slotLen)
	s := &l.slot[epoch%slots]
	if s.epoch != epoch {
		*s = liveSlot{epoch: epoch}
	}
	s.outcome[oc]++
	s.input = addSat(s.input, t.Input)
	s.output = addSat(s.output, t.Output)
	s.nano = addSat(s.nano, t.CostNano)
	s.duration.add(e.Duration)
	if e.Stream && e.TTFT > 0 {
		s.ttft.add(e.TTFT)
	}
	if e.HasUnit {
		ue := now.UnixNano() / int64(unitLen)
		u := &l.units[ue%unitSlots]
		if u.epoch != ue {
			*u = unitSlot{epoch: ue}
		}
		u.set.add(e.Unit)
	}
}

// Live returns the figures of every arm that had a request, sorted by labels.
func (r *Recorder) Live() []ArmStats {
	now := time.Now()
	var out []ArmStats
	r.arms.each(func(a *arm) {
		st, k := a.live.stats(now), a.key
		st.Model, st.Experiment, st.Variant, st.Role = k.model, k.experiment, k.variant, k.role
		out = append(out, st)
	})
	slices.SortFunc(out, func(a, b ArmStats) int {
		return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.Experiment, b.Experiment), cmp.Compare(a.Variant, b.Variant), cmp.Compare(a.Role, b.Role))
	})
	return out
}

func (l *live) stats(now time.Time) ArmStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	epoch := now.UnixNano() / int64(slotLen)
	var (
		counts             [outcomes]int64
		n1, n5, in, outTok int64
		nano               int64
		dur, ttft          spread
	)
	for i := range l.slot {
		s := &l.slot[i]
		age := epoch - s.epoch
		if age < 0 || age > window5m {
			continue
		}
		for o, n := range s.outcome {
			counts[o] += int64(n)
			n5 += int64(n)
			if age <= window1m {
				n1 += int64(n)
			}
		}
		if age <= window1m {
			in, outTok = addSat(in, s.input), addSat(outTok, s.output)
		}
		nano = addSat(nano, s.nano)
		dur.merge(&s.duration)
		ttft.merge(&s.ttft)
	}
	m1, m5 := l.seconds(now, window1m), l.seconds(now, window5m)
	st := ArmStats{
		Requests: l.requests, LastRequestAt: l.last, Outcomes: map[string]int64{},
		RPS1m: float64(n1) / m1, RPS5m: float64(n5) / m5,
		InputPerSec: float64(in) / m1, OutputPerSec: float64(outTok) / m1,
		CostPerHour: float64(nano) / 1e9 / m5 * 3600,
		DurationP50: dur.quantile(0.5), DurationP95: dur.quantile(0.95),
		TTFTP50: ttft.quantile(0.5), TTFTP95: ttft.quantile(0.95),
		Units: l.unitCount(now),
	}
	var errs, counted int64
	for o, n := range counts {
		if n > 0 {
			st.Outcomes[outcomeName(o)] = n
		}
		if o < len(Classes) && Classes[o].Counted {
			counted += n
			if Classes[o].Error {
				errs += n
			}
		}
	}
	if counted > 0 {
		ok := 1 - float64(errs)/float64(counted)
		st.SuccessRatio = &ok
	}
	return st
}

// seconds is the length of a window of n whole slots and the one being filled,
// shorter while the arm is young, at least one second.
func (l *live) seconds(now time.Time, n int64) float64 {
	whole := time.Duration(now.UnixNano()%int64(slotLen)) + time.Duration(n)*slotLen
	return max(min(whole, now.Sub(l.started)), time.Second).Seconds()
}

// unitCount estimates the distinct units of the last hour; l.mu is held.
func (l *live) unitCount(now time.Time) int64 {
	epoch := now.UnixNano() / int64(unitLen)
	var all hll
	for i := range l.units {
		if u := &l.units[i]; epoch-u.epoch >= 0 && epoch-u.epoch < unitSlots {
			all.merge(&u.set)
		}
	}
	return all.estimate()
}

// spread is a log-linear histogram of durations: eight cells an octave from
// 64 µs to about 38 minutes, so a quantile is at most 6 % off.
type spread struct {
	n    uint32
	cell [spreadCells]uint32
}

const (
	spreadUnit  = 64 * time.Microsecond
	spreadCells = 8 * 23
)

func cellOf(d time.Duration) int {
	u := uint64(max(d, 0) / (spreadUnit / 8)) // eighths of the unit
	if u < 8 {
		return int(u)
	}
	octave := bits.Len64(u) - 4 // u>>octave is 8…15
	return min(octave*8+int(u>>octave), spreadCells-1)
}

// cellStart is the inverse: the smallest duration in seconds of a cell.
func cellStart(i int) float64 {
	unit := (spreadUnit / 8).Seconds()
	if i < 8 {
		return float64(i) * unit
	}
	octave := i/8 - 1
	return float64(uint64(8+i%8)<<octave) * unit
}

func (s *spread) add(d time.Duration) {
	s.n++
	s.cell[cellOf(d)]++
}

func (s *spread) merge(o *spread) {
	if o.n == 0 {
		return
	}
	s.n += o.n
	for i, n := range o.cell {
		s.cell[i] += n
	}
}

// quantile interpolates within the cell; nil without a sample.
func (s *spread) quantile(q float64) *float64 {
	if s.n == 0 {
		return nil
	}
	rank := q * float64(s.n)
	var below float64
	for i, n := range s.cell {
		if n == 0 {
			continue
		}
		if below+float64(n) >= rank {
			lo, hi := cellStart(i), cellStart(i+1)
			v := lo + (hi-lo)*(rank-below)/float64(n)
			return &v
		}
		below += float64(n)
	}
	v := cellStart(spreadCells)
	return &v
}
