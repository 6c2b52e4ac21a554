package rollout

import (
	"encoding/json"

	"sluice/experiment/trial"
	"sluice/internal/sticky"
	"sluice/router"
)

// Replay folds a recorded stream under the tables that there were, in order, up
// to and with the entry at the position in the details of a decision, and decides
// there with the circumstances that are written in them. It answers the details
// and the evidence as they would be written.
func Replay(tables []*router.Table, key string, stream []sticky.Observation, recorded json.RawMessage) (details_, evidence json.RawMessage, err error) {
	var was inputs
	if err := json.Unmarshal(recorded, &was); err != nil {
		return nil, nil, err
	}
	byEpoch := map[int64]*subject{}
	for _, t := range tables {
		if s := subjects(t)[key]; s != nil {
			byEpoch[s.epoch] = s
		}
	}
	var s *subject
	f := &file{}
	for _, o := range stream {
		var t trial.Tick
		if err := json.Unmarshal(o.Body, &t); err != nil {
			return nil, nil, err
		}
		if next := byEpoch[t.Epoch]; next != nil && (s == nil || t.Epoch > s.epoch) {
			s = next
		}
		if err := f.fit(s); err != nil {
			return nil, nil, err
		}
		if _, err := f.take(s, o); err != nil {
			return nil, nil, err
		}
		f.Position, f.Clock = o.ID, o.At
		if o.ID == was.Position {
			break
		}
	}
	d := f.decide(s, was.Externals)
	d.inputs.Replica, d.inputs.Fence = was.Replica, was.Fence
	evidence, err = json.Marshal(f.Evidence)
	return details(&d.inputs), evidence, err
}

// Checkpointed is the evidence and the position in a checkpoint.
func Checkpointed(body []byte) (position string, evidence json.RawMessage, err error) {
	var f struct {
		Position string
		Evidence json.RawMessage
	}
	err = json.Unmarshal(body, &f)
	return f.Position, f.Evidence, err
}
