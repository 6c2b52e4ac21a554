//go:build race

package experiment_test

// raceEnabled: hashing is about four times slower.
const raceEnabled = true
