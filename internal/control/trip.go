package control

import (
	"fmt"
	"slices"

	"sluice/router"
)

// Trip takes a variant out of service on this replica alone, until Untrip or
// the end of the generation: its units get the baseline, are not analysed, and
// keep their pins. It needs neither store.
func (c *Controller) Trip(experiment string, generation int, variant string) error {
	return c.setTrip(router.KillEntry{Experiment: experiment, Generation: generation, Variant: variant}, true)
}

// Untrip undoes Trip.
func (c *Controller) Untrip(experiment string, generation int, variant string) error {
	return c.setTrip(router.KillEntry{Experiment: experiment, Generation: generation, Variant: variant}, false)
}

func (c *Controller) setTrip(k router.KillEntry, on bool) error {
	c.mu.Lock()
	if slices.Contains(c.trips, k) == on {
		c.mu.Unlock()
		return nil
	}
	next := slices.DeleteFunc(slices.Clone(c.trips), func(t router.KillEntry) bool {
		return t == k || t.Experiment == k.Experiment && t.Generation < k.Generation
	})
	if on {
		next = append(next, k)
	}
	c.trips = next
	c.mu.Unlock()
	doc, _ := c.current()
	if doc == nil {
		return nil // it is laid over the first table
	}
	// The document that serves, not a newer one: a trip waits for nothing.
	if err := c.apply(doc, keepKills, c.sourceNow()); err != nil {
		poke(c.wake)
		if on {
			return fmt.Errorf("trip %s of %s: %w", k.Variant, k.Experiment, err)
		}
		return fmt.Errorf("untrip %s of %s: %w", k.Variant, k.Experiment, err)
	}
	return nil
}

func (c *Controller) tripped() []router.KillEntry {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.trips
}
