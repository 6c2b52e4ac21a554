package dashboards

// Dashboards returns the dashboards: one for experiments, one for operations.
//
// Left out until the gateway exports what they show: the SRM p-value, shadow
// traffic, GPU cost, rate limits.
func Dashboards() []Dashboard {
	return []Dashboard{
		{
			UID: "sluice-experiments", Title: "LLM gateway: experiments", Experiments: true,
			About: "What each variant does to its users: traffic, errors, latency, tokens and cost, by the assigned variant.",
			Rows:  []Row{overview(), experiment(), rollout(), latency(), errorRow(), answers(), tokens(), cost()},
		},
		{
			UID: "sluice-operations", Title: "LLM gateway: operations",
			About: "Whether the gateway and its upstreams are well.",
			Rows:  []Row{upstreams(), supervision(), gateway(), engines()},
		},
	}
}

func overview() Row {
	return Row{"Overview", []Panel{
		stat("Requests/s by variant", "Requests by assigned variant.", "reqps", byArm+rate("sluice_requests_total", arms)),
		stat("Success ratio by variant", "1 − errors ÷ counted requests, five minutes. Client errors, cancels and the gateway's own limits are outside.", "percentunit",
			`1 - experiment_variant:sluice_request_errors:ratio_rate5m{experiment=~"$experiment",variant=~"$variant"}`),
		{Title: "p95 time to first token by variant", About: "Of streamed answers.", Kind: Stat, Unit: "s", Queries: []Query{quantile("0.95", "sluice_time_to_first_token_seconds")}},
		stat("Cost per 1k requests", "Cost of all attempts per 1,000 successful requests; requests of unknown price add nothing.", "currencyUSD",
			ratio("1000 * ", byArm+rate("sluice_cost_usd_total", arms), byArm+rate("sluice_requests_total", sel(`outcome="success"`)))),
	}}
}

func experiment() Row {
	const e = `{experiment=~"$experiment"}`
	assigned := rate("sluice_experiment_assignments_total", e)
	return Row{"Experiment", []Panel{
		one("Configured weight", "The share each variant is given by configuration.", "percentunit",
			"max by (experiment, variant) (sluice_experiment_variant_weight_ratio"+e+")", armName),
		one("Observed share", "The share of requests assigned to each variant. Heavy users move it away from the weight, which is a share of users.", "percentunit",
			byArm+assigned+" / on (experiment) group_left () (sum by (experiment) "+assigned+" > 0)", armName),
		one("Units", "Distinct users (or other units) seen in the last hour by the replica that saw most.", "short",
			"max by (experiment, variant) (sluice_experiment_units"+e+")", armName),
		one("Assignments by reason", "Why requests got their variant: bucket, pin, override, no_unit and so on.", "reqps",
			"sum by (experiment, reason) "+assigned, "{{experiment}} {{reason}}"),
		one("Requests without a unit", "Share of requests that carry no user id and so go to the baseline; above 5 % the experiment is thin.", "percentunit",
			"(sum by (experiment) (rate(sluice_experiment_assignments_total{experiment=~\"$experiment\",reason=\"no_unit\"}[$__rate_interval])) or sum by (experiment) "+assigned+" * 0) / (sum by (experiment) "+assigned+" > 0)",
			"{{experiment}}"),
		one("Fallbacks", "Requests answered by another than the assigned variant.", "reqps",
			zero("sum by (experiment, variant, to, reason) (rate(sluice_fallbacks_total{experiment=~\"$experiment\",variant=~\"$variant\"}[$__rate_interval]))"),
			"{{experiment}} {{variant}} → {{to}} ({{reason}})"),
	}}
}

