package config

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"

	"sluice/router"
)

// Size is a number of bytes, written 1048576, "64MiB", "1GiB" or "500KB".
type Size int64

var (
	durationType       = reflect.TypeFor[time.Duration]()
	routerDurationType = reflect.TypeFor[router.Duration]()
	timeType           = reflect.TypeFor[time.Time]()
	sizeType           = reflect.TypeFor[Size]()
	rawType            = reflect.TypeFor[json.RawMessage]()
	unmarshalerType    = reflect.TypeFor[json.Unmarshaler]()
	priceType          = reflect.TypeFor[router.Price]()
	gpuType            = reflect.TypeFor[router.GPU]()
)

// required are the members that must be written even when they are zero: a
// weight that is left out is not a weight of 0.
var required = map[reflect.Type][]string{
	reflect.TypeFor[router.Upstream]():   {"name"},
	reflect.TypeFor[router.Model]():      {"name"},
	reflect.TypeFor[router.Experiment](): {"key"},
	reflect.TypeFor[router.Variant]():    {"name", "weight"},
}

// decoder puts nodes into Go values by their json tags, strictly, and collects
// every fault with its place.
type decoder struct {
	problems Problems
	origin   func(path string, n *node) // told of every value that was set, may be nil
}

func (d *decoder) fail(n *node, path, format string, args ...any) {
	d.problems = append(d.problems, n.pos.at(path, format, args...))
}

// want reports a value of the wrong type. The value itself is shown unless it
// may be a secret that came from a variable.
func (d *decoder) want(n *node, path, want string) {
	got := ""
	switch {
	case n.kind == mappingNode:
		got = "a mapping"
	case n.kind == listNode:
		got = "a list"
	case n.hidden:
		got = "what the variable holds"
	case n.text == "":
		got = "an empty string"
	default:
		got = "`" + clip(n.text) + "`"
	}
	d.fail(n, path, "want %s, got %s", want, got)
}

// decode sets v from n. A null leaves v alone: it is "not set".
func (d *decoder) decode(n *node, v reflect.Value, path string) {
	if n.kind == nullNode {
		return
	}
	before := len(d.problems)
	d.value(n, v, path)
	if d.origin != nil && len(d.problems) == before {
		d.origin(path, n)
	}
}

func (d *decoder) value(n *node, v reflect.Value, path string) {
	t := v.Type()
	switch t {
	case durationType, routerDurationType, timeType, sizeType:
		d.quantity(n, v, path)
		return
	case rawType:
		v.SetBytes(d.free(n, path))
		return
	}
	if t.Kind() != reflect.Pointer && reflect.PointerTo(t).Implements(unmarshalerType) {
		d.unmarshal(n, v, path)
		return
	}
	switch t.Kind() {
	case reflect.Pointer:
		p := reflect.New(t.Elem())
		d.value(n, p.Elem(), path)
		v.Set(p)
	case reflect.Struct:
		d.structure(n, v, path)
	case reflect.Map:
		d.mapping(n, v, path)
	case reflect.Slice, reflect.Array:
		d.list(n, v, path)
	case reflect.Interface:
		var x any
		if err := json.Unmarshal(d.free(n, path), &x); err == nil && x != nil {
			v.Set(reflect.ValueOf(x))
		}
	default:
		d.scalar(n, v, path)
	}
}

// unmarshal serves types that read their own JSON.
func (d *decoder) unmarshal(n *node, v reflect.Value, path string) {
	before := len(d.problems)
	data := d.free(n, path)
	if len(d.problems) > before {
		return
	}
	if err := v.Addr().Interface().(json.Unmarshaler).UnmarshalJSON(data); err != nil {
		d.fail(n, path, "%s", clip(strings.TrimPrefix(err.Error(), "json: ")))
	}
}

