package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"
	"github.com/danielgtaylor/huma/v2/yaml"
	"github.com/go-chi/chi/v5"

	"sluice/router"
)

// mergePatch is the media type of a PATCH; application/json will do too.
const mergePatch = "application/merge-patch+json"

// newAPI makes huma without what it would add by itself: a $schema member that
// quotes the Host header, pages with foreign scripts, documents built lazily
// without a lock.
func (a *API) newAPI(r chi.Router) huma.API {
	adoptProblems()
	cfg := huma.DefaultConfig("Sluice admin API", "1")
	cfg.CreateHooks = nil
	cfg.Transformers = nil
	cfg.DocsPath, cfg.OpenAPIPath, cfg.SchemasPath = "", "", ""
	cfg.RejectUnknownQueryParameters = true // ?dryrun=true must not write
	cfg.Info.Description = "Experiments, upstreams, models, keys and what they come to. " +
		"Writes take If-Match with the ETag that was read, ?dry_run=true and ?wait=applied; POSTs take Idempotency-Key. Errors are RFC 9457 problems with a stable code."
	cfg.Servers = []*huma.Server{{URL: strings.TrimRight(a.cfg.BasePath, "/") + "/admin/v1"}}
	cfg.Components.SecuritySchemes = map[string]*huma.SecurityScheme{"bearer": {Type: "http", Scheme: "bearer", Description: "admin.token; not asked for on loopback without one"}}
	cfg.Security = []map[string][]string{{"bearer": {}}}
	api := humachi.New(r, cfg)
	schemas := api.OpenAPI().Components.Schemas
	schemas.RegisterTypeAlias(reflect.TypeFor[router.Duration](), reflect.TypeFor[string]())
	schemas.RegisterTypeAlias(reflect.TypeFor[time.Duration](), reflect.TypeFor[string]())
	return api
}

// matchOptional marks operations that need no If-Match: those in the safe direction, and
// those that may be repeated without harm.
const matchOptional = "match_optional"

// register adds an operation. Its input takes the body, if any, by bodyOf.
func register[I, O any](a *API, api huma.API, op huma.Operation, h func(context.Context, *I) (*O, error)) {
	op.Errors = append(op.Errors, http.StatusUnauthorized, http.StatusForbidden, http.StatusUnprocessableEntity)
	if op.Method != http.MethodGet {
		op.Errors = append(op.Errors, http.StatusBadRequest, http.StatusServiceUnavailable)
	}
	if _, ok := reflect.TypeFor[I]().FieldByName("IfMatch"); ok {
		op.Errors = append(op.Errors, http.StatusPreconditionFailed)
		if op.Metadata[matchOptional] != true {
			op.Errors = append(op.Errors, http.StatusPreconditionRequired)
		}
	}
	slices.Sort(op.Errors)
	op.Errors = slices.Compact(op.Errors)
	huma.Register(api, op, func(ctx context.Context, in *I) (*O, error) {
		out, err := h(ctx, in)
		if err != nil {
			return nil, a.problemOf(ctx, err)
		}
		return out, nil
	})
}

// takes documents a body that bodyOf reads.
func takes[T any](api huma.API, op huma.Operation, optional bool) huma.Operation {
	t := reflect.TypeFor[T]()
	schema := api.OpenAPI().Components.Schemas.Schema(t, true, t.Name())
	op.RequestBody = &huma.RequestBody{Required: !optional, Content: map[string]*huma.MediaType{"application/json": {Schema: schema}}}
	if op.Method == http.MethodPatch {
		op.RequestBody.Content[mergePatch] = &huma.MediaType{Schema: schema}
	}
	op.Errors = append(op.Errors, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType)
	// bodyOf reads it from the context; huma must not read it again as a schema.
	op.SkipValidateBody = true
	return op
}

func operations(doc *huma.OpenAPI) (ops []*huma.Operation) {
	for _, item := range doc.Paths {
		for _, op := range []*huma.Operation{item.Get, item.Put, item.Post, item.Patch, item.Delete} {
			if op != nil {
				ops = append(ops, op)
			}
		}
	}
	return ops
}

// finish completes the document with what huma cannot know, and serves it.
func (a *API) finish(r chi.Router, api huma.API) error {
	doc := api.OpenAPI()
	ops := operations(doc)
	for _, op := range ops {
		for _, p := range op.Parameters {
			// Not so for huma, which would answer 422 instead of 428.
			p.Required = p.Required || p.In == "header" && p.Name == "If-Match" && op.Metadata[matchOptional] != true
		}
	}
	asJSON, err := json.Marshal(doc)
	if err != nil {
		return fmt.Errorf("admin: encode the OpenAPI document: %w", err)
	}
	// Most of the cost of a start, and hardly ever asked for.
	asYAML := sync.OnceValues(func() ([]byte, error) {
		var out bytes.Buffer
		err := yaml.Convert(&out, bytes.NewReader(asJSON))
		return out.Bytes(), err
	})
	for _, op := range ops {
		if op.RequestBody != nil {
			op.RequestBody.Required = false // huma's refusal says less than bodyOf's
		}
	}
	serve := func(kind string, content func() ([]byte, error)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			body, err := content()
			if err != nil {
				a.log.Error("the OpenAPI document cannot be encoded", "err", err)
				a.writeProblem(w, r, newProblem(http.StatusInternalServerError, "internal_error", internalDetail))
				return
			}
			w.Header().Set("Content-Type", kind)
			w.Header().Set("Content-Length", strconv.Itoa(len(body)))
			_, _ = w.Write(body)
		}
	}
	r.Get("/openapi.json", serve("application/openapi+json", func() ([]byte, error) { return asJSON, nil }))
	r.Get("/openapi.yaml", serve("application/openapi+yaml", asYAML))
	return nil
}
