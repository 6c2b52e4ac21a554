package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v4"

	"sluice/internal/config"
	"sluice/router"
)

const root = "../.."

// service has every key that docker-compose.yml uses; another is an error, so a
// misspelt one is found without an engine.
type service struct {
	Restart     string
	ReadOnly    bool     `yaml:"read_only"`
	CapDrop     []string `yaml:"cap_drop"`
	SecurityOpt []string `yaml:"security_opt"`
	Profiles    []string
	Build       *struct{ Context, Target string }
	Image       string
	Command     []string
	Environment map[string]string
	Ports       []string
	Volumes     []string
	Tmpfs       []string
	Ipc         string
	StopGrace   string `yaml:"stop_grace_period"`
	Healthcheck *struct {
		Test              []string
		Interval, Timeout string
		Retries           int
		StartPeriod       string `yaml:"start_period"`
	}
	DependsOn map[string]struct {
		Condition string
		Required  *bool
	} `yaml:"depends_on"`
	Deploy *struct {
		Resources struct {
			Reservations struct {
				Devices []struct {
					Driver       string
					Count        int
					Capabilities []string
				}
			}
		}
	}
}

type compose struct {
	Name     string
	Hardened any `yaml:"x-hardened"`
	Services map[string]service
	Volumes  map[string]any
}

