package router

import (
	"fmt"
	"strconv"
	"strings"
)

// Error joins the problems, one a line: "/path: message".
func (ps Problems) Error() string {
	if len(ps) == 0 {
		return "no problem"
	}
	var b strings.Builder
	for i, p := range ps {
		if i > 0 {
			b.WriteByte('\n')
		}
		if p.Path != "" {
			b.WriteString(p.Path)
			b.WriteString(": ")
		}
		b.WriteString(p.Message)
	}
	return b.String()
}

// Err is nil without problems.
func (ps Problems) Err() error {
	if len(ps) == 0 {
		return nil
	}
	return ps
}

// maxProblems bounds the answer to a document that is wrong everywhere.
const maxProblems = 1000

// checker collects the problems of one document.
type checker struct {
	problems  Problems
	o         ValidateOptions
	d         *Document
	upstreams map[string]bool
	models    map[string]bool
}

func (c *checker) add(path, code, format string, args ...any) {
	if len(c.problems) < maxProblems {
		c.problems = append(c.problems, Problem{Path: path, Code: code, Message: fmt.Sprintf(format, args...)})
	}
}

// at joins a path with an index or member names.
func at(path string, parts ...any) string {
	for _, p := range parts {
		switch v := p.(type) {
		case int:
			path += "/" + strconv.Itoa(v)
		case string:
			path += "/" + escapePointer(v)
		}
	}
	return path
}

// oneOf checks a closed set of words; "" is allowed when the set holds it.
func (c *checker) oneOf(path, value string, words ...string) {
	shown := make([]string, 0, len(words))
	for _, w := range words {
		if w == value {
			return
		}
		if w != "" {
			shown = append(shown, w)
		}
	}
	c.add(path, "invalid_value", "%q is not one of %s", clip(value), strings.Join(shown, ", "))
}

// most bounds the length of a list.
func (c *checker) most(path string, n, limit int, what string) bool {
	if n > limit {
		c.add(path, "too_many", "%d %s, at most %d are allowed", n, what, limit)
		return false
	}
	return true
}
