// Package dashboards is the one table of what operators look at: the Grafana
// panels, the recording rules and the alerts, in Go, so that the outcome
// classification and the metric names cannot drift from the code. It hides the
// JSON of Grafana and the YAML of Prometheus. The files under deploy/ are
// rendered from it by `go generate`.
package dashboards

import "strings"

//go:generate go test -count=1 -run ^TestFilesAreCurrent$ . -update

// Kind is how a panel is drawn.
type Kind string

// The kinds of panels.
const (
	Lines   Kind = "timeseries"
	Stat    Kind = "stat"
	Heatmap Kind = "heatmap"
)

// Query is one PromQL expression of a panel, with Grafana's variables in it.
type Query struct {
	Expr   string
	Legend string // Grafana's legend format
}

// Panel is one panel. Optional ones show metrics of the engines, which are
// there only when Prometheus scrapes those too.
type Panel struct {
	Title, About string
	Kind         Kind
	Unit         string // Grafana's unit id
	Stacked      bool
	Optional     bool
	Ramp         bool // has data only while an experiment has a ramp
	Queries      []Query
}

// Row is a titled group of panels.
type Row struct {
	Title  string
	Panels []Panel
}

// Dashboard is one file of Grafana.
type Dashboard struct {
	UID, Title, About string
	Experiments       bool // has the variables experiment and variant
	Rows              []Row
}

// Files renders everything, by path below deploy/.
func Files() map[string][]byte {
	files := map[string][]byte{"prometheus/rules.yml": []byte(Rules())}
	for _, d := range Dashboards() {
		files["grafana/dashboards/"+d.UID+".json"] = d.json()
	}
	return files
}

// selectors used by most panels.
const (
	arms    = `{experiment=~"$experiment",variant=~"$variant",role="primary"}`
	byArm   = "sum by (experiment, variant) "
	armName = "{{experiment}} {{variant}}"
)

// sel is arms with more matchers.
func sel(more string) string { return strings.TrimSuffix(arms, "}") + "," + more + "}" }

func rate(metric, selector string) string {
	return "(rate(" + metric + selector + "[$__rate_interval]))"
}

// quantile of a histogram by arm. An arm without traffic has a quantile of NaN,
// which the comparison drops.
func quantile(q, metric string) Query {
	return Query{"histogram_quantile(" + q + ", sum by (le, experiment, variant) " + rate(metric+"_bucket", arms) + ") > 0", armName}
}

// perSuccess and ratio leave out arms without traffic instead of dividing by 0.
func ratio(factor, over, under string) string { return factor + over + " / (" + under + " > 0)" }

// zero shows 0 instead of "no data" for things that have not happened yet.
func zero(expr string) string { return expr + " or on () vector(0)" }

func one(title, about string, unit string, expr, legend string) Panel {
	return Panel{Title: title, About: about, Kind: Lines, Unit: unit, Queries: []Query{{expr, legend}}}
}

func stat(title, about, unit, expr string) Panel {
	p := one(title, about, unit, expr, armName)
	p.Kind = Stat
	return p
}
