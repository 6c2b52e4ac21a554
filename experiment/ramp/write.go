package ramp

import (
	"encoding/json"
	"strings"
	"time"
)

// written is a Config in the document's words, complete.
type written struct {
	Variant            string             `json:"variant,omitempty"`
	Steps              any                `json:"steps"`
	MaxWeight          int                `json:"max_weight"`
	Holdback           int                `json:"holdback"`
	MinDuration        string             `json:"min_duration"`
	MaxDuration        string             `json:"max_duration"`
	MinUnits           int                `json:"min_units"`
	Bake               string             `json:"bake"`
	NoDataAfter        string             `json:"no_data_after"`
	StaleAfter         string             `json:"stale_after"`
	Cooldown           string             `json:"cooldown"`
	Ready              writtenReady       `json:"ready"`
	Trial              writtenTrial       `json:"trial"`
	AlphaFalseRollback float64            `json:"alpha_false_rollback"`
	AlphaPass          float64            `json:"alpha_pass"`
	SLO                map[string]float64 `json:"slo,omitempty"`
	Restarts           any                `json:"restarts"` // a number, or false
	Pace               string             `json:"pace"`
	Rollback           string             `json:"rollback"`
	OnUnsupervised     string             `json:"on_unsupervised"`
	Shadow             *Shadow            `json:"shadow,omitempty"`
}

type writtenReady struct {
	Probes        int    `json:"probes"`
	Interval      string `json:"interval"`
	MaxTTFT       string `json:"max_ttft"`
	NotReadyLimit string `json:"not_ready_limit"`
}

type writtenTrial struct {
	MinBadTrials int    `json:"min_bad_trials"`
	MinBadUnits  int    `json:"min_bad_units"`
	MinPassUnits int    `json:"min_pass_units"`
	CapWindow    string `json:"cap_window"`
}

// MarshalJSON writes the complete policy as Parse reads it.
func (c Config) MarshalJSON() ([]byte, error) {
	w := written{
		Variant: c.Variant, Steps: c.Steps, MaxWeight: c.MaxWeight, Holdback: c.Holdback,
		MinDuration: short(c.MinDuration), MaxDuration: short(c.MaxDuration), MinUnits: c.MinUnits, Bake: short(c.Bake),
		NoDataAfter: short(c.NoDataAfter), StaleAfter: short(c.StaleAfter), Cooldown: short(c.Cooldown),
		Ready: writtenReady{c.Ready.Probes, short(c.Ready.Interval), short(c.Ready.MaxTTFT), short(c.Ready.NotReadyLimit)},
		Trial: writtenTrial{c.Trial.MinBadTrials, c.Trial.MinBadUnits, c.Trial.MinPassUnits, short(c.Trial.CapWindow)},

		AlphaFalseRollback: c.AlphaFalseRollback, AlphaPass: c.AlphaPass, SLO: c.SLO, Restarts: c.Restarts,
		Pace: c.Pace, Rollback: c.Rollback, OnUnsupervised: c.OnUnsupervised, Shadow: c.Shadow,
	}
	if c.Auto {
		w.Steps = "auto"
	}
	if c.Restarts < 0 {
		w.Restarts = false
	}
	return json.Marshal(w)
}

// UnmarshalJSON is Parse.
func (c *Config) UnmarshalJSON(data []byte) (err error) {
	*c, err = Parse(data)
	return err
}

// short writes 10m, not 10m0s.
func short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}
