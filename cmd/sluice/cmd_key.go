package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// list reads all pages of a collection.
func (c *client) list(ctx context.Context, path string) ([]json.RawMessage, error) {
	items := []json.RawMessage{}
	query := url.Values{"limit": {"200"}}
	for range 1000 { // a cursor that never ends must not hang
		out, err := c.call(ctx, http.MethodGet, path, query, "", nil)
		if err != nil {
			return nil, err
		}
		var page struct {
			Items []json.RawMessage `json:"items"`
			Next  string            `json:"next_cursor"`
		}
		if err := out.decode(&page); err != nil {
			return nil, err
		}
		items = append(items, page.Items...)
		if page.Next == "" {
			return items, nil
		}
		query.Set("cursor", page.Next)
	}
	return nil, fmt.Errorf("GET %s does not end", path)
}

// keyView is what the admin API shows of a key.
type keyView struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	Prefix    string    `json:"prefix"`
	Tenant    string    `json:"tenant"`
	Models    []string  `json:"models"`
	Scopes    []string  `json:"scopes"`
	State     string    `json:"state"`
	ExpiresAt time.Time `json:"expires_at"`
}

func keyCommand(a *cli) *cobra.Command {
	r := &remote{}
	cmd := group(&cobra.Command{Use: "key", Short: "API keys of the data plane"})
	r.flags(cmd)
	cmd.AddCommand(keyCreate(a, r), keyList(a, r), keyRevoke(a, r))
	return cmd
}

func keyCreate(a *cli, r *remote) *cobra.Command {
	var name, tenant, user, expires string
	var models, scopes []string
	var tags map[string]string
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Create a key; the secret is printed once, on stdout", Args: exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			name = args[0]
			in := map[string]any{"name": name}
			if expires != "" {
				at, err := expiry(expires, time.Now())
				if err != nil {
					return err
				}
				in["expires_at"] = at.UTC().Format(time.RFC3339)
			}
			for k, v := range map[string]string{"tenant": tenant, "user": user} {
				if v != "" {
					in[k] = v
				}
			}
			if len(models) > 0 {
				in["models"] = models
			}
			if len(scopes) > 0 {
				in["scopes"] = scopes
			}
			if len(tags) > 0 {
				in["tags"] = tags
			}
			c, err := r.client(a)
			if err != nil {
				return err
			}
			out, err := c.call(cmd.Context(), http.MethodPost, "/keys", nil, "", in)
			if err != nil {
				return err
			}
			return a.printNewKey(out)
		},
	}
	f := cmd.Flags()
	f.StringVar(&tenant, "tenant", "", "tenant whose users it speaks for")
	f.StringVar(&user, "user", "", "the one end user behind it")
	f.StringVar(&expires, "expires", "", "after a time such as 720h or 30d, or at 2026-12-31T00:00:00Z")
	f.StringSliceVar(&models, "model", nil, "public model it may use, may be repeated (all)")
	f.StringSliceVar(&scopes, "scope", nil, "override or identity, may be repeated")
	f.StringToStringVar(&tags, "tag", nil, "NAME=VALUE, may be repeated")
	return cmd
}

// printNewKey prints the secret alone on stdout, so that KEY=$(…) works.
func (a *cli) printNewKey(out *answer) error {
	var k struct {
		Key    keyView `json:"key"`
		Secret string  `json:"secret"`
	}
	if err := out.decode(&k); err != nil {
		return err
	}
	if k.Secret == "" {
		return errors.New("the admin API answered without the secret")
	}
	a.note("created key %s (%s); this is the only time its secret is shown", printable(k.Key.Name), printable(k.Key.ID))
	return a.print(json.RawMessage(out.body), func(w io.Writer) { fmt.Fprintln(w, printable(k.Secret)) })
}

// expiry reads "720h", "30d" or a point in time, which must lie ahead.
func expiry(s string, now time.Time) (time.Time, error) {
	at, err := time.Parse(time.RFC3339, s)
	if err != nil {
		d, derr := time.ParseDuration(s)
		if days, ok := strings.CutSuffix(s, "d"); ok {
			d, derr = time.ParseDuration(days + "h")
			d *= 24
		}
		if derr != nil {
			return at, usagef("--expires %q: want a time such as 720h or 30d, or 2026-12-31T00:00:00Z", s)
		}
		at = now.Add(d)
	}
	if !at.After(now) {
		return at, usagef("--expires %q is not in the future", s)
	}
	return at, nil
}

func keyList(a *cli, r *remote) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the keys, without secrets", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := r.client(a)
			if err != nil {
				return err
			}
			items, err := c.list(cmd.Context(), "/keys")
			if err != nil {
				return err
			}
			var keys []keyView
			if err := decodeItems(items, &keys); err != nil {
				return err
			}
			return a.print(items, func(w io.Writer) {
				row(w, "ID", "NAME", "KEY", "TENANT", "MODELS", "SCOPES", "STATE", "EXPIRES")
				for _, k := range keys {
					expires := "never"
					if !k.ExpiresAt.IsZero() {
						expires = k.ExpiresAt.Format(time.RFC3339)
					}
					row(w, k.ID, k.Name, k.Prefix, k.Tenant, firstOf(strings.Join(k.Models, ","), "all"), strings.Join(k.Scopes, ","), k.State, expires)
				}
			})
		},
	}
}

func keyRevoke(a *cli, r *remote) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use: "revoke ID", Short: "Revoke a key, at once and for good", Args: exactly("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := r.client(a)
			if err != nil {
				return err
			}
			in := map[string]any{}
			if reason != "" {
				in["reason"] = reason
			}
			out, err := c.call(cmd.Context(), http.MethodPost, "/keys/"+url.PathEscape(args[0])+":revoke", nil, "*", in)
			if err != nil {
				return err
			}
			a.note("revoked %s", args[0])
			return a.printAny(out)
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the audit log")
	return cmd
}
