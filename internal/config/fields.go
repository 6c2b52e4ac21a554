package config

import (
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
)

// fieldsOf maps the keys of a struct to its fields.
func fieldsOf(t reflect.Type) map[string]reflect.StructField {
	m := map[string]reflect.StructField{}
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.IsExported() && name != "" && name != "-" {
			m[name] = f
		}
	}
	return m
}

// fieldNames lists the keys of a struct in its own order.
func fieldNames(t reflect.Type) []string {
	var names []string
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.IsExported() && name != "" && name != "-" {
			names = append(names, name)
		}
	}
	return names
}

// setting is one value that a variable or a flag can set.
type setting struct {
	path  string // server.drain.delay
	env   string // SLUICE_SERVER_DRAIN_DELAY
	field reflect.StructField
	index []int
}

// settings lists the leaves of Config outside of secrets and resources.
func settings() []setting {
	var list []setting
	var walk func(t reflect.Type, path string, index []int)
	walk = func(t reflect.Type, path string, index []int) {
		for _, name := range fieldNames(t) {
			f := fieldsOf(t)[name]
			at := append(index[:len(index):len(index)], f.Index...)
			full := join(path, name)
			switch {
			case f.Type.Kind() == reflect.Map || full == "resources":
			case f.Type.Kind() == reflect.Struct:
				walk(f.Type, full, at)
			default:
				env := "SLUICE_" + strings.ToUpper(strings.ReplaceAll(full, ".", "_"))
				list = append(list, setting{path: full, env: env, field: f, index: at})
			}
		}
	}
	walk(reflect.TypeFor[Config](), "", nil)
	return list
}

var sizeUnits = []struct {
	suffix string
	factor float64
}{
	{"kib", 1 << 10}, {"mib", 1 << 20}, {"gib", 1 << 30}, {"tib", 1 << 40},
	{"kb", 1e3}, {"mb", 1e6}, {"gb", 1e9}, {"tb", 1e12}, {"b", 1}, {"", 1},
}

// parseSize reads "64MiB", "1.5GiB", "500KB" or plain bytes, not negative.
func parseSize(s string) (Size, bool) {
	s = strings.ToLower(strings.TrimSpace(s))
	for _, u := range sizeUnits {
		digits, ok := strings.CutSuffix(s, u.suffix)
		if !ok {
			continue
		}
		digits = strings.TrimSpace(digits)
		if strings.Trim(digits, "0123456789.") != "" {
			return 0, false
		}
		f, err := strconv.ParseFloat(digits, 64)
		bytes := f * u.factor
		if err != nil || bytes >= math.MaxInt64 || bytes != math.Trunc(bytes) {
			return 0, false
		}
		return Size(bytes), true
	}
	return 0, false
}

// String writes the size with the largest binary unit that divides it.
func (s Size) String() string {
	for i := 3; i >= 0; i-- {
		if f := Size(sizeUnits[i].factor); s != 0 && s%f == 0 {
			return fmt.Sprintf("%d%s", s/f, []string{"KiB", "MiB", "GiB", "TiB"}[i])
		}
	}
	return strconv.FormatInt(int64(s), 10)
}
