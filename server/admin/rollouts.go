package admin

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"sluice/experiment/guardrail"
	"sluice/experiment/ramp"
	"sluice/router"
)

// Rollouts tells how rollouts stand, on any replica; *rollout.Rollouts. An error
// says that the experiment is not watched.
type Rollouts interface {
	Report(ctx context.Context, experiment string) (ramp.Report, error)
}

// Preflights probes variants before users do; *preflight.Prober.
type Preflights interface {
	Preflight(ctx context.Context, experiment string) (*ramp.Preflight, error)
	Last(experiment string) *ramp.Preflight // nil: none was made
}

type (
	// rollbackCost is what a rollback would give back to the baseline now.
	rollbackCost struct {
		RequestsPerSecond float64 `json:"requests_per_second" doc:"of the treatments, lately, on this replica"`
		Calls             int     `json:"calls" doc:"at once that the baseline would get in addition"`
		HeadRoom          bool    `json:"head_room" doc:"the baseline has room for them, as far as that is known"`
		Text              string  `json:"text"`
	}
	rampReport struct {
		ramp.Report
		RollbackCost *rollbackCost `json:"rollback_cost,omitempty" doc:"absent where the baseline serves everybody"`
		LastChange   *historyItem  `json:"last_change,omitempty" doc:"the newest entry of its history; absent while the database is away"`
	}
	rampOut struct{ Body rampReport }
	// guardrailItem is one guardrail of one variant: its policy and its standing.
	guardrailItem struct {
		Variant string             `json:"variant"`
		Config  guardrail.Config   `json:"config"`
		Verdict *guardrail.Verdict `json:"verdict,omitempty" doc:"absent until something is counted"`
		State   string             `json:"state" enum:"PASS,FAIL,OPEN"`
		Value   *float64           `json:"value,omitempty" doc:"the variant's rate, lift or reading"`
		Bound   *float64           `json:"bound,omitempty" doc:"what it is held against"`
		Text    string             `json:"text"`
	}
	guardrailsOut struct {
		Body struct {
			Key   string          `json:"key"`
			At    time.Time       `json:"at,omitzero" doc:"of the report; absent without one"`
			Items []guardrailItem `json:"items"`
		}
	}
	forecastBody struct {
		Traffic  ramp.Traffic        `json:"traffic" doc:"of the model today, as this replica sees it times the live replicas"`
		Steps    []ramp.StepForecast `json:"steps"`
		Time     ramp.Seconds        `json:"time_s" doc:"of all steps and the bake; 0 if one cannot be met"`
		Text     string              `json:"text"`
		Warnings []string            `json:"warnings,omitempty"`
	}
	forecastOut  struct{ Body forecastBody }
	preflightOut struct{ Body ramp.Preflight }
)

func (a *API) registerRollouts(api huma.API) {
	op := func(id, method, path, summary string, errs ...int) huma.Operation {
		return huma.Operation{OperationID: id, Method: method, Path: path, Summary: summary, Tags: []string{"rollouts"}, Errors: append(errs, 404)}
	}
	register(a, api, op("get-ramp", http.MethodGet, "/experiments/{key}/ramp", "How the rollout stands, and why it is not advancing"), a.ramp)
	register(a, api, op("get-guardrails", http.MethodGet, "/experiments/{key}/guardrails", "Guardrails with value, bound and state"), a.guardrails)
	register(a, api, op("get-forecast", http.MethodGet, "/experiments/{key}/forecast", "What each step takes at today's traffic", 409), a.forecast)
	register(a, api, op("get-preflight", http.MethodGet, "/experiments/{key}/preflight", "What the last preflight found"), a.lastPreflight)
	register(a, api, op("run-preflight", http.MethodPost, "/experiments/{key}:preflight", "Probe every variant as clients do; takes up to minutes", 409, 503), a.preflight)
}

