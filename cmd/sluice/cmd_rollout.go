package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sluice/experiment/ramp"
	"sluice/internal/config"
)

func percentOf(bp int) string { return config.FormatPercent(bp) + " %" }

// span writes a duration for people, with one unit or two.
func span(d time.Duration) string {
	switch {
	case d < time.Minute:
		return d.Round(time.Second).String()
	case d < 48*time.Hour:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	}
	return fmt.Sprintf("%.1f days", d.Hours()/24)
}

// read is a command that shows one answer about an experiment.
func read(a *cli, r *remote, use, short, path string, show func(out *answer) error) *cobra.Command {
	return &cobra.Command{
		Use: use + " KEY", Short: short, Args: exactly("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := r.client(a)
			if err != nil {
				return err
			}
			out, err := c.call(cmd.Context(), http.MethodGet, experimentPath(args[0])+path, nil, "", nil)
			if err != nil {
				return err
			}
			return show(out)
		},
	}
}

// rolloutView is an experiment's rollout as GET …/ramp answers.
type rolloutView struct {
	ramp.Report
	RollbackCost *struct {
		Text string `json:"text"`
	} `json:"rollback_cost"`
	LastChange *struct {
		Time time.Time `json:"time"`
		Text string    `json:"text"`
	} `json:"last_change"`
}

func experimentStatus(a *cli, r *remote) *cobra.Command {
	return read(a, r, "status", "How its rollout stands, and why it is not advancing", "/ramp", func(out *answer) error {
		var s rolloutView
		if err := out.decode(&s); err != nil {
			return err
		}
		return a.print(json.RawMessage(out.body), func(w io.Writer) {
			row(w, "experiment", s.Experiment)
			row(w, "state", phaseOf(&s.Report))
			if len(s.Steps) > 0 {
				row(w, "steps", ladder(&s.Report))
			}
			if s.Decision.Text != "" {
				row(w, "decision", s.Decision.Text)
			}
			for _, why := range s.WhyNot {
				row(w, "why not", why)
			}
			if p := s.Approval; p != nil {
				row(w, "approval", "the step to "+percentOf(p.Weight)+" waits for: sluice experiment approve "+s.Experiment)
			}
			if l := s.LastChange; l != nil {
				row(w, "last change", l.Time.Local().Format(time.DateTime)+" "+l.Text)
			}
			if c := s.RollbackCost; c != nil {
				row(w, "rollback", c.Text)
			}
			for _, h := range s.Heavy {
				row(w, "heavy", fmt.Sprintf("%s carries %.0f %% of the traffic", or(h.ID, h.Pin), 100*h.Share))
			}
			for _, text := range s.Warnings {
				row(w, "warning", text)
			}
			if s.Leader != "" {
				row(w, "leader", s.Leader)
			}
			fmt.Fprintln(w)
			row(w, "VARIANT", "WEIGHT", "USERS", "REQUESTS", "REQUESTS/S", "READY")
			for _, arm := range s.Arms {
				row(w, arm.Name, percentOf(arm.Weight), arm.Units, arm.Started, fmt.Sprintf("%.3g", arm.Rate), arm.Ready)
			}
		})
	})
}

func or(a, b string) string { return firstOf(a, b) }

// phaseOf is "running, ramping: step 2 of 5".
func phaseOf(r *ramp.Report) string {
	text := r.State
	if r.Phase != "" {
		text += ", " + string(r.Phase)
	}
	if r.Step >= 0 && len(r.Steps) > 0 {
		text += fmt.Sprintf(": step %d of %d", r.Step+1, len(r.Steps))
	}
	if r.Reason != "" {
		text += " (" + r.Reason + ")"
	}
	return text
}

// ladder is "1 % · [5 %] · 20 % · 50 %?": what is taken now, and what waits for
// an approval.
func ladder(r *ramp.Report) string {
	var list []string
	for i, s := range r.Steps {
		text := percentOf(s.Weight)
		if s.Approve && r.Approved < i {
			text += "?"
		}
		if i == r.Step {
			text = "[" + text + "]"
		}
		list = append(list, text)
	}
	return strings.Join(list, " · ")
}

// guarded is one guardrail of one variant as GET …/guardrails answers.
type guarded struct {
	Variant string `json:"variant"`
	Config  struct {
		Name   string `json:"name"`
		Action string `json:"action"`
		Kind   string `json:"kind"`
	} `json:"config"`
	State string   `json:"state"`
	Value *float64 `json:"value"`
	Bound *float64 `json:"bound"`
	Text  string   `json:"text"`
}

func (g *guarded) number(x *float64) string {
	switch {
	case x == nil:
		return "-"
	case g.Config.Kind == "limit":
		return fmt.Sprintf("%.4g", *x)
	}
	return fmt.Sprintf("%.3g %%", 100**x)
}

func experimentGuardrails(a *cli, r *remote) *cobra.Command {
	return read(a, r, "guardrails", "Its guardrails with value, bound and state", "/guardrails", func(out *answer) error {
		var v struct {
			Items []guarded `json:"items"`
		}
		if err := out.decode(&v); err != nil {
			return err
		}
		return a.print(json.RawMessage(out.body), func(w io.Writer) {
			if len(v.Items) == 0 {
				fmt.Fprintln(w, "no guardrails: nothing is watched")
				return
			}
			row(w, "VARIANT", "GUARDRAIL", "STATE", "VALUE", "BOUND", "ON FAIL", "WHY")
			for i := range v.Items {
				g := &v.Items[i]
				row(w, g.Variant, g.Config.Name, g.State, g.number(g.Value), g.number(g.Bound), g.Config.Action, g.Text)
			}
		})
	})
}

