package server

import (
	"net/http"
	"strings"
	"time"

	"sluice/router"
	"sluice/upstream"
)

// authenticate answers the caller's key. It runs before the body is read.
func (s *Server) authenticate(t *router.Table, h http.Header) (*router.Key, *upstream.Failure) {
	if !s.cfg.AuthKeys {
		return nil, nil
	}
	v := h["Authorization"]
	if len(v) == 0 {
		return nil, failure(http.StatusUnauthorized, "invalid_api_key", "You didn't provide an API key: send it as Authorization: Bearer KEY.")
	}
	scheme, secret, ok := strings.Cut(v[0], " ")
	if len(v) > 1 || !ok || !strings.EqualFold(scheme, "bearer") {
		return nil, failure(http.StatusUnauthorized, "invalid_api_key", "The Authorization header must be one Bearer key.")
	}
	now := time.Now()
	secret = strings.TrimSpace(secret)
	if k, ok := t.Key(secret, now); ok {
		return k, nil
	}
	// The key itself is never quoted back or logged.
	msg := "Incorrect API key provided."
	switch t.KeyStatus(secret, now) {
	case router.KeyExpired:
		msg = "This API key has expired; ask the gateway's operator for a new one."
	case router.KeyRevoked:
		msg = "This API key has been revoked; ask the gateway's operator for a new one."
	}
	return nil, failure(http.StatusUnauthorized, "invalid_api_key", msg)
}