func latency() Row {
	const p95 = "experiment_variant:sluice_request_duration_seconds:p95_5m"
	const weight = "sluice_experiment_variant_weight_ratio"
	dur := func(title, q string) Panel {
		return Panel{Title: title, About: "Whole requests, whatever their outcome.", Kind: Lines, Unit: "s", Queries: []Query{quantile(q, "sluice_request_duration_seconds")}}
	}
	return Row{"Latency", []Panel{
		dur("Duration p50", "0.50"), dur("Duration p95", "0.95"), dur("Duration p99", "0.99"),
		{Title: "Time to first token p50 and p95", About: "Of streamed answers.", Kind: Lines, Unit: "s", Queries: []Query{
			withLegend(quantile("0.50", "sluice_time_to_first_token_seconds"), armName+" p50"),
			withLegend(quantile("0.95", "sluice_time_to_first_token_seconds"), armName+" p95"),
		}},
		{Title: "Time per output token p50", About: "After the first token. Variants with different tokenizers cannot be compared by it.", Kind: Lines, Unit: "s", Queries: []Query{quantile("0.50", "sluice_time_per_output_token_seconds")}},
		one("Slower than the baseline, p95", "Duration p95 minus the baseline's, five minutes; below 0 is faster. The baseline is a label, not a name.", "s",
			"("+p95+`{experiment=~"$experiment"} and on (experiment, variant) `+weight+`{baseline="false"})`+
				" - on (experiment) group_left () ("+p95+`{experiment=~"$experiment"} and on (experiment, variant) `+weight+`{baseline="true"})`, armName),
		{Title: "Duration heatmap", About: "All chosen variants together.", Kind: Heatmap, Unit: "s", Queries: []Query{
			{"sum by (le) (increase(sluice_request_duration_seconds_bucket" + arms + "[$__rate_interval]))", "{{le}}"}}},
	}}
}

func withLegend(q Query, legend string) Query {
	q.Legend = legend
	return q
}

func errorRow() Row {
	byOutcome := one("By outcome", "Everything but success; canceled and client_error are not the variant's fault.", "reqps",
		"sum by (experiment, variant, outcome) "+rate("sluice_requests_total", sel(`outcome!="success"`)), armName+" {{outcome}}")
	byOutcome.Stacked = true
	return Row{"Errors", []Panel{
		byOutcome,
		one("Error ratio", "Errors ÷ counted requests, five minutes.", "percentunit",
			`experiment_variant:sluice_request_errors:ratio_rate5m{experiment=~"$experiment",variant=~"$variant"}`, armName),
		one("Attempts by outcome", "What each call to an endpoint came to, before retries and fallbacks hid it.", "reqps",
			`sum by (experiment, variant, upstream, outcome) (rate(sluice_attempts_total{experiment=~"$experiment",variant=~"$variant"}[$__rate_interval]))`,
			armName+" {{upstream}} {{outcome}}"),
	}}
}

func tokens() Row {
	in := byArm + rate("sluice_input_tokens_total", arms)
	return Row{"Tokens", []Panel{
		one("Input tokens/s", "Of all attempts, cached tokens included.", "short", in, armName),
		one("Output tokens/s", "Of all attempts, reasoning included.", "short", byArm+rate("sluice_output_tokens_total", arms), armName),
		one("Cache hit ratio", "Input tokens that the engine read from its cache.", "percentunit", ratio("", byArm+rate("sluice_cached_input_tokens_total", arms), in), armName),
		{Title: "Output length p50", About: "Tokens per answer: longer answers explain longer requests.", Kind: Lines, Unit: "short", Queries: []Query{quantile("0.50", "sluice_request_output_tokens")}},
		one("Where token counts come from", "Attempts whose usage the upstream reported, the gateway estimated, or nobody knows.", "reqps",
			"sum by (experiment, variant, source) "+rate("sluice_usage_total", arms), armName+" {{source}}"),
	}}
}

func cost() Row {
	usd := byArm + rate("sluice_cost_usd_total", arms)
	return Row{"Cost", []Panel{
		one("USD per hour", "At the present rate, by how it is computed: token is the price list.", "currencyUSD",
			"3600 * sum by (experiment, variant, basis) "+rate("sluice_cost_usd_total", arms), armName+" {{basis}}"),
		one("USD per 1M output tokens", "All cost, input included, per million output tokens.", "currencyUSD",
			ratio("1e6 * ", usd, byArm+rate("sluice_output_tokens_total", arms)), armName),
		one("Requests of unknown price", "They are missing from every cost figure: give the upstream or the variant a price.", "reqps",
			zero("sum by (model, upstream) (rate(sluice_unpriced_requests_total[$__rate_interval]))"), "{{model}} {{upstream}}"),
	}}
}

