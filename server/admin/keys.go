package admin

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

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
		Name      string            `json:"name" minLength:"1" maxLength:"100" doc:"for people"`
		Tenant    string            `json:"tenant,omitempty" maxLength:"64" pattern:"^[A-Za-z0-9_.-]*$"`
		Tags      map[string]string `json:"tags,omitempty"`
		Models    []string          `json:"models,omitempty" maxItems:"100"`
		Scopes    []string          `json:"scopes,omitempty" enum:"override,identity"`
		User      string            `json:"user,omitempty" maxLength:"512" doc:"the one end user behind the key"`
		ExpiresAt *time.Time        `json:"expires_at,omitempty"`
		Reason    string            `json:"reason,omitempty" maxLength:"1000"`
	}
	reasonBody struct {
		Reason string `json:"reason,omitempty" maxLength:"1000"`
	}
	createdKey struct {
		CacheControl string `header:"Cache-Control"`
		Body         struct {
			Key    keyView  `json:"key"`
			Secret string   `json:"secret,omitempty" doc:"shown once, never again; absent in a dry run"`
			Write  *written `json:"write,omitempty"`
		}
	}
	keyList struct {
		Body struct {
			Items      []keyView `json:"items"`
			NextCursor string    `json:"next_cursor,omitempty"`
		}
	}
	revokeKey struct {
		ID string `path:"id" maxLength:"64" doc:"the key's id, not the key"`
		WriteIn
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
	register(a, api, op("list-keys", http.MethodGet, "/keys", "List API keys of the data plane, oldest first"), a.listKeys)
	create := takes[keyBody](api, op("create-key", http.MethodPost, "/keys", "Create an API key; its secret is shown once", 409), false)
	create.DefaultStatus = http.StatusCreated
	create.Metadata = map[string]any{holdsSecret: true}
	register(a, api, create, a.createKey)
	revoke := op("revoke-key", http.MethodPost, "/keys/{id}:revoke", "Revoke a key, at once and for good", 404)
	register(a, api, takes[reasonBody](api, revoke, true), a.revokeKey)
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

func (a *API) listKeys(ctx context.Context, in *PageIn) (*keyList, error) {
	s, err := a.snapshot()
	if err != nil {
		return nil, err
	}
	page, next, err := pageOf(s.Keys, func(k *router.Key) string { return sortTime(k.CreatedAt) + k.ID }, *in)
	if err != nil {
		return nil, err
	}
	out := &keyList{}
	out.Body.Items, out.Body.NextCursor = []keyView{}, next
	for i := range page {
		out.Body.Items = append(out.Body.Items, viewKey(&page[i]))
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

var (
	tagName    = regexp.MustCompile(`^[a-z0-9][a-z0-9_.-]{0,62}$`)
	tenantForm = regexp.MustCompile(`^[A-Za-z0-9_.-]{0,64}$`)
	scopes     = []string{"override", "identity"}
)

// check tells the first fault of a key's body.
func (b *keyBody) check(now time.Time) error {
	bad := func(code, member, message string) error {
		return field(http.StatusUnprocessableEntity, code, "body."+member, message)
	}
	switch {
	case strings.TrimSpace(b.Name) == "" || utf8.RuneCountInString(b.Name) > 100 || !printable(b.Name, ""):
		return bad("invalid_name", "name", "must have 1 to 100 printable characters")
	case !tenantForm.MatchString(b.Tenant):
		return bad("invalid_tenant", "tenant", "has up to 64 of A-Z a-z 0-9 _ . -")
	case len(b.User) > 512 || !printable(b.User, ""):
		return bad("invalid_user", "user", "has up to 512 bytes without control characters")
	case len(b.Models) > 100:
		return bad("too_many", "models", "has more than 100 names; leave it out to allow all")
	case len(b.Tags) > 50:
		return bad("too_many", "tags", "has more than 50 members")
	case b.ExpiresAt != nil && !b.ExpiresAt.After(now):
		return bad("expired", "expires_at", "lies in the past; choose a later time or leave it out")
	case b.ExpiresAt != nil && b.ExpiresAt.Year() > 9000:
		return bad("invalid_expiry", "expires_at", "lies too far ahead; leave it out for a key that never expires")
	}
	for _, s := range b.Scopes {
		if !slices.Contains(scopes, s) {
			return bad("invalid_scope", "scopes", "takes "+strings.Join(scopes, ", "))
		}
	}
	for name, v := range b.Tags {
		if !tagName.MatchString(name) || len(v) > 200 || !printable(v, "") {
			return bad("invalid_tag", "tags", "names have 1 to 63 of a-z 0-9 _ . -, values up to 200 printable bytes")
		}
	}
	return nil
}

func (a *API) createKey(ctx context.Context, in *WriteIn) (*createdKey, error) {
	b, err := bodyOf[keyBody](ctx, false)
	if err != nil {
		return nil, err
	}
	if err := b.check(time.Now()); err != nil {
		return nil, err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return nil, err
	}
	secret, prefix, hash := newSecret()
	slices.Sort(b.Scopes)
	k := router.Key{ID: id.String(), Hash: hash, Name: b.Name, Tenant: b.Tenant, Tags: b.Tags, Models: b.Models, Scopes: slices.Compact(b.Scopes),
		User: b.User, Prefix: prefix, CreatedAt: time.Now().UTC().Truncate(time.Microsecond)}
	if b.ExpiresAt != nil {
		k.ExpiresAt = b.ExpiresAt.UTC().Truncate(time.Microsecond)
	}
	_, w, err := a.commit(ctx, change{action: "key.create", object: "key/" + k.ID, reason: b.Reason, in: *in,
		mutate: func(s *router.Snapshot, rev int64, now time.Time) error {
			if len(s.Keys) >= maxKeys {
				return newProblem(http.StatusConflict, "too_many_keys", "There are 100,000 keys, which is the most; ask for several tenants' users to share keys.")
			}
			for i, m := range b.Models {
				if s.Document.Model(m) == nil {
					return field(http.StatusUnprocessableEntity, "unknown_model", "body.models["+itoa(int64(i))+"]", strconv.Quote(clip(m, 128))+" is not a model of this gateway")
				}
			}
			s.Keys = append(s.Keys, k)
			return nil
		}})
	if err != nil {
		return nil, err
	}
	out := &createdKey{CacheControl: "no-store"}
	out.Body.Key, out.Body.Write = viewKey(&k), w
	if !in.DryRun {
		out.Body.Secret = secret
	}
	return out, nil
}

func findKey(s *router.Snapshot, id string) *router.Key {
	i := slices.IndexFunc(s.Keys, func(k router.Key) bool { return k.ID == id })
	if i < 0 {
		return nil
	}
	return &s.Keys[i]
}

// revokeKey takes no If-Match: revoking is the safe direction, and final.
func (a *API) revokeKey(ctx context.Context, in *revokeKey) (*keyOut, error) {
	body, err := bodyOf[reasonBody](ctx, true)
	if err != nil {
		return nil, err
	}
	s, w, err := a.commit(ctx, change{action: "key.revoke", object: "key/" + in.ID, reason: body.Reason, in: in.WriteIn,
		mutate: func(s *router.Snapshot, rev int64, now time.Time) error {
			k := findKey(s, in.ID)
			if k == nil {
				return missingObject("key", in.ID)
			}
			if k.RevokedAt.IsZero() {
				k.RevokedAt = now.Truncate(time.Microsecond)
			}
			return nil
		}})
	if err != nil {
		return nil, err
	}
	k := findKey(s, in.ID)
	if k == nil {
		return nil, missingObject("key", in.ID)
	}
	out := &keyOut{}
	out.Body.Key, out.Body.Write = viewKey(k), w
	return out, nil
}
