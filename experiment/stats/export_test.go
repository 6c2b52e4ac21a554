package stats

// LogBF is logBF, for the vectors that have one prior only.
var LogBF = logBF
