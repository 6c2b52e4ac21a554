package config

import (
	"reflect"
	"strconv"
	"strings"
	"time"
)

// scalar sets text, a truth value or a number.
func (d *decoder) scalar(n *node, v reflect.Value, path string) {
	switch t := v.Type(); t.Kind() {
	case reflect.String:
		d.text(n, v, path, "a string")
	case reflect.Bool:
		b, ok := parseBool(n)
		if !ok {
			d.want(n, path, "true or false")
			return
		}
		v.SetBool(b)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		i, err := strconv.ParseInt(strings.TrimSpace(n.text), 10, t.Bits())
		if n.kind != scalarNode || err != nil || n.tag != "!!int" && !n.interpolated {
			d.want(n, path, "a whole number")
			return
		}
		v.SetInt(i)
	case reflect.Float32, reflect.Float64:
		f, err := strconv.ParseFloat(n.text, t.Bits())
		if n.kind != scalarNode || err != nil || n.tag != "!!int" && n.tag != "!!float" && !n.interpolated {
			d.want(n, path, "a number")
			return
		}
		v.SetFloat(f)
	default:
		d.fail(n, path, "values of this kind cannot be set from a file")
	}
}

// quantity sets what is written with a unit: a duration, a time, a size.
func (d *decoder) quantity(n *node, v reflect.Value, path string) {
	switch v.Type() {
	case timeType:
		at, err := time.Parse(time.RFC3339Nano, n.text)
		if n.kind != scalarNode || err != nil {
			d.want(n, path, "a time such as 2026-01-31T12:00:00Z")
			return
		}
		v.Set(reflect.ValueOf(at))
	case sizeType:
		size, ok := parseSize(n.text)
		if n.kind != scalarNode || !ok {
			d.want(n, path, "a size such as 64MiB or a number of bytes")
			return
		}
		v.SetInt(int64(size))
	default:
		d.duration(n, v, path)
	}
}

func (d *decoder) text(n *node, v reflect.Value, path, want string) {
	switch {
	case n.kind != scalarNode:
		d.want(n, path, want)
	case n.tag != "!!str" && !n.interpolated:
		d.fail(n, path, "want %s, got the bare value `%s`; put it in quotes: \"%s\"", want, clip(n.text), clip(n.text))
	default:
		v.SetString(n.text)
	}
}

func (d *decoder) duration(n *node, v reflect.Value, path string) {
	if n.kind != scalarNode {
		d.want(n, path, "a duration such as 5s")
		return
	}
	x, err := time.ParseDuration(strings.TrimSpace(n.text))
	switch {
	case n.text == "0":
		x = 0
	case err != nil:
		d.want(n, path, "a duration such as 5s")
		return
	case x < 0:
		d.want(n, path, "a duration that is not negative")
		return
	}
	v.SetInt(int64(x))
}

func parseBool(n *node) (value, ok bool) {
	if n.kind != scalarNode || n.tag != "!!bool" && !n.interpolated {
		return false, false
	}
	switch strings.ToLower(strings.TrimSpace(n.text)) {
	case "true":
		return true, true
	case "false":
		return false, true
	}
	return false, false
}
