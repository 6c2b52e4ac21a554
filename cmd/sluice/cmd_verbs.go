package main

import (
	"fmt"
	"io"
	"net/http"

	"github.com/spf13/cobra"

	"sluice/experiment/ramp"
)

// verb is a change of state. variant says whether it takes VARIANT; any
// whether it may go ahead whatever the revision is, because it is the safe way;
// force what --force is for, "" where there is none.
type verb struct {
	name, short  string
	variant, any bool
	force        string
}

var verbs = []verb{
	{name: "start", short: "Start it, a ramp with nobody on the new variant; from rolled back: a new generation", force: "within the cooldown of a rollback; needs --reason"},
	{name: "pause", short: "Freeze the ramp or enrolment; users keep their variant", any: true},
	{name: "resume", short: "Go on after a pause"},
	{name: "advance", short: "Take the ramp's next step now", force: "although the guardrails have not passed; needs --reason"},
	{name: "approve", short: "Let the ramp take the step that waits for you, once it is proved"},
	{name: "rollback", short: "Everybody to the baseline, at once", any: true},
	{name: "kill", short: "Take a variant out for good, at once", variant: true, any: true},
	{name: "promote", short: "Make a variant the one for everybody", variant: true, force: "although the guardrails have not passed; needs --reason"},
	{name: "finish", short: "End it"},
}

func verbCommand(a *cli, r *remote, v verb) *cobra.Command {
	var w write
	var force bool
	use, want := v.name+" KEY", exactly("KEY")
	if v.variant {
		use, want = v.name+" KEY VARIANT", exactly("KEY", "VARIANT")
	}
	cmd := &cobra.Command{
		Use: use, Short: v.short, Args: want,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := r.client(a)
			if err != nil {
				return err
			}
			in := map[string]any{}
			if w.reason != "" {
				in["reason"] = w.reason
			}
			if v.variant {
				in["variant"] = args[1]
			}
			if force {
				if w.reason == "" {
					return usagef("--force needs --reason: it goes into the audit log")
				}
				in["force"] = true
			}
			match := w.ifMatch
			if v.any && match == "" {
				match = "*"
			}
			path := experimentPath(args[0])
			out, err := c.update(cmd.Context(), path, http.MethodPost, path+":"+v.name, w.query(), match, in)
			if err != nil {
				return err
			}
			a.said(w.dryRun, "%s: %s", args[0], v.name)
			a.saidReplicas(out)
			a.saidForecast(out)
			return a.printAny(out)
		},
	}
	w.flags(cmd)
	if v.force != "" {
		cmd.Flags().BoolVar(&force, "force", false, v.force)
	}
	return cmd
}

// forecast is what the steps of a ramp take at today's traffic.
type forecast struct {
	Steps    []ramp.StepForecast `json:"steps"`
	Text     string              `json:"text"`
	Warnings []string            `json:"warnings"`
}

func (f *forecast) write(w io.Writer) {
	row(w, "STEP", "REQUESTS/S", "USERS", "TAKES", "WHAT BINDS")
	for i := range f.Steps {
		s := &f.Steps[i]
		takes := "cannot be met"
		if s.OK {
			takes = span(s.Time.D())
		}
		weight := percentOf(s.Weight)
		if s.Approve {
			weight += " (waits for approval)"
		}
		row(w, weight, fmt.Sprintf("%.2g", s.Rate), s.Users, takes, s.Binds)
	}
}

// saidForecast tells what a creation or a dry run foretells.
func (a *cli) saidForecast(out *answer) {
	var v struct {
		Forecast *forecast `json:"forecast"`
		Cost     *struct {
			Text string  `json:"text"`
			Rate float64 `json:"requests_per_second"`
		} `json:"rollback_cost"`
	}
	if out.decode(&v) != nil {
		return
	}
	if f := v.Forecast; f != nil {
		a.note("forecast: %s", printable(f.Text))
		for _, s := range f.Steps {
			a.note("  %s", printable(s.Text))
		}
	}
	if c := v.Cost; c != nil {
		a.note("cost: %s (%.3g requests/s of the treatments)", printable(c.Text), c.Rate)
	}
}
