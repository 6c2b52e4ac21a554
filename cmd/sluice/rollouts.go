package main

import (
	"context"

	"sluice/internal/rollout"
	"sluice/router"
)

// openRollouts comes before the data plane, whose requests it counts, and so
// before the control plane, which it does not use until it runs.
func (a *app) openRollouts() (err error) {
	a.rollouts, err = rollout.New(rollout.Options{
		ReplicaID: a.replica, Live: a.live, Sticky: a.sticky, Fences: a.store, Control: controlOf{a},
		Metrics: a.rec, Log: a.log,
	})
	return err
}

// controlOf is the app's controller, which is made later.
type controlOf struct{ a *app }

func (c controlOf) Commit(ctx context.Context, ch router.Change) (router.CommitResult, error) {
	return c.a.control.Commit(ctx, ch)
}

func (c controlOf) Rollback(ctx context.Context, experiment string, ch router.Change) (router.CommitResult, error) {
	return c.a.control.Rollback(ctx, experiment, ch)
}

func (c controlOf) Kill(ctx context.Context, experiment, variant string, ch router.Change) (router.CommitResult, error) {
	return c.a.control.Kill(ctx, experiment, variant, ch)
}

func (c controlOf) Trip(experiment string, generation int, variant string) error {
	return c.a.control.Trip(experiment, generation, variant)
}

func (c controlOf) Untrip(experiment string, generation int, variant string) error {
	return c.a.control.Untrip(experiment, generation, variant)
}
