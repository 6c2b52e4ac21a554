package upstream

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"
)

const (
	listEvery = 15 * time.Second // models come and go with LoRA adapters
	maxModels = 10_000
)

// models are what a server lists.
type models struct {
	ids []string       // in its own order
	set map[string]int // tokens of prompt and answer together, 0 = not told
}

func newModels(list []listedModel) *models {
	list = list[:min(len(list), maxModels)]
	m := &models{set: make(map[string]int, len(list))}
	for _, l := range list {
		if l.ID == "" {
			continue
		}
		m.ids = append(m.ids, l.ID)
		m.set[l.ID] = l.length()
	}
	return m
}

func (m *models) equal(o *models) bool {
	if m == nil || o == nil {
		return m == o
	}
	return slices.Equal(m.ids, o.ids) && maps.Equal(m.set, o.set)
}

// MaxModelLen is how many tokens prompt and answer of a model may have together,
// by what its endpoints list: the least of them, 0 when none tells.
func (u *Upstream) MaxModelLen(model string) int {
	least := 0
	for _, e := range u.endpoints() {
		m := e.models.Load()
		if m == nil {
			continue
		}
		if n := m.set[model]; n > 0 && (least == 0 || n < least) {
			least = n
		}
	}
	return least
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
	list, ok := parseModels(a.body)
	m := newModels(list)
	if w.noList = a.status/100 != 2 || !ok || len(m.ids) == 0; w.noList {
		w.e.lists(nil)
		return
	}
	w.e.lists(m)
}

// listedModel is one item of a list of models.
type listedModel struct {
	ID string `json:"id"`
	// MaxLen is vLLM's and SGLang's; whatever is no number tells nothing.
	MaxLen json.RawMessage `json:"max_model_len"`
}

// maxLength bounds what a model's length can be meant to be.
const maxLength = 1 << 30

func (l *listedModel) length() int {
	n, err := strconv.Atoi(string(l.MaxLen))
	if err != nil || n < 0 || n > maxLength {
		return 0
	}
	return n
}

// parseModels reads a list of models.
func parseModels(body []byte) (list []listedModel, ok bool) {
	var v struct {
		Data []listedModel `json:"data"`
	}
	if json.Unmarshal(body, &v) != nil {
		return nil, false
	}
	return v.Data, true
}

// lists notes which models the server has; nil = unknown.
func (e *endpoint) lists(m *models) {
	if e.models.Load().equal(m) {
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
