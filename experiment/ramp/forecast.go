package ramp

// StepForecast is what a step is expected to take at today's traffic.
type StepForecast struct {
	Step    int     `json:"step"`
	Weight  int     `json:"weight"` // basis points
	Approve bool    `json:"approve,omitempty"`
	Rate    float64 `json:"rate"`  // requests a second of the ramping variant
	Users   int     `json:"users"` // distinct in the step's expected time, or in max_duration
	// Trials are what the guardrails that must pass need if the variant is as good
	// as the baseline; about half of all rollouts take longer.
	Trials []TrialForecast `json:"trials,omitempty"`
	// Time is the expected duration; 0 if the step cannot be met.
	Time  Seconds `json:"time_s"`
	Binds string  `json:"binds"` // what takes longest: min_duration, min_units or a guardrail's name
	OK    bool    `json:"ok"`    // it can be met within max_duration
	Text  string  `json:"text"`
}

// TrialForecast is one guardrail's part of it.
type TrialForecast struct {
	Guardrail string  `json:"guardrail"`
	Trials    int64   `json:"trials"` // negative: no number would do
	Time      Seconds `json:"time_s"`
}
