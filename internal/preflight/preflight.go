// Package preflight asks a variant's servers before users do: a set of small
// requests of the kinds that clients send, and a few plain ones in a row before
// each step of a ramp. It hides how a request is made and how an answer is
// judged. Its requests take the path of a client's, with the variant's upstream,
// parameters, prompt, credential and limits, behind everybody else in the queue;
// they are metered as cost of the variant, and are neither traffic nor trials.
package preflight

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"sluice/experiment/ramp"
	"sluice/metrics"
	"sluice/router"
	"sluice/upstream"
)

const (
	runTimeout   = 3 * time.Minute // of one preflight
	probeTimeout = 30 * time.Second
	longTimeout  = time.Minute
	maxParallel  = 4 // variants at once
	tries        = 3 // of a probe that found no room or no server
	tryPause     = time.Second
	// A preflight that stands in the way is repeated by itself: what a model
	// cannot do lasts, a server that fails on everything may be back soon.
	again     = 5 * time.Minute
	againSoon = 15 * time.Second
)

// Traffic is what live requests of a model look like.
type Traffic struct {
	Requests  int64            // that the counts are of
	Asks      map[string]int64 // requests by wire.AskNames
	PromptP99 int64            // tokens as estimated, of the longest prompts; 0 unknown
}

// Options configure a Prober.
type Options struct {
	Doer  upstream.Doer
	Table func() *router.Table // that serves now; may answer nil before the first
	// Traffic answers what live requests of a public model look like; nil: unknown.
	Traffic func(model string) Traffic
	// Record books what the probes used (role probe); nil: nobody does.
	Record func(metrics.Event)
	// Found is told of each report; nil: nobody is.
	Found func(*ramp.Preflight)
	Log   *slog.Logger // nil = discard

	// For tests.
	longest  int           // of a long prompt; 0 = maxLong
	tryPause time.Duration // 0 = tryPause
}

// ErrUnknown reports that there is no such experiment, or that it is archived.
var ErrUnknown = errors.New("there is no such experiment")

// Prober runs preflights and readiness probes. Close it.
type Prober struct {
	o      Options
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex         // guards what follows
	flights map[string]*flight // by experiment: one at a time
	last    map[string]*kept
	gates   map[gateKey]*gate
	closed  bool
}

// kept is the newest report of an experiment, and of which variants it is.
type kept struct {
	report *ramp.Preflight
	of     string
	at     time.Time // it ended
}

// lasts is how long a report that stands in the way does so unasked.
func (k *kept) lasts() time.Duration {
	for _, b := range k.report.Probes {
		for _, r := range b.Results {
			if b.Name == all[0].name && r.Blocks && (r.Status == 0 || r.Status >= 500) {
				return againSoon
			}
		}
	}
	return again
}

// New returns a Prober without work.
func New(o Options) *Prober {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.longest == 0 {
		o.longest = maxLong
	}
	if o.tryPause == 0 {
		o.tryPause = tryPause
	}
	p := &Prober{o: o, flights: map[string]*flight{}, last: map[string]*kept{}, gates: map[gateKey]*gate{}}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// Close cuts what is under way and waits for it.
func (p *Prober) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cancel()
	p.wg.Wait()
}

// subject is one variant as it is probed.
type subject struct {
	experiment, model string
	generation        int
	revision          int64
	variant           *router.CompiledVariant
	limit             string          // the member that limits tokens
	sets              map[string]bool // members that its params change
	print             string          // what it is, without its weight
	maxLen            int             // tokens of prompt and answer, 0 unknown
}

// flight is one preflight under way.
type flight struct {
	of      string
	cancel  context.CancelFunc
	waiting int
	done    chan struct{}
	report  *ramp.Preflight // after done
	err     error

	asked atomic.Int64
	toAsk int
}

// Preflight probes every variant of an experiment that is not killed, and
// returns what was found; an error only where nothing could be asked. Who asks
// while one is under way gets that one. It takes 3 minutes at most.
func (p *Prober) Preflight(ctx context.Context, experiment string) (*ramp.Preflight, error) {
	f, err := p.join(experiment)
	if err != nil {
		return nil, err
	}
	select {
	case <-f.done:
	case <-ctx.Done():
		p.leave(f)
		return nil, ctx.Err()
	}
	return f.report, f.err
}

// Last is the newest report of this replica, nil without one. It may be of
// variants as they were.
func (p *Prober) Last(experiment string) *ramp.Preflight {
	p.mu.Lock()
	defer p.mu.Unlock()
	if k := p.last[experiment]; k != nil {
		return k.report
	}
	return nil
}

// Check answers whether a rollout of the experiment may start, at once: by the
// newest report of its variants as they are now. Without one it begins a
// preflight as soon as every variant has an endpoint that takes requests, and
// one that stands in the way is repeated every 5 minutes while somebody asks,
// every 15 s if a variant failed on a plain request.
func (p *Prober) Check(experiment string) ramp.Check {
	subjects, err := p.subjects(experiment)
	if err != nil {
		return ramp.Check{Text: err.Error()}
	}
	of := printOf(subjects)
	p.mu.Lock()
	k, f := p.last[experiment], p.flights[experiment]
	p.mu.Unlock()
	known := k != nil && k.of == of
	if known && (k.report.OK || time.Since(k.at) < k.lasts()) {
		return k.report.Check()
	}
	if f == nil {
		for _, s := range subjects {
			if why := unserved(s.variant.Name, s.variant.Target.Upstream, time.Now()); why != "" {
				return ramp.Check{Text: why}
			}
		}
		if f, err = p.join(experiment); err != nil {
			return ramp.Check{Text: err.Error()}
		}
	}
	if known {
		return k.report.Check()
	}
	return ramp.Check{Text: fmt.Sprintf("the preflight is under way: %d of %d probes", f.asked.Load(), f.toAsk)}
}

// join begins a preflight or joins the one under way.
func (p *Prober) join(experiment string) (*flight, error) {
	subjects, err := p.subjects(experiment)
	if err != nil {
		return nil, err
	}
	of := printOf(subjects)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, context.Canceled
	}
	if f := p.flights[experiment]; f != nil && f.of == of {
		f.waiting++
		return f, nil
	}
	ctx, cancel := context.WithTimeout(p.ctx, runTimeout)
	f := &flight{of: of, cancel: cancel, waiting: 1, done: make(chan struct{}), toAsk: len(all) * len(subjects)}
	p.flights[experiment] = f
	p.wg.Go(func() {
		defer cancel()
		report := p.run(ctx, f, subjects)
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.flights[experiment] == f {
			delete(p.flights, experiment)
		}
		if errors.Is(ctx.Err(), context.Canceled) {
			f.err = ctx.Err()
		} else {
			f.report = report
			if p.o.Found != nil {
				p.o.Found(report)
			}
			p.last[experiment] = &kept{report, of, time.Now()}
		}
		close(f.done)
	})
	return f, nil
}

// leave ends a preflight that nobody waits for any more.
func (p *Prober) leave(f *flight) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if f.waiting--; f.waiting == 0 {
		f.cancel()
	}
}
