package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

// This file is the only one that knows the YAML library.

const (
	maxFile  = 4 << 20 // bytes of a configuration file
	maxNodes = 200_000 // after aliases are expanded
	maxDepth = 64
)

type kind uint8

const (
	scalarNode kind = iota
	nullNode
	mappingNode
	listNode
)

// node is a YAML value with its place. Aliases and merge keys are expanded
// into copies, so that a node belongs to one path only.
type node struct {
	kind  kind
	tag   string // of a scalar: !!str !!int !!float !!bool !!timestamp
	text  string
	pos   Pos
	keys  []*node // of a mapping, beside items
	items []*node
	// interpolated: text came from outside the file, so its type is the reader's.
	interpolated bool
	// hidden: text may be a secret that was put where none belongs; never shown.
	hidden bool
}

// member returns the value of a mapping's key, nil without one.
func (n *node) member(key string) *node {
	for i, k := range n.keys {
		if k.text == key {
			return n.items[i]
		}
	}
	return nil
}

// parse reads exactly one YAML (or JSON) document.
func parse(data []byte, source string) (*node, Problems) {
	whole := Pos{Source: source}
	if len(data) > maxFile {
		return nil, Problems{whole.problem("", "the file has %d bytes, more than %d MiB; this is not a configuration file", len(data), maxFile>>20)}
	}
	if p, bad := notText(data, whole); bad {
		return nil, Problems{p}
	}
	loader, err := yaml.NewLoader(bytes.NewReader(data), yaml.WithUniqueKeys(false))
	if err != nil {
		return nil, Problems{whole.problem("", "%v", err)}
	}
	var doc, next yaml.Node
	if err := loader.Load(&doc); errors.Is(err, io.EOF) {
		return nil, Problems{whole.problem("", "the file is empty; `sluice config example` prints one to start from")}
	} else if err != nil {
		return nil, Problems{syntaxProblem(err, data, source)}
	}
	if err := loader.Load(&next); err == nil {
		return nil, Problems{Pos{source, next.Line, next.Column}.problem("", "a second document starts here; keep one document in the file")}
	} else if !errors.Is(err, io.EOF) {
		return nil, Problems{syntaxProblem(err, data, source)}
	}
	c := converter{source: source, active: map[*yaml.Node]bool{}}
	if len(doc.Content) == 0 {
		return nil, Problems{whole.problem("", "the file is empty; `sluice config example` prints one to start from")}
	}
	n := c.convert(doc.Content[0], 0)
	if len(c.problems) == 0 && n.kind == nullNode {
		return nil, Problems{whole.problem("", "the file is empty; `sluice config example` prints one to start from")}
	}
	return n, c.problems
}

func notText(data []byte, whole Pos) (Problem, bool) {
	if bytes.HasPrefix(data, []byte("\xff\xfe")) || bytes.HasPrefix(data, []byte("\xfe\xff")) {
		return whole.problem("", "the file is UTF-16; save it as UTF-8"), true
	}
	line := 1
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		switch {
		case r == 0:
			return whole.problem("", "byte 0x00 in line %d: this is a binary file, not YAML", line), true
		case r == utf8.RuneError && size == 1:
			return whole.problem("", "byte 0x%02x in line %d is not UTF-8; save the file as UTF-8", data[i], line), true
		case r == '\n':
			line++
		}
		i += size
	}
	return Problem{}, false
}

