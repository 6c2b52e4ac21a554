package main

import (
	"context"

	"sluice/experiment/ramp"
	"sluice/internal/preflight"
	"sluice/internal/readings"
	"sluice/internal/rollout"
	"sluice/internal/webhook"
	"sluice/router"
)

// openRollouts comes before the data plane, whose requests it counts, and so
// before the control plane, which it does not use until it runs.
func (a *app) openRollouts() (err error) {
	c := a.cfg
	a.prober = preflight.New(preflight.Options{Doer: a.pool, Table: a.live.Load, Record: a.rec.Record, Traffic: a.traffic, Found: a.found, Log: a.log})
	a.reader = readings.New(readings.Options{Table: a.live.Load, Servers: c.Limits.Prometheus, Log: a.log})
	if w := c.Webhook; w.URL.Reveal() != "" {
		o := webhook.Options{URL: w.URL.Reveal(), Format: w.Format, Events: w.Events, Link: w.Link, Log: a.log, Count: a.rec.CountWebhook}
		if w.Secret != "" {
			o.Secret = func() (string, bool) { return c.Secret(w.Secret) }
		}
		if a.webhook, err = webhook.New(o); err != nil {
			return err
		}
	}
	a.rollouts, err = rollout.New(rollout.Options{
		ReplicaID: a.replica, Live: a.live, Sticky: a.sticky, Fences: a.store, Control: controlOf{a},
		Probes: a.prober, Readings: a.reader, Notifier: a.webhook, Metrics: a.rec, Log: a.log,
	})
	return err
}

// traffic is what clients have asked of a model, for the weights of a preflight.
func (a *app) traffic(model string) preflight.Traffic {
	d := a.rec.Demand(model)
	return preflight.Traffic{Requests: d.Requests, Asks: d.Asks, PromptP99: d.PromptP99}
}

// found puts what a preflight found into the gauges.
func (a *app) found(r *ramp.Preflight) {
	for _, v := range r.Variants {
		passed, failed, blocking := r.Count(v)
		a.rec.SetPreflight(r.Experiment, v, passed, failed, blocking)
	}
}

// closeRollouts ends the probes before their upstreams go.
func (a *app) closeRollouts() {
	if a.prober != nil {
		a.prober.Close()
	}
	if a.reader != nil {
		a.reader.Close()
	}
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
