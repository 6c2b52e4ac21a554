package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"sluice/internal/demo"
)

// breakCommand is `sluice demo break`, a call to the running demo.
func breakCommand(a *cli) *cobra.Command {
	var d demoAct
	cmd := &cobra.Command{
		Use:   "break NAME | --all",
		Short: "Make a built-in model server of the running demo fail",
		Long: `Make a built-in model server of the running demo fail, until sluice demo heal.
With --all every one fails: an outage that the variants share, which no ramp
blames on its canary. The ways:

` + demo.About(),
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, how, err := d.do(cmd.Context(), a, "break", args)
			if err != nil {
				return err
			}
			return a.print(broken{name, how}, func(w io.Writer) {
				if d.all {
					fmt.Fprintf(w, "every model server is broken now (%s); sluice demo heal --all ends it\n", printable(how))
					return
				}
				fmt.Fprintf(w, "%s is broken now (%s); sluice demo heal %s ends it\n", printable(name), printable(how), printable(name))
			})
		},
	}
	d.flags(cmd)
	cmd.Flags().StringVar(&d.how, "how", "", "way to fail, one of those above (500)")
	return cmd
}

// healCommand is `sluice demo heal`.
func healCommand(a *cli) *cobra.Command {
	var d demoAct
	cmd := &cobra.Command{
		Use:   "heal NAME | --all",
		Short: "Make it answer again",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, how, err := d.do(cmd.Context(), a, "heal", args)
			if err != nil {
				return err
			}
			return a.print(broken{name, how}, func(w io.Writer) {
				if d.all {
					name = "every model server"
				}
				fmt.Fprintf(w, "%s answers again\n", printable(name))
			})
		},
	}
	d.flags(cmd)
	return cmd
}

// broken is what the demo answers.
type broken struct {
	Upstream string `json:"upstream"`
	Broken   string `json:"broken"`
}

// demoAct are the flags of break and heal.
type demoAct struct {
	remote
	all bool
	how string
}

func (d *demoAct) flags(cmd *cobra.Command) {
	d.remote.flags(cmd)
	cmd.Flags().BoolVar(&d.all, "all", false, "every built-in model server")
}

// do posts the order; it returns what was broken, and how.
func (d *demoAct) do(ctx context.Context, a *cli, verb string, args []string) (name, how string, err error) {
	if d.all == (len(args) == 1) {
		return "", "", usagef("name one model server, or give --all")
	}
	body := map[string]any{"all": true}
	if !d.all {
		body = map[string]any{"upstream": args[0]}
	}
	if d.how != "" {
		body["how"] = d.how
	}
	c, err := d.client(a)
	if err != nil {
		return "", "", err
	}
	out, err := c.send(ctx, "POST", "/demo/"+verb, nil, "", body)
	if err != nil {
		return "", "", err
	}
	var v broken
	err = out.decode(&v)
	return v.Upstream, v.Broken, err
}
