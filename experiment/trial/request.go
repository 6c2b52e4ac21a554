package trial

import (
	"time"
)

// Start is what is known of a request when its first attempt begins.
type Start struct {
	Experiment string
	Generation int
	Variant    int // assigned
	// Analysed is what the assignment says. What is not analysed is counted as
	// outside, and still takes the unit along: it may move by it.
	Analysed bool
	// Provisional says that the unit was answered without its pin: Variant may
	// not be its own.
	Provisional bool
	At          time.Time
	ID          string // of the request
	Unit        [8]byte
	HasUnit     bool
	Key         string // of the caller, to name a heavy unit
	Tenant      string
	Retry       int // x-stainless-retry-count
	Prompt      int // estimated tokens; negative: unknown
	// Talk is a hash of the conversation whose turn it is, 0 unknown: what the turn
	// before had of the prompt is taken to be in a cache.
	Talk  uint64
	Flags Flags // Asked ones
	Asks  Asks
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
	// Unjudged are the flags that were not looked for, or could not be told.
	Unjudged Flags
	Chars    int64
	Usage    bool // Input and Output are known
	Input    int64
	Output   int64
}

// Request is one request under way. Its methods may be called from any
// goroutine, do nothing after Close, and do nothing for a nil Request.
type Request struct {
	c       *Collector
	d       *desk
	s       *shard
	u       *unit
	watch   *Watch
	f       Facts
	open    uint64 // guardrails that have not settled
	out     Reasons
	variant int
	unit    uint64
	begun   time.Time
	due     time.Duration // age at which to look again, 0 never
	waits   bool          // complete, and counted in shard.waiting

	prev, next *Request // in the shard's ring while open
}

// Begin takes a request up when its first attempt begins; nil if its experiment
// is not watched. The caller must Close it.
func (c *Collector) Begin(in *Start) *Request {
	if c == nil {
		return nil
	}
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
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.watch
	if w == nil || w.Generation != in.Generation || in.Variant < 0 || in.Variant >= len(s.arms) {
		return nil
	}
	r := &Request{c: c, d: d, s: s, watch: w, variant: in.Variant, unit: unit, begun: in.At}
	r.f = Facts{Analysed: in.Analysed, Retry: in.Retry, Request: hash, Started: in.At.UnixMilli(), Prompt: in.Prompt, Flags: in.Flags, Ordinal: 1}
	r.f.Arm = Canary
	if in.Variant == w.Baseline {
		r.f.Arm = Baseline
	}
	r.meet(in)
	r.begin(in)
	return r
}

// meet looks at the unit's past; s.mu is held.
func (r *Request) meet(in *Start) {
	s, w, f := r.s, r.watch, &r.f
	if !in.HasUnit {
		return // a unit of its own
	}
	u := s.units.at(r.unit)
	r.u = u
	if f.Retry == 0 {
		f.Ordinal = w.ordinal(u.next(f.Started, s.units.window))
	}
	f.Moved = u.served(r.variant)
	f.Prompt = u.uncached(in.Talk, f.Started, f.Prompt, f.Moved)
	s.heavy.now.add(r.unit, in)
	if s.lists == 0 {
		f.History = u.past
		return
	}
	if u.listed != s.lists {
		u.listed, u.out = s.lists, w.Excluded.of(r.unit)
	}
	f.History = u.out.history()
}

// begin counts the start; s.mu is held.
func (r *Request) begin(in *Start) {
	w, a := r.watch, &r.s.arms[r.variant]
	open, out := w.Plan.Begin(&r.f)
	r.leaves(a, out)
	if in.Provisional {
		a.provisional++
	}
	if out&whole != 0 {
		return
	}
	a.started++
	for i := range a.asks {
		a.asks[i] += int64(in.Asks >> i & 1)
	}
	if (r.u == nil || !r.u.named(r.s.epoch, r.variant)) && r.s.named[r.variant].Add(1) <= MaxUnits {
		a.units = append(a.units, r.unit)
	}
	for i := range w.Configs {
		a.counts[i].Started += int64(open >> i & 1)
	}
	if r.open = open; open != 0 {
		head := &r.s.open
		r.prev, r.next = head.prev, head
		head.prev.next, head.prev = r, r
		r.due = w.Plan.Next(&r.f, open)
	}
}

