// Package sticky keeps what must be the same on every replica and alive
// without a database write: the published snapshot and its change log, pins of
// units, the kill set, replicas' applied revisions and the leader lease. In
// Redis, or embedded in the process with the same behaviour. It hides keys,
// scripts, budgets and background queues.
package sticky