// report is how e's rollout stands. What nobody watches is what the document says.
func (a *API) report(ctx context.Context, t *router.Table, e *router.Experiment) ramp.Report {
	if a.cfg.Rollouts != nil {
		if r, err := a.cfg.Rollouts.Report(ctx, e.Key); err == nil {
			return r
		}
	}
	now, _ := overlay(t, e)
	r := ramp.Report{Experiment: e.Key, Generation: e.Generation, State: now.State, Step: -1, Steps: []ramp.Step{}, Weights: router.WeightsView(e),
		Baseline: e.Baseline, Arms: []ramp.Arm{}, Treatments: []ramp.Treatment{}, Warnings: []string{}}
	for _, v := range now.Variants {
		r.Arms = append(r.Arms, ramp.Arm{Name: v.Name, Baseline: v.Name == e.Baseline, Weight: v.Weight, Killed: v.State == router.VariantKilled})
	}
	if s := e.RampState; s != nil {
		r.Phase, r.Reason, r.Variant, r.Step, r.Since, r.Epoch, r.Approved = s.Phase, s.Reason, s.Variant, s.Step, s.Since, s.Epoch, s.Approved
		r.Steps = append(r.Steps, s.Steps...)
	}
	r.Warnings = append(r.Warnings, "Nobody watches this experiment: it does not run, or it has neither a ramp nor guardrails.")
	return r
}

func (a *API) ramp(ctx context.Context, in *ExperimentKey) (*rampOut, error) {
	t, e, err := a.find(in.Key)
	if err != nil {
		return nil, err
	}
	out := &rampOut{}
	out.Body.Report = a.report(ctx, t, e)
	out.Body.RollbackCost = a.rollbackCost(t, e, &out.Body.Report)
	if page, err := a.auditPage(ctx, PageIn{Limit: 1}, router.AuditFilter{Object: "experiment/" + in.Key}); err == nil && len(page.Body.Items) > 0 {
		last := narrate(&page.Body.Items[0])
		out.Body.LastChange = &last
		if d := &out.Body.Decision; d.Text == "" && out.Body.State != router.StateRunning {
			d.Text = last.Reason // what ended it: no leader looks at it any more
		}
	}
	return out, nil
}

// rollbackCost is nil where a rollback would move nobody.
func (a *API) rollbackCost(t *router.Table, e *router.Experiment, r *ramp.Report) *rollbackCost {
	ce, ok := t.Experiment(e.Key)
	if !ok || ce.Baseline < 0 || !slices.Contains([]string{router.StateRunning, router.StatePaused, router.StatePromoted}, e.State) {
		return nil
	}
	base := ce.Variants[ce.Baseline]
	ret := ramp.Return{Baseline: base.Name, Shared: true}
	if u := base.Target.Upstream; u != nil {
		q := u.QueueStatus()
		ret.InFlight = q.InFlight
		all := 0
		for _, s := range u.Status() {
			if all++; s.Ready && !s.Drained {
				ret.Ready++
			}
		}
		if all > 0 {
			ret.Capacity = q.MaxInFlight * ret.Ready / all
		}
	}
	moves := false
	for i, v := range ce.Variants {
		if i != ce.Baseline && !v.Killed && !v.Masked {
			moves = true
			ret.Shared = ret.Shared && v.Target.Upstream == base.Target.Upstream
		}
	}
	if !moves {
		return nil
	}
	for _, arm := range a.cfg.Recorder.Live() {
		switch {
		case arm.Experiment != e.Key:
		case arm.Variant == base.Name:
			if p := arm.DurationP50; p != nil {
				ret.Lasts = ramp.Seconds(*p * float64(time.Second))
			}
		default:
			ret.Rate += arm.RPS1m
		}
	}
	cost := &rollbackCost{RequestsPerSecond: ret.Rate, Calls: ret.Returning(), Text: ret.Cost()}
	check := ramp.HeadRoom(ret)
	cost.HeadRoom = check.OK
	if !check.OK {
		cost.Text = check.Text
	}
	if !r.HeadRoom.OK && r.HeadRoom.Text != "" { // the leader knows all replicas
		cost.HeadRoom, cost.Text = false, r.HeadRoom.Text
	}
	return cost
}

