package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// adminFake records what was asked and answers from a script.
type adminFake struct {
	*httptest.Server
	calls   []string // "PUT /path?query If-Match body"
	answers map[string][]string
}

// newAdminFake serves answers by "METHOD /path": "STATUS ETAG BODY", one after
// the other, the last one again and again.
func newAdminFake(t *testing.T, answers map[string][]string) *adminFake {
	f := &adminFake{answers: answers}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		call := r.Method + " " + r.URL.RequestURI()
		for _, h := range []string{"If-Match", "Authorization"} {
			if v := r.Header.Get(h); v != "" {
				call += " " + h + "=" + v
			}
		}
		f.calls = append(f.calls, strings.TrimSpace(call+" "+string(data)))
		key := r.Method + " " + r.URL.EscapedPath()
		list := f.answers[key]
		if len(list) == 0 {
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprintf(w, `{"title":"Not Found","status":404,"detail":"There is no such thing.","code":"not_found"}`)
			return
		}
		if len(list) > 1 {
			f.answers[key] = list[1:]
		}
		parts := strings.SplitN(list[0], " ", 3)
		if parts[1] != "-" {
			w.Header().Set("ETag", parts[1])
		}
		var status int
		fmt.Sscan(parts[0], &status)
		w.WriteHeader(status)
		io.WriteString(w, parts[2])
	}))
	t.Cleanup(f.Close)
	return f
}

// sluice runs a command line in memory.
func sluice(t *testing.T, env []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(context.Background(), args, env, strings.NewReader(""), &out, &errs)
	return code, out.String(), errs.String()
}

const experimentJSON = `{"key":"e","model":"chat","kind":"canary","state":"running","seed":"s","generation":1,"revision":7,"unit":null,"baseline":"a","stickiness":"bucket",` +
	`"variants":[{"name":"a","weight":9000,"state":"live","upstream":"v1","model":"m","version":"1"},{"name":"b","weight":1000,"state":"killed","upstream":"v2","model":"m","version":"2"}],` +
	`"targeting":[],"slice":null,"ramp":null,"guardrails":null,"metrics":null,"shadow":null,"created_at":"2026-01-01T00:00:00Z","updated_at":"2026-01-01T00:00:00Z"}`

