package config

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"time"
)

// Value is one setting as it is in force, redacted, for `config show --sources`.
type Value struct {
	Path   string `json:"path"`
	Value  string `json:"value"`
	Origin Origin `json:"origin"`
}

// Values lists all settings but secrets and resources, in the file's order.
func (c *Config) Values() []Value {
	origins := c.Origins()
	var list []Value
	for _, s := range settings() {
		v := reflect.ValueOf(c).Elem().FieldByIndex(s.index)
		if s.path == "server.drain.delay" && v.IsNil() {
			v = reflect.ValueOf(c.DrainDelay())
		}
		list = append(list, Value{s.path, strings.Trim(string(render(v)), `"`), origins[s.path]})
	}
	return list
}

// MarshalJSON renders the settings in the form and order of the file, with
// secrets redacted and durations and sizes as text.
func (c *Config) MarshalJSON() ([]byte, error) {
	shown := *c
	delay := c.DrainDelay()
	shown.Server.Drain.Delay = &delay
	return renderStruct(reflect.ValueOf(shown)), nil
}

func renderStruct(v reflect.Value) []byte {
	var b bytes.Buffer
	b.WriteByte('{')
	for _, name := range fieldNames(v.Type()) {
		f := fieldsOf(v.Type())[name]
		x := v.FieldByIndex(f.Index)
		if f.Type.Kind() == reflect.Pointer && x.IsNil() {
			continue
		}
		if f.Type == reflect.TypeFor[string]() && v.Type() == reflect.TypeFor[SecretRef]() && x.String() == "" {
			continue
		}
		if b.Len() > 1 {
			b.WriteByte(',')
		}
		writeString(&b, name)
		b.WriteByte(':')
		b.Write(render(x))
	}
	b.WriteByte('}')
	return b.Bytes()
}

func render(v reflect.Value) []byte {
	if v.Kind() == reflect.Pointer && v.Type().Elem() == durationType {
		v = v.Elem()
	}
	var b bytes.Buffer
	switch {
	case v.Type() == durationType:
		writeString(&b, shortDuration(time.Duration(v.Int())))
	case v.Type() == sizeType:
		writeString(&b, Size(v.Int()).String())
	case v.Kind() == reflect.Struct:
		return renderStruct(v)
	case v.Type() == reflect.TypeFor[map[string]SecretRef]():
		b.WriteByte('{')
		for i, k := range sortedKeys(v.Interface().(map[string]SecretRef)) {
			if i > 0 {
				b.WriteByte(',')
			}
			writeString(&b, k)
			b.WriteByte(':')
			b.Write(renderStruct(v.MapIndex(reflect.ValueOf(k))))
		}
		b.WriteByte('}')
	case v.Kind() == reflect.Slice && v.Len() == 0:
		b.WriteString("[]")
	default:
		data, err := json.Marshal(v.Interface())
		if err != nil {
			data = []byte("null") // a type that cannot encode is not a setting
		}
		return data
	}
	return b.Bytes()
}

// shortDuration writes 15m, not 15m0s.
func shortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
