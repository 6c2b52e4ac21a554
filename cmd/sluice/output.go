package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"sluice/internal/config"
)

// print writes a result in the form of -o. table renders it for people.
func (a *cli) print(v any, table func(w io.Writer)) error {
	switch a.output {
	case "json":
		enc := json.NewEncoder(a.stdout)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		return enc.Encode(v)
	case "yaml":
		data, err := config.YAML(v)
		if err != nil {
			return err
		}
		_, err = a.stdout.Write(data)
		return err
	}
	tw := tabwriter.NewWriter(a.stdout, 0, 4, 2, ' ', 0)
	table(tw)
	return tw.Flush()
}

// row writes one line of a table; control characters of names and messages,
// which come from elsewhere, are made harmless for the terminal.
func row(w io.Writer, cells ...any) {
	for i, c := range cells {
		if i > 0 {
			fmt.Fprint(w, "\t")
		}
		fmt.Fprint(w, printable(fmt.Sprint(c)))
	}
	fmt.Fprintln(w)
}

func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return '?'
		}
		return r
	}, s)
}
