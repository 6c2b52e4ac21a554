package admin

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"regexp"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"sluice/router"
)

type (
	keyView struct {
		ID        string            `json:"id"`
		Name      string            `json:"name"`
		Prefix    string            `json:"prefix" doc:"for people; not enough to use the key"`
		Tenant    string            `json:"tenant,omitempty"`
		Tags      map[string]string `json:"tags,omitempty"`
		Models    []string          `json:"models,omitempty" doc:"public models it may use; absent: all"`
		Scopes    []string          `json:"scopes,omitempty" doc:"override, identity"`
		User      string            `json:"user,omitempty" doc:"end user bound to the key"`
		State     string            `json:"state" enum:"active,expired,revoked"`
		CreatedAt time.Time         `json:"created_at"`
		ExpiresAt *time.Time        `json:"expires_at,omitempty"`
		RevokedAt *time.Time        `json:"revoked_at,omitempty"`
	}
	keyBody struct {
		Name      string            `json:"name" minLength:"1" maxLength:"100"`
		Tenant    string            `json:"tenant,omitempty" maxLength:"64" pattern:"^[A-Za-z0-9_.-]*$"`
		Tags      map[string]string `json:"tags,omitempty"`
		Models    []string          `json:"models,omitempty" maxItems:"100"`
		Scopes    []string          `json:"scopes,omitempty" enum:"override,identity"`
		User      string            `json:"user,omitempty" maxLength:"512"`
		ExpiresAt *time.Time        `json:"expires_at,omitempty"`
	}
	createKey struct {
		writeIn
		Body keyBody
	}
	createdKey struct {
		CacheControl string `header:"Cache-Control"`
		Body         struct {
			Key    keyView  `json:"key"`
			Secret string   `json:"secret" doc:"shown once, never again"`
			Write  *written `json:"write,omitempty"`
		}
	}
	keyList struct {
		Body struct {
			Items []keyView `json:"items"`
		}
	}
	revokeKey struct {
		ID string `path:"id" maxLength:"64"`
		writeIn
		Body *struct {
			Reason string `json:"reason,omitempty" maxLength:"1000"`
		}
	}
	keyOut struct {
		Body struct {
			Key   keyView  `json:"key"`
			Write *written `json:"write,omitempty"`
		}
	}
)

const maxKeys = 100_000

func (a *API) registerKeys(api huma.API) {
	op := func(id, method, path, summary string, errs ...int) huma.Operation {
		return huma.Operation{OperationID: id, Method: method, Path: path, Summary: summary, Tags: []string{"keys"}, Errors: errs}
	}
	huma.Register(api, op("list-keys", http.MethodGet, "/keys", "List API keys of the data plane"), a.listKeys)
	create := op("create-key", http.MethodPost, "/keys", "Create an API key; its secret is shown once", 409, 422, 503)
	create.DefaultStatus = http.StatusCreated
	create.Metadata = map[string]any{holdsSecret: true}
	huma.Register(api, create, a.createKey)
	huma.Register(api, op("revoke-key", http.MethodPost, "/keys/{id}:revoke", "Revoke a key, at once and for good", 404, 503), a.revokeKey)
}

func viewKey(k *router.Key) keyView {
	v := keyView{ID: k.ID, Name: k.Name, Prefix: k.Prefix, Tenant: k.Tenant, Tags: k.Tags, Models: k.Models, Scopes: k.Scopes,
		User: k.User, State: "active", CreatedAt: k.CreatedAt}
	if !k.ExpiresAt.IsZero() {
		v.ExpiresAt = &k.ExpiresAt
		if time.Now().After(k.ExpiresAt) {
			v.State = "expired"
		}
	}
	if !k.RevokedAt.IsZero() {
		v.RevokedAt, v.State = &k.RevokedAt, "revoked"
	}
	return v
}

func (a *API) listKeys(ctx context.Context, _ *struct{}) (*keyList, error) {
	s, err := a.snapshot()
	if err != nil {
		return nil, err
	}
	out := &keyList{}
	out.Body.Items = []keyView{}
	for i := range s.Keys {
		out.Body.Items = append(out.Body.Items, viewKey(&s.Keys[i]))
	}
	return out, nil
}