func (a *API) guardrails(ctx context.Context, in *ExperimentKey) (*guardrailsOut, error) {
	t, e, err := a.find(in.Key)
	if err != nil {
		return nil, err
	}
	r := a.report(ctx, t, e)
	out := &guardrailsOut{}
	out.Body.Key, out.Body.At, out.Body.Items = e.Key, r.At, []guardrailItem{}
	list, err := e.Watched()
	if err != nil {
		return nil, newProblem(http.StatusConflict, "guardrails_invalid", "The guardrails cannot be read: "+err.Error()+"; write them anew.")
	}
	for _, v := range e.Variants {
		if v.Name == e.Baseline {
			continue
		}
		at := slices.IndexFunc(r.Treatments, func(t ramp.Treatment) bool { return t.Name == v.Name })
		for i := range list {
			item := guardrailItem{Variant: v.Name, Config: list[i], State: string(guardrail.Open), Text: list[i].Name + ": nothing is counted yet"}
			if at >= 0 {
				item.stand(r.Treatments[at].Verdicts)
			}
			out.Body.Items = append(out.Body.Items, item)
		}
	}
	return out, nil
}

// stand adds the guardrail's verdict, if there is one.
func (g *guardrailItem) stand(verdicts []guardrail.Verdict) {
	for i := range verdicts {
		v := &verdicts[i]
		if v.Name != g.Config.Name {
			continue
		}
		g.Verdict, g.State, g.Text = v, string(v.Decision), v.Text()
		g.Value, g.Bound = v.Reading()
		// JSON has no infinity, and a rate of nothing is none.
		for _, p := range []**float64{&g.Value, &g.Bound} {
			if *p != nil && (math.IsNaN(**p) || math.IsInf(**p, 0)) {
				*p = nil
			}
		}
	}
}

func (a *API) forecast(ctx context.Context, in *ExperimentKey) (*forecastOut, error) {
	t, e, err := a.find(in.Key)
	if err != nil {
		return nil, err
	}
	f := a.forecastOf(ctx, t, e)
	if f == nil {
		return nil, newProblem(http.StatusConflict, "no_ramp", "The experiment has no ramp, so there are no steps to forecast; write ramp: {} to have the default steps.")
	}
	return &forecastOut{Body: *f}, nil
}

// forecastOf is what the steps to come take; nil without a ramp.
func (a *API) forecastOf(ctx context.Context, t *router.Table, e *router.Experiment) *forecastBody {
	policy, ok := e.Policy()
	if !ok {
		return nil
	}
	list, err := e.Watched()
	if err != nil {
		return nil
	}
	f := &forecastBody{Traffic: a.traffic(ctx, e), Warnings: policy.Warnings()}
	steps := policy.Ladder()
	if s := e.RampState; e.Ramping() && len(s.Steps) > 0 {
		steps = s.Steps[min(max(s.Step, 0), len(s.Steps)):]
	} else if policy.Auto {
		sized, check := ramp.AutoSteps(&policy, list, f.Traffic)
		if steps = sized; check.Text != "" {
			f.Warnings = append(f.Warnings, check.Text)
		}
	}
	f.Steps = ramp.Forecast(&policy, list, steps, f.Traffic)
	all, met := policy.Bake, true
	for i := range f.Steps {
		all += f.Steps[i].Time.D()
		met = met && f.Steps[i].OK
	}
	switch {
	case f.Traffic.PerSecond == 0:
		f.Text = "no traffic of " + e.Model + " has been seen here lately, so nothing can be said; ask again while there is some"
	case len(f.Steps) == 0:
		f.Text = "the steps are sized when there is traffic"
	case a.watched() < enoughWatched:
		f.Time = ramp.Seconds(all)
		f.Text = fmt.Sprintf("a guess: traffic has been watched for %s only; ask again after %s", a.watched().Round(time.Second), enoughWatched)
		if !met {
			f.Time = 0
			f.Warnings = append(f.Warnings, "That a step cannot be met is a guess too: more users may come than were seen yet.")
		}
	case !met:
		f.Text = "at today's traffic not every step can be met within max_duration: the ramp would pause there; take larger steps, or a longer max_duration"
	default:
		f.Time = ramp.Seconds(all)
		f.Text = fmt.Sprintf("at today's traffic %d steps and the bake take about %s", len(f.Steps), all.Round(time.Minute))
	}
	return f
}

