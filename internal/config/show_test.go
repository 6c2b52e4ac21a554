package config_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/config"
)

func TestExampleHoldsTheDefaults(t *testing.T) {
	t.Parallel()
	c, err := load(config.Example)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	plain, err := load("auth: { data: none }\n")
	if err != nil {
		t.Fatal(err)
	}
	strip := func(c *config.Config) map[string]string {
		m := map[string]string{}
		for _, v := range c.Values() {
			m[v.Path] = v.Value
		}
		return m
	}
	if diff := cmp.Diff(strip(plain), strip(c)); diff != "" {
		t.Errorf("the example differs from the defaults (-defaults +example)\n%s", diff)
	}
}

// TestShownSettingsLoadAgain holds show and Load together: what is printed is a
// file with the same meaning.
func TestShownSettingsLoadAgain(t *testing.T) {
	t.Parallel()
	c, err := load(strings.ReplaceAll(config.Example, "64MiB", "1000001"))
	if err != nil {
		t.Fatal(err)
	}
	shown, err := config.YAML(c)
	if err != nil {
		t.Fatal(err)
	}
	again, err := load(string(shown))
	if err != nil {
		t.Fatalf("%v in\n%s", err, shown)
	}
	twice, err := config.YAML(again)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(shown), string(twice)); diff != "" {
		t.Errorf("(-first +second)\n%s", diff)
	}
}

func TestSchema(t *testing.T) {
	t.Parallel()
	var schema map[string]any
	if err := json.Unmarshal(config.Schema(), &schema); err != nil {
		t.Fatal(err)
	}
	at := func(path ...string) map[string]any {
		m := schema
		for _, p := range path {
			next, ok := m[p].(map[string]any)
			if !ok {
				t.Fatalf("%v has no %q", path, p)
			}
			m = next
		}
		return m
	}
	if got := at("properties", "server", "properties", "max_body")["default"]; got != "64MiB" {
		t.Errorf("default of server.max_body: %v", got)
	}
	variant := at("properties", "resources", "properties", "experiments", "items", "properties", "variants", "items")
	if diff := cmp.Diff([]any{"name", "weight"}, variant["required"]); diff != "" {
		t.Errorf("required of a variant (-want +got)\n%s", diff)
	}
	if variant["additionalProperties"] != false {
		t.Error("a variant may have unknown members")
	}
	if p := at("properties", "resources", "properties", "upstreams", "items", "properties", "price", "properties", "input"); p["type"] != "string" {
		t.Errorf("a price is %v", p)
	}
}

func TestSuggest(t *testing.T) {
	t.Parallel()
	known := []string{"weight", "upstream", "model", "key", "ab"}
	for word, want := range map[string]string{
		"weigth": "weight", "wieght": "weight", "wght": "weight", "Weight": "weight", "upstraem": "upstream",
		"mode": "model", "ky": "key", "kez": "key", "zz": "", "xyz": "", "": "", "completely": "", strings.Repeat("w", 1000): "",
	} {
		if got := config.Suggest(word, known); got != want {
			t.Errorf("%.20q: got %q, want %q", word, got, want)
		}
	}
}

func TestYAMLKeepsOrderAndTypes(t *testing.T) {
	t.Parallel()
	got, err := config.YAML(json.RawMessage(`{"z":1,"a":["x",true,null,1.5,"8","true",""],"e":{},"l":[],"big":12345678901234567890}`))
	if err != nil {
		t.Fatal(err)
	}
	want := "z: 1\na:\n- x\n- true\n- null\n- 1.5\n- '8'\n- 'true'\n- ''\ne: {}\nl: []\nbig: 12345678901234567890\n"
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
