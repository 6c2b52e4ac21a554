package dashboards

import (
	"fmt"
	"strconv"
	"strings"

	"sluice/metrics"
)

// Rule is a recording rule (Record) or an alert (Alert).
type Rule struct {
	Record, Alert string
	Expr          string
	For           string
	Severity      string
	Summary       string
	Runbook       string // anchor in docs/runbooks.md
	// Later: the expression names a metric that the gateway does not export yet;
	// the alert is silent until it does.
	Later bool
}

// Recorded are the recording rules, named experiment_variant:metric:op.
func Recorded() []Rule {
	const by = "sum by (experiment, variant) "
	primary := func(metric, more string) string {
		return "(rate(" + metric + `{role="primary"` + more + "}[5m]))"
	}
	p := func(q, metric string) string {
		return "histogram_quantile(" + q + ", sum by (le, experiment, variant) " + primary(metric+"_bucket", "") + ") > 0"
	}
	errs := by + primary("sluice_requests_total", `,outcome=~"`+metrics.ErrorOutcomes()+`"`)
	all := by + primary("sluice_requests_total", "")
	counted := by + primary("sluice_requests_total", `,outcome!~"`+metrics.UncountedOutcomes()+`"`)
	ok := by + primary("sluice_requests_total", `,outcome="success"`)
	return []Rule{
		{Record: "experiment_variant:sluice_requests:rate5m", Expr: all},
		{Record: "experiment_variant_outcome:sluice_requests:rate5m", Expr: "sum by (experiment, variant, outcome) " + primary("sluice_requests_total", "")},
		// Without a failure the ratio is 0, not "no data"; without counted requests there is none.
		{Record: "experiment_variant:sluice_request_errors:ratio_rate5m", Expr: "(" + errs + " or " + all + " * 0) / (" + counted + " > 0)"},
		{Record: "experiment_variant:sluice_request_duration_seconds:p50_5m", Expr: p("0.50", "sluice_request_duration_seconds")},
		{Record: "experiment_variant:sluice_request_duration_seconds:p95_5m", Expr: p("0.95", "sluice_request_duration_seconds")},
		{Record: "experiment_variant:sluice_time_to_first_token_seconds:p50_5m", Expr: p("0.50", "sluice_time_to_first_token_seconds")},
		{Record: "experiment_variant:sluice_time_to_first_token_seconds:p95_5m", Expr: p("0.95", "sluice_time_to_first_token_seconds")},
		{Record: "experiment_variant:sluice_cost_usd_per_request:rate5m", Expr: by + primary("sluice_cost_usd_total", "") + " / (" + ok + " > 0)"},
		{Record: "experiment_variant:sluice_output_tokens:rate5m", Expr: by + primary("sluice_output_tokens_total", "")},
	}
}