func upstreams() Row {
	return Row{"Upstreams", []Panel{
		one("Up", "1 while an endpoint of the upstream is ready.", "short", "min by (upstream) (sluice_upstream_up)", "{{upstream}}"),
		one("Calls/s by outcome", "What calls to each upstream came to.", "reqps", "sum by (upstream, outcome) (rate(sluice_upstream_requests_total[$__rate_interval])) > 0", "{{upstream}} {{outcome}}"),
		one("In flight", "Calls in flight, all replicas.", "short", "sum by (upstream) (sluice_upstream_inflight_requests)", "{{upstream}}"),
		one("Waiting for a place", "Requests in the queue in front of the upstream, all replicas.", "short", "sum by (upstream) (sluice_upstream_queue_length)", "{{upstream}}"),
		one("Breaker", "The worst breaker of the upstream's endpoints on any replica.", "short", "max by (upstream, state) (sluice_upstream_breaker_state)", "{{upstream}} {{state}}"),
		one("Share of endpoints", "Below 1 while an endpoint that came back starts slowly.", "percentunit", "min by (upstream, endpoint) (sluice_endpoint_weight_ratio)", "{{upstream}} {{endpoint}}"),
		one("Call duration p95", "Of single calls.", "s", "histogram_quantile(0.95, sum by (le, upstream) (rate(sluice_upstream_request_duration_seconds_bucket[$__rate_interval]))) > 0", "{{upstream}}"),
		one("Retries", "By the upstream that failed and how.", "reqps", zero("sum by (upstream, reason) (rate(sluice_retries_total[$__rate_interval]))"), "{{upstream}} {{reason}}"),
		one("Hedges", "Calls beside one that took unusually long, by whether theirs became the answer.", "reqps", zero("sum by (upstream, result) (rate(sluice_hedges_total[$__rate_interval]))"), "{{upstream}} {{result}}"),
		one("Fallbacks", "Changes of variant, by model.", "reqps", zero("sum by (model, reason) (rate(sluice_fallbacks_total[$__rate_interval]))"), "{{model}} {{reason}}"),
		one("Endpoints in flight", "Calls in flight by replica.", "short", "sum by (upstream, endpoint) (sluice_endpoint_inflight_requests)", "{{upstream}} {{endpoint}}"),
		one("Impossible token counts", "Clamped: an upstream reported negative counts or parts larger than their whole.", "short", zero("sum by (upstream) (rate(sluice_usage_anomalies_total[$__rate_interval]))"), "{{upstream}}"),
	}}
}

func gateway() Row {
	return Row{"Gateway", []Panel{
		one("Overhead p99", "The gateway's own time before the first call.", "s", "histogram_quantile(0.99, sum by (le) (rate(sluice_gateway_overhead_seconds_bucket[$__rate_interval]))) > 0", "p99"),
		one("Revision per replica", "Lines apart: a replica serves an old configuration.", "none", "max by (instance) (sluice_config_revision)", "{{instance}}"),
		one("Ledger queue", "Events that wait for the database.", "short", "max by (instance) (sluice_ledger_queue_length)", "{{instance}}"),
		one("Lost records", "Events missing from the database or lines missing from the access log. Metrics lose nothing.", "short", "sum by (instance) (increase(sluice_ledger_dropped_total[$__range])) + sum by (instance) (increase(sluice_access_log_dropped_total[$__range]))", "{{instance}}"),
		one("Pin store", "Reads over their budget, pins answered from memory or lost while the store is away.", "short", zero("sum by (event) (rate(sluice_sticky_events_total[$__rate_interval]))"), "{{event}}"),
		one("Folded series", "Observations booked to other because the cap on series is reached.", "short", zero("sum by (metric) (rate(sluice_metric_series_overflow_total[$__rate_interval]))"), "{{metric}}"),
		one("Series exposed", "Samples in one scrape.", "short", "sum by (instance) (scrape_samples_scraped)", "{{instance}}"),
	}}
}

func engines() Row {
	optional := func(p Panel) Panel {
		p.Optional = true
		return p
	}
	return Row{"Engines (vLLM, if Prometheus scrapes them)", []Panel{
		optional(Panel{Title: "Running and waiting", About: "The engine's own queue.", Kind: Lines, Unit: "short", Queries: []Query{
			{"sum by (model_name) (vllm:num_requests_running)", "{{model_name}} running"},
			{"sum by (model_name) (vllm:num_requests_waiting)", "{{model_name}} waiting"},
		}}),
		optional(one("KV cache in use", "Above 90 % the engine preempts.", "percentunit", "max by (model_name) (vllm:kv_cache_usage_perc or vllm:gpu_cache_usage_perc)", "{{model_name}}")),
	}}
}
