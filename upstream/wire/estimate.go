package wire

// Estimate guesses the output tokens of an answer without usage: a token has
// about four characters, and each content event has at least one token.
func Estimate(chars, events int64) int64 { return max(events, (max(chars, 0)+3)/4) }

// EstimateInput guesses the input tokens of a request without usage, from the
// length of its body in bytes: four bytes a token.
func EstimateInput(bodyLen int) int64 { return (int64(max(bodyLen, 0)) + 3) / 4 }
