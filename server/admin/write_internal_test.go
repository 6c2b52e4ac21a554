package admin

import (
	"testing"
	"time"

	"sluice/internal/store"
	"sluice/router"
)

func TestOnlyAdminsAimCredentials(t *testing.T) {
	t.Parallel()
	up := func(name, credential string, endpoints ...string) router.Upstream {
		return router.Upstream{Name: name, Credential: credential, Endpoints: endpoints}
	}
	tests := []struct {
		name          string
		before, after []router.Upstream
		editor        bool // an editor may
	}{
		{"no credential", []router.Upstream{up("a", "", "x")}, []router.Upstream{up("a", "", "y")}, true},
		{"other members", []router.Upstream{up("a", "c", "x")}, []router.Upstream{{Name: "a", Credential: "c", Endpoints: []string{"x"}, Usage: "exact"}}, true},
		{"credential dropped", []router.Upstream{up("a", "c", "x")}, []router.Upstream{up("a", "", "y")}, true},
		{"deleted", []router.Upstream{up("a", "c", "x")}, nil, true},
		{"endpoints changed", []router.Upstream{up("a", "c", "x")}, []router.Upstream{up("a", "c", "y")}, false},
		{"endpoint added", []router.Upstream{up("a", "c", "x")}, []router.Upstream{up("a", "c", "x", "y")}, false},
		{"credential added", []router.Upstream{up("a", "", "x")}, []router.Upstream{up("a", "c", "x")}, false},
		{"another credential", []router.Upstream{up("a", "c", "x")}, []router.Upstream{up("a", "d", "x")}, false},
		{"created", nil, []router.Upstream{up("a", "c", "x")}, false},
	}
	for _, tt := range tests {
		before, after := &router.Document{Upstreams: tt.before}, &router.Document{Upstreams: tt.after}
		if err := mayAim(actor{Role: "editor"}, before, after); (err == nil) != tt.editor {
			t.Errorf("%s: an editor gets %v", tt.name, err)
		}
		if err := mayAim(actor{Role: roleAdmin}, before, after); err != nil {
			t.Errorf("%s: an admin gets %v", tt.name, err)
		}
	}
}

func TestIdempotencyStatesAreTheStores(t *testing.T) {
	t.Parallel()
	if idempotencyRunning != store.IdempotencyRunning || idempotencyMismatch != store.IdempotencyMismatch || idempotencyDone != store.IdempotencyDone {
		t.Error("the states of the store have other names")
	}
}

func TestLocate(t *testing.T) {
	t.Parallel()
	for pointer, want := range map[string]string{
		"": "body", "/weights": "body.weights", "/weights/canary": "body.weights.canary", "/variants/1/weight": "body.variants[1].weight",
		"/models/0": "body.models[0]", "/experiments/2/variants/0/upstream": "document.experiments[2].variants[0].upstream", "/params/a~1b~0c": "body.params.a/b~c",
	} {
		if got := locate(pointer); got != want {
			t.Errorf("%q: %q, want %q", pointer, got, want)
		}
	}
}

func TestMoment(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for s, want := range map[string]time.Time{"": now.Add(-time.Hour), "0s": now, "90m": now.Add(-90 * time.Minute), "2026-01-01T00:00:00Z": time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)} {
		if got, err := moment("since", s, now, time.Hour); err != nil || !got.Equal(want) {
			t.Errorf("%q: %v %v, want %v", s, got, err, want)
		}
	}
	for _, s := range []string{"-1s", "1", "2026-01-01", "9999-01-01T00:00:00Z", "999999999h", "NaN"} {
		if got, err := moment("since", s, now, time.Hour); err == nil {
			t.Errorf("%q is taken as %v", s, got)
		}
	}
}

func FuzzCheckJSON(f *testing.F) {
	for _, s := range []string{`{"a": [1, {"b": 2, "b": 3}]}`, `[[[]]]`, `{"a": 1, "a": 2}`, `{}`, `null`, "{\"\\u0061\": 1, \"a\": 2}", `{"a": "a", "b": ["a", "a"]}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if p := checkJSON(data); p != nil && (p.Code == "" || p.Detail == "" || p.Status < 400) {
			t.Errorf("an empty problem for %q", data)
		}
	})
}

func TestCheckJSONTakesRepeatsThatAreNone(t *testing.T) {
	t.Parallel()
	for _, s := range []string{`{"a": "a", "b": {"a": 1}, "c": [{"a": 1}, {"a": 1}, "a", "a"]}`, `[]`, `"a"`, `{"a": {"a": {"a": null}}, "b": true}`} {
		if p := checkJSON([]byte(s)); p != nil {
			t.Errorf("%s: %s", s, p.Detail)
		}
	}
}
