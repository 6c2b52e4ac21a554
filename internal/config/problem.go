package config

import (
	"fmt"
	"strings"
)

// Problem is one fault of the settings, with the place it was found.
type Problem struct {
	// Source is the file's path as given, the environment variable or the flag;
	// "" for a default.
	Source string `json:"source,omitempty"`
	// Line and Column count from 1; 0 where there are none.
	Line    int    `json:"line,omitempty"`
	Column  int    `json:"column,omitempty"`
	Path    string `json:"path,omitempty"` // "resources.experiments[0].variants[1].weight"
	Message string `json:"message"`
}

// String renders "sluice.yaml:14:7: message".
func (p Problem) String() string {
	switch {
	case p.Source == "":
		return p.Message
	case p.Line == 0:
		return p.Source + ": " + p.Message
	}
	return fmt.Sprintf("%s:%d:%d: %s", p.Source, p.Line, p.Column, p.Message)
}

// maxProblems bounds how many faults are kept: more help nobody.
const maxProblems = 100

// Problems are all faults found, in the order of the file; it is an error.
type Problems []Problem

// Error lists every problem on a line of its own.
func (ps Problems) Error() string {
	var b strings.Builder
	for i, p := range ps {
		if i > 0 {
			b.WriteByte('\n')
		}
		if i == maxProblems {
			fmt.Fprintf(&b, "and %d more", len(ps)-i)
			break
		}
		b.WriteString(p.String())
	}
	return b.String()
}

// orNil avoids the non-nil error interface around an empty list.
func (ps Problems) orNil() error {
	if len(ps) == 0 {
		return nil
	}
	return ps
}

// Pos is a place in a source; Line 0 is the source as a whole.
type Pos struct {
	Source       string
	Line, Column int
}

func (p Pos) problem(path, format string, args ...any) Problem {
	return Problem{Source: p.Source, Line: p.Line, Column: p.Column, Path: path, Message: fmt.Sprintf(format, args...)}
}

// at is a problem that begins with the path of the value it is about.
func (p Pos) at(path, format string, args ...any) Problem {
	if path == "" {
		return p.problem("", format, args...)
	}
	return p.problem(path, "%s: "+format, append([]any{path}, args...)...)
}
