package config

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
)

const (
	durationPattern = `^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$|^0$`
	sizePattern     = `^[0-9]+(\.[0-9]+)? *([KkMmGgTt][Ii]?[Bb]|[Bb])?$`
	varPattern      = `\$\{[^}]+\}`
)

// Schema returns the JSON Schema (draft 2020-12) of the settings file, made
// from the same types and tags as the decoder.
func Schema() []byte {
	root := schemaOf(reflect.TypeFor[Config](), false)
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["title"] = "Settings of sluice"
	defaults(root["properties"].(map[string]any), reflect.ValueOf(Default()).Elem())
	data, _ := json.MarshalIndent(root, "", "  ") // maps and strings always encode
	return append(data, '\n')
}

// schemaOf describes t; document is true below `resources:`, where nothing is
// interpolated.
func schemaOf(t reflect.Type, document bool) map[string]any {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t {
	case durationType, routerDurationType:
		return text(durationPattern, document)
	case sizeType:
		s := text(sizePattern, document)
		s["type"] = []string{"integer", "string"}
		s["minimum"] = 0
		return s
	case timeType:
		return map[string]any{"type": "string", "format": "date-time"}
	case rawType:
		return map[string]any{}
	case priceType:
		s := object(t, document)
		for _, p := range s["properties"].(map[string]any) {
			p.(map[string]any)["pattern"] = `^[0-9]+(\.[0-9]{1,6})?$`
		}
		return s
	}
	if reflect.PointerTo(t).Implements(unmarshalerType) {
		return map[string]any{}
	}
	switch t.Kind() {
	case reflect.Struct:
		return object(t, document)
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": schemaOf(t.Elem(), document)}
	case reflect.Slice:
		s := map[string]any{"type": "array", "items": schemaOf(t.Elem(), document)}
		if !document { // a list may come from a variable, separated by commas
			return map[string]any{"anyOf": []any{s, map[string]any{"type": "string", "pattern": varPattern}}}
		}
		return s
	case reflect.Array:
		return map[string]any{"type": "array", "items": schemaOf(t.Elem(), document), "minItems": t.Len(), "maxItems": t.Len()}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return map[string]any{"type": "integer"}
	case reflect.Float64, reflect.Float32:
		return map[string]any{"type": "number"}
	case reflect.String:
		return map[string]any{"type": "string"}
	}
	return map[string]any{}
}

func text(pattern string, document bool) map[string]any {
	if !document {
		pattern += "|" + varPattern
	}
	return map[string]any{"type": "string", "pattern": pattern}
}

func object(t reflect.Type, document bool) map[string]any {
	props := map[string]any{}
	for name, f := range fieldsOf(t) {
		s := schemaOf(f.Type, document || name == "resources" && t == reflect.TypeFor[Config]())
		if d := f.Tag.Get("desc"); d != "" {
			s["description"] = d
		}
		if e := f.Tag.Get("enum"); e != "" {
			s["pattern"] = "^(" + strings.ReplaceAll(e, ",", "|") + ")$|" + varPattern
			s["examples"] = strings.Split(e, ",")
		}
		props[name] = s
	}
	s := map[string]any{"type": "object", "additionalProperties": false, "properties": props}
	if r := required[t]; len(r) > 0 {
		s["required"] = slices.Clone(r)
	}
	return s
}

// defaults adds the default of every setting that has one.
func defaults(props map[string]any, v reflect.Value) {
	for name, f := range fieldsOf(v.Type()) {
		x, s := v.FieldByIndex(f.Index), props[name].(map[string]any)
		switch {
		case f.Type.Kind() == reflect.Struct:
			defaults(s["properties"].(map[string]any), x)
		case !x.IsZero():
			s["default"] = json.RawMessage(render(x))
		}
	}
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(keysOf(m)) }
