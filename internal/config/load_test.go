package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/config"
	"sluice/upstream"
)

// load reads text as sluice.yaml with an environment of one line per variable.
func load(text string, env ...string) (*config.Config, error) {
	return config.Load(config.Sources{Path: "sluice.yaml", Data: []byte(text), Env: env})
}

func TestLoadErrors(t *testing.T) {
	t.Parallel()
	secretFile := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(secretFile, []byte("s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct{ name, yaml, want string }{
		{"misspelt weight", `resources:
  experiments:
    - key: chat-v2
      model: chat
      kind: canary
      state: running
      baseline: control
      variants:
        - name: control
          weight: 9000
          upstream: v1
        - name: canary
          upstream: v2
          weigth: 1000
          weight: 1
`, "sluice.yaml:14:11: unknown key `weigth`, did you mean `weight`?"},
		{"misspelt section", "servr: {}\n", "sluice.yaml:1:1: unknown key `servr`, did you mean `server`?"},
		{"swapped letters", "sevrer: {}\n", "sluice.yaml:1:1: unknown key `sevrer`, did you mean `server`?"},
		{"unknown without a near name", "admin:\n  colour: blue\n", "sluice.yaml:2:3: unknown key `colour`; known here: base_path, listen, token"},
		{"document at the top", "upstreams: []\n", "sluice.yaml:1:1: unknown key `upstreams` at the top; it belongs below `resources:`"},
		{"case matters", "Server: {}\n", "sluice.yaml:1:1: unknown key `Server`, did you mean `server`?"},
		{"duplicate key", "log:\n  level: info\n  level: debug\n", "sluice.yaml:3:3: duplicate key `level`, first in line 2"},
		{"duplicate section", "log: {}\nauth: {}\nlog: {}\n", "sluice.yaml:3:1: duplicate key `log`, first in line 1"},
		{"duplicate in parameters", "resources:\n  experiments:\n    - key: e\n      variants: [{name: a, weight: 1, params: {t: 1, t: 2}}]\n", "sluice.yaml:4:54: duplicate key `t`, first in line 4"},
		{"duration without unit", "server:\n  drain: { delay: 5 }\n", "sluice.yaml:2:19: server.drain.delay: want a duration such as 5s, got `5`"},
		{"duration in words", "server:\n  drain:\n    timeout: soon\n", "sluice.yaml:3:14: server.drain.timeout: want a duration such as 5s, got `soon`"},
		{"negative duration", "server: { read_deadline: -5s }\n", "sluice.yaml:1:26: server.read_deadline: want a duration that is not negative, got `-5s`"},
		{"size", "server: { max_body: lots }\n", "sluice.yaml:1:21: server.max_body: want a size such as 64MiB or a number of bytes, got `lots`"},
		{"negative size", "server: { max_body: -1 }\n", "sluice.yaml:1:21: server.max_body: want a size such as 64MiB or a number of bytes, got `-1`"},
		{"scalar for a section", "server: yes\n", "sluice.yaml:1:9: server: want a mapping, got `yes`"},
		{"list for a section", "log: [a]\n", "sluice.yaml:1:6: log: want a mapping with format, level, access, got a list"},
		{"mapping for a string", "data_dir: {a: 1}\n", "sluice.yaml:1:11: data_dir: want a string, got a mapping"},
		{"number for a string", "server: { listen: 8080 }\n", "sluice.yaml:1:19: server.listen: want a string, got the bare value `8080`; put it in quotes: \"8080\""},
		{"scalar for a list", "server: { override_headers: x-a }\n", "sluice.yaml:1:29: server.override_headers: want a list, got `x-a`"},
		{"empty item", "server:\n  override_headers:\n    - x-a\n    -\n", "sluice.yaml:4:6: server.override_headers[1]: the item is empty"},
		{"not one of", "log: { level: inof }\n", "sluice.yaml:1:15: log.level: want debug or info or warn or error, got `inof`, did you mean `info`?"},
		{"auth", "auth: { data: open }\n", "sluice.yaml:1:15: auth.data: want none or keys, got `open`"},
		{"version as a number", "resources:\n  experiments:\n    - key: e\n      variants:\n        - { name: a, weight: 1, version: 8 }\n", "sluice.yaml:5:42: resources.experiments[0].variants[0].version: want a string, got the bare value `8`; put it in quotes: \"8\""},
		{"weight as percent", "resources:\n  experiments:\n    - key: e\n      variants:\n        - { name: a, weight: 12.5 }\n", "sluice.yaml:5:30: resources.experiments[0].variants[0].weight: want a whole number, got `12.5`"},
		{"weight as text", "resources:\n  experiments:\n    - key: e\n      variants:\n        - { name: a, weight: \"90\" }\n", "sluice.yaml:5:30: resources.experiments[0].variants[0].weight: want a whole number, got `90`"},
		{"weight is missing", "resources:\n  experiments:\n    - key: e\n      variants:\n        - { name: a }\n", "sluice.yaml:5:11: resources.experiments[0].variants[0]: `weight` is missing"},
		{"bare price", "resources:\n  upstreams:\n    - name: v1\n      price: { input: 0.20 }\n", "sluice.yaml:4:23: resources.upstreams[0].price.input: a price is a quoted decimal string, write \"0.20\" instead of 0.20"},
		{"bare gpu price", "resources:\n  upstreams:\n    - name: v1\n      gpu: { count: 1, usd_per_gpu_hour: 2.5 }\n", "sluice.yaml:4:42: resources.upstreams[0].gpu.usd_per_gpu_hour: a price is a quoted decimal string, write \"2.5\" instead of 2.5"},
		{"slice of three", "resources:\n  experiments:\n    - { key: e, slice: [0, 1, 2] }\n", "sluice.yaml:3:24: resources.experiments[0].slice: want a list of 2, got 3"},
		{"boolean", "resources:\n  models:\n    - { name: chat, echo_public_model: 1 }\n", "sluice.yaml:3:40: resources.models[0].echo_public_model: want true or false, got `1`"},
		{"upstream's duration", "resources:\n  upstreams:\n    - { name: v1, timeouts: { connect: 2 } }\n", "sluice.yaml:3:40: resources.upstreams[0].timeouts.connect: want a duration such as 5s, got `2`"},
		{"infinite parameter", "resources:\n  experiments:\n    - key: e\n      variants: [{name: a, weight: 1, params: {t: .inf}}]\n", "sluice.yaml:4:51: resources.experiments[0].variants[0].params.t: want a number that JSON can hold, got `.inf`"},
		{"secret in place", "secrets:\n  vllm: sk-abcdef\n", "sluice.yaml:2:9: secrets.vllm: a secret may not be written here; name where it is: {env: VARIABLE} or {file: /path}"},

		{"unset variable", "storage:\n  url: \"${DATABASE}\"\n", "sluice.yaml:2:8: storage.url: the variable DATABASE is not set; set it, or write ${DATABASE:-default}"},
		{"no end", "admin: { token: \"${A\" }\n", "sluice.yaml:1:17: admin.token: `${` without `}`; write $$ for a dollar sign"},
		{"no variable", "admin: { token: \"${A B}\" }\n", "sluice.yaml:1:17: admin.token: `${A B}` is not a variable; write ${NAME}, ${NAME:-default}, ${file:/path}, or $$ for a dollar sign"},
		{"nested", "admin: { token: \"${A:-${B}}\" }\n", "sluice.yaml:1:17: admin.token: the default of ${A} may not hold another ${…}"},
		{"no file", "admin: { token: \"${file:/nonexistent/x}\" }\n", "sluice.yaml:1:17: admin.token: the file /nonexistent/x cannot be read: no such file or directory"},
		{"file is a directory", "admin: { token: \"${file:/}\" }\n", "sluice.yaml:1:17: admin.token: / is not a regular file"},
		{"a variable's value is not shown", "server: { drain: { delay: \"${file:" + secretFile + "}\" } }\n", "sluice.yaml:1:27: server.drain.delay: want a duration such as 5s, got what the variable holds"},
		{"quotes around variables", "server: { listen: ${LISTEN} }\n", "sluice.yaml:1:20: not valid YAML: did not find expected ',' or '}'; put quotes around ${…} inside { } or [ ]"},

		{"empty", "", "sluice.yaml: the file is empty; `sluice config example` prints one to start from"},
		{"comments only", "# nothing\n", "sluice.yaml: the file is empty; `sluice config example` prints one to start from"},
		{"null", "---\n", "sluice.yaml: the file is empty; `sluice config example` prints one to start from"},
		{"a list", "- a\n", "sluice.yaml:1:1: want a mapping with server, admin, storage, …; `sluice config example` prints one"},
		{"a word", "hello\n", "sluice.yaml:1:1: want a mapping with server, admin, storage, …; `sluice config example` prints one"},
		{"two documents", "log: {}\n---\nlog: {}\n", "sluice.yaml:2:1: a second document starts here; keep one document in the file"},
		{"tab", "server:\n\tlisten: x\n", "sluice.yaml:2:1: a tab indents this line; YAML takes spaces only"},
		{"tab after spaces", "server:\n  drain:\n  \tdelay: x\n", "sluice.yaml:3:3: a tab indents this line; YAML takes spaces only"},
		{"open bracket", "server: { listen: x\n", "sluice.yaml:2:1: not valid YAML: did not find expected ',' or '}' while parsing a flow mapping that starts in line 1"},
		{"open quote", "data_dir: 'x\n", "sluice.yaml:2:1: not valid YAML: found unexpected end of stream while scanning a quoted scalar that starts in line 1"},
		{"two colons", "data_dir: a: b\n", "sluice.yaml:1:12: not valid YAML: mapping values are not allowed in this context"},
		{"unknown anchor", "data_dir: *x\n", "sluice.yaml:1:11: not valid YAML: unknown anchor 'x' referenced"},
		{"own tag", "data_dir: !env X\n", "sluice.yaml:1:11: the tag !env is not supported"},
		{"binary", "data_dir: \x00\n", "sluice.yaml: byte 0x00 in line 1: this is a binary file, not YAML"},
		{"latin 1", "log: {}\ndata_dir: caf\xe9\n", "sluice.yaml: byte 0xe9 in line 2 is not UTF-8; save the file as UTF-8"},
		{"utf-16", "\xff\xfel\x00o\x00", "sluice.yaml: the file is UTF-16; save it as UTF-8"},
		{"recursive alias", "resources: &a\n  models: *a\n", "sluice.yaml:2:11: the alias *a contains itself"},
		{"key is a mapping", "? {a: 1}\n: b\n", "sluice.yaml:1:3: a key must be a name"},
		{"bad merge", "log:\n  <<: 1\n", "sluice.yaml:2:7: `<<` takes a mapping or a list of mappings"},
		{"huge", strings.Repeat("#", 4<<20+1), "sluice.yaml: the file has 4194305 bytes, more than 4 MiB; this is not a configuration file"},
		{"all at once", "servr: {}\nlog:\n  level: loud\n  format: xml\nserver: { drain: { delay: x } }\nadmin: { token: \"${NO}\" }\n", strings.Join([]string{
			"sluice.yaml:1:1: unknown key `servr`, did you mean `server`?",
			"sluice.yaml:3:10: log.level: want debug or info or warn or error, got `loud`",
			"sluice.yaml:4:11: log.format: want json or text, got `xml`",
			"sluice.yaml:5:27: server.drain.delay: want a duration such as 5s, got `x`",
			"sluice.yaml:6:17: admin.token: the variable NO is not set; set it, or write ${NO:-default}",
		}, "\n")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := load(tt.yaml)
			if err == nil {
				t.Fatal("no error")
			}
			if diff := cmp.Diff(tt.want, err.Error()); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestBombs are inputs whose expansion must stay bounded.
func TestBombs(t *testing.T) {
	t.Parallel()
	var laughs strings.Builder
	laughs.WriteString("a0: &a0 [x, x, x, x, x, x, x, x, x]\n")
	for i := 1; i < 10; i++ {
		n, p := string(rune('0'+i)), string(rune('0'+i-1))
		laughs.WriteString("a" + n + ": &a" + n + " [" + strings.TrimSuffix(strings.Repeat("*a"+p+", ", 9), ", ") + "]\n")
	}
	tests := []struct{ name, yaml, want string }{
		{"billion laughs", laughs.String(), "values after aliases are expanded"},
		{"deep", "data_dir: " + strings.Repeat("[", 100) + strings.Repeat("]", 100) + "\n", "nested more than 64 levels deep"},
		{"very deep", strings.Repeat("[", 100_000), "sluice.yaml"},
		{"many unknown keys", func() string {
			var b strings.Builder
			for i := range 300 {
				b.WriteString("zzzzzz" + strings.Repeat("q", i) + ": 1\n")
			}
			return b.String()
		}(), "\nand 200 more"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := load(tt.yaml)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %.300v, want it to say %q", err, tt.want)
			}
		})
	}
}

func TestFileErrors(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	big := filepath.Join(dir, "big.yaml")
	if err := os.WriteFile(big, []byte(strings.Repeat("# x\n", 2<<20)), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "none.yaml"): "there is no such file; `sluice config example` prints one to start from",
		dir:                             "is a directory, not a file",
		big:                             "the file has 8388608 bytes, more than 4 MiB; this is not a configuration file",
		"/dev/null":                     "is not a regular file",
		filepath.Join(big, "x"):         "cannot be read: not a directory",
	} {
		_, err := config.Load(config.Sources{Path: path})
		if err == nil || err.Error() != path+": "+want {
			t.Errorf("%s: got %v, want %s", path, err, want)
		}
	}
	if os.Getuid() != 0 {
		locked := filepath.Join(dir, "locked.yaml")
		if err := os.WriteFile(locked, nil, 0o000); err != nil {
			t.Fatal(err)
		}
		if _, err := config.Load(config.Sources{Path: locked}); err == nil || !strings.Contains(err.Error(), "permission denied") {
			t.Errorf("unreadable file: got %v", err)
		}
	}
}

func TestPrecedence(t *testing.T) {
	t.Parallel()
	const file = "server:\n  listen: \"127.0.0.1:1\"\n  max_body: 1MiB\n  cors: { origins: [\"https://file.example\"] }\nlog: { level: warn, format: text }\n"
	c, err := config.Load(config.Sources{
		Path: "sluice.yaml", Data: []byte(file),
		Env:       []string{"SLUICE_SERVER_LISTEN=127.0.0.1:2", "SLUICE_LOG_LEVEL=error", "SLUICE_SERVER_CORS_ORIGINS=https://a.example, https://b.example", "SLUICE_SERVER_DRAIN_TIMEOUT=1m", "SLUICE_REDIS_URL="},
		Flags:     map[string]string{"server.listen": "127.0.0.1:3"},
		FlagNames: map[string]string{"server.listen": "--listen"},
	})
	if err != nil {
		t.Fatal(err)
	}
	type row struct{ Value, Kind, Detail string }
	got := map[string]row{}
	for _, v := range c.Values() {
		got[v.Path] = row{v.Value, v.Origin.Kind, v.Origin.Detail}
	}
	for path, want := range map[string]row{
		"server.listen":        {"127.0.0.1:3", "flag", "--listen"},
		"server.max_body":      {"1MiB", "file", "sluice.yaml:3:13"},
		"server.cors.origins":  {`["https://a.example","https://b.example"]`, "env", "SLUICE_SERVER_CORS_ORIGINS"},
		"server.drain.timeout": {"1m", "env", "SLUICE_SERVER_DRAIN_TIMEOUT"},
		"server.drain.delay":   {"0s", "default", ""},
		"log.level":            {"error", "env", "SLUICE_LOG_LEVEL"},
		"log.format":           {"text", "file", "sluice.yaml:5:29"},
		"redis.url":            {"", "default", ""},
		"storage.url":          {"sqlite:data/sluice.db", "default", ""},
	} {
		if diff := cmp.Diff(want, got[path]); diff != "" {
			t.Errorf("%s (-want +got)\n%s", path, diff)
		}
	}
	if c.Server.Listen != "127.0.0.1:3" || c.Server.MaxBody != 1<<20 || c.Server.Drain.Timeout != time.Minute {
		t.Errorf("settings in force: %+v", c.Server)
	}
}

func TestTextErrors(t *testing.T) {
	t.Parallel()
	_, err := config.Load(config.Sources{
		Env:       []string{"SLUICE_SERVER_DRAIN_DELAY=soon", "SLUICE_LOG_LEVEL=loud", "SLUICE_SERVER_MAX_BODY=x"},
		Flags:     map[string]string{"log.format": "xml", "no.such": "1"},
		FlagNames: map[string]string{"log.format": "--log-format"},
	})
	want := strings.Join([]string{
		"SLUICE_SERVER_DRAIN_DELAY: server.drain.delay: want a duration such as 5s, got `soon`",
		"SLUICE_SERVER_MAX_BODY: server.max_body: want a size such as 64MiB or a number of bytes, got `x`",
		"SLUICE_LOG_LEVEL: log.level: want debug or info or warn or error, got `loud`",
		"--log-format: log.format: want json or text, got `xml`",
		"--no.such: there is no setting no.such",
	}, "\n")
	if err == nil {
		t.Fatal("no error")
	}
	if diff := cmp.Diff(want, err.Error()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestInterpolation(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "token"), []byte("from-file\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(config.Sources{Path: filepath.Join(dir, "sluice.yaml"), Env: []string{"HOST=10.0.0.1", "PORT=99", "EMPTY=", "DELAY=3s", "LIST=x-a,x-b"}, Data: []byte(`
server:
  listen: "${HOST}:${PORT}"
  drain: { delay: "${DELAY}", timeout: "${EMPTY}" }
  max_body: "${SIZE:-2MiB}"
  override_headers: "${LIST}"
admin: { token: '${file:token}' }
data_dir: "a$$b$c${EMPTY:-d}$"
resources:
  experiments:
    - { key: e, variants: [{ name: a, weight: 10000, prompt: { system_prepend: "${HOST} $$" }, params: { seed: 12345678901234567890, t: 0.60, n: null, x: 0x10, d: 2020-01-01 } }] }
`)})
	if err != nil {
		t.Fatal(err)
	}
	got := []any{c.Server.Listen, *c.Server.Drain.Delay, c.Server.Drain.Timeout, c.Server.MaxBody, c.Server.OverrideHeaders, c.Admin.Token.Reveal(), c.DataDir}
	want := []any{"10.0.0.1:99", 3 * time.Second, 15 * time.Minute, config.Size(2 << 20), []string{"x-a", "x-b"}, "from-file", "a$b$cd$"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	v := c.Resources.Experiments[0].Variants[0]
	if v.Prompt.SystemPrepend != "${HOST} $$" {
		t.Errorf("resources were interpolated: %q", v.Prompt.SystemPrepend)
	}
	params := map[string]string{}
	for k, raw := range v.Params {
		params[k] = string(raw)
	}
	if diff := cmp.Diff(map[string]string{"seed": "12345678901234567890", "t": "0.60", "n": "null", "x": "16", "d": `"2020-01-01"`}, params); diff != "" {
		t.Errorf("params (-want +got)\n%s", diff)
	}
}

func TestAliasesAndMerge(t *testing.T) {
	t.Parallel()
	c, err := load(`
resources:
  upstreams:
    - &one { name: v1, dialect: vllm, endpoints: &eps ["http://a/v1"], price: { input: "0.2" } }
    - { <<: *one, name: v2 }
    - { name: v3, endpoints: *eps }
`)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, u := range c.Resources.Upstreams {
		got = append(got, u.Name+" "+u.Dialect+" "+strings.Join(u.Endpoints, ","))
	}
	if diff := cmp.Diff([]string{"v1 vllm http://a/v1", "v2 vllm http://a/v1", "v3  http://a/v1"}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestWarnsOfMistypedVariables(t *testing.T) {
	t.Parallel()
	c, err := load("log: {}\n", "SLUICE_SERVER_LISTN=x", "SLUICE_PORT=tcp://10.0.0.1:8080", "SLUICE_SERVICE_HOST=10.0.0.1", "SLUICE_ADMIN_URL=x")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"the variable SLUICE_SERVER_LISTN is not used, did you mean SLUICE_SERVER_LISTEN?"}
	if diff := cmp.Diff(want, c.Warnings()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestLoadDocument(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"yaml":     "upstreams: [{ name: v1, endpoints: [\"http://a/v1\"] }]\n",
		"json":     `{"revision": 7, "upstreams": [{"name":"v1","endpoints":["http://a/v1"],"updated_revision":3}]}`,
		"settings": "server: { listen: \"${NOT_SET}\" }\nresources: { upstreams: [{ name: v1, endpoints: [\"http://a/v1\"] }] }\n",
	} {
		doc, err := config.LoadDocument([]byte(text), "f")
		if err != nil || len(doc.Upstreams) != 1 || doc.Upstreams[0].Name != "v1" {
			t.Errorf("%s: %+v, %v", name, doc, err)
		}
	}
	_, err := config.LoadDocument([]byte("resources:\n  upstreams:\n    - { nmae: v1 }\n"), "f.yaml")
	want := "f.yaml:3:9: unknown key `nmae`, did you mean `name`?\nf.yaml:3:7: resources.upstreams[0]: `name` is missing"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func FuzzLoad(f *testing.F) {
	f.Add("server: { listen: x }\n", "V=1")
	f.Add(config.Example, "VLLM_API_KEY=k")
	f.Add("a: &a [*a]\n<<: *a\n", "")
	f.Add("server: {drain: {delay: \"${A:-${file:/etc/passwd}}\"}}", "A=\x00")
	f.Add("resources: {experiments: [{slice: [1,2], variants: [{params: {a: 0x1F, b: !!binary aGk=}}]}]}", "")
	f.Fuzz(func(t *testing.T, text, env string) {
		if strings.Contains(text, "file:") {
			t.Skip("reads the machine's files")
		}
		c, err := load(text, env)
		if (c == nil) == (err == nil) {
			t.Fatalf("config %v, error %v", c, err)
		}
		if err != nil {
			if err.Error() == "" {
				t.Fatal("an error without text")
			}
			return
		}
		_ = c.Validate()
		if _, err := config.YAML(c); err != nil {
			t.Fatalf("cannot be shown: %v", err)
		}
	})
}

func TestUpstreamDefaults(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, yaml string
		env        []string
		want       upstream.Timeouts
	}{
		{"default", "log: {}\n", nil, upstream.DefaultTimeouts()},
		{"file, variable, off", "upstream_defaults: { timeouts: { first_byte: 20m, between_bytes: 0s, total: 1h } }\n",
			[]string{"SLUICE_UPSTREAM_DEFAULTS_TIMEOUTS_TOTAL=2h", "SLUICE_UPSTREAM_DEFAULTS_TIMEOUTS_CONNECT=0s"},
			upstream.Timeouts{FirstByte: 20 * time.Minute, Total: 2 * time.Hour}},
	} {
		c, err := load(tt.yaml, tt.env...)
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		if got := upstream.Timeouts(c.Upstreams.Timeouts); got != tt.want {
			t.Errorf("%s: got %+v, want %+v", tt.name, got, tt.want)
		}
	}
	if _, err := load("upstream_defaults: { timeouts: { conect: 1s } }\n"); err == nil || !strings.Contains(err.Error(), "did you mean `connect`?") {
		t.Errorf("a misspelt key: %v", err)
	}
}
