package server

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"

	"github.com/go-chi/chi/v5"
)

type modelObject struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
}

// visible are the public models that the caller's key may use.
func (s *Server) visible(w http.ResponseWriter, r *http.Request) ([]modelObject, bool) {
	id := newRequestID()
	w.Header().Set("X-Request-Id", id)
	t := s.cfg.Live.Load()
	if t == nil {
		f := failure(http.StatusServiceUnavailable, "no_ready_endpoint", "The gateway has no configuration yet.")
		f.RetryAfter = "1"
		s.writeError(w, id, f)
		return nil, false
	}
	k, f := s.authenticate(t, r.Header)
	if f != nil {
		s.writeError(w, id, f)
		return nil, false
	}
	var list []modelObject
	for _, m := range t.Models(k) {
		list = append(list, modelObject{m.Name, "model", 0, "sluice"})
	}
	return list, true
}

func (s *Server) listModels(w http.ResponseWriter, r *http.Request) {
	list, ok := s.visible(w, r)
	if !ok {
		return
	}
	if list == nil {
		list = []modelObject{}
	}
	s.writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": list})
}

func (s *Server) getModel(w http.ResponseWriter, r *http.Request) {
	list, ok := s.visible(w, r)
	if !ok {
		return
	}
	name := chi.URLParam(r, "id")
	if name == "" {
		name = chi.URLParam(r, "*")
	}
	if un, err := url.PathUnescape(name); err == nil {
		name = un
	}
	name = strings.TrimSuffix(name, "/")
	for _, m := range list {
		if m.ID == name {
			s.writeJSON(w, http.StatusOK, m)
			return
		}
	}
	f := failure(http.StatusNotFound, "model_not_found", "The model "+cut(name, 100)+" does not exist here, or this key may not use it.")
	f.Param = "model"
	s.writeError(w, w.Header().Get("X-Request-Id"), f)
}

func (s *Server) writeJSON(w http.ResponseWriter, status int, v any) {
	s.boundWrite(w)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	_ = e.Encode(v)
}