// syntaxProblem says where the library stopped, and what to do where the usual
// mistakes are recognised.
func syntaxProblem(err error, data []byte, source string) Problem {
	pos := Pos{Source: source}
	var le *yaml.LoadError
	if !errors.As(err, &le) {
		return pos.problem("", "not valid YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
	}
	pos.Line, pos.Column = le.Mark.Line, le.Mark.Column
	if pos.Line > 0 && pos.Column == 0 {
		pos.Column = 1
	}
	line := lineOf(data, le.Mark.Line)
	indent := line[:len(line)-len(strings.TrimLeft(line, " \t"))]
	switch {
	case strings.Contains(indent, "\t"):
		return pos.problem("", "a tab indents this line; YAML takes spaces only")
	case strings.Contains(line, "${") && strings.ContainsAny(line, "{["):
		return pos.problem("", "not valid YAML: %s; put quotes around ${…} inside { } or [ ]", le.Message)
	case le.ContextMsg != "" && le.ContextMark.Line > 0:
		return pos.problem("", "not valid YAML: %s %s that starts in line %d", le.Message, le.ContextMsg, le.ContextMark.Line)
	}
	return pos.problem("", "not valid YAML: %s", le.Message)
}

func lineOf(data []byte, line int) string {
	for ; line > 1; line-- {
		i := bytes.IndexByte(data, '\n')
		if i < 0 {
			return ""
		}
		data = data[i+1:]
	}
	if i := bytes.IndexByte(data, '\n'); i >= 0 {
		data = data[:i]
	}
	return string(data)
}

// converter expands the library's graph into a tree of bounded size.
type converter struct {
	source   string
	count    int
	full     bool
	active   map[*yaml.Node]bool // anchors being expanded, to find cycles
	problems Problems
}

func (c *converter) fail(y *yaml.Node, format string, args ...any) *node {
	pos := Pos{c.source, y.Line, y.Column}
	if len(c.problems) < maxProblems {
		c.problems = append(c.problems, pos.problem("", format, args...))
	}
	return &node{kind: nullNode, pos: pos}
}

func (c *converter) convert(y *yaml.Node, depth int) *node {
	pos := Pos{c.source, y.Line, y.Column}
	if c.count++; c.count > maxNodes {
		if c.full {
			return &node{kind: nullNode, pos: pos}
		}
		c.full = true
		return c.fail(y, "more than %d values after aliases are expanded; write them out or use fewer", maxNodes)
	}
	if depth > maxDepth {
		return c.fail(y, "nested more than %d levels deep", maxDepth)
	}
	switch y.Kind {
	case yaml.AliasNode:
		if y.Alias == nil || c.active[y.Alias] {
			return c.fail(y, "the alias *%s contains itself", y.Value)
		}
		c.active[y.Alias] = true
		defer delete(c.active, y.Alias)
		return c.convert(y.Alias, depth+1)
	case yaml.MappingNode:
		return c.mapping(y, depth)
	case yaml.SequenceNode:
		n := &node{kind: listNode, pos: pos}
		if y.Tag != "!!seq" {
			return c.fail(y, "the tag %s is not supported", y.Tag)
		}
		for _, item := range y.Content {
			n.items = append(n.items, c.convert(item, depth+1))
		}
		return n
	case yaml.ScalarNode:
		switch y.Tag {
		case "!!null":
			return &node{kind: nullNode, pos: pos}
		case "!!str", "!!int", "!!float", "!!bool", "!!timestamp":
			return &node{kind: scalarNode, tag: y.Tag, text: y.Value, pos: pos}
		case "!!merge":
			return &node{kind: scalarNode, tag: "!!str", text: y.Value, pos: pos}
		}
		return c.fail(y, "the tag %s is not supported", y.Tag)
	}
	return c.fail(y, "not a value")
}

func (c *converter) mapping(y *yaml.Node, depth int) *node {
	n := &node{kind: mappingNode, pos: Pos{c.source, y.Line, y.Column}}
	if y.Tag != "!!map" {
		return c.fail(y, "the tag %s is not supported", y.Tag)
	}
	first := map[string]int{}
	var merges []*node
	for i := 0; i+1 < len(y.Content); i += 2 {
		k, v := y.Content[i], y.Content[i+1]
		if k.Kind == yaml.AliasNode && k.Alias != nil {
			k = k.Alias
		}
		if k.Kind != yaml.ScalarNode || k.Tag == "!!null" {
			c.fail(y.Content[i], "a key must be a name")
			continue
		}
		if k.Tag == "!!merge" {
			merges = append(merges, c.convert(v, depth+1))
			continue
		}
		if line, dup := first[k.Value]; dup {
			c.fail(y.Content[i], "duplicate key `%s`, first in line %d", clip(k.Value), line)
			continue
		}
		first[k.Value] = y.Content[i].Line
		n.keys = append(n.keys, &node{kind: scalarNode, tag: k.Tag, text: k.Value, pos: Pos{c.source, y.Content[i].Line, y.Content[i].Column}})
		n.items = append(n.items, c.convert(v, depth+1))
	}
	for _, m := range merges {
		c.merge(n, m, first)
	}
	return n
}

// merge adds the members of a `<<` value that n does not have.
func (c *converter) merge(n, from *node, have map[string]int) {
	switch from.kind {
	case listNode:
		for _, m := range from.items {
			if m.kind != mappingNode {
				c.problems = append(c.problems, m.pos.problem("", "`<<` takes a mapping or a list of mappings"))
				continue
			}
			c.merge(n, m, have)
		}
	case mappingNode:
		for i, k := range from.keys {
			if _, ok := have[k.text]; !ok {
				have[k.text] = k.pos.Line
				n.keys, n.items = append(n.keys, k), append(n.items, from.items[i])
			}
		}
	default:
		c.problems = append(c.problems, from.pos.problem("", "`<<` takes a mapping or a list of mappings"))
	}
}

// YAML renders any value that encodes to JSON as YAML, keeping the order of
// its members.
func YAML(v any) ([]byte, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	n, err := fromJSON(dec)
	if err != nil {
		return nil, err
	}
	return yaml.Dump(n)
}

func fromJSON(dec *json.Decoder) (*yaml.Node, error) {
	tok, err := dec.Token()
	if err != nil {
		return nil, err
	}
	switch t := tok.(type) {
	case json.Delim:
		n := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
		if t == '{' {
			n = &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
		}
		for dec.More() {
			item, err := fromJSON(dec)
			if err != nil {
				return nil, err
			}
			n.Content = append(n.Content, item)
		}
		if len(n.Content) == 0 {
			n.Style = yaml.FlowStyle
		}
		_, err := dec.Token()
		return n, err
	case string:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: t}, nil
	case json.Number:
		tag := "!!int"
		if strings.ContainsAny(t.String(), ".eE") {
			tag = "!!float"
		}
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: t.String()}, nil
	case bool:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: fmt.Sprint(t)}, nil
	}
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Value: "null"}, nil
}

// clip shortens what is shown of a hostile key or value.
func clip(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == '`' {
			return '?'
		}
		return r
	}, s)
	if utf8.RuneCountInString(s) > 60 {
		return string([]rune(s)[:57]) + "…"
	}
	return s
}
