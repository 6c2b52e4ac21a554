package dashboards

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// CheckPanels runs every query that must have data on the Prometheus at base
// and returns one error per query that fails, is empty or not a number. It
// needs a server that scrapes a gateway with streamed traffic on an experiment,
// has loaded the rules, and has done both for about 20 s. With ramp the
// experiment has a ramp.
func CheckPanels(ctx context.Context, base string, ramp bool) error {
	var errs []error
	for _, d := range Dashboards() {
		for _, row := range d.Rows {
			for _, p := range row.Panels {
				if p.Optional || p.Ramp && !ramp {
					continue
				}
				for _, q := range p.Queries {
					if err := checkQuery(ctx, base, concrete(q.Expr)); err != nil {
						errs = append(errs, fmt.Errorf("%s / %s / %s: %w\n\t%s", d.Title, row.Title, p.Title, err, q.Expr))
					}
				}
			}
		}
	}
	return errors.Join(errs...)
}

// concrete puts values for Grafana's variables: everything, short windows.
func concrete(expr string) string {
	return strings.NewReplacer("$experiment", ".*", "$variant", ".*", "$__rate_interval", "20s", "$__range", "30s").Replace(expr)
}

// CheckRules returns an error for every rule that Prometheus could not evaluate,
// or when it has none.
func CheckRules(ctx context.Context, base string) error {
	var data struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError string }
		}
	}
	if err := get(ctx, base+"/api/v1/rules", &data); err != nil {
		return err
	}
	var errs []error
	n := 0
	for _, g := range data.Groups {
		for _, r := range g.Rules {
			if n++; r.Health != "ok" {
				errs = append(errs, fmt.Errorf("rule %s is %s: %s", r.Name, r.Health, r.LastError))
			}
		}
	}
	if want := len(Recorded()) + len(Alerts()); n != want {
		errs = append(errs, fmt.Errorf("%d rules are loaded, want %d", n, want))
	}
	return errors.Join(errs...)
}

func checkQuery(ctx context.Context, base, expr string) error {
	var data struct {
		Result []struct {
			Value [2]any
		}
	}
	if err := get(ctx, base+"/api/v1/query?"+url.Values{"query": {expr}}.Encode(), &data); err != nil {
		return err
	}
	if len(data.Result) == 0 {
		return errors.New("no data")
	}
	for _, r := range data.Result {
		if s, _ := r.Value[1].(string); s == "" || strings.Contains(s, "NaN") || strings.Contains(s, "Inf") {
			return fmt.Errorf("value %v", r.Value[1])
		}
	}
	return nil
}

// get decodes the data member of an answer of Prometheus's API.
func get(ctx context.Context, u string, data any) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var env struct {
		Status, Error string
		Data          json.RawMessage
	}
	if err := json.NewDecoder(resp.Body).Decode(&env); err != nil {
		return fmt.Errorf("prometheus answered %s: %w", resp.Status, err)
	}
	if env.Status != "success" {
		return fmt.Errorf("prometheus: %s", env.Error)
	}
	return json.Unmarshal(env.Data, data)
}
