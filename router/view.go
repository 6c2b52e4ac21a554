package router

import (
	"encoding/json"
	"time"

	"sluice/experiment"
	"sluice/experiment/ramp"
)

// ExperimentView is an experiment as the admin API shows it (design.md section 10).
type ExperimentView struct {
	Key           string               `json:"key"`
	Model         string               `json:"model"`
	Kind          string               `json:"kind"`
	State         string               `json:"state"`
	Seed          string               `json:"seed"`
	Hash          string               `json:"hash,omitempty"`
	Generation    int                  `json:"generation"`
	Revision      int64                `json:"revision"`
	Unit          *Unit                `json:"unit"` // null: the default chain
	Baseline      string               `json:"baseline"`
	Stickiness    string               `json:"stickiness"`
	Switch        string               `json:"switch"`
	Merge         bool                 `json:"merge,omitempty"`
	BlockBelow    int                  `json:"block_below,omitempty"`
	Holdout       *Holdout             `json:"holdout,omitempty"`
	Winner        string               `json:"winner,omitempty"`
	Variants      []VariantView        `json:"variants"`
	Targeting     []experiment.Rule    `json:"targeting"`
	Fixed         []experiment.Segment `json:"fixed,omitempty"`
	Slice         *[2]int              `json:"slice"` // null: all
	OverrideNames []string             `json:"override_headers,omitempty"`
	Ramp          json.RawMessage      `json:"ramp"`
	Guardrails    json.RawMessage      `json:"guardrails"`
	RampState     *ramp.State          `json:"ramp_state,omitempty"` // where the ramp is
	LastRollback  *RollbackMark        `json:"last_rollback,omitempty"`
	Metrics       json.RawMessage      `json:"metrics"`
	Shadow        json.RawMessage      `json:"shadow"`
	CreatedAt     time.Time            `json:"created_at"`
	UpdatedAt     time.Time            `json:"updated_at"`
}

// VariantView is a variant as the admin API shows it; State is live or killed.
// The weight of a killed variant is that of its tombstone.
type VariantView struct {
	Name          string                     `json:"name"`
	Weight        int                        `json:"weight"`
	State         string                     `json:"state"`
	CutStreams    bool                       `json:"cut_streams,omitempty"`
	Upstream      string                     `json:"upstream"`
	Model         string                     `json:"model"`
	Version       string                     `json:"version"`
	Params        map[string]json.RawMessage `json:"params,omitempty"`
	ParamsDefault map[string]json.RawMessage `json:"params_default,omitempty"`
	ParamsRemove  []string                   `json:"params_remove,omitempty"`
	Prompt        *Prompt                    `json:"prompt,omitempty"`
	Fallback      string                     `json:"fallback,omitempty"`
	Price         *Price                     `json:"price,omitempty"`
}

// View shows e; revision is its ETag (0: e.UpdatedRevision). The view shares
// e's memory.
func View(e *Experiment, revision int64) ExperimentView {
	if revision == 0 {
		revision = e.UpdatedRevision
	}
	v := ExperimentView{
		Key: e.Key, Model: e.Model, Kind: e.Kind, State: e.State, Seed: e.Seed, Hash: e.Hash,
		Generation: e.Generation, Revision: revision, Unit: e.Unit, Baseline: e.Baseline,
		Stickiness: e.Stickiness, Switch: or(e.Switch, SwitchRequest), Merge: e.Merge, BlockBelow: e.BlockBelow, Holdout: e.Holdout,
		Winner: e.Winner, Variants: make([]VariantView, 0, len(e.Variants)),
		Targeting: e.Targeting, Fixed: e.Fixed, Slice: e.Slice, OverrideNames: e.OverrideNames,
		Ramp: e.Ramp, Guardrails: e.Guardrails, RampState: e.RampState, LastRollback: e.LastRollback, Metrics: e.Metrics, Shadow: e.Shadow,
		CreatedAt: e.CreatedAt, UpdatedAt: e.UpdatedAt,
	}
	if v.Targeting == nil {
		v.Targeting = []experiment.Rule{}
	}
	for _, x := range e.Variants {
		v.Variants = append(v.Variants, VariantView{
			Name: x.Name, Weight: x.Weight, State: or(x.State, "live"), CutStreams: x.CutStreams, Upstream: x.Upstream,
			Model: x.Model, Version: x.Version, Params: x.Params, ParamsDefault: x.ParamsDefault,
			ParamsRemove: x.ParamsRemove, Prompt: x.Prompt, Fallback: x.Fallback, Price: x.Price,
		})
	}
	return v
}

// WeightsView is an experiment's weights by variant name, in basis points.
func WeightsView(e *Experiment) map[string]int {
	out := make(map[string]int, len(e.Variants))
	for _, v := range e.Variants {
		out[v.Name] = v.Weight
	}
	return out
}
