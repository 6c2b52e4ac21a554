package rollout

import (
	"context"
	"errors"
	"time"

	"sluice/internal/sticky"
	"sluice/metrics"
	"sluice/router"
)

// beatEvery is how often the leader says that it leads.
const beatEvery = 5 * time.Second

// campaign asks for the lease until ctx ends, and leads while it has it.
func (r *Rollouts) campaign(ctx context.Context) {
	floor := int64(0)
	for {
		lease := r.stand(ctx, &floor)
		if lease != nil {
			floor = max(floor, lease.Fence())
			r.leading.Store(lease)
			err := r.lead(ctx, lease)
			r.leading.Store(nil)
			r.o.tellGauges(false, nil)
			r.resign(ctx, lease)
			r.log.Info("leads no longer", "fence", lease.Fence(), "why", reason(ctx, err))
		}
		if !pause(ctx, second) {
			return
		}
	}
}

func reason(ctx context.Context, err error) string {
	switch {
	case ctx.Err() != nil:
		return "stopping"
	case err != nil:
		return err.Error()
	}
	return "the lease was lost"
}

// stand asks for leadership above every one that the database has seen, and
// tells the database: a leader before this one can commit nothing more. With the
// database away the lease alone counts, and floor is the last that was known.
func (r *Rollouts) stand(ctx context.Context, floor *int64) *sticky.Lease {
	if fence, err := r.o.Fences.Fence(ctx); err == nil {
		*floor = max(*floor, fence)
	}
	lease, err := r.o.Sticky.Lease(ctx, *floor)
	if err != nil || lease == nil {
		return nil
	}
	switch err := r.o.Fences.RaiseFence(ctx, lease.Fence()); {
	case errors.Is(err, router.ErrFenced): // somebody was faster; ask above it
		r.resign(ctx, lease)
		return nil
	case err != nil:
		r.log.Warn("leads without the database; nothing grows until it is back", "fence", lease.Fence(), "err", err)
	default:
		r.log.Info("leads the rollouts", "fence", lease.Fence())
	}
	return lease
}

func (r *Rollouts) resign(ctx context.Context, lease *sticky.Lease) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), second)
	defer cancel()
	if err := lease.Release(ctx); err != nil {
		r.log.Debug("the lease is not given back; it ends by itself", "err", err)
	}
}

// lead works while the lease is valid. Every leadership reads the checkpoints
// anew: what this replica remembers of an earlier one is not the truth.
func (r *Rollouts) lead(ctx context.Context, lease *sticky.Lease) error {
	files := map[string]*file{}
	tick := time.NewTicker(second)
	defer tick.Stop()
	var beats int64
	var beaten time.Time
	for lease.Valid() {
		if now := time.Now(); now.Sub(beaten) >= beatEvery {
			beats++
			if r.o.Sticky.Supervise(ctx, lease.Fence(), beats) == nil {
				beaten = now
			}
		}
		var infos []metrics.RolloutInfo
		subjects := r.current()
		for _, s := range subjects {
			if !lease.Valid() {
				return nil
			}
			f := files[s.key]
			if f == nil {
				f = new(file)
				files[s.key] = f
			}
			if err := r.round(ctx, lease, s, f); isFenced(err) {
				return err
			} else if err != nil && ctx.Err() == nil {
				f.complain(r, s, err)
			} else {
				f.failed = ""
			}
			infos = append(infos, f.info(s))
		}
		r.o.tellGauges(true, infos)
		r.forget(ctx, files, subjects)
		select {
		case <-ctx.Done():
			return nil
		case <-lease.Done():
			return nil
		case <-tick.C:
		}
	}
	return nil
}

func isFenced(err error) bool {
	return errors.Is(err, sticky.ErrFenced) || errors.Is(err, router.ErrFenced)
}

// complain logs a failure once for as long as it lasts.
func (f *file) complain(r *Rollouts, s *subject, err error) {
	if text := err.Error(); text != f.failed {
		f.failed = text
		r.log.Warn("a rollout waits", "experiment", s.key, "err", err)
	}
}

// forget drops what is no longer watched, and in the store what no longer exists.
func (r *Rollouts) forget(ctx context.Context, files map[string]*file, subjects []*subject) {
	watched := map[string]bool{}
	for _, s := range subjects {
		watched[s.key] = true
	}
	t := r.o.Live.Load()
	for key := range files {
		if watched[key] {
			continue
		}
		delete(files, key)
		if t != nil && t.Snapshot.Document.Experiment(key) == nil {
			if err := r.o.Sticky.DropRollout(ctx, key); err != nil {
				r.log.Debug("the rollout of a deleted experiment stays until it expires", "experiment", key, "err", err)
			}
		}
	}
}

// round is one second of one experiment: read on, decide, write down, act. What
// is written carries the fence, so that it is refused when somebody else leads,
// and then nothing is done either.
func (r *Rollouts) round(ctx context.Context, lease *sticky.Lease, s *subject, f *file) error {
	if !f.loaded {
		if err := r.open(ctx, s, f); err != nil {
			return err
		}
	}
	counts := tally{}
	err := r.read(ctx, s, f, counts)
	if m := r.o.Metrics; m != nil {
		for result, n := range counts {
			m.CountObservations(result, n)
		}
	}
	if err != nil || len(counts) == 0 || !f.current(s) {
		return err // nothing new was heard: nothing is decided
	}
	verdict := r.decide(s, f)
	verdict.inputs.Replica, verdict.inputs.Fence = r.o.ReplicaID, lease.Fence()
	f.Report = r.report(s, f, verdict)
	body, err := f.encode()
	if err != nil {
		return err
	}
	if err := r.o.Sticky.Checkpoint(ctx, s.key, lease.Fence(), body); err != nil {
		return err
	}
	return r.carryOut(ctx, lease, s, f, verdict)
}

func (o *Options) tellGauges(leader bool, infos []metrics.RolloutInfo) {
	if o.Metrics != nil {
		o.Metrics.SetRollouts(leader, infos)
	}
}
