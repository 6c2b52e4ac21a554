package router

import "sluice/upstream"

// Upstreams are the upstreams of the table in the document's order.
func (t *Table) Upstreams() []*upstream.Upstream {
	list := make([]*upstream.Upstream, 0, len(t.Snapshot.Document.Upstreams))
	for i := range t.Snapshot.Document.Upstreams {
		if u := t.upstreams[t.Snapshot.Document.Upstreams[i].Name]; u != nil {
			list = append(list, u)
		}
	}
	return list
}
