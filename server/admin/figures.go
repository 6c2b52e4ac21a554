package admin

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"sluice/metrics"
)

type (
	latency struct {
		Count int64   `json:"count"`
		P50   float64 `json:"p50_seconds"`
		P90   float64 `json:"p90_seconds"`
		P95   float64 `json:"p95_seconds"`
		P99   float64 `json:"p99_seconds"`
	}
	variantResult struct {
		Variant    string           `json:"variant"`
		Weight     int              `json:"weight"`
		Baseline   bool             `json:"baseline"`
		Requests   int64            `json:"requests"`
		Outcomes   map[string]int64 `json:"outcomes" doc:"requests by outcome"`
		Errors     int64            `json:"errors" doc:"numerator of the error ratio"`
		Eligible   int64            `json:"eligible" doc:"denominator of the error ratio"`
		ErrorRatio *float64         `json:"error_ratio" doc:"null without eligible requests"`
		Fallbacks  int64            `json:"fallbacks" doc:"requests that another variant answered"`
		Units      int64            `json:"units" doc:"distinct analysed units first seen since"`
		Attempts   int64            `json:"attempts"`
		Metered    int64            `json:"metered_attempts"`
		Estimated  int64            `json:"estimated_attempts"`
		Unpriced   int64            `json:"unpriced_attempts"`
		Input      int64            `json:"input_tokens"`
		Cached     int64            `json:"cached_tokens"`
		CacheWrite int64            `json:"cache_write_tokens"`
		Output     int64            `json:"output_tokens"`
		Reasoning  int64            `json:"reasoning_tokens"`
		CostUSD    string           `json:"cost_usd"`
		TTFT       latency          `json:"ttft" doc:"of successes"`
		Duration   latency          `json:"duration" doc:"of successes"`
	}
	resultsOut struct {
		Body struct {
			Key    string             `json:"key"`
			Since  time.Time          `json:"since"`
			Stored []variantResult    `json:"stored" doc:"from the ledger of all replicas, a few seconds behind; in the order of the variants"`
			Live   []metrics.ArmStats `json:"live" doc:"of this replica, now"`
			Notes  []string           `json:"notes" doc:"what is missing or must be read with care"`
		}
	}
	usageItem struct {
		metrics.UsageRow
		CostUSD string `json:"cost_usd" doc:"of the priced attempts"`
	}
	usageOut struct {
		Body struct {
			Items     []usageItem `json:"items"`
			Truncated bool        `json:"truncated" doc:"there are more groups than limit"`
		}
	}
	usageIn struct {
		GroupBy    string `query:"group_by" default:"model,variant" maxLength:"200" doc:"comma-separated: model, experiment, variant, role, tenant, key, upstream, minute, hour, day"`
		Since      string `query:"since" maxLength:"64" doc:"a duration such as 24h, or RFC 3339; default 24h"`
		Until      string `query:"until" maxLength:"64" doc:"the same; default now"`
		Limit      int    `query:"limit" minimum:"1" maximum:"10000" default:"1000"`
		Model      string `query:"model" doc:"only this one, as are the following"`
		Experiment string `query:"experiment"`
		Variant    string `query:"variant"`
		Tenant     string `query:"tenant"`
		Key        string `query:"key" doc:"id of an API key"`
		Upstream   string `query:"upstream"`
	}
)

func (a *API) registerFigures(api huma.API) {
	op := func(id, path, summary, tag string, errs ...int) huma.Operation {
		return huma.Operation{OperationID: id, Method: http.MethodGet, Path: path, Summary: summary, Tags: []string{tag}, Errors: append(errs, 503)}
	}
	register(a, api, op("get-usage", "/usage", "Tokens and cost, grouped", "usage"), a.usage)
	register(a, api, op("get-results", "/experiments/{key}/results", "Figures by variant", "experiments", 404), a.results)
	register(a, api, op("explain", "/experiments/{key}/assignments/{unit}", "Why a unit gets its variant", "experiments", 404), a.explain)
}

// moment reads a duration ("24h" ago) or a time (RFC 3339) as a point in time.
func moment(name, s string, now time.Time, def time.Duration) (time.Time, error) {
	if s == "" {
		return now.Add(-def), nil
	}
	if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	if t, err := time.Parse(time.RFC3339, s); err == nil && t.Year() >= 1970 && t.Year() < 3000 {
		return t, nil
	}
	return time.Time{}, field(http.StatusUnprocessableEntity, "invalid_"+name, "query."+name, "must be a duration such as 24h or a time such as 2026-01-31T00:00:00Z")
}

var (
	groups = []string{"model", "experiment", "variant", "role", "tenant", "key", "upstream", "minute", "hour", "day"}
	// hourly dimensions are kept by the hour only.
	hourly = []string{"tenant", "key", "upstream"}
)

