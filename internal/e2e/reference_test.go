package e2e

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"sluice/metrics"
)

// The tables of the documents that repeat what the code says lie between
// <!-- NAME --> and <!-- /NAME -->. They are compared with the code, and with
// UPDATE_DOCS=1 written anew.
func section(t *testing.T, file, name, want string) {
	t.Helper()
	data, err := os.ReadFile(file)
	must(t, err)
	begin, end := "<!-- "+name+" -->\n", "<!-- /"+name+" -->"
	head, rest, ok := strings.Cut(string(data), begin)
	have, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no section %s", file, name)
	}
	if have == want {
		return
	}
	if os.Getenv("UPDATE_DOCS") == "" {
		t.Errorf("%s: the table %s is stale: run UPDATE_DOCS=1 go test -run TestReference ./internal/e2e\n got %s\nwant %s", file, name, have, want)
		return
	}
	must(t, os.WriteFile(file, []byte(head+begin+want+end+tail), 0o644))
}

// TestReferenceOfSettings holds the table of settings to the JSON Schema.
func TestReferenceOfSettings(t *testing.T) {
	type schema struct {
		Description string            `json:"description"`
		Default     json.RawMessage   `json:"default"`
		Examples    []string          `json:"examples"`
		Properties  map[string]schema `json:"properties"`
	}
	var s schema
	must(t, json.Unmarshal(output(t, "config", "schema"), &s))
	var shown []struct {
		Path string `json:"path"`
	}
	cmd := output(t, "config", "show", "--sources", "-o", "json")
	must(t, json.Unmarshal(cmd, &shown))
	if len(shown) < 15 {
		t.Fatalf("only %d settings", len(shown))
	}
	var b strings.Builder
	b.WriteString("\n| setting | default | variable | what it does |\n| --- | --- | --- | --- |\n")
	for _, v := range shown {
		at := s
		for part := range strings.SplitSeq(v.Path, ".") {
			at = at.Properties[part]
		}
		if at.Description == "" {
			t.Errorf("%s has no description", v.Path)
		}
		def := strings.Trim(string(at.Default), `"`)
		if def != "" {
			def = "`" + def + "`"
		}
		what := at.Description
		if len(at.Examples) > 0 {
			what += " One of `" + strings.Join(at.Examples, "`, `") + "`."
		}
		fmt.Fprintf(&b, "| `%s` | %s | `SLUICE_%s` | %s |\n", v.Path, def, strings.ToUpper(strings.ReplaceAll(v.Path, ".", "_")), what)
	}
	b.WriteString("\n")
	section(t, "../../docs/platform-engineer.md", "settings", b.String())
}

func output(t *testing.T, args ...string) []byte {
	t.Helper()
	d := newDesk(t)
	cmd := d.command(t.Context(), "sluice "+strings.Join(args, " "))
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("sluice %v: %v", args, err)
	}
	return out
}

// spy is a Registerer that remembers what it is given.
type spy struct {
	prometheus.Registerer
	collectors []prometheus.Collector
}

func (s *spy) Register(c prometheus.Collector) error {
	s.collectors = append(s.collectors, c)
	return s.Registerer.Register(c)
}

func (s *spy) MustRegister(cs ...prometheus.Collector) {
	s.collectors = append(s.collectors, cs...)
	s.Registerer.MustRegister(cs...)
}

var descForm = regexp.MustCompile(`^Desc\{fqName: "([^"]+)", help: "((?:[^"\\]|\\.)*)", .*variableLabels: \{([^}]*)\}`)