func load(t *testing.T) compose {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(root, "docker-compose.yml"))
	if err != nil {
		t.Fatal(err)
	}
	dec := yaml.NewDecoder(bytes.NewReader(raw))
	dec.KnownFields(true)
	var c compose
	if err := dec.Decode(&c); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestComposeProfiles(t *testing.T) {
	got := map[string][]string{}
	for name, s := range load(t).Services {
		if len(s.Profiles) == 0 {
			got["default"] = append(got["default"], name)
		}
		for _, p := range s.Profiles {
			got[p] = append(got[p], name)
		}
	}
	for _, names := range got {
		slices.Sort(names)
	}
	want := map[string][]string{
		"default":    {"gateway", "upstreams"},
		"redis":      {"redis"},
		"postgres":   {"postgres"},
		"monitoring": {"grafana", "prometheus", "users"},
		"vllm":       {"vllm"},
		"full":       {"grafana", "postgres", "prometheus", "redis", "users"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("services by profile (-want +got):\n%s", d)
	}
}

func TestComposeServices(t *testing.T) {
	c := load(t)
	dockerfile, err := os.ReadFile(filepath.Join(root, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	for name, s := range c.Services {
		for _, p := range s.Ports {
			if !strings.HasPrefix(p, "127.0.0.1:") {
				t.Errorf("%s: port %s is not bound to loopback", name, p)
			}
		}
		if s.Healthcheck == nil && name != "users" {
			t.Errorf("%s has no health check", name)
		}
		if strings.Contains(strings.SplitN(s.Image, "/", 2)[0], ".") {
			t.Errorf("%s: image %s names a registry", name, s.Image)
		}
		for _, v := range s.Volumes {
			src, _, _ := strings.Cut(v, ":")
			if strings.HasPrefix(src, ".") {
				if _, err := os.Stat(filepath.Join(root, src)); err != nil {
					t.Errorf("%s mounts %s: %v", name, src, err)
				}
			} else if _, ok := c.Volumes[src]; !ok {
				t.Errorf("%s: volume %s is not declared", name, src)
			}
		}
		for dep, d := range s.DependsOn {
			other, ok := c.Services[dep]
			if !ok || other.Healthcheck == nil || d.Condition != "service_healthy" {
				t.Errorf("%s depends on %s with condition %s, which has no health check or is not there", name, dep, d.Condition)
			}
			// A service of another profile may be absent.
			if optional := d.Required != nil && !*d.Required; ok && !optional && len(other.Profiles) > 0 && !subset(s.Profiles, other.Profiles) {
				t.Errorf("%s needs %s, which is not in all of its profiles", name, dep)
			}
		}
		if s.Build != nil && !strings.Contains(string(dockerfile), " AS "+s.Build.Target+"\n") {
			t.Errorf("%s is built from the stage %s, which the Dockerfile has not", name, s.Build.Target)
		}
	}
	if dev := c.Services["vllm"].Deploy.Resources.Reservations.Devices; len(dev) != 1 || !slices.Contains(dev[0].Capabilities, "gpu") {
		t.Errorf("vllm reserves %v, want a GPU", dev)
	}
	if strings.Contains(string(dockerfile), "CGO_ENABLED=1") || !strings.Contains(string(dockerfile), "USER 65532:65532") {
		t.Error("the image is not static or not without root")
	}
}

func subset(a, b []string) bool {
	return len(a) > 0 && !slices.ContainsFunc(a, func(s string) bool { return !slices.Contains(b, s) })
}

var reference = regexp.MustCompile(`\$\{(\w+)(:-([^}]*))?\}`)

// TestComposeSettings loads the settings of every documented way to start, as
// the binary will see them: an unknown variable or key fails.
func TestComposeSettings(t *testing.T) {
	gateway := load(t).Services["gateway"]
	for _, file := range []string{"", "redis.env", "postgres.env", "full.env", "vllm.env"} {
		vars := envFile(t, file)
		expand := func(s string) string {
			return reference.ReplaceAllStringFunc(s, func(m string) string {
				f := reference.FindStringSubmatch(m)
				if v := vars[f[1]]; v != "" {
					return v
				}
				return f[3]
			})
		}
		var env []string
		for k, v := range gateway.Environment {
			env = append(env, k+"="+expand(v))
		}
		settings := strings.Replace(expand(gateway.Command[2]), "/etc/sluice", filepath.Join(root, "deploy/compose"), 1)
		c, err := config.Load(config.Sources{Path: settings, Env: env})
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		if err := c.Validate(); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		if w := c.Warnings(); len(w) > 0 {
			t.Errorf("%s: warnings %q", file, w)
		}
		for k := range gateway.Environment {
			path := strings.ToLower(strings.TrimPrefix(k, "SLUICE_"))
			known := slices.ContainsFunc(keys(c.Origins()), func(p string) bool { return strings.ReplaceAll(p, ".", "_") == path })
			if !known {
				t.Errorf("%s: the gateway knows no variable %s", file, k)
			}
		}
		if p := router.Validate(c.Resources, router.ValidateOptions{}); len(p) > 0 {
			t.Errorf("%s: resources of %s: %v", file, settings, p)
		}
		if got := c.Redis.URL.Reveal() != ""; got != (vars["SLUICE_REDIS_URL"] != "") {
			t.Errorf("%s: Redis in use: %v", file, got)
		}
	}
}

// TestComposeEnvFiles holds profiles and settings together: what a profile
// starts is what the gateway is told to use, and the other way round.
func TestComposeEnvFiles(t *testing.T) {
	c := load(t)
	in := func(service, profile string) bool { return slices.Contains(c.Services[service].Profiles, profile) }
	files, err := filepath.Glob(filepath.Join(root, "deploy/compose/*.env"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, path := range files {
		name := filepath.Base(path)
		vars := envFile(t, name)
		profile := vars["COMPOSE_PROFILES"]
		if profile+".env" != name {
			t.Errorf("%s starts the profile %q", name, profile)
		}
		if used := vars["SLUICE_REDIS_URL"] == "redis://redis:6379/0"; used != in("redis", profile) {
			t.Errorf("%s: Redis is started: %v, used: %v", name, in("redis", profile), used)
		}
		if used := strings.Contains(vars["SLUICE_STORAGE_URL"], "@postgres:5432/"); used != in("postgres", profile) {
			t.Errorf("%s: PostgreSQL is started: %v, used: %v", name, in("postgres", profile), used)
		}
		if used := vars["SLUICE_SETTINGS"] == "vllm"; used != in("vllm", profile) {
			t.Errorf("%s: vLLM is started: %v, used: %v", name, in("vllm", profile), used)
		}
	}
}

// TestComposeProfileAlone runs the first lines of the containers that are of no
// use unless the gateway knows of them.
func TestComposeProfileAlone(t *testing.T) {
	c := load(t)
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "docker-entrypoint.sh"), []byte("#!/bin/sh\necho starts $1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for service, file := range map[string]string{"redis": "redis.env", "postgres": "postgres.env"} {
		command := c.Services[service].Command
		if len(command) != 3 || command[0] != "sh" || command[1] != "-c" {
			t.Fatalf("%s: command %q", service, command)
		}
		script := strings.ReplaceAll(command[2], "$$", "$") // as Compose does
		run := func(vars map[string]string) (string, error) {
			cmd := exec.CommandContext(t.Context(), "sh", "-c", script)
			cmd.Env = []string{"PATH=" + bin + ":" + os.Getenv("PATH")}
			for k := range c.Services[service].Environment {
				cmd.Env = append(cmd.Env, k+"="+vars[k])
			}
			out, err := cmd.CombinedOutput()
			return string(out), err
		}
		if out, err := run(nil); err == nil || !strings.Contains(out, "--env-file deploy/compose/"+file) {
			t.Errorf("%s by --profile alone: %v %q", service, err, out)
		}
		for _, f := range []string{file, "full.env"} {
			if out, err := run(envFile(t, f)); err != nil || !strings.HasPrefix(out, "starts "+service) {
				t.Errorf("%s with %s: %v %q", service, f, err, out)
			}
		}
	}
}

var composeUse = regexp.MustCompile(`--(profile|env-file)[ =](\S+)`)

// TestComposeDocumented finds ways to start that do not exist.
func TestComposeDocumented(t *testing.T) {
	for _, doc := range []string{"README.md", "docs/platform-engineer.md", "docker-compose.yml"} {
		raw, err := os.ReadFile(filepath.Join(root, doc))
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, m := range composeUse.FindAllStringSubmatch(string(raw), -1) {
			what, name := m[1], strings.TrimRight(m[2], "`;.,")
			switch {
			case what == "profile" && name == "monitoring":
				n++
			case what == "env-file" && strings.HasPrefix(name, "deploy/compose/"):
				n++
				if _, err := os.Stat(filepath.Join(root, name)); err != nil {
					t.Errorf("%s: %v", doc, err)
				}
			case strings.HasSuffix(m[0], "--profile alone"): // prose
			case what == "profile" && !strings.ContainsAny(name, "`\""):
				t.Errorf("%s starts the profile %s without its settings", doc, name)
			}
		}
		if n < 2 {
			t.Errorf("%s shows %d ways to start", doc, n)
		}
	}
}

func keys[V any](m map[string]V) (ks []string) {
	for k := range m {
		ks = append(ks, k)
	}
	return ks
}

func envFile(t *testing.T, name string) map[string]string {
	t.Helper()
	vars := map[string]string{}
	if name == "" {
		return vars
	}
	raw, err := os.ReadFile(filepath.Join(root, "deploy/compose", name))
	if err != nil {
		t.Fatal(err)
	}
	profiles := map[string]bool{}
	for _, s := range load(t).Services {
		for _, p := range s.Profiles {
			profiles[p] = true
		}
	}
	for line := range strings.Lines(string(raw)) {
		k, v, ok := strings.Cut(strings.TrimSpace(line), "=")
		if strings.HasPrefix(k, "#") || !ok {
			continue
		}
		vars[k] = v
		if k == "COMPOSE_PROFILES" && !profiles[v] {
			t.Errorf("%s: no service has the profile %s", name, v)
		}
	}
	return vars
}

// TestProvisioning parses Grafana's files and holds them together: the data
// source that panels fall back to, the folder that is mounted.
func TestProvisioning(t *testing.T) {
	var ds struct {
		Datasources []struct{ UID, Type, URL string }
	}
	var db struct {
		Providers []struct{ Options struct{ Path string } }
	}
	for path, into := range map[string]any{"datasources/prometheus.yaml": &ds, "dashboards/sluice.yaml": &db} {
		raw, err := os.ReadFile(filepath.Join(root, "deploy/grafana/provisioning", path))
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.Unmarshal(raw, into); err != nil {
			t.Fatal(err)
		}
	}
	if len(ds.Datasources) != 1 || ds.Datasources[0].UID != "prometheus" || ds.Datasources[0].URL != "http://prometheus:9090" {
		t.Errorf("data sources %+v", ds.Datasources)
	}
	mounted := slices.ContainsFunc(load(t).Services["grafana"].Volumes, func(v string) bool {
		return len(db.Providers) == 1 && v == "./deploy/grafana/dashboards:"+db.Providers[0].Options.Path+":ro"
	})
	if !mounted {
		t.Errorf("the dashboards' folder of %+v is not mounted", db.Providers)
	}
}
