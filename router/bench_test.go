package router_test

import (
	"fmt"
	"testing"

	"sluice/router"
)

// BenchmarkRoute is the whole decision for one request: model, unit, targeting,
// override lookup, bucket. The Query is reused, as one request's is.
func BenchmarkRoute(b *testing.B) {
	rule := `"targeting": [{"attr": "model", "op": "in", "values": ["chat"]}, {"attr": "header:x-app", "op": "prefix", "values": ["ios"]}]`
	for _, bb := range []struct {
		name  string
		pairs []string
	}{
		{"canary", nil},
		{"ab", []string{`"kind": "canary"`, `"kind": "ab"`}},
		{"targeted", []string{`"baseline": "control"`, `"baseline": "control", ` + rule}},
	} {
		b.Run(bb.name, func(b *testing.B) {
			table := compile(b, doc(b, bb.pairs...))
			q := query("chat", "user-12345", "x-app", "ios-17")
			ctx, store := b.Context(), discard{}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := table.Route(ctx, q, store); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("no experiment", func(b *testing.B) {
		table, q, ctx := compile(b, doc(b)), query("plain", "user-12345"), b.Context()
		b.ReportAllocs()
		for b.Loop() {
			if _, err := table.Route(ctx, q, nil); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkRecheck(b *testing.B) {
	table := compile(b, doc(b))
	plan := route(b, table, query("chat", "user-1"))
	b.ReportAllocs()
	for b.Loop() {
		router.Recheck(table, &plan)
	}
}

// BenchmarkCompile is a large document: 200 upstreams, models and experiments.
func BenchmarkCompile(b *testing.B) {
	d := doc(b)
	for i := range 200 {
		m := fmt.Sprint("m", i)
		d.Models = append(d.Models, router.Model{Name: m, Default: router.Route{Upstream: "v1"}})
		e := d.Clone().Experiments[0]
		e.Key, e.Model = m, m
		d.Experiments = append(d.Experiments, e)
	}
	u := ups(d)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := router.Compile(&router.Snapshot{Document: *d}, u, router.CompileOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}
