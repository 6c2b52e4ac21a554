package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"sluice/internal/config"
)

// Exit statuses; scripts rely on them.
const (
	exitOK          = 0
	exitError       = 1
	exitUsage       = 2
	exitConflict    = 3   // somebody else changed it, or its state forbids it
	exitInterrupted = 130 // by a signal
)

// cli is what a command may use of the process: commands touch no globals, so
// that tests run them in memory.
type cli struct {
	environ        []string
	stdin          io.Reader
	stdout, stderr io.Writer
	output         string // -o
}

func (a *cli) getenv(name string) string {
	for _, kv := range slices.Backward(a.environ) {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return ""
}

// note writes a message for people; results go to stdout.
func (a *cli) note(format string, args ...any) {
	fmt.Fprintf(a.stderr, format+"\n", args...)
}

// usageError is a mistake on the command line.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// exitCode is an error with its own exit status; an empty text prints nothing.
type exitCode struct {
	code int
	text string
}

func (e exitCode) Error() string { return e.text }

// run is the program: arguments and environment in, exit status out.
func run(ctx context.Context, args, environ []string, stdin io.Reader, stdout, stderr io.Writer) int {
	a := &cli{environ: environ, stdin: stdin, stdout: stdout, stderr: stderr}
	root := newRoot(a)
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	var own exitCode
	var usage usageError
	var refused *problem
	switch {
	case errors.As(err, &own):
		if own.text != "" {
			a.note("%s", own.text)
		}
		return own.code
	case errors.As(err, &usage):
		a.note("sluice: %v\nSee `%s --help`.", err, cmd.CommandPath())
		return exitUsage
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		a.note("sluice: interrupted")
		return exitInterrupted
	case errors.As(err, &refused) && refused.conflict():
		a.note("sluice: %v", err)
		return exitConflict
	}
	a.note("sluice: %v", err)
	return exitError
}

func newRoot(a *cli) *cobra.Command {
	root := &cobra.Command{
		Use:   "sluice",
		Short: "An OpenAI-compatible gateway that makes a change of model a controlled experiment",
		Long: `Start here: sluice demo

Sluice stands between OpenAI SDK clients and your model servers. It splits users
over model versions, keeps each user on one, counts tokens and cost for each
version, and changes the split live.

  sluice demo                                   everything, on this machine, without keys
  sluice serve --upstream v1=URL --upstream v2=URL --split v1=90,v2=10
  sluice serve --config sluice.yaml             sluice config example prints such a file`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		DisableAutoGenTag: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return unknownCommand(cmd, args[0])
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(*cobra.Command, []string) error {
			if a.output != "table" && a.output != "json" && a.output != "yaml" {
				return usagef("-o %q: want table, json or yaml", a.output)
			}
			return nil
		},
	}
	root.PersistentFlags().StringVarP(&a.output, "output", "o", "table", "form of the result: table, json or yaml")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.CompletionOptions.HiddenDefaultCmd = false
	root.AddCommand(serveCommand(a), demoCommand(a), validateCommand(a), configCommand(a), applyCommand(a), diffCommand(a),
		migrateCommand(a), experimentCommand(a), preflightTop(a), upstreamCommand(a), keyCommand(a), doctorCommand(a), versionCommand(a))
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() == "completion" {
			group(c)
		}
	}
	return root
}

func unknownCommand(cmd *cobra.Command, name string) error {
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	if s := config.Suggest(name, names); s != "" {
		return usagef("unknown command %q for %q, did you mean %q?", name, cmd.CommandPath(), s)
	}
	return usagef("unknown command %q for %q", name, cmd.CommandPath())
}

// group makes c a command that has only subcommands: alone it prints help,
// with an unknown one it is a usage error.
func group(c *cobra.Command) *cobra.Command {
	c.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return unknownCommand(cmd, args[0])
		}
		return nil
	}
	c.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	return c
}

// exactly wants the named arguments.
func exactly(names ...string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) < len(names):
			return usagef("%s is missing", names[len(args)])
		case len(args) > len(names):
			return usagef("unexpected argument %q", args[len(names)])
		}
		return nil
	}
}

// noArgs refuses arguments.
var noArgs = exactly()
