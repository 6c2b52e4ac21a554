package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"sluice/internal/config"
	"sluice/router"
)

// documentFlags are what apply and diff have in common.
type documentFlags struct {
	remote
	file                   string
	prune, runtime, forced bool
	ifMatch, reason        string
}

func (d *documentFlags) add(cmd *cobra.Command) {
	d.remote.flags(cmd)
	f := cmd.Flags()
	f.StringVarP(&d.file, "file", "f", "", "document, or settings file with resources:; - reads from stdin")
	f.BoolVar(&d.prune, "prune", false, "delete what the file does not name")
	f.BoolVar(&d.runtime, "runtime", false, "also set what belongs to whoever runs an experiment: state, kills, weights of a ramp")
	f.BoolVar(&d.forced, "force", false, "also start a rolled-back experiment again, and prune one that runs")
}

// put sends the document of the file and answers what the server did or would do.
func (d *documentFlags) put(a *cli, cmd *cobra.Command, dryRun bool) (*answer, applied, error) {
	var report applied
	data, name, err := a.readInput(d.file)
	if err != nil {
		return nil, report, err
	}
	doc, err := config.LoadDocument(data, name)
	if err != nil {
		return nil, report, err
	}
	doc.Revision = 0 // the file's own does not count; If-Match does
	c, err := d.client(a)
	if err != nil {
		return nil, report, err
	}
	query := url.Values{}
	for name, on := range map[string]bool{"dry_run": dryRun, "prune": d.prune, "runtime": d.runtime, "force": d.forced} {
		if on {
			query.Set(name, "true")
		}
	}
	if d.reason != "" {
		query.Set("reason", d.reason)
	}
	// nil lists are empty ones: the body always says all three
	doc.Upstreams = append([]router.Upstream{}, doc.Upstreams...)
	doc.Models = append([]router.Model{}, doc.Models...)
	doc.Experiments = append([]router.Experiment{}, doc.Experiments...)
	out, err := c.update(cmd.Context(), "/document", http.MethodPut, "/document", query, d.ifMatch, doc)
	if err != nil {
		return nil, report, err
	}
	return out, report, out.decode(&report)
}

// applied is the admin API's answer to PUT /document.
type applied struct {
	Revision int64 `json:"revision"`
	router.ApplyReport
}

func (r applied) write(w io.Writer) {
	rep := r.ApplyReport
	for _, l := range rep.Changes {
		fmt.Fprintln(w, printableLines(l.String()))
	}
	if len(rep.Changes) == 0 {
		fmt.Fprintln(w, "no changes")
	}
	for _, l := range rep.Drift {
		fmt.Fprintln(w, "drift, kept (--runtime changes it):", printableLines(l.String()))
	}
	for _, o := range rep.Unpruned {
		fmt.Fprintln(w, "not in the file, kept (--prune deletes it):", printable(o))
	}
}

func printableLines(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = printable(lines[i])
	}
	return strings.Join(lines, "\n")
}

func applyCommand(a *cli) *cobra.Command {
	var d documentFlags
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "apply -f FILE",
		Short: "Make the running gateway match a file (GitOps)",
		Long: `Make upstreams, models and experiments match a file. What belongs to whoever runs
an experiment (its state, kills, the weights of a ramp) is reported as drift and
changed only with --runtime; what the file does not name stays without --prune.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			out, report, err := d.put(a, cmd, dryRun)
			if err != nil {
				return err
			}
			if n := len(report.Changes); n > 0 {
				a.said(dryRun, "%d objects changed, revision %d", n, report.Revision)
			}
			return a.print(json.RawMessage(out.body), report.write)
		},
	}
	d.add(cmd)
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "check and show, change nothing")
	cmd.Flags().StringVar(&d.ifMatch, "if-match", "", "change only this revision; then nothing is retried")
	cmd.Flags().StringVar(&d.reason, "reason", "", "why, for the audit log")
	return cmd
}

func diffCommand(a *cli) *cobra.Command {
	var d documentFlags
	var status bool
	cmd := &cobra.Command{
		Use:   "diff -f FILE",
		Short: "Show what apply would change",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			out, report, err := d.put(a, cmd, true)
			if err != nil {
				return err
			}
			if err := a.print(json.RawMessage(out.body), report.write); err != nil {
				return err
			}
			if status && len(report.Changes) > 0 {
				return exitCode{code: exitError}
			}
			return nil
		},
	}
	d.add(cmd)
	cmd.Flags().BoolVar(&status, "exit-code", false, "exit with 1 when there are changes")
	return cmd
}
