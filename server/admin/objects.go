package admin

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"sluice/router"
)

// The two kinds of plain objects, upstreams and models, have the same five
// operations.
type (
	NameIn struct {
		Name string `path:"name" maxLength:"128" doc:"the object's name"`
	}
	getIn struct {
		NameIn
		IfNoneMatch string `header:"If-None-Match" doc:"an ETag that is there already"`
	}
	objectOut[T any] struct {
		ETag string `header:"ETag"`
		Body struct {
			Object T              `json:"object"`
			Status *upstreamState `json:"status,omitempty" doc:"of an upstream, as this replica sees it"`
			Write  *written       `json:"write,omitempty" doc:"of a change"`
		}
	}
	objectList[T any] struct {
		Body struct {
			Items      []T                      `json:"items"`
			Status     map[string]upstreamState `json:"status,omitempty" doc:"of upstreams by name, as this replica sees them"`
			NextCursor string                   `json:"next_cursor,omitempty"`
			Revision   int64                    `json:"revision" doc:"of the document"`
		}
	}
	createIn struct {
		WriteIn
		ReasonIn
	}
	changeIn struct {
		NameIn
		MatchIn
		WriteIn
		ReasonIn
	}
)

// kind is how one kind of object is read and edited.
type kind[T any] struct {
	name, plural, article string
	list                  func(d *router.Document) []T
	find                  func(d *router.Document, name string) (obj *T, revision int64)
	nameOf                func(*T) string
	create                func(*router.Document, int64, time.Time, T) error
	patch                 func(*router.Document, int64, time.Time, string, []byte) error
	remove                func(*router.Document, int64, time.Time, string) error
	states                func() map[string]upstreamState // nil: it has none
}

func (a *API) registerObjects(api huma.API) {
	registerKind(a, api, kind[router.Upstream]{
		name: "upstream", plural: "upstreams", article: "an",
		list: func(d *router.Document) []router.Upstream { return d.Upstreams },
		find: func(d *router.Document, n string) (*router.Upstream, int64) {
			if u := d.Upstream(n); u != nil {
				return u, u.UpdatedRevision
			}
			return nil, 0
		},
		nameOf: func(u *router.Upstream) string { return u.Name },
		create: router.CreateUpstream, patch: router.PatchUpstream, remove: router.DeleteUpstream,
		states: a.states,
	})
	registerKind(a, api, kind[router.Model]{
		name: "model", plural: "models", article: "a",
		list: func(d *router.Document) []router.Model { return d.Models },
		find: func(d *router.Document, n string) (*router.Model, int64) {
			if m := d.Model(n); m != nil {
				return m, m.UpdatedRevision
			}
			return nil, 0
		},
		nameOf: func(m *router.Model) string { return m.Name },
		create: router.CreateModel, patch: router.PatchModel, remove: router.DeleteModel,
	})
	a.registerUpstreams(api)
}

