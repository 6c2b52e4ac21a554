package router

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// MaxDocumentBytes bounds the JSON form of a document.
const MaxDocumentBytes = 4 << 20

// maxShapeProblems stops the walk over a document that is wrong everywhere.
const maxShapeProblems = 100

// ParseDocument reads a document strictly: an unknown or repeated member, a
// wrong type, a missing weight is a problem with its JSON pointer. The error is Problems.
func ParseDocument(data []byte) (*Document, error) {
	d, err := parseStrict[Document](data)
	if err != nil {
		return nil, err
	}
	return d, nil
}

// ParseExperiment reads one experiment as strictly.
func ParseExperiment(data []byte) (*Experiment, error) { return parseStrict[Experiment](data) }

// ParseUpstream reads one upstream as strictly.
func ParseUpstream(data []byte) (*Upstream, error) { return parseStrict[Upstream](data) }

// ParseModel reads one model as strictly.
func ParseModel(data []byte) (*Model, error) { return parseStrict[Model](data) }

func parseStrict[T any](data []byte) (*T, error) {
	if len(data) > MaxDocumentBytes {
		return nil, Problems{{Code: "document_too_large", Message: fmt.Sprintf("the document has %d bytes, at most %d are allowed; split it or shorten the prompts", len(data), MaxDocumentBytes)}}
	}
	if err := validJSON(data); err != nil {
		return nil, Problems{{Code: "invalid_json", Message: err.Error()}}
	}
	out := new(T)
	var w shapeWalk
	w.walk(bytes.TrimSpace(data), reflect.TypeOf(*out), "")
	if len(w.problems) > 0 {
		return nil, w.problems
	}
	if err := json.Unmarshal(data, out); err != nil {
		return nil, Problems{{Code: "invalid_json", Message: err.Error()}}
	}
	return out, nil
}

// validJSON says where data stops being one JSON value.
func validJSON(data []byte) error {
	if json.Valid(data) {
		return nil
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return fmt.Errorf("the document is empty; an object with upstreams, models and experiments is expected")
	}
	var v json.RawMessage
	err := json.Unmarshal(data, &v)
	var syn *json.SyntaxError
	if as(err, &syn) {
		off := min(int(syn.Offset), len(data))
		line := 1 + bytes.Count(data[:off], []byte("\n"))
		return fmt.Errorf("not valid JSON at line %d (byte %d): %s", line, syn.Offset, syn.Error())
	}
	return fmt.Errorf("not valid JSON: %w", err)
}

// shapeWalk compares raw JSON with a Go type, member by member: encoding/json
// alone matches names without regard to case, takes the last of two members and
// cannot tell where an unknown one stands.
type shapeWalk struct{ problems Problems }

func (w *shapeWalk) add(path, code, format string, args ...any) {
	if len(w.problems) < maxShapeProblems {
		w.problems = append(w.problems, Problem{Path: path, Code: code, Message: fmt.Sprintf(format, args...)})
	}
}

var (
	unmarshalerType = reflect.TypeFor[json.Unmarshaler]()
	rawType         = reflect.TypeFor[json.RawMessage]()
	timeType        = reflect.TypeFor[time.Time]()
)

// required are the members that must be written, even when they are zero
// (a weight that is left out is not a weight of 0).
var required = map[reflect.Type][]string{
	reflect.TypeFor[Variant]():  {"name", "weight"},
	reflect.TypeFor[Upstream](): {"name"},
	reflect.TypeFor[Model]():    {"name"},
}

func (w *shapeWalk) walk(raw []byte, t reflect.Type, path string) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if string(raw) == "null" || t == rawType {
		return // null counts as absent everywhere
	}
	if t == timeType || reflect.PointerTo(t).Implements(unmarshalerType) {
		if err := json.Unmarshal(raw, reflect.New(t).Interface()); err != nil {
			msg := err.Error()
			if t == timeType {
				msg = "want a time like \"2026-01-31T12:00:00Z\""
			}
			w.add(path, "wrong_type", "%s", msg)
		}
		return
	}
	switch t.Kind() {
	case reflect.Struct:
		w.object(raw, t, path)
	case reflect.Slice, reflect.Array:
		w.array(raw, t, path)
	case reflect.Map:
		w.mapping(raw, t, path)
	default:
		if err := json.Unmarshal(raw, reflect.New(t).Interface()); err != nil {
			w.add(path, "wrong_type", "want %s, got %s", kindName(t), valueName(raw))
		}
	}
}

