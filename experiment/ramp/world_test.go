package ramp_test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"sluice/experiment/guardrail"
	"sluice/experiment/ramp"
	"sluice/experiment/trial"
)

// world is a service with its users, who are as uneven as real ones, and a
// canary that may be faulty. Rates are of requests, times are seconds.
type world struct {
	users    int
	perSec   float64 // requests of everybody
	broken   float64 // share of users whose app is broken, on either arm
	long     float64 // share of users who send long prompts
	errors   float64 // of the baseline
	policy   string  // the ramp
	guards   string  // the guardrails, "" for the defaults
	fault    fault
	faultAt  int // step from which the fault shows
	replicas int
	every    int64 // seconds between ticks
}

// fault is how the canary differs.
type fault struct {
	errors   float64 // more errors
	rejected float64
	slow     float64 // factor of the time to the first token
	empty    float64
	hang     float64
	shared   float64 // errors of both arms
}

type user struct {
	pin    [8]byte
	bucket int
	broken int // 0 no, 1 its requests fail, 2 they are refused
	long   bool
	pace   float64 // of its answers
}

// outcome of a rollout.
type outcome struct {
	decision ramp.Decision
	step     int
	at       int // seconds since the step began
	total    int // seconds since the start
	canary   int64
	text     string
}

// event is something that comes later to a request under way.
type event struct {
	r     *trial.Request
	what  int8 // 0 first and answer, 1 end
	after time.Duration
	end   trial.End
}

type sim struct {
	world
	r          *rand.Rand
	people     []user
	cumulative []float64
	collectors []*trial.Collector
	calendar   [600][]event // by second
	list       []guardrail.Config
	config     ramp.Config
	now        int64 // seconds
	request    uint64
	canary     int64
}

const birth = 1_700_000_000 // Unix seconds

func newSim(t testing.TB, w world, seed uint64) *sim {
	s := &sim{world: w, r: rand.New(rand.NewPCG(seed, 99)), now: birth}
	var err error
	if s.config, err = ramp.Parse(json.RawMessage(w.policy)); err != nil {
		t.Fatal(err)
	}
	if s.list, err = s.config.Guardrails(json.RawMessage(w.guards), false); err != nil {
		t.Fatal(err)
	}
	rank := s.r.Perm(w.users)
	total := 0.0
	for i := range w.users {
		u := user{bucket: s.r.IntN(10000), pace: math.Exp(0.3 * s.r.NormFloat64()), long: s.r.Float64() < w.long}
		if s.r.Float64() < w.broken {
			u.broken = 1 + s.r.IntN(2)
		}
		binary.BigEndian.PutUint64(u.pin[:], s.r.Uint64())
		s.people = append(s.people, u)
		total += 1 / math.Pow(float64(rank[i]+4), 0.9)
		s.cumulative = append(s.cumulative, total)
	}
	for range w.replicas {
		s.collectors = append(s.collectors, trial.NewCollector(nil))
	}
	return s
}

// watch tells the replicas what to count.
func (s *sim) watch(t testing.TB, epoch int64, setup trial.Setup, frozen bool, past *trial.Exclusions) {
	plan, err := trial.NewPlan(s.list, setup)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range s.collectors {
		c.Set(map[string]*trial.Watch{"x": {Experiment: "x", Generation: 1, Epoch: epoch, Variants: 2, Configs: s.list, Plan: plan,
			Replicas: s.replicas, Frozen: frozen, Excluded: past}})
	}
}