// traffic is what e's model has today: this replica's figures, for as many
// replicas as live.
func (a *API) traffic(ctx context.Context, e *router.Experiment) ramp.Traffic {
	tr := ramp.Traffic{Seen: []ramp.Seen{}, Rates: map[string]float64{}}
	units := 0
	for _, arm := range a.cfg.Recorder.Live() {
		if arm.Model != e.Model || arm.Role == "shadow" || arm.Role == "probe" {
			continue
		}
		tr.PerSecond += arm.RPS5m
		units += int(arm.Units)
		if arm.Experiment == e.Key && arm.Variant == e.Baseline && arm.SuccessRatio != nil {
			tr.Rates[guardrail.Error] = 1 - *arm.SuccessRatio
		}
	}
	tr.PerSecond *= float64(max(1, len(a.cfg.Control.Status(ctx).Replicas)))
	if units == 0 {
		// Where no experiment has numbered the users yet, each request is about one.
		units = int(tr.PerSecond * min(a.watched(), time.Hour).Seconds() / 10)
	}
	tr.Seen = ramp.Extrapolate(units, a.watched())
	return tr
}

// watched is for how long this replica has seen traffic.
func (a *API) watched() time.Duration { return time.Since(a.born) }

// enoughWatched is how long traffic is watched before a forecast is more than a guess.
const enoughWatched = 5 * time.Minute

func (a *API) lastPreflight(_ context.Context, in *ExperimentKey) (*preflightOut, error) {
	if _, _, err := a.find(in.Key); err != nil {
		return nil, err
	}
	if a.cfg.Preflights != nil {
		if p := a.cfg.Preflights.Last(in.Key); p != nil {
			return &preflightOut{Body: *p}, nil
		}
	}
	return nil, newProblem(http.StatusNotFound, "no_preflight", "This replica has made no preflight of the experiment; POST …:preflight makes one.")
}

func (a *API) preflight(ctx context.Context, in *struct {
	ExperimentKey
	IdempotencyKey string `header:"Idempotency-Key" doc:"repeating it answers the first result"`
}) (*preflightOut, error) {
	_, e, err := a.find(in.Key)
	switch {
	case err != nil:
		return nil, err
	case a.cfg.Preflights == nil:
		return nil, newProblem(http.StatusServiceUnavailable, "no_preflight", "This process makes no preflights; ask a replica that serves.")
	case e.State == router.StateArchived:
		return nil, newProblem(http.StatusConflict, "invalid_state", "The experiment is archived: it decides nothing.")
	}
	p, err := a.cfg.Preflights.Preflight(ctx, in.Key)
	if err != nil {
		if ctx.Err() != nil {
			return nil, err
		}
		return nil, newProblem(http.StatusConflict, "preflight_failed", "The preflight could not be made: "+clip(err.Error(), 300)+".")
	}
	return &preflightOut{Body: *p}, nil
}

// evidence says whether a person may go on without more proof. A proved failure
// stops everybody, what is not proved those who do not insist.
func evidence(r *ramp.Report, variant string, force bool, reason string) error {
	var open []string
	for i := range r.Treatments {
		t := &r.Treatments[i]
		if t.Name != variant {
			continue
		}
		for j := range t.Verdicts {
			switch v := &t.Verdicts[j]; {
			case v.Action == guardrail.ActionWarn:
			case v.Decision == guardrail.Fail:
				return newProblem(http.StatusConflict, "guardrail_failed", "A guardrail has failed, so nobody goes on: "+v.Text()+". Roll back, or change the guardrail.")
			case !v.Satisfied():
				open = append(open, v.Text())
			}
		}
	}
	if proved(&r.Decision) {
		return nil
	}
	if len(open) == 0 && r.Decision.Text != "" {
		open = []string{r.Decision.Text}
	}
	if len(open) == 0 {
		open = []string{"nothing is counted yet"}
	}
	switch {
	case !force:
		return newProblem(http.StatusConflict, "evidence_open", "It is not proved that this is safe: "+strings.Join(open, "; ")+". Wait, or send force with a reason.")
	case strings.TrimSpace(reason) == "":
		return field(http.StatusUnprocessableEntity, "reason_required", "body.reason", "is missing: going on without proof needs one")
	}
	return nil
}

// proved reports a decision after which only a person's word is missing.
func proved(d *ramp.Decision) bool {
	switch d.Action {
	case ramp.Advance, ramp.Promote, ramp.FinishBake:
		return true
	case ramp.Hold:
		return d.Code == ramp.CodeApproval || d.Code == ramp.CodeMaxWeight
	}
	return false
}
