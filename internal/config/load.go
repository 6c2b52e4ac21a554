package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"sluice/router"
)

// Sources is where the settings come from.
type Sources struct {
	// Path is the YAML file, "" for none.
	Path string
	// Data, when not nil, is the content to use instead of reading Path, which
	// then only names it in messages.
	Data []byte
	// Flags are the settings given on the command line, by path
	// ("server.listen"), as text; lists are separated by commas.
	Flags map[string]string
	// FlagNames gives the flag's own name for messages ("--listen"); optional.
	FlagNames map[string]string
	// Env is the environment in the form of os.Environ.
	Env []string
}

// Origin says where a value came from.
type Origin struct {
	Kind   string `json:"source"`           // flag | env | file | default
	Detail string `json:"detail,omitempty"` // "--listen", "SLUICE_SERVER_LISTEN", "sluice.yaml:2:11"
	pos    Pos
}

// Load reads the settings. The error is a Problems that lists every fault, not
// only the first; it says nothing yet about values that do not fit together,
// see Validate.
func Load(src Sources) (*Config, error) {
	c := Default()
	c.origins = map[string]Origin{}
	c.file = src.Path
	env := envMap(src.Env)
	c.getenv = func(name string) string { return env[name] }
	var problems Problems
	if src.Path != "" || src.Data != nil {
		problems = c.loadFile(src, env)
	}
	problems = append(problems, c.loadText(src, env)...)
	if err := problems.orNil(); err != nil {
		return nil, err
	}
	c.warnEnv(env)
	return c, nil
}

func (c *Config) loadFile(src Sources, env map[string]string) Problems {
	data := src.Data
	if data == nil {
		var err error
		if data, err = ReadFile(src.Path); err != nil {
			return Problems{{Source: src.Path, Message: err.Error()}}
		}
	}
	root, problems := parse(data, src.Path)
	if len(problems) > 0 {
		return problems
	}
	if root.kind != mappingNode {
		return Problems{root.pos.problem("", "want a mapping with server, admin, storage, …; `sluice config example` prints one")}
	}
	e := expander{env: env, dir: filepath.Dir(src.Path)}
	e.expand(root, "")
	d := decoder{origin: func(path string, n *node) {
		c.origins[path] = Origin{"file", fmt.Sprintf("%s:%d:%d", n.pos.Source, n.pos.Line, n.pos.Column), n.pos}
	}}
	d.structure(root, reflect.ValueOf(c).Elem(), "")
	c.resources = root.member("resources")
	if c.resources != nil && c.resources.kind == nullNode {
		c.resources = nil
	}
	problems = append(e.problems, d.problems...)
	slices.SortStableFunc(problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return problems
}

// loadText puts variables, then flags over what the file said.
func (c *Config) loadText(src Sources, env map[string]string) (problems Problems) {
	known := settings()
	set := func(s setting, text, source, kind string) {
		d := decoder{}
		n := &node{kind: scalarNode, tag: "!!str", text: text, interpolated: true, pos: Pos{Source: source}}
		// decode into a fresh value: a list replaces, it does not add
		v := reflect.New(s.field.Type).Elem()
		d.decode(n, v, s.path)
		d.enum(n, s.field, v, s.path)
		if problems = append(problems, d.problems...); len(d.problems) == 0 {
			reflect.ValueOf(c).Elem().FieldByIndex(s.index).Set(v)
			c.origins[s.path] = Origin{kind, source, n.pos}
		}
	}
	for _, s := range known {
		if text, ok := env[s.env]; ok && text != "" { // empty: not set, as in most tools
			set(s, text, s.env, "env")
		}
	}
	for _, path := range slices.Sorted(keysOf(src.Flags)) {
		i := slices.IndexFunc(known, func(s setting) bool { return s.path == path })
		name := cmp.Or(src.FlagNames[path], "--"+path)
		if i < 0 {
			problems = append(problems, Problem{Source: name, Path: path, Message: "there is no setting " + path})
			continue
		}
		set(known[i], src.Flags[path], name, "flag")
	}
	return problems
}

// warnEnv remarks on variables that look like a mistyped setting. Others are
// left alone: Kubernetes sets SLUICE_PORT and the like for a service.
func (c *Config) warnEnv(env map[string]string) {
	var names []string
	for _, s := range settings() {
		names = append(names, s.env)
	}
	names = append(names, otherEnv...)
	for _, name := range slices.Sorted(keysOf(env)) {
		if !strings.HasPrefix(name, "SLUICE_") || slices.Contains(names, name) {
			continue
		}
		if s := Suggest(name, names); s != "" {
			c.warnings = append(c.warnings, fmt.Sprintf("the variable %s is not used, did you mean %s?", name, s))
		}
	}
}

// otherEnv are variables of the command line that are not settings.
var otherEnv = []string{"SLUICE_CONFIG", "SLUICE_ADMIN_URL", "SLUICE_ADMIN_TOKEN", "SLUICE_ADMIN_TOKEN_FILE"}

// Origins says where every setting came from, by path.
func (c *Config) Origins() map[string]Origin {
	all := map[string]Origin{}
	for _, s := range settings() {
		if o, ok := c.origins[s.path]; ok {
			all[s.path] = o
		} else {
			all[s.path] = Origin{Kind: "default"}
		}
	}
	for path, o := range c.origins {
		if _, name, ok := strings.Cut(path, "secrets."); ok && !strings.Contains(name, ".") || path == "resources" {
			all[path] = o
		}
	}
	return all
}

// ReadFile reads a regular file of at most 4 MiB. The error is meant to follow
// the path: it does not repeat it.
func ReadFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, errors.New("there is no such file; `sluice config example` prints one to start from")
	case err != nil:
		return nil, fmt.Errorf("cannot be read: %w", unwrapPath(err))
	case info.IsDir():
		return nil, errors.New("is a directory, not a file")
	case !info.Mode().IsRegular():
		return nil, errors.New("is not a regular file")
	case info.Size() > maxFile:
		return nil, fmt.Errorf("the file has %d bytes, more than %d MiB; this is not a configuration file", info.Size(), maxFile>>20)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", unwrapPath(err))
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", unwrapPath(err))
	}
	return data, nil
}

