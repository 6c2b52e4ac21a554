// Package e2e tests the binary as its users run it: real clients, real stores,
// a real browser and a real Prometheus around `sluice serve`. It has no code of
// its own but tests and what they run.
package e2e
