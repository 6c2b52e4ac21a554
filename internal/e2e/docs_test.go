package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sluice/internal/fakellm"
	"sluice/internal/testenv"
)

// The documents' commands are run as they are shown. A block of ```sh or
// ```console is preceded by one of
//
//	<!-- run: demo -->    against a running `sluice demo`
//	<!-- run: serve -->   against `sluice serve --config examples/sluice.yaml`
//	<!-- run: local -->   with no gateway
//	<!-- run: start -->   a gateway itself: it must become ready, and end with status 0
//	<!-- not run: WHY -->
//
// and may be followed by <!-- want: TEXT -->, which its output must contain; after
// "run: demo fails" a command may answer an HTTP error. In a console block the
// commands are the lines that begin with "$ ". The blocks of one document and
// one context are one shell session, from top to bottom; a block that exits
// non-zero fails the test.
var (
	fence  = regexp.MustCompile("^```(\\w*)\\s*$")
	marker = regexp.MustCompile(`^<!-- (run|not run): (.+?) -->$`)
	wanted = regexp.MustCompile(`^<!-- want: (.+?) -->$`)
)

// block is one fenced block of commands.
type block struct {
	file    string
	line    int
	context string // demo, serve, local, start; "" when it is not run
	fails   bool
	wants   []string
	text    string
}

func (b block) where() string { return fmt.Sprintf("%s:%d", b.file, b.line) }

func documents(t *testing.T) []string {
	t.Helper()
	list, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	list = append(list, "../../README.md", "../../CONTRIBUTING.md")
	slices.Sort(list)
	return list
}

// blocks reads a document's blocks of commands; one without a marker is a fault.
func blocks(t *testing.T, file string) []block {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.TrimPrefix(file, "../../")
	var out []block
	var mark []string
	var wants []string
	var cur *block
	lang, open := "", false
	for i, line := range strings.Split(string(data), "\n") {
		if m := fence.FindStringSubmatch(line); m != nil {
			if open {
				if cur != nil {
					out = append(out, *cur)
				}
				cur, open, mark, wants = nil, false, nil, nil
				continue
			}
			lang, open = m[1], true
			if lang != "sh" && lang != "console" {
				continue
			}
			cur = &block{file: name, line: i + 1, wants: wants}
			switch {
			case mark == nil:
				t.Errorf("%s: the block has no marker: write <!-- run: CONTEXT --> or <!-- not run: WHY --> above it", cur.where())
			case mark[1] == "run":
				cur.context, cur.fails = strings.TrimSuffix(mark[2], " fails"), strings.HasSuffix(mark[2], " fails")
				if !slices.Contains([]string{"demo", "serve", "local", "start"}, cur.context) {
					t.Errorf("%s: there is no context %q", cur.where(), cur.context)
				}
			}
			continue
		}
		switch {
		case open && cur != nil && lang == "console":
			if c, ok := strings.CutPrefix(line, "$ "); ok {
				cur.text += c + "\n"
			}
		case open && cur != nil:
			cur.text += line + "\n"
		case open || strings.TrimSpace(line) == "":
		default:
			if m := marker.FindStringSubmatch(line); m != nil {
				mark = m
			} else if m := wanted.FindStringSubmatch(line); m != nil {
				wants = append(wants, m[1])
			} else {
				mark, wants = nil, nil
			}
		}
	}
	return out
}