func TestChanges(t *testing.T) {
	t.Parallel()
	const stale = `412 - {"title":"Precondition Failed","status":412,"detail":"The object has changed since you read it.","code":"stale","current_etag":"\"9\""}`
	weights := []string{`200 "7" {"key":"e","weights":{"a":9000,"b":1000}}`, `200 "8" {"key":"e","weights":{"a":9000,"b":1000}}`}
	verb := []string{`200 "8" ` + experimentJSON}
	tests := []struct {
		name    string
		args    []string
		answers map[string][]string
		code    int
		calls   []string
		stdout  string // contained
		stderr  string // contained
	}{
		{
			name: "weights in percent", args: []string{"experiment", "set-weights", "e", "a=99.75", "b=0.25", "--reason", "careful"},
			answers: map[string][]string{"GET /admin/v1/experiments/e/weights": weights, "PUT /admin/v1/experiments/e/weights": {`200 "8" {"key":"e","weights":{"a":9975,"b":25}}`}},
			calls:   []string{"GET /admin/v1/experiments/e/weights", `PUT /admin/v1/experiments/e/weights If-Match="7" {"reason":"careful","weights":{"a":9975,"b":25}}`},
			stdout:  "weights.a  9975", stderr: "e: a 99.75 %, b 0.25 %",
		},
		{
			name: "one argument with commas", args: []string{"experiment", "set-weights", "e", "a=9999,b=1", "--bp"},
			answers: map[string][]string{"GET /admin/v1/experiments/e/weights": weights, "PUT /admin/v1/experiments/e/weights": {`200 "8" {}`}},
			calls:   []string{"GET /admin/v1/experiments/e/weights", `PUT /admin/v1/experiments/e/weights If-Match="7" {"weights":{"a":9999,"b":1}}`},
		},
		{
			name: "a lost race is tried once more", args: []string{"experiment", "set-weights", "e", "a=50", "b=50"},
			answers: map[string][]string{"GET /admin/v1/experiments/e/weights": weights, "PUT /admin/v1/experiments/e/weights": {stale, `200 "9" {"key":"e"}`}},
			calls: []string{
				"GET /admin/v1/experiments/e/weights", `PUT /admin/v1/experiments/e/weights If-Match="7" {"weights":{"a":5000,"b":5000}}`,
				"GET /admin/v1/experiments/e/weights", `PUT /admin/v1/experiments/e/weights If-Match="8" {"weights":{"a":5000,"b":5000}}`,
			},
		},
		{
			name: "but not twice", args: []string{"experiment", "set-weights", "e", "a=50", "b=50"}, code: exitConflict,
			answers: map[string][]string{"GET /admin/v1/experiments/e/weights": weights, "PUT /admin/v1/experiments/e/weights": {stale}},
			calls: []string{
				"GET /admin/v1/experiments/e/weights", `PUT /admin/v1/experiments/e/weights If-Match="7" {"weights":{"a":5000,"b":5000}}`,
				"GET /admin/v1/experiments/e/weights", `PUT /admin/v1/experiments/e/weights If-Match="8" {"weights":{"a":5000,"b":5000}}`,
			},
			stderr: "sluice: The object has changed since you read it. (stale)",
		},
		{
			name: "a revision of one's own is not retried", args: []string{"experiment", "set-weights", "e", "a=5000", "b=5000", "--bp", "--if-match", "3", "--dry-run", "--wait"}, code: exitConflict,
			answers: map[string][]string{"PUT /admin/v1/experiments/e/weights": {stale}},
			calls:   []string{`PUT /admin/v1/experiments/e/weights?dry_run=true&timeout=10s&wait=applied If-Match="3" {"weights":{"a":5000,"b":5000}}`},
		},
		{
			name: "rollback cannot lose a race", args: []string{"experiment", "rollback", "e", "--reason", "bad"},
			answers: map[string][]string{"POST /admin/v1/experiments/e:rollback": verb},
			calls:   []string{`POST /admin/v1/experiments/e:rollback If-Match=* {"reason":"bad"}`},
			stdout:  "a        90 %    live    v1        m      1", stderr: "e: rollback",
		},
		{
			name: "kill names a variant", args: []string{"experiment", "kill", "e", "b"},
			answers: map[string][]string{"POST /admin/v1/experiments/e:kill": verb},
			calls:   []string{`POST /admin/v1/experiments/e:kill If-Match=* {"variant":"b"}`},
		},
		{
			name: "start is guarded", args: []string{"experiment", "start", "e"},
			answers: map[string][]string{"GET /admin/v1/experiments/e": verb, "POST /admin/v1/experiments/e:start": verb},
			calls:   []string{"GET /admin/v1/experiments/e", `POST /admin/v1/experiments/e:start If-Match="8" {}`},
		},
		{
			name: "a state that forbids it", args: []string{"experiment", "promote", "e", "b"}, code: exitConflict,
			answers: map[string][]string{"GET /admin/v1/experiments/e": verb, "POST /admin/v1/experiments/e:promote": {`409 - {"title":"Conflict","status":409,"detail":"experiment/e: it is a draft","code":"wrong_state"}`}},
			calls:   []string{"GET /admin/v1/experiments/e", `POST /admin/v1/experiments/e:promote If-Match="8" {"variant":"b"}`},
			stderr:  "sluice: experiment/e: it is a draft (wrong_state)",
		},
		{
			name: "every fault is told", args: []string{"experiment", "get", "e"}, code: exitError,
			answers: map[string][]string{"GET /admin/v1/experiments/e": {`422 - {"title":"Unprocessable","status":422,"detail":"weights sum to 1 (and 1 more)","code":"weights_sum","errors":[{"location":"/a","message":"one"},{"location":"/b","message":"two"}]}`}},
			calls:   []string{"GET /admin/v1/experiments/e"},
			stderr:  "sluice: weights sum to 1 (and 1 more) (weights_sum)\n  /a: one\n  /b: two\n",
		},
		{
			name: "no token", args: []string{"experiment", "get", "e"}, code: exitError,
			answers: map[string][]string{"GET /admin/v1/experiments/e": {`401 - {"title":"Unauthorized","status":401,"detail":"Send the admin token.","code":"unauthorized"}`}},
			calls:   []string{"GET /admin/v1/experiments/e"}, stderr: "the token comes from SLUICE_ADMIN_TOKEN or --token-file",
		},
		{
			name: "not our server", args: []string{"experiment", "get", "e"}, code: exitError,
			answers: map[string][]string{"GET /admin/v1/experiments/e": {`502 - <html>Bad Gateway</html>`}},
			calls:   []string{"GET /admin/v1/experiments/e"}, stderr: "sluice: the server answered 502 Bad Gateway (HTTP 502)\n",
		},
		{
			name: "redirects are not followed", args: []string{"experiment", "get", "e"}, code: exitError,
			answers: map[string][]string{"GET /admin/v1/experiments/e": {`302 - `}},
			calls:   []string{"GET /admin/v1/experiments/e"}, stderr: "302",
		},
		{
			name: "a unit with a slash", args: []string{"experiment", "assign", "e", "tenant/a b"},
			answers: map[string][]string{"GET /admin/v1/experiments/e/assignments/tenant%2Fa%20b": {`200 - {"variant":"b","bucket":12,"pin":{"revision":3},"last_change":{"before":{"key":"e"},"actor":"ann"}}`}},
			calls:   []string{"GET /admin/v1/experiments/e/assignments/tenant%2Fa%20b"}, stdout: "variant            b\nbucket             12\npin.revision       3\nlast_change.actor  ann\n",
		},
		{
			name: "list as JSON", args: []string{"experiment", "list", "-o", "json"},
			answers: map[string][]string{"GET /admin/v1/experiments": {`200 - {"items":[{"key":"a"}],"next_cursor":"c"}`, `200 - {"items":[{"key":"b"}]}`}},
			calls:   []string{"GET /admin/v1/experiments?limit=200", "GET /admin/v1/experiments?cursor=c&limit=200"},
			stdout:  "[\n  {\n    \"key\": \"a\"\n  },\n  {\n    \"key\": \"b\"\n  }\n]\n",
		},
		{
			name: "list as a table", args: []string{"exp", "list"},
			answers: map[string][]string{"GET /admin/v1/experiments": {`200 - {"items":[` + experimentJSON + `]}`}},
			calls:   []string{"GET /admin/v1/experiments?limit=200"}, stdout: "e    chat   canary  running  a 90 %, b 10 % (killed)  7",
		},
		{
			name: "a key's secret is alone on stdout", args: []string{"key", "create", "app", "--tenant", "t", "--model", "chat", "--scope", "override,identity", "--tag", "team=a"},
			answers: map[string][]string{"POST /admin/v1/keys": {`201 - {"key":{"id":"1","name":"app"},"secret":"sk-sluice-x"}`}},
			calls:   []string{`POST /admin/v1/keys {"models":["chat"],"name":"app","scopes":["override","identity"],"tags":{"team":"a"},"tenant":"t"}`},
			stdout:  "sk-sluice-x\n", stderr: "created key app (1); this is the only time its secret is shown",
		},
		{
			name: "revoke", args: []string{"key", "revoke", "1", "--reason", "lost"},
			answers: map[string][]string{"POST /admin/v1/keys/1:revoke": {`200 - {"key":{"id":"1","state":"revoked"}}`}},
			calls:   []string{`POST /admin/v1/keys/1:revoke If-Match=* {"reason":"lost"}`}, stdout: "key.state  revoked",
		},
		{
			name: "break the demo", args: []string{"demo", "break", "large", "--how", "slow"},
			answers: map[string][]string{"POST /demo/break": {`200 - {"upstream":"large","broken":"slow"}`}},
			calls:   []string{`POST /demo/break {"how":"slow","upstream":"large"}`}, stdout: "large is broken now (slow); sluice demo heal large ends it\n",
		},
		{
			name: "break all of the demo", args: []string{"demo", "break", "--all"},
			answers: map[string][]string{"POST /demo/break": {`200 - {"upstream":"","broken":"500"}`}},
			calls:   []string{`POST /demo/break {"all":true}`}, stdout: "every model server is broken now (500); sluice demo heal --all ends it\n",
		},
		{
			name: "heal all of the demo", args: []string{"demo", "heal", "--all"},
			answers: map[string][]string{"POST /demo/heal": {`200 - {"upstream":"","broken":""}`}},
			calls:   []string{`POST /demo/heal {"all":true}`}, stdout: "every model server answers again\n",
		},
		{name: "break what?", args: []string{"demo", "break"}, code: exitUsage, stderr: "name one model server, or give --all"},
		{name: "break one and all", args: []string{"demo", "break", "large", "--all"}, code: exitUsage, stderr: "name one model server, or give --all"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := newAdminFake(t, tt.answers)
			code, stdout, stderr := sluice(t, nil, append(tt.args, "--admin", f.URL)...)
			if code != tt.code {
				t.Errorf("status %d, want %d", code, tt.code)
			}
			if diff := cmp.Diff(tt.calls, f.calls); diff != "" {
				t.Errorf("calls (-want +got)\n%s", diff)
			}
			if !strings.Contains(stdout, tt.stdout) || !strings.Contains(stderr, tt.stderr) {
				t.Errorf("stdout:\n%s\nstderr:\n%s\nwant %q and %q", stdout, stderr, tt.stdout, tt.stderr)
			}
			if tt.code != 0 && stdout != "" {
				t.Errorf("stdout after a failure: %s", stdout)
			}
		})
	}
}