func (s *sim) judge(t testing.TB, epoch int64, weight, steps int) *ramp.Judge {
	j, err := ramp.NewJudge(ramp.Case{Generation: 1, Epoch: epoch, Since: s.now * 1000, Variants: []string{"v1", "v2"},
		Weights: []int{10000 - weight, weight}, Ramping: 1, Steps: steps, Config: &s.config, Guardrails: s.list})
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// poisson draws a number of events.
func (s *sim) poisson(mean float64) (n int) {
	for at := s.r.ExpFloat64(); at < mean; at += s.r.ExpFloat64() {
		n++
	}
	return n
}

// second lets one second pass and returns the replicas' ticks.
func (s *sim) second(weight int, faulty bool) []*trial.Tick {
	for range s.poisson(s.perSec) {
		s.one(weight, faulty)
	}
	due := &s.calendar[s.now%int64(len(s.calendar))]
	for _, e := range *due {
		if e.what == 0 {
			e.r.Answer(e.after)
			continue
		}
		e.r.Ended(e.end)
		e.r.Close(e.after, 0, false, 0)
	}
	*due = (*due)[:0]
	s.now++
	var ticks []*trial.Tick
	if s.now%max(s.every, 1) != 0 {
		return nil
	}
	for i, c := range s.collectors {
		for _, t := range c.Drain(time.Unix(s.now, 0)) {
			t.Replica = strconv.Itoa(i)
			for v := range t.Variants {
				t.Variants[v].Ready, t.Variants[v].Endpoints = 4, 4
			}
			ticks = append(ticks, t)
		}
	}
	return ticks
}

// one begins a request of a random user.
func (s *sim) one(weight int, faulty bool) {
	x := s.r.Float64() * s.cumulative[len(s.cumulative)-1]
	i, _ := slices.BinarySearch(s.cumulative, x)
	u := &s.people[min(i, len(s.people)-1)]
	in := trial.Start{Experiment: "x", Generation: 1, Analysed: true, Unit: u.pin, HasUnit: true, Prompt: 100 + s.r.IntN(800)}
	f := fault{}
	if u.bucket < weight {
		in.Variant = 1
		s.canary++
		if faulty {
			f = s.fault
		}
	}
	start := s.r.Float64()
	in.At = time.Unix(s.now, int64(start*1e9))
	s.request++
	in.ID = strconv.FormatUint(s.request, 36)
	first := 0.4 * math.Exp(0.5*s.r.NormFloat64())
	if u.long {
		in.Prompt = 16_000 + s.r.IntN(10_000)
		first *= 8
	}
	if f.slow > 0 {
		first *= f.slow
	}
	total := first + u.pace*3*math.Exp(0.6*s.r.NormFloat64())
	end := trial.End{Ending: trial.Answered, Chars: 500, Usage: true, Input: int64(in.Prompt), Output: 120}
	p := s.r.Float64()
	switch bad := s.errors + f.errors + s.fault.shared; {
	case u.broken == 1 && s.r.Float64() < 0.6, p < bad:
		end.Ending, first, total = trial.Fault, 0, 0.1+0.2*s.r.Float64()
	case u.broken == 2 && s.r.Float64() < 0.6, p < bad+f.rejected:
		end.Ending, first, total = trial.Refusal, 0, 0.05
	case p < bad+f.rejected+f.empty:
		end.Flags, first = trial.EmptyAnswer, 0
	case p < bad+f.rejected+f.empty+f.hang:
		first, total = 0, 300
		end.Ending = trial.Fault
	}
	r := s.collectors[s.r.IntN(len(s.collectors))].Begin(&in)
	if r == nil {
		return
	}
	if first > 0 {
		s.later(start, event{r: r, after: seconds(first)})
	}
	end.After = seconds(total)
	s.later(start, event{r: r, what: 1, after: end.After, end: end})
}

func (s *sim) later(start float64, e event) {
	at := min(start+e.after.Seconds(), float64(len(s.calendar)-1))
	slot := &s.calendar[(s.now+int64(at))%int64(len(s.calendar))]
	*slot = append(*slot, e)
}

// traffic is what is known of the service before the start.
func (s *sim) traffic() ramp.Traffic {
	tr := ramp.Traffic{PerSecond: s.perSec, Rates: map[string]float64{guardrail.Error: s.errors, guardrail.SlowTTFA: 0.02}}
	for _, in := range []time.Duration{10 * time.Minute, time.Hour, 6 * time.Hour} {
		units, before, all := 0.0, 0.0, s.cumulative[len(s.cumulative)-1]
		for _, c := range s.cumulative {
			units += 1 - math.Exp(-(c-before)/all*s.perSec*in.Seconds())
			before = c
		}
		tr.Seen = append(tr.Seen, ramp.Seen{In: in, Units: int(units)})
	}
	return tr
}

// rollout runs until something final is decided.
func (s *sim) rollout(t testing.TB) outcome {
	began := s.now
	steps := s.config.Ladder()
	if s.config.Auto {
		steps, _ = ramp.AutoSteps(&s.config, s.list, s.traffic())
	}
	var setup trial.Setup
	setup.Thresholds = make([]trial.Thresholds, len(s.list))
	setup.Since = s.now * 1000
	var past *trial.Exclusions
	step, weight, epoch, since := -1, 0, int64(1), s.now
	s.watch(t, epoch, setup, false, nil)
	j := s.judge(t, epoch, 0, len(steps))
	e := j.Begin(nil)
	state, phase := "running", ramp.ReadyWait
	in := &ramp.Input{State: state, Phase: phase, Leader: true, Steps: steps, Approved: len(steps),
		Ready: ramp.Check{OK: true}, Preflight: ramp.Check{OK: true}, HeadRoom: ramp.Check{OK: true}}
	for s.now-began < 40*24*3600 {
		ticks := s.second(weight, step >= s.faultAt)
		if ticks == nil {
			continue
		}
		for _, tk := range ticks {
			if _, err := j.Add(e, tk, s.now*1000); err != nil {
				t.Fatal(err)
			}
		}
		in.Step, in.Phase, in.State, in.Elapsed = step, phase, state, ramp.Seconds(time.Duration(s.now-since)*time.Second)
		next := func() {
			setup = ramp.NextSetup(s.list, e, setup, s.now*1000)
			epoch++
			since = s.now
			s.watch(t, epoch, setup, phase != ramp.ReadyWait, past)
			j = s.judge(t, epoch, weight, len(steps))
			e = j.Begin(e)
		}
		j.Fill(in, e, s.now*1000, nil)
		d := ramp.Decide(in)
		switch d.Action {
		case ramp.Advance:
			if phase == ramp.ReadyWait {
				past = &trial.Exclusions{}
				for _, c := range s.collectors {
					past.Merge(c.Failing("x"))
				}
			}
			step, phase = step+1, ramp.Ramping
			weight = steps[step].Weight
			next()
		case ramp.Promote:
			state, phase = "promoted", ramp.Baking
			next()
		case ramp.Rollback, ramp.Pause, ramp.KillVariant, ramp.FinishBake:
			return outcome{decision: d, step: step, at: int(s.now - since), total: int(s.now - began), canary: s.canary,
				text: fmt.Sprintf("%s:%s step %d (%d bp) after %d s: %s", d.Action, d.Code, step, weight, s.now-since, d.Text)}
		}
	}
	return outcome{text: "never ended"}
}

// soakSize is how many rollouts each scenario has: SLUICE_SOAK=300 is the full
// soak, without it a few that take seconds.
func soakSize(few int) int {
	if n, err := strconv.Atoi(os.Getenv("SLUICE_SOAK")); err == nil && n > 1 {
		return n
	}
	return few
}

// soak runs n rollouts, two at a time.
func soak(t *testing.T, w world, n int) []outcome {
	out := make([]outcome, n)
	var wg sync.WaitGroup
	seeds := make(chan int)
	for range 2 {
		wg.Go(func() {
			for i := range seeds {
				out[i] = newSim(t, w, uint64(i)+1).rollout(t)
			}
		})
	}
	for i := range n {
		seeds <- i
	}
	close(seeds)
	wg.Wait()
	return out
}

func count(out []outcome, a ramp.Action) (n int) {
	for _, o := range out {
		if o.decision.Action == a {
			n++
		}
	}
	return n
}
