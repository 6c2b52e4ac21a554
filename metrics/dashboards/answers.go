package dashboards

// answers is what answers are like: most failures of LLMs are an HTTP 200.
func answers() Row {
	flaws := "sum by (experiment, variant, flaw) "
	finish := one("Finish reasons", "Choices by why they ended, as a share. More length than the baseline has is cut answers, or longer ones.", "percentunit",
		"sum by (experiment, variant, reason) "+rate("sluice_answer_finish_reasons_total", arms)+
			" / on (experiment, variant) group_left () ("+byArm+rate("sluice_answer_finish_reasons_total", arms)+" > 0)", armName+" {{reason}}")
	finish.Stacked = true
	share := func(metric string) string {
		return byArm + rate(metric, arms) + " / (" + byArm + rate("sluice_answers_judged_total", sel(`flaw="truncated"`)) + " > 0)"
	}
	return Row{"Answers", []Panel{
		one("Flaws", "Answers under a 200 with something wrong, of those in which it was looked for: invalid_json of requests that demand JSON, and so on.", "percentunit",
			flaws+rate("sluice_answer_flaws_total", arms)+" / ("+flaws+rate("sluice_answers_judged_total", arms)+" > 0)", armName+" {{flaw}}"),
		finish,
		{Title: "Time to first answer token p50 and p95", About: "Of streamed answers: content or a tool call, after any reasoning.", Kind: Lines, Unit: "s", Queries: []Query{
			withLegend(quantile("0.50", "sluice_time_to_first_answer_token_seconds"), armName+" p50"),
			withLegend(quantile("0.95", "sluice_time_to_first_answer_token_seconds"), armName+" p95"),
		}},
		{Title: "Longest gap p95", About: "The longest pause of the upstream within one streamed answer.", Kind: Lines, Unit: "s", Queries: []Query{quantile("0.95", "sluice_answer_gap_seconds")}},
		one("Characters per answer", "Comparable between variants whose tokenizers are not.", "short", share("sluice_answer_characters_total"), armName),
		one("Refusals", "Answers that begin like a refusal, as a share. A label, no guardrail.", "percentunit", share("sluice_answer_refusals_total"), armName),
		one("What requests ask for", "As a share of requests. Arms that differ here do not get the same requests.", "percentunit",
			"sum by (experiment, variant, ask) "+rate("sluice_request_asks_total", arms)+
				" / on (experiment, variant) group_left () ("+byArm+rate("sluice_requests_total", arms)+" > 0)", armName+" {{ask}}"),
	}}
}
