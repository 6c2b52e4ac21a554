package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"sluice/internal/config"
	"sluice/internal/store"
)

// finding is one line of the doctor's report.
type finding struct {
	Check  string `json:"check"`
	Status string `json:"status"` // ok | warn | fail
	Detail string `json:"detail"`
	Fix    string `json:"fix,omitempty"`
}

const checkTimeout = 5 * time.Second

func doctorCommand(a *cli) *cobra.Command {
	var s settingsFlags
	var health bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check settings, database, Redis, upstreams and limits, and say how to fix them",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := s.load(a, defaultFile())
			if health {
				if err != nil {
					return err
				}
				return checkHealth(cmd.Context(), c.Server.Listen)
			}
			var list []finding
			if err != nil {
				list = append(list, finding{"settings", "fail", err.Error(), "correct what is named; sluice config example prints a whole file"})
			} else {
				list = a.examine(cmd.Context(), c)
			}
			return a.report(list)
		},
	}
	s.configFlag(cmd)
	cmd.Flags().BoolVar(&health, "health", false, "only ask the running gateway's /readyz (for container health checks)")
	return cmd
}

func (a *cli) report(list []finding) error {
	err := a.print(list, func(w io.Writer) {
		row(w, "STATUS", "CHECK", "DETAIL")
		for _, f := range list {
			for i, line := range strings.Split(f.Detail, "\n") {
				if i == 0 {
					row(w, f.Status, f.Check, line)
				} else {
					row(w, "", "", line)
				}
			}
			if f.Fix != "" {
				row(w, "", "", "fix: "+f.Fix)
			}
		}
	})
	for _, f := range list {
		if f.Status == "fail" && err == nil {
			return exitCode{code: exitError}
		}
	}
	return err
}

// examine runs the checks in the order in which a start would meet them.
func (a *cli) examine(ctx context.Context, c *config.Config) []finding {
	list := []finding{{"settings", "ok", "they fit together", ""}}
	if err := c.Validate(); err != nil {
		list[0] = finding{"settings", "fail", err.Error(), "correct what is named"}
	}
	for _, name := range c.SecretNames() {
		f := finding{"secret " + name, "ok", "can be read", ""}
		if err := c.SecretError(name); err != nil {
			f = finding{f.Check, "fail", err.Error(), "set the variable or the file, or take the entry out of secrets:"}
		}
		list = append(list, f)
	}
	list = append(list, checkStorage(ctx, c), checkRedis(ctx, c))
	list = append(list, checkUpstreams(ctx, c)...)
	return append(list, checkFiles())
}

func checkStorage(ctx context.Context, c *config.Config) finding {
	f := finding{"storage", "fail", c.Storage.URL.String(), ""}
	raw := c.Storage.URL.Reveal()
	if path, ok := strings.CutPrefix(raw, "sqlite:"); ok && path != ":memory:" {
		path = strings.TrimPrefix(path, "//")
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
			// Looking must not create it.
			f.Status, f.Detail = "ok", fmt.Sprintf("%s does not exist yet; serve creates it", path)
			if err := creatable(filepath.Dir(path)); err != nil {
				f.Status, f.Detail, f.Fix = "fail", fmt.Sprintf("%s cannot be created: %v", path, err), "make the directory writable for this user, or set storage.url"
			}
			return f
		}
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	steps, err := store.MigrationStatus(ctx, store.Options{URL: raw})
	if err != nil {
		f.Detail, f.Fix = err.Error(), "start the database, and check storage.url and the user's rights"
		return f
	}
	missing := 0
	for _, s := range steps {
		if !s.Applied {
			missing++
		}
	}
	f.Status, f.Detail = "ok", fmt.Sprintf("%s answers, schema is current", c.Storage.URL)
	if missing > 0 {
		f.Status, f.Detail, f.Fix = "warn", fmt.Sprintf("%s answers, %d schema steps are missing", c.Storage.URL, missing), "sluice migrate up (serve does it by itself)"
	}
	return f
}