func (d *decoder) structure(n *node, v reflect.Value, path string) {
	if n.kind != mappingNode {
		if v.Type() == reflect.TypeFor[SecretRef]() {
			d.fail(n, path, "a secret may not be written here; name where it is: {env: VARIABLE} or {file: /path}")
			return
		}
		want := "a mapping"
		if names := fieldNames(v.Type()); len(names) > 0 && len(names) <= 6 {
			want += " with " + strings.Join(names, ", ")
		}
		d.want(n, path, want)
		return
	}
	fields := fieldsOf(v.Type())
	for i, k := range n.keys {
		f, ok := fields[k.text]
		if !ok {
			d.problems = append(d.problems, k.pos.problem(join(path, clip(k.text)), "%s", unknownKey(k.text, path, v.Type())))
			continue
		}
		if v.Type() == priceType || v.Type() == gpuType && k.text == "usd_per_gpu_hour" {
			d.price(n.items[i], v.FieldByIndex(f.Index), join(path, k.text))
			continue
		}
		d.decode(n.items[i], v.FieldByIndex(f.Index), join(path, k.text))
		d.enum(n.items[i], f, v.FieldByIndex(f.Index), join(path, k.text))
	}
	for _, name := range required[v.Type()] {
		if m := n.member(name); m == nil || m.kind == nullNode {
			d.fail(n, path, "`%s` is missing", name)
		}
	}
}

// unknownKey words the message, with help for a section in the wrong place.
func unknownKey(key, path string, t reflect.Type) string {
	names := fieldNames(t)
	if path == "" {
		if _, ok := fieldsOf(reflect.TypeFor[router.Document]())[key]; ok && t == reflect.TypeFor[Config]() {
			return "unknown key `" + clip(key) + "` at the top; it belongs below `resources:`"
		}
	}
	return unknown("key", key, names)
}

// price takes quoted decimal strings only: a bare 0.20 is a binary fraction.
func (d *decoder) price(n *node, v reflect.Value, path string) {
	if n.kind == scalarNode && n.tag != "!!str" && !n.interpolated {
		d.fail(n, path, "a price is a quoted decimal string, write \"%s\" instead of %s", clip(n.text), clip(n.text))
		return
	}
	d.decode(n, v, path)
}

func (d *decoder) enum(n *node, f reflect.StructField, v reflect.Value, path string) {
	tag := f.Tag.Get("enum")
	if tag == "" || n.kind != scalarNode || v.Kind() != reflect.String || v.String() == "" {
		return
	}
	values := strings.Split(tag, ",")
	for _, x := range values {
		if v.String() == x {
			return
		}
	}
	if n.hidden {
		d.want(n, path, strings.Join(values, " or "))
		return
	}
	msg := fmt.Sprintf("want %s, got `%s`", strings.Join(values, " or "), clip(v.String()))
	if s := Suggest(v.String(), values); s != "" {
		msg += ", did you mean `" + s + "`?"
	}
	d.fail(n, path, "%s", msg)
}

func (d *decoder) mapping(n *node, v reflect.Value, path string) {
	if n.kind != mappingNode {
		d.want(n, path, "a mapping")
		return
	}
	m := reflect.MakeMapWithSize(v.Type(), len(n.keys))
	raw := v.Type().Elem() == rawType
	for i, k := range n.keys {
		x := reflect.New(v.Type().Elem()).Elem()
		if raw { // null is a value there
			x.SetBytes(d.free(n.items[i], join(path, k.text)))
		} else {
			d.decode(n.items[i], x, join(path, k.text))
		}
		m.SetMapIndex(reflect.ValueOf(k.text).Convert(v.Type().Key()), x)
	}
	v.Set(m)
}

func (d *decoder) list(n *node, v reflect.Value, path string) {
	if n.kind == scalarNode && n.interpolated && v.Type().Elem().Kind() == reflect.String && v.Kind() == reflect.Slice {
		d.commaList(n, v)
		return
	}
	if n.kind != listNode {
		d.want(n, path, "a list")
		return
	}
	if v.Kind() == reflect.Array {
		if len(n.items) != v.Len() {
			d.fail(n, path, "want a list of %d, got %d", v.Len(), len(n.items))
			return
		}
	} else {
		v.Set(reflect.MakeSlice(v.Type(), len(n.items), len(n.items)))
	}
	for i, item := range n.items {
		at := fmt.Sprintf("%s[%d]", path, i)
		if item.kind == nullNode {
			d.fail(item, at, "the item is empty")
			continue
		}
		d.value(item, v.Index(i), at)
	}
}

// commaList reads "a, b" of a variable or a flag into a list.
func (d *decoder) commaList(n *node, v reflect.Value) {
	for part := range strings.SplitSeq(n.text, ",") {
		if part = strings.TrimSpace(part); part != "" {
			v.Set(reflect.Append(v, reflect.ValueOf(part).Convert(v.Type().Elem())))
		}
	}
}
