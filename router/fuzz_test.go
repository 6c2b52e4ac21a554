package router_test

import (
	"testing"

	"sluice/router"
)

// Whatever bytes come in: no panic, and what is accepted compiles, routes and
// survives its own JSON.
func FuzzDocument(f *testing.F) {
	f.Add([]byte(base))
	f.Add([]byte(`{}`))
	f.Add([]byte(`{"experiments":[{"variants":[{"weight":-1}],"slice":[9,1],"allocation":{"runs":[[0,0,0,0,0]]}}]}`))
	f.Add([]byte(`{"models":[{"name":"*","aliases":["*","**",""],"default":{}}],"upstreams":[{"name":"","endpoints":["dns:","http://[::1"]}]}`))
	f.Add([]byte(with(f, `"baseline": "control"`, `"baseline": "control", "metrics": {"a": null}, "guardrails": [null], "ramp": 1`)))
	f.Add([]byte(with(f, `"seed": "seed-1"`, `"seed": "Z", "hash": "growthbook1", "generation": 3, "stickiness": "user"`)))
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := router.ParseDocument(data)
		if err != nil {
			_ = err.Error()
			return
		}
		_ = router.Validate(d, router.ValidateOptions{}).Error()
		_ = router.Diff(nil, d)
		if router.Normalize(d, nil, 1, t0, nil) != nil || len(router.Validate(d, router.ValidateOptions{})) > 0 {
			return
		}
		again, err := router.ParseDocument([]byte(asJSON(t, d)))
		if err != nil || asJSON(t, again) != asJSON(t, d) {
			t.Fatalf("a valid document does not survive its own JSON: %v", err)
		}
		table, err := router.Compile(&router.Snapshot{Document: *d}, ups(d), router.CompileOptions{})
		if err != nil {
			t.Fatalf("a valid document does not compile: %v", err)
		}
		for _, m := range d.Models {
			p := route(t, table, query(m.Name, "u1", "x-sluice-variant", "canary", "cookie", "a=b"))
			if p.Variant == nil || p.Variant.Target.Upstream == nil {
				t.Fatalf("%q goes nowhere", m.Name)
			}
		}
	})
}

// A patch is hostile input too; what it is refused for changes nothing.
func FuzzPatchExperiment(f *testing.F) {
	f.Add([]byte(`{"slice":null,"variants":[{"name":"control","weight":10000,"upstream":"v1"}]}`))
	f.Add([]byte(`{"unit":{"from":{"a":1}},"targeting":[{"attr":"","op":"percent","values":["1"]}]}`))
	f.Add([]byte(`{"ramp":{"steps":{"a":{"b":null}}},"state":{}}`))
	f.Fuzz(func(t *testing.T, patch []byte) {
		d := doc(t)
		must(t, router.Rollback(d, 2, t0, "chat-v2"))
		before := asJSON(t, d)
		if err := router.PatchExperiment(d, 3, t0, "chat-v2", patch); err != nil {
			if asJSON(t, d) != before {
				t.Fatalf("a refused patch (%v) changed the document", err)
			}
			return
		}
		if ps := router.Validate(d, router.ValidateOptions{}); len(ps) > 0 {
			t.Fatalf("an accepted patch left problems: %v", ps)
		}
		compile(t, d)
	})
}
