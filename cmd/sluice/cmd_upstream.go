package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

type (
	// upstreamView is an upstream as one replica sees it.
	upstreamView struct {
		Name  string `json:"name"`
		Ready bool   `json:"ready"`
		Queue struct {
			InFlight    int `json:"in_flight"`
			Queued      int `json:"queued"`
			MaxInFlight int `json:"max_in_flight"`
			MaxQueue    int `json:"max_queue"`
		} `json:"queue"`
		Endpoints []upstreamEndpoint `json:"endpoints"`
	}
	upstreamEndpoint struct {
		URL      string    `json:"url"`
		Ready    bool      `json:"ready"`
		State    string    `json:"state"`
		Reason   string    `json:"reason"`
		Since    time.Time `json:"since"`
		InFlight int       `json:"in_flight"`
		Weight   float64   `json:"weight"`
		Breaker  struct {
			State string    `json:"state"`
			Until time.Time `json:"until"`
		} `json:"breaker"`
		CoolUntil time.Time `json:"cool_until"`
		TTFT      struct {
			P50 float64 `json:"p50_ms"`
			P95 float64 `json:"p95_ms"`
		} `json:"ttft"`
		TokensPerS float64 `json:"output_tokens_per_second"`
	}
)

func upstreamCommand(a *cli) *cobra.Command {
	r := &remote{}
	cmd := group(&cobra.Command{Use: "upstream", Short: "The model servers: how they stand, drain, enable, probe"})
	r.flags(cmd)
	cmd.AddCommand(upstreamList(a, r), upstreamShow(a, r),
		upstreamAct(a, r, "drain", "Send an endpoint, or all, no new calls; those in flight finish"),
		upstreamAct(a, r, "enable", "Take a drain back"),
		upstreamProbe(a, r))
	return cmd
}

func upstreamPath(name string) string { return "/upstreams/" + url.PathEscape(name) }

func upstreamList(a *cli, r *remote) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the upstreams as one replica sees them", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := r.client(a)
			if err != nil {
				return err
			}
			out, err := c.call(cmd.Context(), http.MethodGet, "/upstreams", url.Values{"limit": {"200"}}, "", nil)
			if err != nil {
				return err
			}
			var page struct {
				Status map[string]upstreamView `json:"status"`
			}
			if err := out.decode(&page); err != nil {
				return err
			}
			var list []upstreamView
			for _, u := range page.Status {
				list = append(list, u)
			}
			slices.SortFunc(list, func(x, y upstreamView) int { return strings.Compare(x.Name, y.Name) })
			return a.print(list, func(w io.Writer) {
				row(w, "UPSTREAM", "READY", "IN FLIGHT", "QUEUED", "WORST")
				for _, u := range list {
					ready := 0
					worst := "-"
					for _, e := range u.Endpoints {
						if e.Ready {
							ready++
						}
						if s := standing(e); s != "ready" {
							worst = s
						}
					}
					row(w, u.Name, fmt.Sprintf("%d/%d", ready, len(u.Endpoints)), ofLimit(u.Queue.InFlight, u.Queue.MaxInFlight), ofLimit(u.Queue.Queued, u.Queue.MaxQueue), worst)
				}
			})
		},
	}
}

func ofLimit(n, limit int) string {
	if limit == 0 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%d/%d", n, limit)
}

// standing is the one word for an endpoint: what keeps calls away, if anything.
func standing(e upstreamEndpoint) string {
	switch {
	case !e.Ready:
		return e.State
	case e.Breaker.State != "closed":
		return "breaker " + strings.ReplaceAll(e.Breaker.State, "_", "-")
	case e.CoolUntil.After(time.Now()):
		return "rate limited"
	}
	return "ready"
}

func upstreamShow(a *cli, r *remote) *cobra.Command {
	return &cobra.Command{
		Use: "show NAME", Short: "Show the endpoints of one upstream as one replica sees them", Args: exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := r.client(a)
			if err != nil {
				return err
			}
			out, err := c.call(cmd.Context(), http.MethodGet, upstreamPath(args[0])+"/status", nil, "", nil)
			if err != nil {
				return err
			}
			return a.printEndpoints(out)
		},
	}
}

func (a *cli) printEndpoints(out *answer) error {
	var u upstreamView
	if err := out.decode(&u); err != nil {
		return err
	}
	return a.print(u, func(w io.Writer) {
		row(w, "ENDPOINT", "STATE", "SINCE", "IN FLIGHT", "SHARE", "TTFT P50/P95", "TOKENS/S", "WHY")
		for _, e := range u.Endpoints {
			ttft := "-"
			if e.TTFT.P50 > 0 {
				ttft = fmt.Sprintf("%.0f/%.0f ms", e.TTFT.P50, e.TTFT.P95)
			}
			why := e.Reason
			if !e.Breaker.Until.IsZero() {
				why = "probes from " + e.Breaker.Until.Format(time.TimeOnly)
			}
			row(w, e.URL, standing(e), e.Since.Format(time.RFC3339), e.InFlight, fmt.Sprintf("%.0f %%", 100*e.Weight), ttft, fmt.Sprintf("%.0f", e.TokensPerS), why)
		}
	})
}

func upstreamAct(a *cli, r *remote, name, short string) *cobra.Command {
	var w write
	var endpoint string
	cmd := &cobra.Command{
		Use: name + " NAME", Short: short, Args: exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := r.client(a)
			if err != nil {
				return err
			}
			in := map[string]any{}
			for k, v := range map[string]string{"endpoint": endpoint, "reason": w.reason} {
				if v != "" {
					in[k] = v
				}
			}
			path := upstreamPath(args[0])
			out, err := c.update(cmd.Context(), path, http.MethodPost, path+":"+name, w.query(), firstOf(w.ifMatch, "*"), in)
			if err != nil {
				return err
			}
			a.said(w.dryRun, "%s: %s %s", args[0], name, firstOf(endpoint, "all endpoints"))
			a.saidReplicas(out)
			return a.printAny(out)
		},
	}
	cmd.Flags().StringVar(&endpoint, "endpoint", "", "base URL of one endpoint (all)")
	w.flags(cmd)
	return cmd
}

func upstreamProbe(a *cli, r *remote) *cobra.Command {
	var endpoint string
	cmd := &cobra.Command{
		Use: "probe NAME", Short: "Check the endpoints now and show how they stand", Args: exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := r.client(a)
			if err != nil {
				return err
			}
			in := map[string]any{}
			if endpoint != "" {
				in["endpoint"] = endpoint
			}
			out, err := c.call(cmd.Context(), http.MethodPost, upstreamPath(args[0])+":probe", nil, "", in)
			if err != nil {
				return err
			}
			return a.printEndpoints(out)
		},
	}
	cmd.Flags().StringVar(&endpoint, "endpoint", "", "base URL of one endpoint (all)")
	return cmd
}