// query checks the parameters.
func (in *usageIn) query(now time.Time) (q metrics.UsageQuery, err error) {
	q.Limit, q.Filter = in.Limit, map[string]string{}
	if q.Since, err = moment("since", in.Since, now, 24*time.Hour); err != nil {
		return q, err
	}
	if q.Until, err = moment("until", in.Until, now, 0); err != nil {
		return q, err
	}
	if q.Until.Before(q.Since) {
		return q, field(http.StatusUnprocessableEntity, "invalid_until", "query.until", "lies before since")
	}
	for name, v := range map[string]string{"model": in.Model, "experiment": in.Experiment, "variant": in.Variant, "tenant": in.Tenant, "key": in.Key, "upstream": in.Upstream} {
		if v != "" {
			q.Filter[name] = v
		}
	}
	byHour := false
	for _, h := range hourly {
		byHour = byHour || q.Filter[h] != ""
	}
	for g := range strings.SplitSeq(in.GroupBy, ",") {
		g = strings.TrimSpace(g)
		if !slices.Contains(groups, g) {
			return q, field(http.StatusUnprocessableEntity, "invalid_group_by", "query.group_by", "takes "+strings.Join(groups, ", "))
		}
		byHour = byHour || slices.Contains(hourly, g)
		if !slices.Contains(q.GroupBy, g) {
			q.GroupBy = append(q.GroupBy, g)
		}
	}
	if byHour && slices.Contains(q.GroupBy, "minute") {
		return q, field(http.StatusUnprocessableEntity, "invalid_group_by", "query.group_by", "minute does not go with "+strings.Join(hourly, ", ")+", which are kept by the hour; take hour")
	}
	return q, nil
}

func (a *API) usage(ctx context.Context, in *usageIn) (*usageOut, error) {
	q, err := in.query(time.Now())
	if err != nil {
		return nil, err
	}
	rows, cut, err := a.cfg.Store.Usage(ctx, q)
	if err != nil {
		return nil, err
	}
	out := &usageOut{}
	out.Body.Items, out.Body.Truncated = []usageItem{}, cut
	for _, r := range rows {
		out.Body.Items = append(out.Body.Items, usageItem{r, metrics.FormatUSD(r.CostNano)})
	}
	return out, nil
}

func (a *API) results(ctx context.Context, in *struct {
	ExperimentKey
	Since string `query:"since" maxLength:"64" doc:"a duration such as 24h, or RFC 3339; default 24h"`
}) (*resultsOut, error) {
	_, e, err := a.find(in.Key)
	if err != nil {
		return nil, err
	}
	from, err := moment("since", in.Since, time.Now(), 24*time.Hour)
	if err != nil {
		return nil, err
	}
	out := &resultsOut{}
	b := &out.Body
	b.Key, b.Since, b.Notes = e.Key, from.UTC().Truncate(time.Second), []string{}
	b.Stored, b.Live = []variantResult{}, []metrics.ArmStats{}
	for _, arm := range a.cfg.Recorder.Live() {
		if arm.Experiment == e.Key {
			b.Live = append(b.Live, arm)
		}
	}
	stats, err := a.cfg.Store.ExperimentStats(ctx, e.Key, from)
	if err != nil {
		if p := a.classify(ctx, err); p.Code != "read_only" {
			return nil, p
		}
		b.Notes = append(b.Notes, "The database is away: stored figures are missing.")
		return out, nil
	}
	by := map[string]metrics.VariantStats{}
	for _, s := range stats {
		by[s.Variant] = s
	}
	for _, v := range e.Variants {
		r := resultOf(by[v.Name])
		r.Variant, r.Weight, r.Baseline = v.Name, v.Weight, v.Name == e.Baseline
		delete(by, v.Name)
		b.Stored = append(b.Stored, r)
		if r.Unpriced > 0 {
			b.Notes = append(b.Notes, itoa(r.Unpriced)+" attempts of "+v.Name+" have no price: its cost is a lower bound.")
		}
	}
	if len(by) > 0 {
		b.Notes = append(b.Notes, "Variants that the experiment no longer has are left out.")
	}
	return out, nil
}

func resultOf(s metrics.VariantStats) variantResult {
	r := variantResult{
		Requests: s.Requests, Outcomes: s.Outcomes, Errors: s.Errors, Eligible: s.Eligible, Fallbacks: s.Fallbacks, Units: s.Units,
		Attempts: s.Attempts, Metered: s.Metered, Estimated: s.Estimated, Unpriced: s.Unpriced,
		Input: s.Input, Cached: s.Cached, CacheWrite: s.CacheWrite, Output: s.Output, Reasoning: s.Reasoning,
		CostUSD: metrics.FormatUSD(s.CostNano), TTFT: latencyOf(s.TTFT), Duration: latencyOf(s.Duration),
	}
	if r.Outcomes == nil {
		r.Outcomes = map[string]int64{}
	}
	if s.Eligible > 0 {
		ratio := float64(s.Errors) / float64(s.Eligible)
		r.ErrorRatio = &ratio
	}
	return r
}

func latencyOf(q metrics.Quantiles) latency {
	return latency{q.Count, q.P50.Seconds(), q.P90.Seconds(), q.P95.Seconds(), q.P99.Seconds()}
}