// past is one change of an experiment as GET …/history answers.
type past struct {
	Time  time.Time `json:"time"`
	Event string    `json:"event"`
	Text  string    `json:"text"`
}

func experimentHistory(a *cli, r *remote) *cobra.Command {
	var limit int
	cmd := read(a, r, "history", "What happened to it and why, newest first", "/history", nil)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if limit < 1 || limit > 200 {
			return usagef("--limit is a number from 1 to 200")
		}
		c, err := r.client(a)
		if err != nil {
			return err
		}
		out, err := c.call(cmd.Context(), http.MethodGet, experimentPath(args[0])+"/history", url.Values{"limit": {fmt.Sprint(limit)}}, "", nil)
		if err != nil {
			return err
		}
		var v struct {
			Items []past `json:"items"`
		}
		if err := out.decode(&v); err != nil {
			return err
		}
		return a.print(json.RawMessage(out.body), func(w io.Writer) {
			for _, p := range v.Items {
				row(w, p.Time.Local().Format("2006-01-02 15:04:05"), p.Text)
			}
		})
	}
	cmd.Flags().IntVar(&limit, "limit", 50, "so many of the newest")
	return cmd
}

func experimentForecast(a *cli, r *remote) *cobra.Command {
	return read(a, r, "forecast", "What each step takes at today's traffic", "/forecast", func(out *answer) error {
		var f forecast
		if err := out.decode(&f); err != nil {
			return err
		}
		return a.print(json.RawMessage(out.body), func(w io.Writer) {
			f.write(w)
			fmt.Fprintln(w)
			fmt.Fprintln(w, printable(f.Text))
			for _, text := range f.Warnings {
				fmt.Fprintln(w, "warning:", printable(text))
			}
		})
	})
}

func explain(a *cli, r *remote) *cobra.Command {
	query := url.Values{}
	var unitType, tenant string
	cmd := &cobra.Command{
		Use: "explain KEY UNIT", Aliases: []string{"assign"}, Short: "Explain which variant a user gets, and why", Args: exactly("KEY", "UNIT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[1] == "" {
				return usagef("UNIT is empty")
			}
			c, err := r.client(a)
			if err != nil {
				return err
			}
			if unitType != "" {
				query.Set("type", unitType)
			}
			if tenant != "" {
				query.Set("tenant", tenant)
			}
			out, err := c.call(cmd.Context(), http.MethodGet, experimentPath(args[0])+"/assignments/"+url.PathEscape(args[1]), query, "", nil)
			if err != nil {
				return err
			}
			return a.printAny(out)
		},
	}
	cmd.Flags().StringVar(&unitType, "type", "", "kind of unit: user, session, conversation or key (user)")
	cmd.Flags().StringVar(&tenant, "tenant", "", "tenant of the key that the user comes with")
	return cmd
}

// preflightTop is `sluice preflight`, for those who look there.
func preflightTop(a *cli) *cobra.Command {
	r := &remote{}
	cmd := preflightCommand(a, r)
	r.flags(cmd)
	return cmd
}

func preflightCommand(a *cli, r *remote) *cobra.Command {
	var last bool
	cmd := &cobra.Command{
		Use: "preflight KEY", Short: "Probe every variant with the kinds of requests that clients send", Args: exactly("KEY"),
		Long: `Probe every variant with small requests of the kinds that clients send, and tell
what the baseline answers and another variant does not. Ends with 3 if that
stands in the way of a start.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := r.client(a)
			if err != nil {
				return err
			}
			path := experimentPath(args[0])
			var out *answer
			if last {
				out, err = c.call(cmd.Context(), http.MethodGet, path+"/preflight", nil, "", nil)
			} else {
				slow := *c.http
				slow.Timeout = 5 * time.Minute
				c.http = &slow
				out, err = probe(cmd.Context(), a, c, path)
			}
			if err != nil {
				return err
			}
			return a.printPreflight(out)
		},
	}
	cmd.Flags().BoolVar(&last, "last", false, "show the last one instead of making one")
	return cmd
}

func probe(ctx context.Context, a *cli, c *client, path string) (*answer, error) {
	a.note("probing; this takes up to a few minutes")
	return c.call(ctx, http.MethodPost, path+":preflight", nil, "", nil)
}

func (a *cli) printPreflight(out *answer) error {
	var p ramp.Preflight
	if err := out.decode(&p); err != nil {
		return err
	}
	err := a.print(json.RawMessage(out.body), func(w io.Writer) {
		head := []any{"PROBE", "OF REQUESTS"}
		for _, v := range p.Variants {
			head = append(head, strings.ToUpper(v))
		}
		row(w, head...)
		for _, b := range p.Probes {
			share := "-"
			if b.Share != nil {
				share = fmt.Sprintf("%.3g %%", 100**b.Share)
			}
			cells := []any{b.Name, share}
			for _, res := range b.Results {
				text := res.State
				if res.State == ramp.ProbeFailed {
					text += ": " + res.Text
				}
				cells = append(cells, text)
			}
			row(w, cells...)
		}
		fmt.Fprintln(w)
		fmt.Fprintln(w, printable(p.Text))
	})
	if err == nil && !p.OK {
		return exitCode{code: exitConflict}
	}
	return err
}
