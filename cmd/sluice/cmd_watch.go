package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"sluice/experiment/ramp"
)

// watched is all that one look at a rollout shows.
type watched struct {
	ramp   rolloutView
	guards []guarded
	past   []past
}

func watchCommand(a *cli, r *remote) *cobra.Command {
	var every time.Duration
	var exit, plain bool
	cmd := &cobra.Command{
		Use: "watch KEY", Short: "Follow its rollout live", Args: exactly("KEY"),
		Long: `Follow a rollout: its steps, weights, guardrails and why it is not advancing. On a
terminal the view stays in place; elsewhere each change is a line.

With --exit it ends when the rollout has: with 0 when the variant was promoted
and its bake is over, with 3 when it was rolled back, killed or finished.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if every < 100*time.Millisecond || every > time.Hour {
				return usagef("--every is a time from 100ms to 1h")
			}
			c, err := r.client(a)
			if err != nil {
				return err
			}
			w := &watcher{out: a.stdout, live: !plain && a.output == "table" && isTerminal(a.stdout) && a.getenv("TERM") != "dumb"}
			return w.follow(cmd.Context(), a, c, args[0], every, exit)
		},
	}
	f := cmd.Flags()
	f.DurationVar(&every, "every", time.Second, "time between two looks")
	f.BoolVar(&exit, "exit", false, "end with the rollout: 0 promoted, 3 rolled back")
	f.BoolVar(&plain, "plain", false, "a line for each change, on a terminal too")
	return cmd
}

// isTerminal reports a character device: a terminal, and nothing that a result
// is kept in.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// watcher draws one look after the other.
type watcher struct {
	out   io.Writer
	live  bool   // redraw in place
	lines int    // of the last drawing
	last  string // what was told last, without live
}

func (w *watcher) follow(ctx context.Context, a *cli, c *client, key string, every time.Duration, exit bool) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	away := false
	for {
		v, err := look(ctx, c, key)
		var refused *problem
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.As(err, &refused) && refused.Status < 500:
			return err
		case err != nil && !away:
			a.note("%s", printable(err.Error())+"; still trying")
			away, w.lines = true, 0
		case err == nil:
			away = false
			w.draw(v)
			if code, over := outcome(&v.ramp.Report); over && exit {
				if code == exitOK {
					return nil
				}
				return exitCode{code: code}
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

func look(ctx context.Context, c *client, key string) (*watched, error) {
	v := &watched{}
	path := experimentPath(key)
	var items struct {
		Items []guarded `json:"items"`
	}
	var rows struct {
		Items []past `json:"items"`
	}
	for _, part := range []struct {
		path  string
		query url.Values
		into  any
	}{{"/ramp", nil, &v.ramp}, {"/guardrails", nil, &items}, {"/history", url.Values{"limit": {"4"}}, &rows}} {
		out, err := c.call(ctx, http.MethodGet, path+part.path, part.query, "", nil)
		if err != nil {
			// The history needs the database; a rollout goes on without.
			if part.path == "/history" {
				continue
			}
			return nil, err
		}
		if err := out.decode(part.into); err != nil {
			return nil, err
		}
	}
	v.guards, v.past = items.Items, rows.Items
	return v, nil
}

// outcome is the exit status of a rollout that is over.
func outcome(r *ramp.Report) (code int, over bool) {
	switch r.State {
	case "promoted":
		return exitOK, r.Phase != ramp.Baking
	case "rolled_back", "completed", "archived":
		return exitConflict, true
	case "running":
		return exitConflict, r.Phase == ramp.Done // its variant was killed
	}
	return 0, false
}

func (w *watcher) draw(v *watched) {
	if !w.live {
		if line := brief(&v.ramp.Report); line != w.last {
			w.last = line
			fmt.Fprintln(w.out, time.Now().Format("15:04:05"), printable(line))
		}
		return
	}
	lines := view(v, time.Now())
	var b strings.Builder
	if w.lines > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", w.lines) // up to where the last drawing began
	}
	for _, l := range lines {
		b.WriteString("\r\x1b[2K" + fitted(printable(l)) + "\n")
	}
	b.WriteString("\x1b[J") // what was longer before
	w.lines = len(lines)
	_, _ = io.WriteString(w.out, b.String()) // a closed terminal ends the process anyway
}

// watchWidth is what a line may take: one that wraps would break the redrawing.
const watchWidth = 79

func fitted(s string) string {
	if utf8.RuneCountInString(s) <= watchWidth {
		return s
	}
	return string([]rune(s)[:watchWidth-1]) + "…"
}

// brief is one look in one line, without what changes every second.
func brief(r *ramp.Report) string {
	text := phaseOf(r)
	var list []string
	for _, arm := range r.Arms {
		s := arm.Name + " " + percentOf(arm.Weight)
		if arm.Killed {
			s += " (killed)"
		}
		list = append(list, s)
	}
	text += "; " + strings.Join(list, ", ")
	if d := r.Decision; d.Action != "" && d.Action != ramp.Continue && d.Action != ramp.None {
		text += "; " + string(d.Action) + ": " + d.Code
	}
	return text
}

// bar is the way that a ramp has gone: "##########----------".
func bar(weight, width int) string {
	full := weight * width / ramp.Full
	if weight > 0 {
		full = max(full, 1)
	}
	return strings.Repeat("#", full) + strings.Repeat("-", width-full)
}

// view is one look as a few lines.
func view(v *watched, now time.Time) []string {
	r := &v.ramp.Report
	head := r.Experiment + "  " + phaseOf(r)
	if !r.Since.IsZero() {
		head += ", for " + span(now.Sub(r.Since))
	}
	out := []string{head}
	if r.Variant != "" {
		out = append(out, fmt.Sprintf("[%s] %s %s", bar(r.Weights[r.Variant], 40), r.Variant, percentOf(r.Weights[r.Variant])))
	}
	if len(r.Steps) > 0 {
		out = append(out, "steps  "+ladder(r))
	}
	for _, arm := range r.Arms {
		state := ""
		switch {
		case arm.Killed:
			state = "  killed"
		case arm.NotReady:
			state = "  not ready"
		case arm.Tripped > 0:
			state = fmt.Sprintf("  breaker open on %d replicas", arm.Tripped)
		}
		out = append(out, fmt.Sprintf("  %-14s %7s %6d users %6.3g/s%s", arm.Name, percentOf(arm.Weight), arm.Units, arm.Rate, state))
	}
	several := slices.ContainsFunc(v.guards, func(g guarded) bool { return g.Variant != v.guards[0].Variant })
	for i := range v.guards {
		g := &v.guards[i]
		of := ""
		if several {
			of = fmt.Sprintf("%-14s ", g.Variant)
		}
		out = append(out, fmt.Sprintf("  %-4s  %s%-20s %10s  bound %s", g.State, of, g.Config.Name, g.number(g.Value), g.number(g.Bound)))
	}
	if len(r.WhyNot) > 0 {
		out = append(out, "not advancing: "+r.WhyNot[0])
		for _, why := range r.WhyNot[1:min(len(r.WhyNot), 3)] {
			out = append(out, "               "+why)
		}
	} else if r.Decision.Text != "" {
		out = append(out, r.Decision.Text)
	}
	if p := r.Approval; p != nil {
		out = append(out, "waits for you: sluice experiment approve "+r.Experiment)
	}
	for _, p := range v.past {
		out = append(out, "  "+p.Time.Local().Format("15:04:05")+" "+p.Text)
	}
	return out
}
