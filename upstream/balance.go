package upstream

import (
	"math/rand/v2"
	"slices"
	"time"
)

// maxChoices bounds how many endpoints one pick compares, so that it needs no
// memory but the stack's. Of a larger upstream a random stretch is looked at:
// comparing a few at random is nearly as good as comparing all.
const maxChoices = 32

// ask is what the choice of an endpoint depends on, beside the endpoints.
type ask struct {
	tried []*endpoint // in this request
	model string      // served model name
	key   uint64      // of the conversation
	keyed bool        // there is one, and the policy asks for it
}

// choice is an endpoint that may be picked.
type choice struct {
	e      *endpoint
	weight float64
}

// ask describes the exchange's next call, to t.
func (x *exchange) ask(t *Target) ask {
	q := ask{tried: x.tried, model: t.Model}
	if q.model == "" {
		q.model = x.req.Head.Model
	}
	if t.Upstream.cfg.Balance == balancePref {
		if !x.keyAsked {
			x.keyAsked = true
			x.key, x.keyed = conversationKey(&x.req.Head, x.req.Body)
		}
		q.key, q.keyed = x.key, x.keyed
	}
	return q
}

// pick chooses the endpoint for the next call: among the ready ones those not
// tried in this request, else among the ready ones; with none ready, in panic,
// among those that were ready once and have stopped answering their check. nil
// means that no endpoint may get traffic. One that lists its models and lacks
// the request's, while another lists it, is none for it.
// An endpoint whose breaker is open, or that cools down, is never one of them.
func (u *Upstream) pick(q ask) *endpoint {
	now := time.Now()
	e := u.choose(q, now)
	if e == nil && len(q.tried) > 0 {
		q.tried = nil
		e = u.choose(q, now)
	}
	return e
}

func (u *Upstream) choose(q ask, now time.Time) *endpoint {
	if q.keyed {
		return u.byPrefix(q, now)
	}
	var room [maxChoices]choice
	c := u.candidates(room[:0], q, now, u.anywhere())
	switch {
	case len(c) == 0:
		return nil
	case len(c) == 1:
		return c[0].e
	case u.cfg.Balance == balanceRound:
		return u.inTurn(c)
	case u.cfg.Balance == balanceLoad:
		return byLoad(c, now)
	}
	return leastOutstanding(c)
}

// anywhere is where a stretch of maxChoices endpoints begins: at the first, if
// there are not more.
func (u *Upstream) anywhere() int {
	if n := len(u.endpoints()); n > maxChoices {
		return rand.IntN(n)
	}
	return 0
}

// another tells whether an endpoint that was not tried may get traffic.
func (u *Upstream) another(q ask) bool {
	var room [maxChoices]choice
	return len(u.candidates(room[:0], q, time.Now(), u.anywhere())) > 0
}

// candidates appends the endpoints that may get traffic, from start on and at
// most as many as there is room for.
func (u *Upstream) candidates(dst []choice, q ask, now time.Time, start int) []choice {
	list := u.endpoints()
	picky := u.roster.listed(q.model)
	calm := false // an endpoint is ready, whether it can be picked or not
	for i := range list {
		e := list[(start+i)%len(list)]
		set := e.set.Load()
		if !e.serving(set) {
			continue
		}
		calm = true
		if picky && e.lacks(q.model) {
			continue
		}
		if e.guard.Available(now) && !slices.Contains(q.tried, e) {
			if dst = append(dst, choice{e, e.weight(set, now)}); len(dst) == cap(dst) {
				return dst
			}
		}
	}
	if calm {
		return dst
	}
	for i := range list {
		e := list[(start+i)%len(list)]
		if e.panic.Load() && !e.set.Load().drained && e.guard.Available(now) && !slices.Contains(q.tried, e) {
			if dst = append(dst, choice{e, 1}); len(dst) == cap(dst) {
				return dst
			}
		}
	}
	return dst
}

// leastOutstanding takes the power of two choices: nearly as even as the least
// loaded of all, and no herd runs to the one endpoint that has just become idle.
func leastOutstanding(c []choice) *endpoint {
	a, b := two(c)
	if float64(b.e.inflight.Load())*a.weight < float64(a.e.inflight.Load())*b.weight {
		return b.e
	}
	return a.e
}

// two draws two different choices, each by its weight.
func two(c []choice) (a, b *choice) {
	total := weightOf(c)
	i := draw(c, total, -1)
	return &c[i], &c[draw(c, total-c[i].weight, i)]
}

func weightOf(c []choice) (total float64) {
	for i := range c {
		total += c[i].weight
	}
	return total
}

// draw returns the index of a random choice other than skip.
func draw(c []choice, total float64, skip int) int {
	return at(c, rand.Float64()*total, skip)
}

// at returns the index of the choice in whose weight x falls when those other
// than skip stand in a row.
func at(c []choice, x float64, skip int) int {
	last := 0
	for i := range c {
		if i == skip {
			continue
		}
		last = i
		if x -= c[i].weight; x < 0 {
			break
		}
	}
	return last
}

// inTurn goes round. While one of them has less than its full share the turns
// are spread by weight, evenly over time: multiples of the golden ratio are.
func (u *Upstream) inTurn(c []choice) *endpoint {
	turn := u.turn.Add(1) - 1
	total := weightOf(c)
	if total == float64(len(c)) {
		return c[turn%uint64(len(c))].e
	}
	const golden = 0x9E3779B97F4A7C15 // 2^64 / φ
	return c[at(c, float64(turn*golden>>11)/(1<<53)*total, -1)].e
}
