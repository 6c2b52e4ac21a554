package server

import (
	"context"
	"sync"

	"sluice/router"
	"sluice/upstream"
)

// streams are the streams that variants of experiments are giving now, so that
// a kill with cut_streams finds them.
type streams struct {
	mu sync.Mutex
	of map[*exchange]context.CancelCauseFunc
}

func (s *streams) add(x *exchange, cancel context.CancelCauseFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil {
		s.of = map[*exchange]context.CancelCauseFunc{}
	}
	s.of[x] = cancel
}

func (s *streams) remove(x *exchange) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.of, x)
}

// CutStreams ends the streams of variants that the current table wants ended;
// each is told so in-band. It is to be called after every swap of the table.
func (s *Server) CutStreams() {
	now := s.cfg.Live.Load()
	if now == nil || !now.CutsAny() {
		return
	}
	s.streams.mu.Lock()
	defer s.streams.mu.Unlock()
	for x, cancel := range s.streams.of {
		if now.Cuts(x.plan.Experiment, x.serving.Load()) {
			cancel(upstream.ErrVariantStopped)
		}
	}
}

// follow makes the exchange one that CutStreams finds; the returned function
// ends that. Who did not ask for a stream is answered whole.
func (x *exchange) follow(cancel context.CancelCauseFunc) func() {
	if !x.head.Stream || x.plan.Experiment == nil {
		return func() {}
	}
	x.cut = cancel
	x.s.streams.add(x, cancel)
	return func() { x.s.streams.remove(x) }
}

// onto notes what serves from now on. A table that was swapped in since the
// variant was chosen, and whose CutStreams may have looked already, is asked
// here.
func (x *exchange) onto(v *router.CompiledVariant) {
	x.cur = v
	if x.cut == nil {
		return
	}
	x.serving.Store(v)
	if now := x.s.cfg.Live.Load(); now.Cuts(x.plan.Experiment, v) {
		x.cut(upstream.ErrVariantStopped)
	}
}
