package main

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// allowed is the statement of the layers in docs/ARCHITECTURE.md: what each
// package may import of this module. Change the code to fit it, not it to fit
// the code.
var allowed = map[string][]string{
	"experiment":           {},
	"experiment/stats":     {},
	"experiment/guardrail": {},
	"experiment/trial":     {"experiment/guardrail"},
	"experiment/ramp":      {"experiment/guardrail", "experiment/trial", "experiment/stats"},
	"upstream/wire":        {},
	"upstream/h1":          {},
	"upstream/admit":       {},
	"upstream/affinity":    {},
	"upstream/engine":      {},
	"upstream/guard":       {},
	"upstream":             {"upstream/wire", "upstream/h1", "upstream/admit", "upstream/affinity", "upstream/engine", "upstream/guard"},
	"metrics":              {},
	"metrics/dashboards":   {"metrics"},
	"migrations":           {},
	"web":                  {},
	"internal/fakellm":     {},
	"internal/testenv":     {},
	"router":               {"experiment", "experiment/guardrail", "experiment/ramp", "experiment/trial", "upstream", "upstream/wire", "metrics"},
	"internal/sticky":      {"experiment"},
	"internal/config":      {"router", "experiment/ramp"},
	"internal/webhook":     {"experiment/ramp"},
	"internal/preflight":   {"experiment", "experiment/ramp", "metrics", "router", "upstream", "upstream/wire"},
	"internal/readings":    {"experiment/guardrail", "router", "upstream"},
	"internal/store":       {"router", "metrics", "migrations", "experiment", "internal/sticky"},
	"internal/rollout":     {"router", "upstream", "metrics", "experiment", "experiment/guardrail", "experiment/trial", "experiment/ramp", "internal/sticky"},
	"internal/control":     {"router", "upstream", "experiment", "internal/sticky"},
	"internal/demo":        {"router", "internal/fakellm"},
	"server":               {"router", "experiment", "experiment/trial", "upstream", "upstream/wire", "metrics"},
	"server/admin":         {"router", "experiment", "experiment/guardrail", "experiment/ramp", "metrics", "upstream", "web"},
	"cmd/sluice": {"experiment", "experiment/ramp", "upstream", "upstream/wire", "metrics", "router", "internal/sticky", "internal/config",
		"internal/store", "internal/control", "internal/rollout", "internal/preflight", "internal/readings", "internal/webhook", "server", "server/admin", "web", "internal/demo", "migrations"},
	"deploy/upstreams": {"internal/fakellm"},
	"internal/e2e":     {}, // tests only
}

func TestLayers(t *testing.T) {
	seen := map[string]bool{}
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); path != root && (strings.HasPrefix(name, ".") || name == "node_modules" || name == "testdata") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, filepath.Dir(path))
		pkg := filepath.ToSlash(rel)
		list, ok := allowed[pkg]
		if !ok {
			if !seen[pkg] {
				t.Errorf("package %s is not in the table of layers", pkg)
			}
			seen[pkg] = true
			return nil
		}
		for _, im := range f.Imports {
			p, _ := strconv.Unquote(im.Path.Value)
			if own, ok := strings.CutPrefix(p, "sluice/"); ok && !slices.Contains(list, own) {
				t.Errorf("%s imports %s, which its layer does not allow", path, own)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
