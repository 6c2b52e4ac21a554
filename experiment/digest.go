package experiment

// Digest is the hash of a unit under this experiment's seed.
func (e *Experiment) Digest(u Unit) Digest { return HashWith(e.hash, e.seed, u) }