// desk is a working directory as a reader has it: the repository's examples and
// deploy, `sluice`, python and node on the path, everything on free ports.
type desk struct {
	dir     string
	env     []string
	replace *strings.Replacer
	data    string // host:port
	admin   string
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	d := &desk{dir: t.TempDir(), data: fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t)), admin: fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))}
	one := fake(t, fakellm.Options{Dialect: "vllm", Models: []string{"Qwen3-8B"}})
	two := fake(t, fakellm.Options{Dialect: "vllm", Models: []string{"Qwen3-8B", "Qwen3-8B-awq"}})
	d.replace = strings.NewReplacer(
		"127.0.0.1:8080", d.data, "localhost:8080", d.data, "127.0.0.1:8081", d.admin, "localhost:8081", d.admin,
		"gpu1:8000", one.Addr(), "gpu2:8000", two.Addr(),
		"go run ./cmd/sluice", "sluice", "./bin/sluice", "sluice")
	bin := filepath.Join(d.dir, ".bin")
	must(t, os.Mkdir(bin, 0o755))
	must(t, os.Symlink(binary, filepath.Join(bin, "sluice")))
	if curl, err := exec.LookPath("curl"); err == nil {
		shim := fmt.Sprintf("#!/bin/bash\n[ -n \"$ANY_STATUS\" ] && exec %[1]s \"$@\"\nexec %[1]s --fail-with-body \"$@\"\n", curl)
		must(t, os.WriteFile(filepath.Join(bin, "curl"), []byte(shim), 0o755))
	}
	root, err := filepath.Abs("../..")
	must(t, err)
	if venv := filepath.Join(root, ".cache/venv/bin"); exists(filepath.Join(venv, "python")) {
		bin += ":" + venv
	}
	must(t, os.Symlink(filepath.Join(root, "deploy"), filepath.Join(d.dir, "deploy")))
	d.copyExamples(t, filepath.Join(root, "examples"))
	if modules := filepath.Join(root, "internal/e2e/node/node_modules"); exists(modules) {
		must(t, os.Symlink(modules, filepath.Join(d.dir, "examples/node/node_modules")))
	}
	d.env = append(os.Environ(),
		"PATH="+bin+":"+os.Getenv("PATH"), "HOME="+d.dir, "NO_PROXY=127.0.0.1", "ANY_STATUS=", "VLLM_API_KEY=secret-of-the-test",
		"SLUICE_SERVER_LISTEN="+d.data, "SLUICE_ADMIN_LISTEN="+d.admin, "SLUICE_SERVER_DRAIN_DELAY=0s",
		"SLUICE_ADMIN_URL=http://"+d.admin, "SLUICE_URL=http://"+d.data+"/v1")
	return d
}

func exists(path string) bool { _, err := os.Stat(path); return err == nil }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (d *desk) copyExamples(t *testing.T, from string) {
	t.Helper()
	must(t, filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(filepath.Dir(from), path)
		if e.IsDir() {
			if e.Name() == "node_modules" {
				return filepath.SkipDir
			}
			return os.Mkdir(filepath.Join(d.dir, rel), 0o755)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(d.dir, rel), []byte(d.replace.Replace(string(data))), 0o644)
	}))
}

// command is one of bash at the desk; it and its children end with ctx.
func (d *desk) command(ctx context.Context, script string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "bash", "-c", script)
	cmd.Dir, cmd.Env = d.dir, d.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// start runs a gateway until it is ready, and returns how to end it as Ctrl-C
// does; the error then is its own.
func (d *desk) start(t *testing.T, script string) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	cmd := d.command(ctx, "exec "+strings.TrimSpace(d.replace.Replace(script)))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	must(t, cmd.Start())
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	ended := false
	stop = func() error {
		if ended {
			return nil
		}
		ended = true
		defer cancel()
		syscall.Kill(-cmd.Process.Pid, syscall.SIGINT)
		if err := <-done; err != nil {
			return fmt.Errorf("%w\n%s", err, out.String())
		}
		return nil
	}
	t.Cleanup(func() { stop() })
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if resp, err := http.Get("http://" + d.data + "/readyz"); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return stop
			}
		}
		select {
		case err := <-done:
			done <- err
			t.Fatalf("%s\nended: %v\n%s", script, stop(), out.String())
		default:
		}
	}
	t.Fatalf("%s\nis not ready after 30 s: %v", script, stop())
	return nil
}

