package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is stamped with -ldflags "-X main.version=v1.2.3"; without it stays
// unstamped and `sluice version` says what the Go tool knows of the module.
var version = unstamped

const unstamped = "dev"

// buildInfo is the result of `sluice version`.
type buildInfo struct {
	Version string            `json:"version"`
	Commit  string            `json:"commit,omitempty"`
	Date    string            `json:"date,omitempty"` // of the commit
	Dirty   bool              `json:"dirty,omitempty"`
	Go      string            `json:"go"`
	OS      string            `json:"os"`
	Arch    string            `json:"arch"`
	Modules map[string]string `json:"modules,omitempty"`
}

func readBuildInfo() buildInfo {
	b := buildInfo{Version: version, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if version == unstamped && info.Main.Version != "" && info.Main.Version != "(devel)" {
		b.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.time":
			b.Date = s.Value
		case "vcs.modified":
			b.Dirty = s.Value == "true"
		}
	}
	for _, m := range info.Deps {
		if b.Modules == nil {
			b.Modules = map[string]string{}
		}
		if m.Replace != nil {
			m = m.Replace
		}
		b.Modules[m.Path] = m.Version
	}
	return b
}

func versionCommand(a *cli) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print version, commit, Go and modules", Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			b := readBuildInfo()
			return a.print(b, func(w io.Writer) {
				commit := firstOf(b.Commit, "unknown")
				if b.Dirty {
					commit += " (modified)"
				}
				fmt.Fprintf(w, "sluice %s\ncommit %s\n", b.Version, commit)
				if b.Date != "" {
					fmt.Fprintf(w, "date   %s\n", b.Date)
				}
				fmt.Fprintf(w, "go     %s %s/%s\n", b.Go, b.OS, b.Arch)
			})
		},
	}
}