// LoadDocument reads a domain document for `sluice apply`: either the
// `resources:` of a settings file (whose other sections are then not read) or
// a document of its own. Faults are Problems with places.
func LoadDocument(data []byte, source string) (*router.Document, error) {
	root, problems := parse(data, source)
	if err := problems.orNil(); err != nil {
		return nil, err
	}
	if root.kind != mappingNode {
		return nil, Problems{root.pos.problem("", "want a mapping with upstreams, models and experiments")}
	}
	path := ""
	if r := root.member("resources"); r != nil {
		root, path = r, "resources"
	}
	doc := &router.Document{}
	d := decoder{}
	d.decode(root, reflect.ValueOf(doc).Elem(), path)
	if err := d.problems.orNil(); err != nil {
		return nil, err
	}
	return doc, nil
}

// LoadExperiment reads one experiment for `sluice experiment create`. Faults
// are Problems with places.
func LoadExperiment(data []byte, source string) (*router.Experiment, error) {
	root, problems := parse(data, source)
	if err := problems.orNil(); err != nil {
		return nil, err
	}
	exp := &router.Experiment{}
	d := decoder{}
	d.decode(root, reflect.ValueOf(exp).Elem(), "")
	if err := d.problems.orNil(); err != nil {
		return nil, err
	}
	return exp, nil
}

func envMap(env []string) map[string]string {
	m := make(map[string]string, len(env))
	for _, kv := range env {
		if k, v, ok := strings.Cut(kv, "="); ok {
			m[k] = v
		}
	}
	return m
}

func unwrapPath(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

func keysOf[V any](m map[string]V) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// Check does for `sluice validate` what Load and Validate do, for a settings
// file or a document of its own (upstreams, models and experiments at the
// top). It connects to nothing. The error is Problems.
func Check(src Sources) (warnings []string, err error) {
	if src.Data == nil {
		if src.Data, err = ReadFile(src.Path); err != nil {
			return nil, Problems{{Source: src.Path, Message: err.Error()}}
		}
	}
	root, problems := parse(src.Data, src.Path)
	if len(problems) == 0 && isDocument(root) {
		doc, err := LoadDocument(src.Data, src.Path)
		if err != nil {
			return nil, err
		}
		for _, p := range router.Validate(doc, router.ValidateOptions{}) {
			pos, path := locate(root, Pos{Source: src.Path}, p.Path, "")
			problems = append(problems, pos.at(path, "%s", p.Message))
		}
		return nil, problems.orNil()
	}
	c, err := Load(src)
	if err != nil {
		return nil, err
	}
	return c.Warnings(), c.Validate()
}

// isDocument reports whether all keys are those of a document.
func isDocument(root *node) bool {
	fields := fieldsOf(reflect.TypeFor[router.Document]())
	for _, k := range root.keys {
		if _, ok := fields[k.text]; !ok {
			return false
		}
	}
	return len(root.keys) > 0
}
