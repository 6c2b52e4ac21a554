package config

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"
)

// maxSecretFile bounds a file that is read for ${file:…} or as a secret.
const maxSecretFile = 64 << 10

// expander replaces ${VAR}, ${VAR:-default}, ${file:/path} and $$ in scalars.
// What comes out is text: it never becomes YAML structure.
type expander struct {
	env      map[string]string
	dir      string // relative ${file:…} paths start here
	problems Problems
}

// expand rewrites every scalar below n.
func (e *expander) expand(n *node, path string) {
	switch n.kind {
	case mappingNode:
		for i, k := range n.keys {
			if path == "" && k.text == "resources" {
				continue // the domain document is data: it is never interpolated
			}
			e.expand(n.items[i], join(path, k.text))
		}
	case listNode:
		for i, item := range n.items {
			e.expand(item, fmt.Sprintf("%s[%d]", path, i))
		}
	case scalarNode:
		if !strings.Contains(n.text, "$") {
			return
		}
		text, used, err := e.text(n.text)
		if err != nil {
			e.problems = append(e.problems, n.pos.at(path, "%v", err))
			n.kind = nullNode // one fault is enough: not also a wrong type
			return
		}
		n.text, n.interpolated, n.hidden = text, used, used
		if used && text == "" {
			n.kind = nullNode // an empty variable is "not set"
		}
	}
}

// text expands one scalar; used says whether a variable or file was read.
func (e *expander) text(s string) (out string, used bool, err error) {
	var b strings.Builder
	for {
		i := strings.IndexByte(s, '$')
		if i < 0 || i+1 == len(s) {
			b.WriteString(s)
			return b.String(), used, nil
		}
		b.WriteString(s[:i])
		switch s[i+1] {
		case '$':
			b.WriteByte('$')
			s = s[i+2:]
		case '{':
			expr, rest, ok := strings.Cut(s[i+2:], "}")
			if !ok {
				return "", false, fmt.Errorf("`${` without `}`; write $$ for a dollar sign")
			}
			value, err := e.value(expr)
			if err != nil {
				return "", false, err
			}
			b.WriteString(value)
			used, s = true, rest
		default:
			b.WriteByte('$')
			s = s[i+1:]
		}
	}
}

func (e *expander) value(expr string) (string, error) {
	if path, ok := strings.CutPrefix(expr, "file:"); ok {
		if path == "" {
			return "", fmt.Errorf("${file:} names no file")
		}
		if !filepath.IsAbs(path) {
			path = filepath.Join(e.dir, path)
		}
		return readSecretFile(path)
	}
	name, fallback, hasFallback := strings.Cut(expr, ":-")
	if !isEnvName(name) {
		return "", fmt.Errorf("`${%s}` is not a variable; write ${NAME}, ${NAME:-default}, ${file:/path}, or $$ for a dollar sign", clip(expr))
	}
	if strings.Contains(fallback, "${") {
		return "", fmt.Errorf("the default of ${%s} may not hold another ${…}", name)
	}
	v, set := e.env[name]
	switch {
	case set && (v != "" || !hasFallback):
		if !utf8.ValidString(v) || strings.ContainsRune(v, 0) {
			return "", fmt.Errorf("the variable %s is not text", name)
		}
		return v, nil
	case hasFallback:
		return fallback, nil
	}
	return "", fmt.Errorf("the variable %s is not set; set it, or write ${%s:-default}", name, name)
}

// readSecretFile returns a small text file without its trailing newlines.
// Only regular files are read: a pipe could block for ever.
func readSecretFile(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("the file %s cannot be read: %w", path, unwrapPath(err))
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("the file %s cannot be read: %w", path, unwrapPath(err))
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSecretFile+1))
	switch {
	case err != nil:
		return "", fmt.Errorf("the file %s cannot be read: %w", path, unwrapPath(err))
	case len(data) > maxSecretFile:
		return "", fmt.Errorf("the file %s is larger than %d KiB", path, maxSecretFile>>10)
	case !utf8.Valid(data) || bytes.IndexByte(data, 0) >= 0:
		return "", fmt.Errorf("the file %s is not text", path)
	}
	return strings.TrimRight(string(data), "\r\n"), nil
}

func isEnvName(s string) bool {
	for i, r := range s {
		letter := r == '_' || 'A' <= r && r <= 'Z' || 'a' <= r && r <= 'z'
		if !letter && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return s != ""
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