// members yields the members of an object in order; ok is false when raw is
// not an object.
func (w *shapeWalk) members(raw []byte, path string, f func(name string, value json.RawMessage)) {
	if len(raw) == 0 || raw[0] != '{' {
		w.add(path, "wrong_type", "want an object, got %s", valueName(raw))
		return
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	_, _ = dec.Token()
	seen := map[string]bool{}
	for dec.More() {
		tok, err := dec.Token()
		name, ok := tok.(string)
		if err != nil || !ok {
			return // the whole was valid JSON: unreachable, but never loop
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return
		}
		if seen[name] {
			w.add(path+"/"+escapePointer(name), "duplicate_member", "%q is written twice; keep one", clip(name))
			continue
		}
		seen[name] = true
		f(name, value)
	}
}

func (w *shapeWalk) object(raw []byte, t reflect.Type, path string) {
	fields := jsonFields(t)
	have := map[string]bool{}
	before := len(w.problems)
	w.members(raw, path, func(name string, value json.RawMessage) {
		ft, ok := fields[name]
		p := path + "/" + escapePointer(name)
		if !ok {
			w.add(p, "unknown_member", "%s", unknownMember(name, fields))
			return
		}
		if string(value) != "null" {
			have[name] = true
		}
		w.walk(value, ft, p)
	})
	if len(raw) == 0 || raw[0] != '{' || len(w.problems) > before && w.problems[before].Path == path {
		return
	}
	for _, name := range required[t] {
		if !have[name] {
			msg := name + " is missing"
			if name == "weight" {
				msg = "weight is missing; every variant needs an explicit weight in basis points, 0 too"
			}
			w.add(path+"/"+name, "required", "%s", msg)
		}
	}
}

func (w *shapeWalk) array(raw []byte, t reflect.Type, path string) {
	if len(raw) == 0 || raw[0] != '[' {
		w.add(path, "wrong_type", "want a list, got %s", valueName(raw))
		return
	}
	var items []json.RawMessage
	if err := json.Unmarshal(raw, &items); err != nil {
		w.add(path, "wrong_type", "want a list")
		return
	}
	if t.Kind() == reflect.Array && len(items) != t.Len() {
		w.add(path, "wrong_type", "want a list of exactly %d", t.Len())
		return
	}
	for i, item := range items {
		if len(w.problems) >= maxShapeProblems {
			return
		}
		if string(item) == "null" {
			w.add(path+"/"+strconv.Itoa(i), "wrong_type", "want %s, got null", kindName(t.Elem()))
			continue
		}
		w.walk(item, t.Elem(), path+"/"+strconv.Itoa(i))
	}
}

func (w *shapeWalk) mapping(raw []byte, t reflect.Type, path string) {
	w.members(raw, path, func(name string, value json.RawMessage) {
		w.walk(value, t.Elem(), path+"/"+escapePointer(name))
	})
}

// jsonFields are the JSON names of a struct's members with their types.
func jsonFields(t reflect.Type) map[string]reflect.Type {
	out := make(map[string]reflect.Type, t.NumField())
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.IsExported() {
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" {
			continue
		}
		if name == "" {
			name = f.Name
		}
		out[name] = f.Type
	}
	return out
}

func unknownMember(name string, fields map[string]reflect.Type) string {
	best, dist := "", 3
	for f := range fields {
		if d := distance(name, f); d < dist || d == dist && f < best {
			best, dist = f, d
		}
	}
	if best != "" {
		return fmt.Sprintf("unknown member %q; did you mean %q?", clip(name), best)
	}
	return fmt.Sprintf("unknown member %q; remove it", clip(name))
}

// distance is the edit distance of two short names; long ones are far apart.
func distance(a, b string) int {
	a, b = strings.ToLower(a), strings.ToLower(b)
	if len(a) > 64 || len(b) > 64 {
		return 99
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diag := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			diag, row[j] = row[j], min(row[j]+1, row[j-1]+1, diag+cost)
		}
	}
	return row[len(b)]
}

func kindName(t reflect.Type) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64:
		return "a whole number"
	case reflect.Uint8:
		return "a whole number from 0 to 255"
	case reflect.Slice, reflect.Array:
		return "a list"
	}
	return "an object"
}

// valueName says what a JSON value is, without repeating it: it may be a secret.
func valueName(raw []byte) string {
	if len(raw) == 0 {
		return "nothing"
	}
	switch raw[0] {
	case '"':
		return "a string"
	case '{':
		return "an object"
	case '[':
		return "a list"
	case 't', 'f':
		return "true or false"
	case 'n':
		return "null"
	}
	if len(raw) <= 24 {
		return string(raw)
	}
	return "a number"
}

// escapePointer escapes a member's name for a JSON pointer (RFC 6901).
func escapePointer(name string) string {
	return strings.ReplaceAll(strings.ReplaceAll(clip(name), "~", "~0"), "/", "~1")
}

// clip bounds a hostile name in a message.
func clip(s string) string {
	if len(s) <= 80 {
		return s
	}
	return strings.ToValidUTF8(s[:80], "") + "…"
}
