package trial

import (
	"time"

	"sluice/experiment/guardrail"
)

// Start is what is known of a request when its first attempt begins.
type Start struct {
	Experiment string
	Generation int
	Variant    int // assigned
	// Analysed is what the assignment says. What is not analysed is counted as
	// outside, and still takes the unit along: it may move by it.
	Analysed bool
	At       time.Time
	ID       string // of the request
	Unit     [8]byte
	HasUnit  bool
	Key      string // of the caller, to name a heavy unit
	Tenant   string
	Retry    int   // x-stainless-retry-count
	Prompt   int   // estimated tokens; negative: unknown
	Flags    Flags // Asked ones
	Asks     Asks
}

// Asks are the features that a request asks for, for the weights of a preflight.
type Asks uint16

// askNames are the names of the bits, in order.
var askNames = [...]string{"stream", "tools", "tool_call", "json", "system", "choices", "logprobs", "image", "stop", "long"}

// AskNames are the names of the bits of Asks, in order.
func AskNames() []string { return askNames[:] }

// End is how the first attempt ended.
type End struct {
	After  time.Duration // from its start
	Ending Ending
	Flags  Flags // of the answer
	Chars  int64
	Usage  bool // Input and Output are known
	Input  int64
	Output int64
}

// Request is one request under way. Its methods may be called from any
// goroutine, do nothing after Close, and do nothing for a nil Request.
type Request struct {
	c       *Collector
	d       *desk
	s       *shard
	watch   *Watch
	f       Facts
	open    uint64 // guardrails that have not settled
	variant int
	unit    uint64
	begun   time.Time
	due     time.Duration // age at which to look again, 0 never

	prev, next *Request // in the shard's ring while open
}

// Begin takes a request up when its first attempt begins; nil if its experiment
// is not watched. The caller must Close it.
func (c *Collector) Begin(in *Start) *Request {
	d := (*c.desks.Load())[in.Experiment]
	if d == nil {
		return nil
	}
	hash := Hash(in.ID)
	unit := hash
	if in.HasUnit {
		unit = unitHash(in.Unit)
	}
	s := &d.shards[unit%shards]
	r := &Request{c: c, d: d, s: s, variant: in.Variant, unit: unit, begun: in.At}
	r.f = Facts{Analysed: in.Analysed, Retry: in.Retry, Request: hash, Started: in.At.UnixMilli(), Prompt: in.Prompt, Flags: in.Flags}
	d.weigh(in, hash, unit)
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.watch
	if w == nil || w.Generation != in.Generation || in.Variant < 0 || in.Variant >= len(s.arms) {
		return nil
	}
	r.watch = w
	r.begin(w, in)
	return r
}

// begin counts the start; s.mu is held.
func (r *Request) begin(w *Watch, in *Start) {
	r.f.Arm = Canary
	if r.variant == w.Baseline {
		r.f.Arm = Baseline
	}
	r.f.Ordinal = 1
	if r.f.Retry == 0 {
		r.f.Ordinal = w.ordinal(r.s.units.Next(r.unit, r.f.Started))
	}
	if in.HasUnit {
		r.f.Moved = r.s.units.Served(r.unit, r.variant)
	}
	r.f.History = r.s.units.History(r.unit)
	if w.Frozen && w.Excluded != nil {
		r.f.History = w.Excluded.history(r.unit)
	}
	a := &r.s.arms[r.variant]
	open, why := w.Plan.Begin(&r.f)
	if why != "" {
		a.outside(why)
		return
	}
	a.tick.Started++
	for i := range a.asks {
		a.asks[i] += int64(in.Asks >> i & 1)
	}
	if in.HasUnit {
		a.unit(r.unit)
	}
	for i := range w.Configs {
		if open&(1<<i) != 0 {
			a.tick.Counts[i].Started++
		}
	}
	if r.open = open; open != 0 {
		head := &r.s.open
		r.prev, r.next = head.prev, head
		head.prev.next, head.prev = r, r
		r.due = w.Plan.Next(&r.f, open)
	}
}

// First says when the first token of any kind came.
func (r *Request) First(after time.Duration) {
	r.note(func(f *Facts) {
		if f.First == 0 {
			f.First = after
		}
	}, after)
}

// Answer says when the first token of the answer came: content or a tool call.
func (r *Request) Answer(after time.Duration) {
	r.note(func(f *Facts) {
		if f.First == 0 {
			f.First = after
		}
		if f.Answer == 0 {
			f.Answer = after
		}
	}, after)
}

// Left says when the client went away.
func (r *Request) Left(after time.Duration) {
	r.note(func(f *Facts) {
		if f.Cancel == 0 {
			f.Cancel = after
		}
	}, after)
}

// Ended says how the first attempt ended; what comes later is not its.
func (r *Request) Ended(e End) {
	r.note(func(f *Facts) {
		if f.Ending != Running {
			return
		}
		f.End, f.Ending = e.After, e.Ending
		f.Flags |= e.Flags
		f.Chars, f.HasUsage, f.Input, f.Output = e.Chars, e.Usage, e.Input, e.Output
	}, e.After)
}

// Close says what the request cost, over all its attempts (known false: not
// known), and at most could have cost, 0 unknown; in any unit. It ends what can
// still be said of the request but for means that wait for its age.
func (r *Request) Close(after time.Duration, cost float64, known bool, most float64) {
	if r == nil {
		return
	}
	r.note(func(f *Facts) {
		f.HasCost, f.Cost, f.MaxCost = known, cost, most
		if f.Ending == Running {
			f.End, f.Ending = after, Ours
		}
		if f.Arm == Baseline && f.Analysed && f.Retry == 0 {
			r.d.mu.Lock()
			r.d.profile.Add(f)
			r.d.mu.Unlock()
		}
	}, after)
}

// note changes the facts and settles what follows from them.
func (r *Request) note(change func(*Facts), after time.Duration) {
	if r == nil {
		return
	}
	var trips []Trip
	r.s.mu.Lock()
	change(&r.f)
	if r.open != 0 {
		r.look(max(after, r.f.Age), &trips)
	}
	r.s.mu.Unlock()
	r.c.tell(trips)
}

// look settles what can be settled at an age; s.mu is held.
func (r *Request) look(age time.Duration, trips *[]Trip) {
	r.f.Age = age
	p := r.watch.Plan
	r.open = p.Collect(&r.f, r.open, func(i int, res Result) { r.settled(i, res, trips) })
	if r.open == 0 {
		r.unlink()
		return
	}
	r.due = p.Next(&r.f, r.open)
}

func (r *Request) unlink() {
	if r.prev != nil {
		r.prev.next, r.next.prev = r.next, r.prev
		r.prev, r.next = nil, nil
	}
}

// settled counts a result; s.mu is held.
func (r *Request) settled(i int, res Result, trips *[]Trip) {
	a := &r.s.arms[r.variant]
	switch res.State {
	case Good, Bad:
		a.trial(i, r.unit, res.State == Bad, r.f.Arm == Canary)
		if r.f.Arm == Baseline {
			r.s.units.Learn(r.unit, r.watch.Configs[i].Metric, res.State == Bad)
		}
		if r.watch.Breaker && r.watch.Configs[i].Metric == guardrail.Error {
			r.d.mu.Lock()
			t, tripped := r.d.breaker.add(r, i, res.State == Bad)
			r.d.mu.Unlock()
			if tripped {
				*trips = append(*trips, t)
			}
		}
	case Measured:
		a.mean(i, r.unit, res.Value)
	case None:
		a.outside(res.Why)
	}
}