// Alerts are the alerting rules. The baseline is found by its label.
func Alerts() []Rule {
	const ttft = "experiment_variant:sluice_time_to_first_token_seconds:p95_5m"
	arm := func(baseline string) string {
		return "(" + ttft + ` and on (experiment, variant) sluice_experiment_variant_weight_ratio{baseline="` + baseline + `"})`
	}
	assigned := func(more string) string {
		return "sum by (experiment) (rate(sluice_experiment_assignments_total" + more + "[15m]))"
	}
	return append(rolloutAlerts(), []Rule{
		{Alert: "LLMGatewayVariantErrorRateHigh", For: "5m", Severity: "warning", Runbook: "variant-error-rate",
			Expr:    `experiment_variant:sluice_request_errors:ratio_rate5m{experiment!="none"} > 0.05 and on (experiment, variant) experiment_variant:sluice_requests:rate5m > 0.1`,
			Summary: "{{ $labels.experiment }}/{{ $labels.variant }} fails {{ $value | humanizePercentage }} of requests"},
		{Alert: "LLMGatewayVariantSlowerThanBaseline", For: "10m", Severity: "warning",
			Expr:    arm("false") + " > on (experiment) group_left () 2 * " + arm("true"),
			Summary: "{{ $labels.experiment }}/{{ $labels.variant }} p95 TTFT is more than twice the baseline's"},
		{Alert: "LLMGatewayRequestsWithoutUnit", For: "30m", Severity: "warning",
			Expr:    assigned(`{reason="no_unit"}`) + " / " + assigned("") + " > 0.05",
			Summary: "{{ $value | humanizePercentage }} of the requests of {{ $labels.experiment }} carry no user id and get the baseline"},
		{Alert: "LLMGatewaySampleRatioMismatch", For: "15m", Severity: "warning", Later: true,
			Expr:    "sluice_experiment_srm_pvalue < 0.0005",
			Summary: "Sample ratio mismatch in {{ $labels.experiment }} (p={{ $value }}): results cannot be trusted"},
		{Alert: "LLMGatewayUpstreamBreakerOpen", For: "1m", Severity: "critical", Runbook: "breaker-open",
			// Of a server that goes on failing it is half-open now and then.
			Expr:    `max by (upstream) (sluice_upstream_breaker_state{state=~"open|half_open"}) == 1`,
			Summary: "Circuit breaker open for {{ $labels.upstream }}"},
		{Alert: "LLMGatewayUpstreamDown", For: "1m", Severity: "critical",
			Expr:    "max by (upstream) (sluice_upstream_up) == 0",
			Summary: "No endpoint of {{ $labels.upstream }} is ready"},
		{Alert: "LLMGatewayConfigReloadFailed", For: "1m", Severity: "warning",
			Expr:    "sluice_config_last_reload_successful == 0",
			Summary: "{{ $labels.instance }} is serving an old configuration"},
		{Alert: "LLMGatewayConfigRevisionSkew", For: "2m", Severity: "warning",
			Expr:    "max(sluice_config_revision) - min(sluice_config_revision) > 0",
			Summary: "Replicas serve different configuration revisions"},
		{Alert: "LLMGatewayOverheadHigh", For: "10m", Severity: "warning",
			Expr:    "histogram_quantile(0.99, sum by (le) (rate(sluice_gateway_overhead_seconds_bucket[5m]))) > 0.025",
			Summary: "Gateway overhead p99 is {{ $value | humanizeDuration }}"},
		{Alert: "LLMGatewaySeriesOverflow", Severity: "warning",
			Expr:    "increase(sluice_metric_series_overflow_total[10m]) > 0",
			Summary: "Label values are being folded into 'other' for {{ $labels.metric }}"},
		{Alert: "LLMGatewayLedgerLosing", Severity: "critical",
			Expr:    "increase(sluice_ledger_dropped_total[10m]) > 0",
			Summary: "{{ $labels.instance }} could not store events and gave them up: the ledger is incomplete"},
		{Alert: "LLMGatewayLedgerBehind", For: "5m", Severity: "warning",
			Expr:    "sluice_ledger_queue_length > 5000",
			Summary: "{{ $value }} events of {{ $labels.instance }} wait for the database"},
		{Alert: "LLMGatewayRequestsUnpriced", For: "15m", Severity: "info",
			Expr:    "sum by (model, upstream) (rate(sluice_unpriced_requests_total[15m])) > 0",
			Summary: "Requests of {{ $labels.model }} on {{ $labels.upstream }} have no price: cost figures are too low"},
	}...)
}

// Rules renders the rule file of Prometheus.
func Rules() string {
	var b strings.Builder
	b.WriteString("# Generated from metrics/dashboards; change it there and run `go generate ./metrics/dashboards`.\n")
	b.WriteString("groups:\n  - name: sluice-experiments\n    interval: 15s\n    rules:\n")
	for _, r := range Recorded() {
		fmt.Fprintf(&b, "      - record: %s\n        expr: %s\n", r.Record, single(r.Expr))
	}
	b.WriteString("  - name: sluice-alerts\n    rules:\n")
	for _, r := range Alerts() {
		if r.Later {
			b.WriteString("      # Silent until the gateway exports this metric.\n")
		}
		fmt.Fprintf(&b, "      - alert: %s\n        expr: %s\n", r.Alert, single(r.Expr))
		if r.For != "" {
			fmt.Fprintf(&b, "        for: %s\n", r.For)
		}
		fmt.Fprintf(&b, "        labels: {severity: %s}\n        annotations:\n          summary: %s\n", r.Severity, strconv.Quote(r.Summary))
		if r.Runbook != "" {
			fmt.Fprintf(&b, "          runbook: %q\n", "docs/runbooks.md#"+r.Runbook)
		}
	}
	return b.String()
}

// single writes a YAML single-quoted scalar.
func single(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
