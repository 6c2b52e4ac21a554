package admin

import (
	"github.com/go-chi/chi/v5"
)

// pages mounts the UI.
func (a *API) pages(r chi.Router) {}