// session runs blocks in one shell, and checks what each printed.
func (d *desk) session(t *testing.T, list []block) {
	t.Helper()
	var script strings.Builder
	script.WriteString("set -euo pipefail\n")
	for i, b := range list {
		any := ""
		if b.fails {
			any = "1"
		}
		fmt.Fprintf(&script, "exec >%s/.out%d 2>&1\nexport ANY_STATUS=%s\n%s\n", d.dir, i, any, d.replace.Replace(b.text))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	err := d.command(ctx, script.String()).Run()
	for i, b := range list {
		out, rerr := os.ReadFile(fmt.Sprintf("%s/.out%d", d.dir, i))
		if rerr != nil {
			return // the block before failed
		}
		if err != nil && !exists(fmt.Sprintf("%s/.out%d", d.dir, i+1)) {
			t.Errorf("%s: %v\n%s\n%s", b.where(), err, b.text, out)
			return
		}
		for _, want := range b.wants {
			if !strings.Contains(string(out), want) {
				t.Errorf("%s: its output has no %q:\n%s", b.where(), want, out)
			}
		}
	}
}

func TestDocumentedCommands(t *testing.T) {
	if testing.Short() {
		t.Skip("starts gateways")
	}
	known := 0
	for _, file := range documents(t) {
		list := blocks(t, file)
		for _, b := range list {
			if b.context != "" {
				known++
			}
		}
		t.Run(strings.TrimPrefix(file, "../../"), func(t *testing.T) {
			byContext := map[string][]block{}
			for _, b := range list {
				if b.context == "" {
					continue
				}
				if lacks := b.lacks(); lacks != "" {
					if os.Getenv("CI") == "true" {
						t.Errorf("%s needs %s: run make test-deps", b.where(), lacks)
					}
					t.Logf("%s is left out: it needs %s", b.where(), lacks)
					continue
				}
				byContext[b.context] = append(byContext[b.context], b)
			}
			for _, c := range []string{"local", "demo", "serve"} {
				if list := byContext[c]; len(list) > 0 {
					t.Run(c, func(t *testing.T) { inContext(t, c, list) })
				}
			}
			for _, b := range byContext["start"] {
				t.Run(fmt.Sprintf("start %d", b.line), func(t *testing.T) {
					d := newDesk(t)
					if err := d.start(t, d.flags(b.text))(); err != nil {
						t.Errorf("%s: %v", b.where(), err)
					}
				})
			}
		})
	}
	if known < 40 { // a marker that is not understood must not silence them
		t.Errorf("only %d blocks are to be run", known)
	}
}

func inContext(t *testing.T, c string, list []block) {
	d := newDesk(t)
	switch c {
	case "demo":
		d.start(t, d.flags("sluice demo --rate 5"))
	case "serve":
		d.start(t, "sluice serve --config examples/sluice.yaml")
	}
	d.session(t, list)
}

// flags gives `sluice demo` its ports, which it does not take from the environment.
func (d *desk) flags(script string) string {
	script = d.replace.Replace(strings.TrimSpace(script))
	if rest, ok := strings.CutPrefix(script, "sluice demo"); ok {
		_, port, _ := strings.Cut(d.data, ":")
		_, admin, _ := strings.Cut(d.admin, ":")
		return "sluice demo --port " + port + " --admin-port " + admin + rest
	}
	return script
}

// lacks names the program that a block needs and this machine does not have.
func (b block) lacks() string {
	for _, p := range []struct{ word, path string }{
		{"python ", "../../.cache/venv/bin/python"}, {"node ", "node/node_modules/openai"},
	} {
		if strings.Contains(b.text, p.word) && !exists(p.path) {
			return strings.TrimSpace(p.word) + " with the OpenAI SDK"
		}
	}
	for _, p := range []string{"curl", "jq", "promtool"} {
		if regexp.MustCompile(`\b` + p + `\b`).MatchString(b.text) {
			if _, err := exec.LookPath(p); err != nil {
				return p
			}
		}
	}
	return ""
}
