package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sluice/internal/config"
)

// settingsFlags are the command-line forms of settings: flag > env > file.
type settingsFlags struct {
	file  string
	flags *pflag.FlagSet
	paths map[string]string // flag name -> path of the setting
}

// configFlag adds --config only.
func (s *settingsFlags) configFlag(cmd *cobra.Command) {
	s.flags = cmd.Flags()
	s.flags.StringVarP(&s.file, "config", "c", "", "settings file (SLUICE_CONFIG)")
}

// override adds a flag for one setting.
func (s *settingsFlags) override(flag, path, usage string) {
	if s.paths == nil {
		s.paths = map[string]string{}
	}
	s.paths[flag] = path
	s.flags.String(flag, "", usage+" ("+path+")")
}

// sources collects what config.Load needs; without --config and SLUICE_CONFIG
// it is fallback ("" for no file).
func (s *settingsFlags) sources(a *cli, fallback string) config.Sources {
	src := config.Sources{
		Path:  firstOf(s.file, a.getenv("SLUICE_CONFIG"), fallback),
		Env:   a.environ,
		Flags: map[string]string{}, FlagNames: map[string]string{},
	}
	s.flags.Visit(func(f *pflag.Flag) {
		if path, ok := s.paths[f.Name]; ok {
			src.Flags[path], src.FlagNames[path] = f.Value.String(), "--"+f.Name
		}
	})
	return src
}

// load reads the settings and says its remarks on stderr.
func (s *settingsFlags) load(a *cli, fallback string) (*config.Config, error) {
	c, err := config.Load(s.sources(a, fallback))
	if err != nil {
		return nil, err
	}
	for _, w := range c.Warnings() {
		a.note("warning: %s", w)
	}
	return c, nil
}

// defaultFile is sluice.yaml in the working directory, if it is there.
func defaultFile() string {
	if info, err := os.Stat("sluice.yaml"); err == nil && info.Mode().IsRegular() {
		return "sluice.yaml"
	}
	return ""
}

// readInput reads the FILE of -f; "-" is stdin.
func (a *cli) readInput(path string) ([]byte, string, error) {
	if path == "" {
		return nil, "", usagef("-f FILE is missing; - reads from stdin")
	}
	if path != "-" {
		data, err := config.ReadFile(path)
		if err != nil {
			err = fmt.Errorf("%s: %w", path, err)
		}
		return data, path, err
	}
	data, err := io.ReadAll(io.LimitReader(a.stdin, 4<<20+1)) // one more than the loader takes
	return data, "stdin", err
}

// readSmall reads a file of a few KiB, such as a token.
func readSmall(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, 64<<10))
	return strings.TrimSpace(string(data)), err
}
