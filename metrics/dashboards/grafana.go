package dashboards

import (
	"bytes"
	"encoding/json"
)

type object = map[string]any

var datasource = object{"type": "prometheus", "uid": "${datasource}"}

// json renders the dashboard for file provisioning: fixed uid, no id, no
// __inputs, the data source a variable.
func (d Dashboard) json() []byte {
	var panels []any
	id, y := 1, 0
	for _, row := range d.Rows {
		panels = append(panels, object{"id": id, "type": "row", "title": row.Title, "collapsed": false, "panels": []any{}, "gridPos": grid(0, y, 24, 1)})
		id++
		y++
		x, h := 0, 0
		for _, p := range row.Panels {
			w, ph := 8, 8
			if p.Kind == Stat {
				w, ph = 6, 5
			}
			if x+w > 24 {
				x, y = 0, y+h
			}
			panels = append(panels, p.json(id, grid(x, y, w, ph)))
			id++
			x, h = x+w, ph
		}
		y += h
	}
	out := object{
		"uid": d.UID, "title": d.Title, "description": d.About, "tags": []string{"sluice", "llm"},
		"id": nil, "version": 1, "schemaVersion": 39, "editable": false, "graphTooltip": 1,
		"refresh": "10s", "time": object{"from": "now-1h", "to": "now"}, "timezone": "browser",
		"templating": object{"list": d.variables()}, "annotations": object{"list": annotations()}, "panels": panels, "links": []any{},
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(out); err != nil {
		panic(err) // maps of strings and numbers: cannot happen
	}
	return b.Bytes()
}

func grid(x, y, w, h int) object { return object{"x": x, "y": y, "w": w, "h": h} }

func (d Dashboard) variables() []any {
	vars := []any{object{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "hide": 0}}
	if !d.Experiments {
		return vars
	}
	query := func(name, label, q string) object {
		return object{
			"name": name, "label": label, "type": "query", "datasource": datasource, "definition": q,
			"query": object{"query": q, "refId": name}, "refresh": 2, "sort": 1, "multi": true, "includeAll": true, "allValue": ".*",
			"current": object{"text": "All", "value": "$__all"},
		}
	}
	return append(vars,
		query("experiment", "Experiment", "label_values(sluice_experiment_info, experiment)"),
		query("variant", "Variant", `label_values(sluice_requests_total{experiment=~"$experiment"}, variant)`))
}

func annotations() []any {
	mark := func(name, colour, expr, text string) object {
		return object{"name": name, "enable": true, "iconColor": colour, "datasource": datasource, "expr": expr, "titleFormat": name, "textFormat": text, "step": "60s"}
	}
	return []any{
		mark("Weight changed", "blue", "changes(sluice_experiment_variant_weight_ratio[1m]) != 0", "{{experiment}} {{variant}}"),
		mark("New revision", "gray", "changes(sluice_config_revision[1m]) > 0", "{{instance}}"),
	}
}

func (p Panel) json(id int, pos object) object {
	var targets []any
	for i, q := range p.Queries {
		t := object{"refId": string(rune('A' + i)), "datasource": datasource, "expr": q.Expr, "legendFormat": q.Legend, "range": true}
		if p.Kind == Heatmap {
			t["format"] = "heatmap"
		}
		targets = append(targets, t)
	}
	defaults := object{"unit": p.Unit}
	out := object{
		"id": id, "type": string(p.Kind), "title": p.Title, "description": p.About, "datasource": datasource,
		"gridPos": pos, "targets": targets, "fieldConfig": object{"defaults": defaults, "overrides": []any{}},
	}
	switch p.Kind {
	case Stat:
		out["options"] = object{"reduceOptions": object{"calcs": []string{"lastNotNull"}, "values": false}, "colorMode": "value", "graphMode": "area", "textMode": "value_and_name"}
	case Heatmap:
		out["options"] = object{"calculate": false, "yAxis": object{"unit": p.Unit}, "color": object{"mode": "scheme", "scheme": "Oranges"}, "cellGap": 1}
	default:
		stack := "none"
		if p.Stacked {
			stack = "normal"
		}
		defaults["color"] = object{"mode": "palette-classic-by-name"}
		defaults["custom"] = object{"fillOpacity": 8, "lineWidth": 1, "showPoints": "never", "spanNulls": false, "stacking": object{"mode": stack}}
		out["options"] = object{
			"legend":  object{"displayMode": "table", "placement": "bottom", "calcs": []string{"lastNotNull"}},
			"tooltip": object{"mode": "multi", "sort": "desc", "hideZeros": true},
		}
		if p.Unit == "percentunit" {
			defaults["min"] = 0
		}
	}
	return out
}
