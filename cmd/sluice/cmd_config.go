package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"sluice/internal/config"
)

func configCommand(a *cli) *cobra.Command {
	cmd := group(&cobra.Command{Use: "config", Short: "Show settings, their schema, an example"})
	var s settingsFlags
	var sources bool
	show := &cobra.Command{
		Use:   "show",
		Short: "Print the settings in force, secrets redacted",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			c, err := s.load(a, defaultFile())
			if err != nil {
				return err
			}
			if sources {
				values := c.Values()
				return a.print(values, func(w io.Writer) {
					row(w, "SETTING", "VALUE", "SOURCE", "WHERE")
					for _, v := range values {
						row(w, v.Path, v.Value, v.Origin.Kind, v.Origin.Detail)
					}
				})
			}
			return a.print(c, func(w io.Writer) {
				data, err := config.YAML(c)
				if err != nil {
					data = []byte(err.Error() + "\n")
				}
				_, _ = w.Write(data) // a failed write shows at the flush
			})
		},
	}
	s.configFlag(show)
	show.Flags().BoolVar(&sources, "sources", false, "say where each value comes from")
	cmd.AddCommand(show,
		&cobra.Command{
			Use: "schema", Short: "Print the JSON Schema of the settings file", Args: noArgs,
			RunE: func(*cobra.Command, []string) error { _, err := a.stdout.Write(config.Schema()); return err },
		},
		&cobra.Command{
			Use: "example", Short: "Print a commented settings file to start from", Args: noArgs,
			RunE: func(*cobra.Command, []string) error { _, err := io.WriteString(a.stdout, config.Example); return err },
		})
	return cmd
}

// fileReport is the result of validate for one file.
type fileReport struct {
	File     string          `json:"file"`
	OK       bool            `json:"ok"`
	Problems config.Problems `json:"problems"`
}

func validateCommand(a *cli) *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "validate [FILE…]",
		Short: "Check settings files and documents, without connecting to anything",
		Long: `Check settings files (and documents for sluice apply): syntax, unknown keys,
types, and whether everything fits together. Without FILE it is sluice.yaml, or
what SLUICE_CONFIG names. It connects to nothing. Exit status 1 means invalid.`,
		RunE: func(_ *cobra.Command, files []string) error {
			if format != "text" && format != "json" && format != "github" {
				return usagef("--format %q: want text, json or github", format)
			}
			if a.output == "json" && format == "text" {
				format = "json"
			}
			if len(files) == 0 {
				files = []string{firstOf(a.getenv("SLUICE_CONFIG"), "sluice.yaml")}
			}
			var reports []fileReport
			bad := false
			for _, file := range files {
				r := a.validate(file)
				bad = bad || !r.OK
				reports = append(reports, r)
			}
			if err := writeReports(a.stdout, format, reports); err != nil {
				return err
			}
			if bad {
				return exitCode{code: exitError}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&format, "format", "text", "text, json or github (annotations)")
	return cmd
}

func (a *cli) validate(file string) fileReport {
	r := fileReport{File: file, Problems: config.Problems{}}
	warnings, err := config.Check(config.Sources{Path: file, Env: a.environ})
	for _, w := range warnings {
		a.note("warning: %s: %s", file, w)
	}
	var list config.Problems
	switch {
	case err == nil:
		r.OK = true
	case errors.As(err, &list):
		r.Problems = list
	default:
		r.Problems = config.Problems{{Source: file, Message: err.Error()}}
	}
	return r
}

func writeReports(w io.Writer, format string, reports []fileReport) error {
	if format == "json" {
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		return enc.Encode(reports)
	}
	for _, r := range reports {
		if r.OK && format == "text" {
			fmt.Fprintf(w, "%s: ok\n", r.File)
		}
		for _, p := range r.Problems {
			line := p.String()
			if format == "github" {
				// https://docs.github.com/actions: workflow commands, with % and newlines escaped
				esc := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
				prop := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
				at := "file=" + prop.Replace(firstOf(p.Source, r.File))
				if p.Line > 0 {
					at += fmt.Sprintf(",line=%d,col=%d", p.Line, p.Column)
				}
				line = "::error " + at + "::" + esc.Replace(p.Message)
			}
			if _, err := fmt.Fprintln(w, line); err != nil {
				return err
			}
		}
	}
	return nil
}