// TestReferenceOfMetrics holds the table of metrics to what is registered.
func TestReferenceOfMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	s := &spy{Registerer: reg}
	r := metrics.New(metrics.Options{Registerer: s})
	r.Record(metrics.Event{Time: time.Now(), API: "chat_completions", Model: "m", Outcome: "success", Status: 200, Stream: true, TTFT: time.Second,
		Duration: 2 * time.Second, Overhead: time.Millisecond, FinishReason: "stop",
		Attempts: []metrics.Attempt{{Upstream: "u", Outcome: "success", Status: 200, Duration: time.Second, Input: 1, Output: 9, HasUsage: true, Priced: true}}})
	kinds := map[string]string{}
	families, err := reg.Gather()
	must(t, err)
	for _, f := range families {
		kinds[f.GetName()] = map[dto.MetricType]string{dto.MetricType_COUNTER: "counter", dto.MetricType_HISTOGRAM: "histogram", dto.MetricType_GAUGE: "gauge"}[f.GetType()]
	}
	var rows []string
	for _, c := range s.collectors {
		ch := make(chan *prometheus.Desc, 1000)
		c.Describe(ch)
		close(ch)
		for d := range ch {
			m := descForm.FindStringSubmatch(d.String())
			if m == nil {
				t.Fatalf("cannot read %s", d)
			}
			kind := kinds[m[1]]
			switch {
			case kind != "":
			case strings.HasSuffix(m[1], "_total"):
				kind = "counter"
			default:
				kind = "gauge"
			}
			labels := "–"
			if m[3] != "" {
				labels = "`" + strings.ReplaceAll(m[3], ",", "` `") + "`"
			}
			rows = append(rows, fmt.Sprintf("| `%s` | %s | %s | %s |\n", m[1], kind, labels, m[2]))
		}
	}
	slices.Sort(rows)
	if len(rows) < 35 {
		t.Fatalf("only %d metrics", len(rows))
	}
	section(t, "../../docs/metrics.md", "metrics", "\n| name | kind | labels | what it is |\n| --- | --- | --- | --- |\n"+strings.Join(slices.Compact(rows), "")+"\n")
}

var operation = regexp.MustCompile("(?m)^#{3,4} `(GET|POST|PUT|PATCH|DELETE) (/[^`]*)`")

// TestReferenceOfAdminAPI holds the headings of docs/api.md to the OpenAPI document.
func TestReferenceOfAdminAPI(t *testing.T) {
	d := newDesk(t)
	d.start(t, "sluice serve --config examples/sluice.yaml")
	out, err := d.command(t.Context(), "curl -s http://"+d.admin+"/admin/v1/openapi.json").Output()
	must(t, err)
	var doc struct {
		Paths map[string]map[string]json.RawMessage `json:"paths"`
	}
	must(t, json.Unmarshal(out, &doc))
	have := map[string]bool{}
	for path, methods := range doc.Paths {
		for m := range methods {
			have[strings.ToUpper(m)+" "+path] = true
		}
	}
	if len(have) < 30 {
		t.Fatalf("only %d operations", len(have))
	}
	data, err := os.ReadFile("../../docs/api.md")
	must(t, err)
	said := map[string]bool{}
	for _, m := range operation.FindAllStringSubmatch(string(data), -1) {
		said[m[1]+" "+m[2]] = true
	}
	for op := range have {
		if !said[op] {
			t.Errorf("docs/api.md has no heading for %s", op)
		}
	}
	for op := range said {
		if !have[op] {
			t.Errorf("docs/api.md has %s, which the API does not", op)
		}
	}
}

var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// TestReferencesResolve follows the links between the repository's files.
func TestReferencesResolve(t *testing.T) {
	files := documents(t)
	more, err := filepath.Glob("../../docs/adr/*.md")
	must(t, err)
	for _, file := range append(files, append(more, "../../CHANGELOG.md")...) {
		data, err := os.ReadFile(file)
		must(t, err)
		for _, m := range link.FindAllStringSubmatch(string(data), -1) {
			u, err := url.Parse(m[1])
			if err != nil || u.Scheme != "" || u.Path == "" {
				continue
			}
			if target := filepath.Join(filepath.Dir(file), u.Path); !exists(target) {
				t.Errorf("%s: there is no %s", file, m[1])
			}
		}
	}
}