// newSecret has 256 bits, so its plain SHA-256 is enough to keep.
func newSecret() (secret, prefix, hash string) {
	var b [32]byte
	rand.Read(b[:])
	secret = "sk-sluice-" + hex.EncodeToString(b[:])
	sum := sha256.Sum256([]byte(secret))
	return secret, secret[:14] + "…" + secret[len(secret)-4:], hex.EncodeToString(sum[:])
}

var tagName = regexp.MustCompile(`^[a-z0-9][a-z0-9_.-]{0,62}$`)

func (a *API) createKey(ctx context.Context, in *createKey) (*createdKey, error) {
	b := in.Body
	for name, v := range b.Tags {
		if !tagName.MatchString(name) || len(v) > 200 {
			return nil, a.problemOf(ctx, newProblem(http.StatusUnprocessableEntity, "invalid_tag", "Tag names are 1 to 63 of a-z, 0-9, _ . -; values at most 200 characters."))
		}
	}
	if b.ExpiresAt != nil && b.ExpiresAt.Before(time.Now()) {
		return nil, a.problemOf(ctx, newProblem(http.StatusUnprocessableEntity, "expired", "expires_at lies in the past."))
	}
	id, err := uuid.NewV7()
	if err != nil {
		return nil, a.problemOf(ctx, err)
	}
	secret, prefix, hash := newSecret()
	k := router.Key{ID: id.String(), Hash: hash, Name: b.Name, Tenant: b.Tenant, Tags: b.Tags, Models: b.Models, Scopes: b.Scopes,
		User: b.User, Prefix: prefix, CreatedAt: time.Now().UTC().Truncate(time.Microsecond)}
	if b.ExpiresAt != nil {
		k.ExpiresAt = b.ExpiresAt.UTC().Truncate(time.Microsecond)
	}
	_, w, err := a.commit(ctx, change{action: "key.create", object: "key/" + k.ID, in: in.writeIn,
		mutate: func(s *router.Snapshot, rev int64, now time.Time) error {
			if len(s.Keys) >= maxKeys {
				return newProblem(http.StatusConflict, "too_many_keys", "There are 100,000 keys; delete some that are revoked.")
			}
			for _, m := range b.Models {
				if s.Document.Model(m) == nil {
					return newProblem(http.StatusUnprocessableEntity, "unknown_model", "models names "+m+", which is not a model of this gateway.")
				}
			}
			s.Keys = append(s.Keys, k)
			return nil
		}})
	if err != nil {
		return nil, a.problemOf(ctx, err)
	}
	out := &createdKey{CacheControl: "no-store"}
	out.Body.Key, out.Body.Write = viewKey(&k), &w
	if !in.DryRun {
		out.Body.Secret = secret
	}
	return out, nil
}

func (a *API) revokeKey(ctx context.Context, in *revokeKey) (*keyOut, error) {
	reason := ""
	if in.Body != nil {
		reason = in.Body.Reason
	}
	find := func(s *router.Snapshot) *router.Key {
		i := slices.IndexFunc(s.Keys, func(k router.Key) bool { return k.ID == in.ID })
		if i < 0 {
			return nil
		}
		return &s.Keys[i]
	}
	s, w, err := a.commit(ctx, change{action: "key.revoke", object: "key/" + in.ID, reason: reason, in: in.writeIn,
		mutate: func(s *router.Snapshot, rev int64, now time.Time) error {
			k := find(s)
			if k == nil {
				return missingObject("key", in.ID)
			}
			if k.RevokedAt.IsZero() {
				k.RevokedAt = now.Truncate(time.Microsecond)
			}
			return nil
		}})
	if err != nil {
		return nil, a.problemOf(ctx, err)
	}
	out := &keyOut{}
	out.Body.Write = &w
	if k := find(s); k != nil {
		out.Body.Key = viewKey(k)
	}
	return out, nil
}
