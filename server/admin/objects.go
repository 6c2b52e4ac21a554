package admin

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"sluice/router"
	"sluice/upstream"
)

// The two kinds of plain objects, upstreams and models, have the same five
// operations; name is a query parameter nowhere and a path segment everywhere.
type (
	nameIn struct {
		Name string `path:"name" maxLength:"128" doc:"the object's name"`
	}
	objectOut[T any] struct {
		ETag string `header:"ETag"`
		Body struct {
			Object T        `json:"object"`
			Write  *written `json:"write,omitempty"`
		}
	}
	objectList[T any] struct {
		Body struct {
			Items    []T   `json:"items"`
			Revision int64 `json:"revision"`
		}
	}
	createIn[T any] struct {
		writeIn
		Reason  string `query:"reason"`
		Body    T
		RawBody []byte
	}
	patchIn struct {
		nameIn
		matchIn
		writeIn
		Reason  string         `query:"reason"`
		Body    map[string]any `doc:"RFC 7396 merge patch"`
		RawBody []byte
	}
	deleteIn struct {
		nameIn
		matchIn
		writeIn
		Reason string `query:"reason"`
	}
)

// kind is how one kind of object is read and edited.
type kind[T any] struct {
	name, plural string
	list         func(d *router.Document) []T
	find         func(d *router.Document, name string) (obj T, revision int64, ok bool)
	parse        func([]byte) (*T, error)
	nameOf       func(*T) string
	create       func(*router.Document, int64, time.Time, T) error
	patch        func(*router.Document, int64, time.Time, string, []byte) error
	remove       func(*router.Document, int64, time.Time, string) error
}

func (a *API) registerObjects(api huma.API) {
	registerKind(a, api, kind[router.Upstream]{
		name: "upstream", plural: "upstreams",
		list: func(d *router.Document) []router.Upstream { return d.Upstreams },
		find: func(d *router.Document, n string) (router.Upstream, int64, bool) {
			if u := d.Upstream(n); u != nil {
				return *u, u.UpdatedRevision, true
			}
			return router.Upstream{}, 0, false
		},
		parse: router.ParseUpstream, nameOf: func(u *router.Upstream) string { return u.Name },
		create: router.CreateUpstream, patch: router.PatchUpstream, remove: router.DeleteUpstream,
	})
	registerKind(a, api, kind[router.Model]{
		name: "model", plural: "models",
		list: func(d *router.Document) []router.Model { return d.Models },
		find: func(d *router.Document, n string) (router.Model, int64, bool) {
			if m := d.Model(n); m != nil {
				return *m, m.UpdatedRevision, true
			}
			return router.Model{}, 0, false
		},
		parse: router.ParseModel, nameOf: func(m *router.Model) string { return m.Name },
		create: router.CreateModel, patch: router.PatchModel, remove: router.DeleteModel,
	})
	huma.Register(api, huma.Operation{OperationID: "upstream-status", Method: http.MethodGet, Path: "/upstreams/{name}/status",
		Summary: "The endpoints as this replica sees them", Tags: []string{"upstreams"}, Errors: []int{404}}, a.upstreamStatus)
}