func TestApply(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "doc.yaml")
	text := "upstreams: [{ name: v1, endpoints: [\"http://127.0.0.1:1/v1\"], timeouts: { connect: 2s } }]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	report := `200 "9" {"revision":9,"changes":[{"object":"upstream/v1","action":"create","fields":["name: v1"]}],"drift":[{"object":"experiment/e","action":"update","fields":["state: running → draft"]}],"unpruned":["model/old"]}`
	answers := map[string][]string{"GET /admin/v1/document": {`200 "8" {}`}, "PUT /admin/v1/document": {report}}
	f := newAdminFake(t, answers)
	code, stdout, stderr := sluice(t, []string{"SLUICE_ADMIN_URL=" + f.URL, "SLUICE_ADMIN_TOKEN=secret"}, "apply", "-f", file, "--prune", "--reason", "git 1234")
	if code != 0 {
		t.Fatalf("status %d: %s", code, stderr)
	}
	want := "+ upstream/v1\n    name: v1\ndrift, kept (--runtime changes it): ~ experiment/e\n    state: running → draft\nnot in the file, kept (--prune deletes it): model/old\n"
	if diff := cmp.Diff(want, stdout); diff != "" {
		t.Errorf("stdout (-want +got)\n%s", diff)
	}
	if want := "1 objects changed, revision 9\n"; stderr != want {
		t.Errorf("stderr %q, want %q", stderr, want)
	}
	const body = `{"revision":0,"upstreams":[{"name":"v1","endpoints":["http://127.0.0.1:1/v1"],"timeouts":{"connect":"2s"}}],"models":[],"experiments":[]}`
	calls := []string{
		"GET /admin/v1/document Authorization=Bearer secret",
		`PUT /admin/v1/document?prune=true&reason=git+1234 If-Match="8" Authorization=Bearer secret ` + body,
	}
	if diff := cmp.Diff(calls, f.calls); diff != "" {
		t.Errorf("calls (-want +got)\n%s", diff)
	}

	// diff changes nothing and may tell by its status
	f.calls = nil
	code, _, _ = sluice(t, nil, "diff", "-f", file, "--exit-code", "--admin", f.URL)
	if code != exitError || len(f.calls) != 2 || !strings.HasPrefix(f.calls[1], "PUT /admin/v1/document?dry_run=true If-Match") {
		t.Errorf("diff: status %d, calls %v", code, f.calls)
	}
}

