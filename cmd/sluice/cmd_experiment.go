package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"sluice/internal/config"
	"sluice/router"
)

func experimentCommand(a *cli) *cobra.Command {
	r := &remote{}
	cmd := group(&cobra.Command{Use: "experiment", Aliases: []string{"exp"}, Short: "Look at experiments and change them live"})
	r.flags(cmd)
	cmd.AddCommand(experimentList(a, r), experimentGet(a, r), experimentCreate(a, r), setWeights(a, r))
	for _, v := range verbs {
		cmd.AddCommand(verbCommand(a, r, v))
	}
	cmd.AddCommand(experimentStatus(a, r), experimentGuardrails(a, r), experimentHistory(a, r), experimentForecast(a, r),
		explain(a, r), preflightCommand(a, r), watchCommand(a, r))
	return cmd
}

// write are the flags of every change.
type write struct {
	reason, ifMatch string
	dryRun, wait    bool
}

func (w *write) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&w.reason, "reason", "", "why, for the audit log")
	f.StringVar(&w.ifMatch, "if-match", "", "change only this revision; then nothing is retried")
	f.BoolVar(&w.dryRun, "dry-run", false, "check and show, change nothing")
	f.BoolVar(&w.wait, "wait", false, "return when every live replica has it (10s at most)")
}

func (w *write) query() url.Values {
	q := url.Values{}
	if w.dryRun {
		q.Set("dry_run", "true")
	}
	if w.wait {
		q.Set("wait", "applied")
		q.Set("timeout", "10s")
	}
	return q
}

func experimentPath(key string) string { return "/experiments/" + url.PathEscape(key) }

// shares writes "control 90 %, canary 10 %".
func shares(variants []router.VariantView) string {
	var list []string
	for _, v := range variants {
		s := v.Name + " " + config.FormatPercent(v.Weight) + " %"
		if v.State == "killed" {
			s += " (killed)"
		}
		list = append(list, s)
	}
	return strings.Join(list, ", ")
}

func experimentList(a *cli, r *remote) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the experiments", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := r.client(a)
			if err != nil {
				return err
			}
			items, err := c.list(cmd.Context(), "/experiments")
			if err != nil {
				return err
			}
			var views []router.ExperimentView
			if err := decodeItems(items, &views); err != nil {
				return err
			}
			return a.print(items, func(w io.Writer) {
				row(w, "KEY", "MODEL", "KIND", "STATE", "VARIANTS", "REVISION")
				for _, e := range views {
					row(w, e.Key, e.Model, e.Kind, e.State, shares(e.Variants), e.Revision)
				}
			})
		},
	}
}

func experimentGet(a *cli, r *remote) *cobra.Command {
	return &cobra.Command{
		Use: "get KEY", Short: "Show one experiment", Args: exactly("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := r.client(a)
			if err != nil {
				return err
			}
			out, err := c.call(cmd.Context(), http.MethodGet, experimentPath(args[0]), nil, "", nil)
			if err != nil {
				return err
			}
			return a.printExperiment(out)
		},
	}
}

// printExperiment shows an experiment as the admin API answered it.
func (a *cli) printExperiment(out *answer) error {
	var e router.ExperimentView
	if err := out.decode(&e); err != nil {
		return err
	}
	return a.print(json.RawMessage(out.body), func(w io.Writer) {
		row(w, "experiment", e.Key)
		row(w, "model", e.Model)
		row(w, "kind", e.Kind)
		row(w, "state", e.State)
		row(w, "baseline", e.Baseline)
		row(w, "stickiness", e.Stickiness)
		row(w, "generation", e.Generation)
		row(w, "revision", e.Revision)
		if e.Winner != "" {
			row(w, "winner", e.Winner)
		}
		fmt.Fprintln(w)
		row(w, "VARIANT", "WEIGHT", "STATE", "UPSTREAM", "MODEL", "VERSION")
		for _, v := range e.Variants {
			row(w, v.Name, config.FormatPercent(v.Weight)+" %", v.State, v.Upstream, v.Model, v.Version)
		}
	})
}

func experimentCreate(a *cli, r *remote) *cobra.Command {
	var file string
	var dryRun bool
	cmd := &cobra.Command{
		Use: "create -f FILE", Short: "Create an experiment from a file with its members (YAML or JSON)", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			data, name, err := a.readInput(file)
			if err != nil {
				return err
			}
			exp, err := config.LoadExperiment(data, name)
			if err != nil {
				return err
			}
			c, err := r.client(a)
			if err != nil {
				return err
			}
			out, err := c.call(cmd.Context(), http.MethodPost, "/experiments", (&write{dryRun: dryRun}).query(), "", body(exp))
			if err != nil {
				return err
			}
			a.said(dryRun, "created %s", exp.Key)
			a.saidForecast(out)
			return a.printExperiment(out)
		},
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "the file; - reads from stdin")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "check and show, create nothing")
	return cmd
}