func registerKind[T any](a *API, api huma.API, k kind[T]) {
	op := func(verb, method, path string, errs ...int) huma.Operation {
		return huma.Operation{OperationID: verb + "-" + k.name, Method: method, Path: path, Summary: verb + " " + k.name, Tags: []string{k.plural}, Errors: errs}
	}
	item := "/" + k.plural + "/{name}"
	show := func(d *router.Document, name string, w *written) (*objectOut[T], error) {
		obj, rev, ok := k.find(d, name)
		if !ok {
			return nil, missingObject(k.name, name)
		}
		out := &objectOut[T]{ETag: etag(rev)}
		out.Body.Object, out.Body.Write = obj, w
		return out, nil
	}
	guard := func(name, match string, f func(*router.Snapshot, int64, time.Time) error) func(*router.Snapshot, int64, time.Time) error {
		return func(s *router.Snapshot, rev int64, now time.Time) error {
			_, cur, ok := k.find(&s.Document, name)
			if !ok {
				return missingObject(k.name, name)
			}
			if err := precondition(match, false, cur); err != nil {
				return err
			}
			return f(s, rev, now)
		}
	}
	huma.Register(api, op("list", http.MethodGet, "/"+k.plural), func(ctx context.Context, _ *struct{}) (*objectList[T], error) {
		s, err := a.snapshot()
		if err != nil {
			return nil, err
		}
		out := &objectList[T]{}
		out.Body.Items, out.Body.Revision = append([]T{}, k.list(&s.Document)...), s.Document.Revision
		return out, nil
	})
	huma.Register(api, op("get", http.MethodGet, item, 404), func(ctx context.Context, in *nameIn) (*objectOut[T], error) {
		s, err := a.snapshot()
		if err != nil {
			return nil, err
		}
		out, err := show(&s.Document, in.Name, nil)
		return out, a.problemOf(ctx, err)
	})
	create := op("create", http.MethodPost, "/"+k.plural, 409, 422, 503)
	create.DefaultStatus, create.SkipValidateBody = http.StatusCreated, true
	huma.Register(api, create, func(ctx context.Context, in *createIn[T]) (*objectOut[T], error) {
		obj, err := k.parse(in.RawBody)
		if err != nil {
			return nil, a.problemOf(ctx, err)
		}
		name := k.nameOf(obj)
		s, w, err := a.commit(ctx, change{action: k.name + ".create", object: k.name + "/" + name, reason: in.Reason, in: in.writeIn,
			mutate: func(s *router.Snapshot, rev int64, now time.Time) error {
				return k.create(&s.Document, rev, now, *obj)
			}})
		if err != nil {
			return nil, a.problemOf(ctx, err)
		}
		out, err := show(&s.Document, name, &w)
		return out, a.problemOf(ctx, err)
	})
	patch := op("patch", http.MethodPatch, item, 404, 409, 412, 422, 428, 503)
	patch.SkipValidateBody = true
	huma.Register(api, patch, func(ctx context.Context, in *patchIn) (*objectOut[T], error) {
		s, w, err := a.commit(ctx, change{action: k.name + ".patch", object: k.name + "/" + in.Name, reason: in.Reason, in: in.writeIn,
			mutate: guard(in.Name, in.IfMatch, func(s *router.Snapshot, rev int64, now time.Time) error {
				return k.patch(&s.Document, rev, now, in.Name, in.RawBody)
			})})
		if err != nil {
			return nil, a.problemOf(ctx, err)
		}
		out, err := show(&s.Document, in.Name, &w)
		return out, a.problemOf(ctx, err)
	})
	huma.Register(api, op("delete", http.MethodDelete, item, 404, 409, 412, 428, 503), func(ctx context.Context, in *deleteIn) (*writtenOut, error) {
		_, w, err := a.commit(ctx, change{action: k.name + ".delete", object: k.name + "/" + in.Name, reason: in.Reason, in: in.writeIn,
			mutate: guard(in.Name, in.IfMatch, func(s *router.Snapshot, rev int64, now time.Time) error {
				return k.remove(&s.Document, rev, now, in.Name)
			})})
		if err != nil {
			return nil, a.problemOf(ctx, err)
		}
		return &writtenOut{Body: w}, nil
	})
}

func (a *API) upstreamStatus(ctx context.Context, in *nameIn) (*struct {
	Body struct {
		Name      string                    `json:"name"`
		Endpoints []upstream.EndpointStatus `json:"endpoints"`
	}
}, error) {
	out := &struct {
		Body struct {
			Name      string                    `json:"name"`
			Endpoints []upstream.EndpointStatus `json:"endpoints"`
		}
	}{}
	if t := a.cfg.Live.Load(); t != nil {
		for _, u := range t.Upstreams() {
			if u.Name() == in.Name {
				out.Body.Name, out.Body.Endpoints = in.Name, u.Status()
				return out, nil
			}
		}
	}
	return nil, a.problemOf(ctx, missingObject("upstream", in.Name))
}