// leaves counts the reasons for which the request is left out of something, each
// once; s.mu is held.
func (r *Request) leaves(a *arm, out Reasons) {
	if out = out & told &^ r.out; out != 0 {
		r.out |= out
		a.out(out)
	}
}

// First says when the first token of any kind came.
func (r *Request) First(after time.Duration) {
	r.note(func(f *Facts) {
		if f.First == 0 && f.Ending == Running {
			f.First = after
		}
	}, after)
}

// Answer says when the first token of the answer came: content or a tool call.
func (r *Request) Answer(after time.Duration) {
	r.note(func(f *Facts) {
		if f.Ending != Running {
			return
		}
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
		f.Unjudged = e.Unjudged
		f.Chars, f.HasUsage, f.Input, f.Output = e.Chars, e.Usage, e.Input, e.Output
	}, e.After)
}

// Close says what the request cost, over all its attempts (known false: not
// known), and at most could have cost, 0 unknown; in any unit. after is its
// whole duration. It ends what can still be said of the request but for means
// that wait for its age.
func (r *Request) Close(after time.Duration, cost float64, known bool, most float64) {
	if r == nil {
		return
	}
	var trips []Trip
	s, f := r.s, &r.f
	s.mu.Lock()
	if f.Closed {
		s.mu.Unlock()
		return
	}
	f.Closed, f.HasCost, f.Cost, f.MaxCost = true, known, cost, most
	if f.Ending == Running {
		f.End, f.Ending = after, Ours
	}
	if f.Arm == Baseline && f.Analysed && f.Retry == 0 && s.watch != nil && s.watch.same(r.watch) {
		s.profile.Add(f)
		r.learnSlow()
	}
	if r.open != 0 {
		r.look(max(after, f.Age), &trips)
	}
	if r.open != 0 {
		r.waits = true
		if s.waiting++; s.waiting > waitingKept {
			r.leaves(&s.arms[r.variant], Reasons(0).with(Crowded))
			r.unlink()
		}
	}
	s.mu.Unlock()
	r.c.tell(trips)
}

// note changes the facts and settles what follows from them.
func (r *Request) note(change func(*Facts), after time.Duration) {
	if r == nil {
		return
	}
	var trips []Trip
	r.s.mu.Lock()
	if !r.f.Closed {
		change(&r.f)
		if r.open != 0 {
			r.look(max(after, r.f.Age), &trips)
		}
	}
	r.s.mu.Unlock()
	r.c.tell(trips)
}

// look settles what can be settled at an age; s.mu is held.
func (r *Request) look(age time.Duration, trips *[]Trip) {
	r.f.Age = age
	p := r.watch.Plan
	still := p.Collect(&r.f, r.open, func(i int, res Result) { r.settled(i, res, trips) })
	if still == 0 {
		r.unlink()
		return
	}
	r.open = still
	r.due = p.Next(&r.f, still)
}

// unlink ends what is pending; s.mu is held.
func (r *Request) unlink() {
	r.open = 0
	if r.prev != nil {
		r.prev.next, r.next.prev = r.next, r.prev
		r.prev, r.next = nil, nil
		if r.waits {
			r.s.waiting--
		}
	}
}

// settled counts a result; s.mu is held.
func (r *Request) settled(i int, res Result, trips *[]Trip) {
	a := &r.s.arms[r.variant]
	switch res.State {
	case Good, Bad:
		bad := res.State == Bad
		a.trial(i, r.unit, bad, r.f.Arm == Canary)
		rule := &r.watch.Plan.rules[i]
		if r.f.Arm == Baseline && r.u != nil && !r.s.units.frozen {
			r.u.learn(rule.past, bad)
		}
		if r.watch.Breaker && rule.kind == byFault {
			r.d.mu.Lock()
			t, tripped := r.d.breaker.add(r, i, bad)
			r.d.mu.Unlock()
			if tripped {
				*trips = append(*trips, t)
			}
		}
	case Measured:
		a.mean(i, r.unit, res.Value)
	case None:
		r.leaves(a, Reasons(0).with(res.Why))
	}
}
