package config_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/config"
)

func TestValidate(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, yaml, want string }{
		{"defaults", "log: {}\n", ""},
		{"open listener with auth none", "server: { listen: \":8080\" }\nauth: { data: none }\n", ""},
		{"open listener with keys", "server: { listen: \"0.0.0.0:8080\" }\nauth: { data: keys }\n", ""},
		{"open listener", "server: { listen: \":8080\" }\n", `sluice.yaml:1:19: server.listen: ":8080" can be reached from other machines and auth.data is not set: set auth.data: keys and create a key, or auth.data: none if anybody may call it`},
		{"a name is open", "server: { listen: \"gateway:8080\" }\n", `sluice.yaml:1:19: server.listen: "gateway:8080" can be reached from other machines and auth.data is not set: set auth.data: keys and create a key, or auth.data: none if anybody may call it`},
		{"loopback", "server: { listen: \"[::1]:8080\" }\nadmin: { listen: \"localhost:9\" }\n", ""},
		{"open admin", "admin: { listen: \"0.0.0.0:8081\" }\n", `sluice.yaml:1:18: admin.listen: "0.0.0.0:8081" can be reached from other machines and admin.token is empty: set admin.token (SLUICE_ADMIN_TOKEN), or listen on 127.0.0.1`},
		{"open admin with token", "admin: { listen: \"0.0.0.0:8081\", token: abcdefghijkl }\n", ""},
		{"token with a space", "admin: { token: \"a b\" }\n", "sluice.yaml:1:17: admin.token: the token has characters that a header cannot carry; use printable ASCII without spaces"},
		{"port only", "server: { listen: \"8080\" }\n", `sluice.yaml:1:19: server.listen: want host:port such as 127.0.0.1:8080, got "8080"; did you mean ":8080"?`},
		{"port out of range", "server: { listen: \"127.0.0.1:80800\" }\n", `sluice.yaml:1:19: server.listen: the port of "127.0.0.1:80800" is not a number from 0 to 65535`},
		{"port with zeros", "server: { listen: \"127.0.0.1:0080\" }\n", `sluice.yaml:1:19: server.listen: write the port of "127.0.0.1:0080" as 80`},
		{"a URL", "admin: { listen: \"http://127.0.0.1:1\" }\n", `sluice.yaml:1:18: admin.listen: want host:port such as 127.0.0.1:8080, got "http://127.0.0.1:1"`},
		{"same address", "server: { listen: \"127.0.0.1:8081\" }\n", "admin.listen: the same address as server.listen (127.0.0.1:8081); give it another port"},
		{"metrics on a taken port", "metrics: { listen: \":8080\" }\n", "sluice.yaml:1:20: metrics.listen: the address :8080 is taken by server.listen or admin.listen; give it another port"},
		{"sqlite without file", "storage: { url: \"sqlite:\" }\n", "sluice.yaml:1:17: storage.url: sqlite: names no file; write sqlite:data/sluice.db"},
		{"mysql", "storage: { url: \"mysql://root:hunter2@h/db\" }\n", "sluice.yaml:1:17: storage.url: unknown scheme; want sqlite:PATH or postgres://…"},
		{"postgres password not encoded", "storage: { url: \"postgres://u:hun%ter2@h/db\" }\n", "sluice.yaml:1:17: storage.url: not a URL; write postgres://user:password@host:5432/database, with special characters percent-encoded"},
		{"redis host:port", "redis: { url: \"localhost:6379\" }\n", "sluice.yaml:1:15: redis.url: unknown scheme; want redis://host:6379/0 or rediss://…"},
		{"redis without host", "redis: { url: \"redis:///0\" }\n", "sluice.yaml:1:15: redis.url: names no host; write redis://host:6379/0"},
		{"body larger than the buffer", "server:\n  max_body: 2GiB\n", "server.max_buffered_bytes: 1GiB is less than one body of server.max_body (2GiB)"},
		{"no body", "server:\n  max_body: 0\n", "sluice.yaml:2:13: server.max_body: must be more than 0"},
		{"no read deadline", "server:\n  read_deadline: 0s\n", "sluice.yaml:2:18: server.read_deadline: must be more than 0s: without it a silent client holds its connection for ever"},
		{"origin with a path", "server: { cors: { origins: [\"https://a.example/x\"] } }\n", `sluice.yaml:1:28: server.cors.origins: "https://a.example/x" is no origin; write https://app.example.com, without a path, or *`},
		{"override by authorization", "server: { override_headers: [Authorization] }\n", `sluice.yaml:1:29: server.override_headers: "Authorization" cannot be used as the name of an override header`},
		{"secret with both", "secrets:\n  a: { env: A, file: /b }\n", "sluice.yaml:2:6: secrets.a: want exactly one of env and file"},
		{"secret with neither", "secrets:\n  a: {}\n", "sluice.yaml:2:6: secrets.a: want exactly one of env and file"},
		{"secret value as env", "secrets:\n  a: { env: sk-hunter2 }\n", "sluice.yaml:2:6: secrets.a: env is not the name of a variable; a secret may not be written here"},
		{"secret value as file", "secrets:\n  a: { file: sk-hunter2 }\n", "sluice.yaml:2:6: secrets.a: file looks like a secret itself; write the path of a file that holds it"},
		{"webhook", "webhook: { url: \"https://hooks.example.com/T/B\", secret: hook, format: slack, events: [paused, rolled_back], link: \"https://s.example.com\" }\nsecrets: { hook: { env: HOOK } }\nguardrails: { prometheus: [\"http://prometheus:9090\"] }\n", ""},
		{"webhook to a file", "webhook: { url: \"file:///etc/hunter2\" }\n", "sluice.yaml:1:17: webhook.url: not a URL of http or https; write https://hooks.example.com/sluice"},
		{"webhook without url", "webhook: { events: [paused] }\n", "webhook.url: is missing: nothing is sent without it"},
		{"webhook event", "webhook: { url: \"http://h\", events: [rolled_bak] }\n", "sluice.yaml:1:37: webhook.events: unknown event `rolled_bak`, did you mean `rolled_back`?"},
		{"webhook secret unknown", "webhook: { url: \"http://h\", secret: hok }\nsecrets: { hook: { env: HOOK } }\n", "sluice.yaml:1:37: webhook.secret: unknown secret `hok`, did you mean `hook`?; add secrets: {hok: {env: VARIABLE}}"},
		{"webhook secret itself", "webhook: { url: \"http://h\", secret: whsec_hunter2 }\n", "sluice.yaml:1:37: webhook.secret: is the name of an entry of `secrets:`, this looks like the secret itself: put it into a variable or a file and name it there"},
		{"webhook link", "webhook: { url: \"http://h\", link: sluice.example.com }\n", `sluice.yaml:1:35: webhook.link: "sluice.example.com" is no address; write https://sluice.example.com`},
		{"prometheus", "guardrails: { prometheus: [\"prometheus:9090\"] }\n", `sluice.yaml:1:27: guardrails.prometheus: "prometheus:9090" is no base URL; write http://prometheus:9090`},
		{"base path", "admin: { base_path: sluice }\n", "sluice.yaml:1:21: admin.base_path: want a path such as /sluice"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c, err := load(tt.yaml)
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if err := c.Validate(); err != nil {
				got = err.Error()
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestCredentials(t *testing.T) {
	t.Parallel()
	const file = "secrets: { vllm: { env: K } }\nresources:\n  upstreams:\n    - name: v1\n      endpoints: [\"http://127.0.0.1:1/v1\"]\n      credential: %s\n"
	for credential, want := range map[string]string{
		"vllm":       "",
		"vlm":        "sluice.yaml:6:19: resources.upstreams[0].credential: unknown secret `vlm`, did you mean `vllm`?; add secrets: {vlm: {env: VARIABLE}}",
		"sk-hunter2": "sluice.yaml:6:19: resources.upstreams[0].credential: a credential is the name of an entry of `secrets:`, this looks like the secret itself: put it into a variable or a file and name it there",
	} {
		c, err := load(fmt.Sprintf(file, credential))
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if err := c.Validate(); err != nil {
			got = err.Error()
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", credential, diff)
		}
	}
}

func TestCheckKeys(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		yaml    string
		keys    int
		refused bool
	}{
		{"auth: { data: keys }\n", 0, false},
		{"auth: { data: keys }\nserver: { listen: \":8080\" }\n", 0, true},
		{"auth: { data: keys }\nserver: { listen: \":8080\" }\n", 1, false},
		{"auth: { data: none }\nserver: { listen: \":8080\" }\n", 0, false},
	} {
		c, err := load(tt.yaml)
		if err != nil {
			t.Fatal(err)
		}
		err = c.CheckKeys(tt.keys)
		if (err != nil) != tt.refused || err != nil && !strings.Contains(err.Error(), "auth.data: none") {
			t.Errorf("%q with %d keys: %v", tt.yaml, tt.keys, err)
		}
	}
}

func TestLocate(t *testing.T) {
	t.Parallel()
	c, err := load("resources:\n  experiments:\n    - key: e\n      variants:\n        - { name: a, weight: 1 }\n        - { name: b, weight: 2 }\n")
	if err != nil {
		t.Fatal(err)
	}
	for pointer, want := range map[string]string{
		"/experiments/0/variants/1/weight": "6:30 resources.experiments[0].variants[1].weight",
		"/experiments/0/model":             "3:7 resources.experiments[0].model",
		"/experiments/9/key":               "3:5 resources.experiments[9].key",
		"":                                 "2:3 resources",
	} {
		pos, path := c.Locate(pointer)
		if got := fmt.Sprintf("%d:%d %s", pos.Line, pos.Column, path); got != want {
			t.Errorf("%s: got %s, want %s", pointer, got, want)
		}
	}
}

func TestSecretsAreRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "s")
	c, err := load("secrets: { e: { env: VAR }, u: { env: UNSET }, f: { file: "+file+" } }\n", "VAR=one")
	if err != nil {
		t.Fatal(err)
	}
	if v, ok := c.Secret("e"); v != "one" || !ok {
		t.Errorf("e: %q %v", v, ok)
	}
	for name, want := range map[string]string{
		"u":  `secret "u": the variable UNSET is not set`,
		"f":  `secret "f": the file ` + file + ` cannot be read: no such file or directory`,
		"no": `there is no secret "no": add secrets: {no: {env: VARIABLE}} or {file: /path}`,
	} {
		if _, ok := c.Secret(name); ok {
			t.Errorf("%s: found", name)
		}
		if err := c.SecretError(name); err == nil || err.Error() != want {
			t.Errorf("%s: got %v, want %s", name, err, want)
		}
	}
	for _, value := range []string{"two", "three"} { // a rotated file takes effect
		if err := os.WriteFile(file, []byte(value+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if v, ok := c.Secret("f"); v != value || !ok {
			t.Errorf("f: %q %v, want %q", v, ok, value)
		}
	}
}

// TestNothingShowsSecrets prints the settings in every way there is.
func TestNothingShowsSecrets(t *testing.T) {
	t.Parallel()
	c, err := load("admin: { token: hunter2hunter2 }\nstorage: { url: \"postgres://u:hunter2@h/db?sslpassword=hunter2\" }\nredis: { url: \"redis://:hunter2@h:1/0\" }\nlog: {}\n", "KEY=hunter2")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	slog.New(slog.NewJSONHandler(&b, nil)).Info("x", "config", c, "token", c.Admin.Token, "admin", c.Admin, "url", c.Redis.URL)
	slog.New(slog.NewTextHandler(&b, nil)).Info("x", "config", c, "token", c.Admin.Token, "admin", c.Admin, "url", c.Redis.URL)
	yaml, err := config.YAML(c)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&b, "%v %+v %#v\n", c, c, *c)
	fmt.Fprintf(&b, "%v %+v %#v %s %q %v %s\n", c.Admin, c.Storage, c.Redis, c.Admin.Token, c.Storage.URL, c.Values(), yaml)
	if strings.Contains(b.String(), "hunter2") {
		t.Errorf("a secret is shown in %s", b.String())
	}
	for _, want := range []string{"[redacted]", "redis://:redacted@h:1/0", "postgres://u:redacted@h/db?sslpassword=redacted"} {
		if !strings.Contains(string(yaml), want) {
			t.Errorf("%q is not in %s", want, yaml)
		}
	}
	if bad := config.SecretURL("host=h password=hunter2"); bad.String() != "[redacted]" {
		t.Errorf("a DSN shows as %s", bad)
	}
}
