package upstream

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"time"
)

const (
	listEvery = 15 * time.Second // models come and go with LoRA adapters
	maxModels = 10_000
)

// models are the ids that a server lists.
type models struct {
	ids []string // in its own order
	set map[string]struct{}
}

func newModels(ids []string) *models {
	ids = ids[:min(len(ids), maxModels)]
	m := &models{ids: ids, set: make(map[string]struct{}, len(ids))}
	for _, id := range ids {
		m.set[id] = struct{}{}
	}
	return m
}

// list reads the server's models when that is due and the check has not.
func (w *watcher) list(ctx context.Context, set *settings) {
	if time.Now().Before(w.listAt) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, sideTimeout)
	defer cancel()
	a, err := w.e.fetch(ctx, set, http.MethodGet, join(w.e.url, "/models"), nil, maxCheckBody)
	now := time.Now()
	if err == nil && a.status < 500 {
		w.listed(a, now)
	} else if w.e.ready.Load() {
		w.listAt = now.Add(listEvery) // what is known stays
	}
}

// listed takes the answer of GET /models when that is due.
func (w *watcher) listed(a answer, now time.Time) {
	if now.Before(w.listAt) {
		return
	}
	w.listAt = now.Add(listEvery)
	ids, ok := parseModels(a.body)
	if w.noList = a.status/100 != 2 || !ok || len(ids) == 0; w.noList {
		w.e.lists(nil)
		return
	}
	w.e.lists(newModels(ids))
}

// parseModels reads the ids of a list of models.
func parseModels(body []byte) (ids []string, ok bool) {
	var v struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if json.Unmarshal(body, &v) != nil {
		return nil, false
	}
	for _, m := range v.Data {
		if m.ID != "" {
			ids = append(ids, m.ID)
		}
	}
	return ids, true
}

// lists notes which models the server has; nil = unknown.
func (e *endpoint) lists(m *models) {
	old := e.models.Load()
	if old == nil && m == nil || old != nil && m != nil && slices.Equal(old.ids, m.ids) {
		return
	}
	e.models.Store(m)
	e.set.Load().roster.compare()
}

// lacks tells that e lists its models and that this one is not among them.
func (e *endpoint) lacks(model string) bool {
	m := e.models.Load()
	if m == nil {
		return false
	}
	_, ok := m.set[model]
	return !ok
}

// compare notes whether the endpoints list different models; as long as they do
// not, no request need be compared with the lists.
func (r *roster) compare() {
	r.mu.Lock()
	defer r.mu.Unlock()
	var first *models
	mixed := false
	for _, e := range *r.list.Load() {
		m := e.models.Load()
		switch {
		case m == nil:
		case first == nil:
			first = m
		default:
			mixed = mixed || !slices.Equal(m.ids, first.ids)
		}
	}
	r.mixed.Store(mixed)
}

// listed tells whether any endpoint lists the model, when they differ in that.
func (r *roster) listed(model string) bool {
	if model == "" || !r.mixed.Load() {
		return false
	}
	for _, e := range *r.list.Load() {
		if m := e.models.Load(); m != nil {
			if _, ok := m.set[model]; ok {
				return true
			}
		}
	}
	return false
}