// creatable reports whether dir, or the nearest parent that exists, may be written to.
func creatable(dir string) error {
	for {
		info, err := os.Stat(dir)
		switch {
		case err == nil && !info.IsDir():
			return fmt.Errorf("%s is not a directory", dir)
		case err == nil:
			if err := unix.Access(dir, unix.W_OK); err != nil {
				return fmt.Errorf("%s: %w", dir, err)
			}
			return nil
		case !errors.Is(err, os.ErrNotExist) || dir == filepath.Dir(dir):
			return err
		}
		dir = filepath.Dir(dir)
	}
}

func checkRedis(ctx context.Context, c *config.Config) finding {
	f := finding{"redis", "ok", "not used: state is embedded, one replica only", ""}
	raw := c.Redis.URL.Reveal()
	if raw == "" {
		return f
	}
	o, err := redis.ParseURL(strings.Replace(raw, "+cluster", "", 1))
	if err != nil {
		return finding{"redis", "fail", "redis.url cannot be read", "write redis://user:password@host:6379/0"}
	}
	o.MaxRetries, o.DialTimeout = -1, 2*time.Second
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	r := redis.NewClient(o)
	defer r.Close()
	start := time.Now()
	if err := r.Ping(ctx).Err(); err != nil {
		return finding{"redis", "fail", fmt.Sprintf("%s: %v", c.Redis.URL, err), "start Redis, and check redis.url, the password and TLS (rediss://)"}
	}
	f.Detail = fmt.Sprintf("%s answers in %s", c.Redis.URL, time.Since(start).Round(100*time.Microsecond))
	return f
}

// checkUpstreams asks every endpoint of the file for its models.
func checkUpstreams(ctx context.Context, c *config.Config) []finding {
	if c.Resources == nil {
		return nil
	}
	var list []finding
	for _, u := range c.Resources.Upstreams {
		secret, _ := c.Secret(u.Credential)
		for _, e := range u.Endpoints {
			f := finding{"upstream " + u.Name, "ok", "", ""}
			if u.TLS != nil && (u.TLS.CAFile != "" || u.TLS.CertFile != "") {
				f.Status, f.Detail = "warn", e+" has its own TLS files: not asked here"
			} else {
				f.Status, f.Detail, f.Fix = askEndpoint(ctx, e, secret)
			}
			list = append(list, f)
		}
	}
	return list
}

func askEndpoint(ctx context.Context, base, secret string) (status, detail, fix string) {
	target := strings.TrimRight(strings.TrimPrefix(base, "dns:"), "/") + "/models"
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return "fail", base + " is not a URL", "write http://host:8000/v1"
	}
	if secret != "" {
		req.Header.Set("Authorization", "Bearer "+secret)
	}
	client := &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}, DialContext: (&net.Dialer{Timeout: 2 * time.Second}).DialContext},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Do(req)
	if err != nil {
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err
		}
		return "fail", fmt.Sprintf("%s: %v", target, err), "start the model server, or correct the endpoint"
	}
	resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden:
		return "fail", fmt.Sprintf("%s answered %d", target, resp.StatusCode), "name its key under secrets: and in the upstream's credential"
	case resp.StatusCode == http.StatusNotFound:
		return "warn", fmt.Sprintf("%s answered 404", target), "does the base URL end in /v1 (KServe: /openai/v1)?"
	case resp.StatusCode > 299:
		return "fail", fmt.Sprintf("%s answered %d", target, resp.StatusCode), "look at the model server's log"
	}
	return "ok", target + " answers", ""
}

// checkFiles compares the limit of open files with what streams need: two a stream.
func checkFiles() finding {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return finding{"open files", "warn", err.Error(), ""}
	}
	f := finding{"open files", "ok", fmt.Sprintf("%d allowed", l.Cur), ""}
	if l.Cur < 65536 {
		f.Status, f.Detail, f.Fix = "warn", fmt.Sprintf("%d allowed: about %d streams at once", l.Cur, l.Cur/2), "ulimit -n 65536, or LimitNOFILE=65536 in the systemd unit"
	}
	return f
}

// checkHealth asks /readyz of the gateway on this machine.
func checkHealth(ctx context.Context, listen string) error {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return fmt.Errorf("server.listen %q is not host:port", listen)
	}
	if host == "" || host == "0.0.0.0" || host == "::" {
		host = "127.0.0.1"
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(host, port)+"/readyz", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("the gateway does not answer: %w", unwrapURL(err))
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("/readyz answered %d", resp.StatusCode)
	}
	return nil
}