func TestCreateExperiment(t *testing.T) {
	t.Parallel()
	f := newAdminFake(t, map[string][]string{"POST /admin/v1/experiments": {`201 "7" ` + experimentJSON}})
	var out, errs bytes.Buffer
	in := "key: e\nmodel: chat\nbaseline: a\nramp: { steps: [100] }\nvariants: [{ name: a, weight: 10000, upstream: v1, params: { t: 0.60 } }]\n"
	if code := run(context.Background(), []string{"experiment", "create", "-f", "-", "--admin", f.URL}, nil, strings.NewReader(in), &out, &errs); code != 0 {
		t.Fatalf("status %d: %s", code, errs.String())
	}
	want := []string{`POST /admin/v1/experiments {"baseline":"a","key":"e","model":"chat","ramp":{"steps":[100]},"variants":[{"name":"a","weight":10000,"upstream":"v1","params":{"t":0.60}}]}`}
	if diff := cmp.Diff(want, f.calls); diff != "" {
		t.Errorf("calls (-want +got)\n%s", diff)
	}
}

func TestTokenFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("from-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		env  []string
		args []string
		want string
	}{
		{[]string{"SLUICE_ADMIN_TOKEN=from-env"}, nil, "Bearer from-env"},
		{[]string{"SLUICE_ADMIN_TOKEN=from-env"}, []string{"--token-file", file}, "Bearer from-file"},
		{[]string{"SLUICE_ADMIN_TOKEN_FILE=" + file}, nil, "Bearer from-file"},
	} {
		f := newAdminFake(t, map[string][]string{"GET /admin/v1/keys": {`200 - {"items":[]}`}})
		code, _, stderr := sluice(t, tt.env, append([]string{"key", "list", "--admin", f.URL + "/admin/v1/"}, tt.args...)...)
		if code != 0 || len(f.calls) != 1 || !strings.HasSuffix(f.calls[0], "Authorization="+tt.want) {
			t.Errorf("%v %v: status %d, %v, %s", tt.env, tt.args, code, f.calls, stderr)
		}
	}
}

func TestInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	}))
	defer s.Close()
	var out, errs bytes.Buffer
	code := run(ctx, []string{"experiment", "list", "--admin", s.URL}, nil, strings.NewReader(""), &out, &errs)
	if code != exitInterrupted || out.Len() != 0 {
		t.Errorf("status %d, stdout %q, stderr %q", code, out.String(), errs.String())
	}
}

func TestHostileAnswers(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"escape codes": `{"items":[{"key":"a\u001b[31m\nb","variants":null}]}`,
		"not JSON":     `nope`,
		"wrong types":  `{"items":[{"key":7}]}`,
		"no items":     `{"items":null}`,
		"endless":      `{"items":[],"next_cursor":"x"}`,
	} {
		f := newAdminFake(t, map[string][]string{"GET /admin/v1/experiments": {"200 - " + body}})
		code, stdout, stderr := sluice(t, nil, "experiment", "list", "--admin", f.URL)
		if strings.ContainsRune(stdout+stderr, 0x1b) {
			t.Errorf("%s: escape codes reach the terminal: %q", name, stdout+stderr)
		}
		if bad := name != "escape codes" && name != "no items"; bad != (code == exitError) {
			t.Errorf("%s: status %d: %s", name, code, stderr)
		}
	}
}

func TestExpiry(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for in, want := range map[string]string{
		"720h": "2026-01-31T00:00:00Z", "30d": "2026-01-31T00:00:00Z", "2026-12-31T00:00:00Z": "2026-12-31T00:00:00Z",
		"2025-12-31T00:00:00Z": "", "-1h": "", "0d": "", "soon": "", "99999999d": "", "d": "",
	} {
		got, err := expiry(in, now)
		if (err == nil) != (want != "") || err == nil && got.Format(time.RFC3339) != want {
			t.Errorf("%s: %v, %v; want %q", in, got, err, want)
		}
	}
}

func TestVersionIsStamped(t *testing.T) {
	t.Parallel()
	code, stdout, _ := sluice(t, nil, "version", "-o", "json")
	var b buildInfo
	if err := json.Unmarshal([]byte(stdout), &b); err != nil || code != 0 || b.Version == "" || !strings.HasPrefix(b.Go, "go1.") {
		t.Errorf("%+v, %v", b, err)
	}
}
