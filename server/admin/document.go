package admin

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"sluice/router"
)

type (
	documentOut struct {
		ETag string `header:"ETag"`
		Body router.Document
	}
	putDocument struct {
		MatchIn
		WriteIn
		ReasonIn
		Prune   bool `query:"prune" doc:"delete objects that the document does not name"`
		Runtime bool `query:"runtime" doc:"set states and kills too"`
		Force   bool `query:"force" doc:"restart a rolled-back generation; prune experiments that run"`
	}
	appliedOut struct {
		ETag string `header:"ETag"`
		Body struct {
			Revision int64 `json:"revision"`
			router.ApplyReport
			Write *written `json:"write,omitempty"`
		}
	}
)

func (a *API) registerDocument(api huma.API) {
	register(a, api, huma.Operation{OperationID: "get-document", Method: http.MethodGet, Path: "/document",
		Summary: "Read the whole domain document", Tags: []string{"document"}}, a.getDocument)
	put := huma.Operation{OperationID: "put-document", Method: http.MethodPut, Path: "/document",
		Summary: "Make the document equal to this one", Tags: []string{"document"}, Errors: []int{409}}
	register(a, api, takes[router.Document](api, put, false), a.putDocument)
}

func (a *API) getDocument(ctx context.Context, in *struct {
	IfNoneMatch string `header:"If-None-Match" doc:"an ETag that is there already"`
}) (*documentOut, error) {
	s, err := a.snapshot()
	if err != nil {
		return nil, err
	}
	if err := notModified(in.IfNoneMatch, s.Document.Revision); err != nil {
		return nil, err
	}
	return &documentOut{ETag: etag(s.Document.Revision), Body: s.Document}, nil
}

func (a *API) putDocument(ctx context.Context, in *putDocument) (*appliedOut, error) {
	next, err := bodyOf[router.Document](ctx, false)
	if err != nil {
		return nil, err
	}
	out := &appliedOut{}
	s, w, err := a.commit(ctx, change{action: "document.apply", object: "document", reason: in.Reason, in: in.WriteIn,
		mutate: func(s *router.Snapshot, rev int64, now time.Time) error {
			if err := precondition(in.IfMatch, false, s.Document.Revision); err != nil {
				return err
			}
			report, err := router.ReplaceDocument(&s.Document, rev, now, next, router.ApplyOptions{Prune: in.Prune, Runtime: in.Runtime, Force: in.Force})
			out.Body.ApplyReport = report
			return err
		}})
	if err != nil {
		return nil, err
	}
	w.Changes = nil // the report says it
	out.ETag, out.Body.Revision, out.Body.Write = w.tagOf(s.Document.Revision), s.Document.Revision, w
	return out, nil
}