// body is an object without what only the server writes: a zero time or
// revision of a file must not look like a wish.
func body(e *router.Experiment) map[string]json.RawMessage {
	m := map[string]json.RawMessage{}
	data, err := json.Marshal(e)
	if err == nil {
		err = json.Unmarshal(data, &m)
	}
	if err != nil { // what was decoded from JSON-like text always encodes
		return nil
	}
	for _, k := range []string{"allocation", "gen_revision", "updated_revision", "created_at", "updated_at"} {
		delete(m, k)
	}
	for k, v := range m {
		if s := string(v); s == `""` || s == "null" {
			delete(m, k) // not written in the file: the server's default
		}
	}
	return m
}

func (a *cli) said(dryRun bool, format string, args ...any) {
	if dryRun {
		format = "dry run, nothing changed: " + format
	}
	a.note(format, args...)
}

// saidReplicas tells what --wait found, and a change that the database has not
// seen yet.
func (a *cli) saidReplicas(out *answer) {
	var v struct {
		Write struct {
			Applied  *bool    `json:"applied"`
			Missing  []string `json:"missing"`
			Deferred bool     `json:"deferred"`
		} `json:"write"`
	}
	if out.decode(&v) != nil {
		return
	}
	if v.Write.Deferred {
		a.note("in force, but the database is away: it will be written there later")
	}
	if p := v.Write.Applied; p != nil && !*p {
		a.note("not yet on every replica; missing: %s", printable(strings.Join(v.Write.Missing, ", ")))
	}
}

func setWeights(a *cli, r *remote) *cobra.Command {
	var w write
	var bp, pauseRamp bool
	cmd := &cobra.Command{
		Use:   "set-weights KEY NAME=PERCENT…",
		Short: "Change how the users are split",
		Example: `  sluice experiment set-weights chat-v2 control=90 canary=10
  sluice experiment set-weights chat-v2 control=9950 canary=50 --bp --reason "half a percent first"`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 2 {
				return usagef("want KEY and NAME=PERCENT for every variant, such as: chat-v2 control=90 canary=10")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			weights, order, err := config.ParseWeights(strings.Join(args[1:], ","), bp)
			if err != nil {
				return usageError{err}
			}
			c, err := r.client(a)
			if err != nil {
				return err
			}
			path := experimentPath(args[0]) + "/weights"
			in := map[string]any{"weights": weights}
			if w.reason != "" {
				in["reason"] = w.reason
			}
			query := w.query()
			if pauseRamp {
				query.Set("pause_ramp", "true")
			}
			out, err := c.update(cmd.Context(), path, http.MethodPut, path, query, w.ifMatch, in)
			if err != nil {
				return err
			}
			var set []string
			for _, name := range order {
				set = append(set, name+" "+config.FormatPercent(weights[name])+" %")
			}
			a.said(w.dryRun, "%s: %s", args[0], strings.Join(set, ", "))
			a.saidReplicas(out)
			return a.printAny(out)
		},
	}
	w.flags(cmd)
	cmd.Flags().BoolVar(&pauseRamp, "pause-ramp", false, "pause a ramp that is on, instead of being refused")
	cmd.Flags().BoolVar(&bp, "bp", false, "the numbers are basis points (1/100 %)")
	return cmd
}

// printAny shows an answer whose form the server decides: an experiment as
// such, anything else member by member.
func (a *cli) printAny(out *answer) error {
	var m map[string]json.RawMessage
	if len(out.body) == 0 {
		return nil
	}
	if err := out.decode(&m); err != nil {
		return err
	}
	if m["variants"] != nil && m["kind"] != nil {
		return a.printExperiment(out)
	}
	return a.print(json.RawMessage(out.body), func(w io.Writer) { members(w, "", out.body) })
}

// members writes nested JSON as "path<tab>value" lines in the order it came.
func members(w io.Writer, path string, data []byte) {
	dec := json.NewDecoder(strings.NewReader(string(data)))
	tok, err := dec.Token()
	if d, ok := tok.(json.Delim); err != nil || !ok || d != '{' {
		text := string(data)
		var s string
		if json.Unmarshal(data, &s) == nil && text != "null" {
			text = s
		}
		row(w, path, text)
		return
	}
	for dec.More() {
		k, err := dec.Token()
		var v json.RawMessage
		if err != nil || dec.Decode(&v) != nil {
			return
		}
		name := fmt.Sprint(k)
		if path == "last_change" && slices.Contains([]string{"before", "after", "prev", "hash"}, name) {
			continue // the audit row's bulk; -o json has it
		}
		if path != "" {
			name = path + "." + name
		}
		members(w, name, v)
	}
}

func decodeItems(items []json.RawMessage, into any) error {
	data, err := json.Marshal(items)
	if err == nil {
		err = json.Unmarshal(data, into)
	}
	if err != nil {
		return errors.Join(errors.New("the admin API's answer cannot be read"), err)
	}
	return nil
}