func registerKind[T any](a *API, api huma.API, k kind[T]) {
	item, collection := "/"+k.plural+"/{name}", "/"+k.plural
	op := func(id, method, path, summary string, errs ...int) huma.Operation {
		return huma.Operation{OperationID: id, Method: method, Path: path, Summary: summary, Tags: []string{k.plural}, Errors: errs}
	}
	register(a, api, op("list-"+k.plural, http.MethodGet, collection, "List "+k.plural+" by name"), func(ctx context.Context, in *PageIn) (*objectList[T], error) {
		s, err := a.snapshot()
		if err != nil {
			return nil, err
		}
		out := &objectList[T]{}
		out.Body.Revision = s.Document.Revision
		if k.states != nil {
			out.Body.Status = k.states()
		}
		out.Body.Items, out.Body.NextCursor, err = pageOf(k.list(&s.Document), k.nameOf, *in)
		return out, err
	})
	register(a, api, op("get-"+k.name, http.MethodGet, item, "Read one "+k.name, 404), func(ctx context.Context, in *getIn) (*objectOut[T], error) {
		s, err := a.snapshot()
		if err != nil {
			return nil, err
		}
		if _, rev := k.find(&s.Document, in.Name); rev > 0 {
			if err := notModified(in.IfNoneMatch, rev); err != nil {
				return nil, err
			}
		}
		out, err := k.show(&s.Document, in.Name, nil)
		if err == nil && k.states != nil {
			if st, ok := k.states()[in.Name]; ok {
				out.Body.Status = &st
			}
		}
		return out, err
	})
	create := op("create-"+k.name, http.MethodPost, collection, "Create "+k.article+" "+k.name, 409)
	create.DefaultStatus = http.StatusCreated
	register(a, api, takes[T](api, create, false), func(ctx context.Context, in *createIn) (*objectOut[T], error) { return k.doCreate(ctx, a, in) })
	patch := op("patch-"+k.name, http.MethodPatch, item, "Change members of "+k.article+" "+k.name, 404, 409)
	register(a, api, takes[T](api, patch, false), func(ctx context.Context, in *changeIn) (*objectOut[T], error) { return k.doPatch(ctx, a, in) })
	remove := op("delete-"+k.name, http.MethodDelete, item, "Delete "+k.article+" "+k.name+" that nothing refers to", 404, 409)
	register(a, api, remove, func(ctx context.Context, in *changeIn) (*writtenOut, error) {
		_, w, err := a.commit(ctx, change{action: k.name + ".delete", object: k.name + "/" + in.Name, reason: in.Reason, in: in.WriteIn,
			mutate: k.guard(in, func(s *router.Snapshot, rev int64, now time.Time) error {
				return k.remove(&s.Document, rev, now, in.Name)
			})})
		if err != nil {
			return nil, err
		}
		return &writtenOut{Body: *w}, nil
	})
}

func (k kind[T]) show(d *router.Document, name string, w *written) (*objectOut[T], error) {
	obj, rev := k.find(d, name)
	if obj == nil {
		return nil, missingObject(k.name, name)
	}
	out := &objectOut[T]{ETag: w.tagOf(rev)}
	out.Body.Object, out.Body.Write = *obj, w
	return out, nil
}

func (k kind[T]) guard(in *changeIn, f mutation) mutation {
	return func(s *router.Snapshot, rev int64, now time.Time) error {
		obj, cur := k.find(&s.Document, in.Name)
		if obj == nil {
			return missingObject(k.name, in.Name)
		}
		if err := precondition(in.IfMatch, false, cur); err != nil {
			return err
		}
		return f(s, rev, now)
	}
}

func (k kind[T]) doCreate(ctx context.Context, a *API, in *createIn) (*objectOut[T], error) {
	obj, err := bodyOf[T](ctx, false)
	if err != nil {
		return nil, err
	}
	name := k.nameOf(obj)
	s, w, err := a.commit(ctx, change{action: k.name + ".create", object: k.name + "/" + clip(name, 128), reason: in.Reason, in: in.WriteIn,
		mutate: func(s *router.Snapshot, rev int64, now time.Time) error { return k.create(&s.Document, rev, now, *obj) }})
	if err != nil {
		return nil, err
	}
	return k.show(&s.Document, name, w)
}

func (k kind[T]) doPatch(ctx context.Context, a *API, in *changeIn) (*objectOut[T], error) {
	patch, err := object(ctx, false)
	if err != nil {
		return nil, err
	}
	s, w, err := a.commit(ctx, change{action: k.name + ".patch", object: k.name + "/" + in.Name, reason: in.Reason, in: in.WriteIn,
		mutate: k.guard(in, func(s *router.Snapshot, rev int64, now time.Time) error {
			return k.patch(&s.Document, rev, now, in.Name, patch)
		})})
	if err != nil {
		return nil, err
	}
	return k.show(&s.Document, in.Name, w)
}
