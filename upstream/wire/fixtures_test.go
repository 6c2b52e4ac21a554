package wire_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/upstream/wire"
)

// sidecar is the description beside an .sse fixture.
type sidecar struct {
	Name    string
	Dialect wire.Dialect
	Usage   string
	Client  struct {
		StreamOptions struct {
			IncludeUsage bool `json:"include_usage"`
			Continuous   bool `json:"continuous_usage_stats"`
		} `json:"stream_options"`
	} `json:"client_request"`
	Upstream struct {
		BodyFile string `json:"body_file"`
		Plain    string `json:"body_file_plain"`
		Delivery struct {
			Mode string
			Cuts []int
		}
	}
	Expect struct {
		ClientStatus int    `json:"client_status"`
		ClientBody   string `json:"client_body"`
		Content      string
		Usage        *struct {
			Prompt     int64 `json:"prompt_tokens"`
			Completion int64 `json:"completion_tokens"`
		}
		Outcome string
	}
}

func (c *sidecar) options() wire.StreamOptions {
	exact := c.Usage == "exact" || c.Upstream.Plain != ""
	return wire.StreamOptions{
		API:             wire.Chat,
		Dialect:         c.Dialect,
		StripUsage:      !c.Client.StreamOptions.IncludeUsage,
		StripChunkUsage: exact && !c.Client.StreamOptions.Continuous,
	}
}

func read(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func sseFixtures(t *testing.T) []sidecar {
	t.Helper()
	names, _ := filepath.Glob("testdata/sse/*.json")
	if len(names) == 0 {
		t.Fatal("no fixtures in testdata/sse")
	}
	var all []sidecar
	for _, name := range names {
		var c sidecar
		if err := json.Unmarshal(read(t, name), &c); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		all = append(all, c)
	}
	return all
}

// state is everything that must not depend on how the bytes were cut.
type state struct {
	Answer                            wire.Answer
	Client                            string
	Usage                             wire.Usage
	HasUsage                          bool
	Finish                            string
	Stats                             wire.StreamStats
	Done, Complete, Empty, Committed  bool
	Answered, Boundary, Failed, Early bool
	Error                             wire.ErrorInfo
	Newlines                          string
}

// follow feeds the pieces as a relay would, and ends the stream.
func follow(s *wire.Stream, pieces ...[]byte) state {
	var out []byte
	for _, p := range pieces {
		// A copy that is destroyed afterwards shows whether s kept an alias.
		own := bytes.Clone(p)
		got := s.Feed(own)
		out = append(out, got...)
		clear(own)
	}
	out = append(out, s.EOF()...)
	st := state{
		Client: string(out), Finish: s.FinishReason(), Stats: s.Stats(), Done: s.Done(), Complete: s.Complete(),
		Empty: s.Empty(), Committed: s.Committed(), Answered: s.Answered(), Boundary: s.Boundary(), Newlines: s.Newlines(),
	}
	st.Answer = s.Answer()
	st.Usage, st.HasUsage = s.Usage()
	st.Error, st.Early, st.Failed = s.Error()
	return st
}

// delivered cuts a body the way the fixture says.
func delivered(body []byte, mode string, cuts []int) [][]byte {
	var pieces [][]byte
	switch mode {
	case "bytes":
		for i := range body {
			pieces = append(pieces, body[i:i+1])
		}
	case "cuts":
		from := 0
		for _, c := range cuts {
			pieces = append(pieces, body[from:c])
			from = c
		}
		pieces = append(pieces, body[from:])
	case "per_event":
		pieces = bytes.SplitAfter(body, []byte("\n\n"))
	default:
		pieces = [][]byte{body}
	}
	return pieces
}

const (
	doneEvent  = "data: [DONE]\n\n"
	errorEvent = `data: {"error":{"message":"The upstream ended early.","type":"upstream_error","param":null,"code":"upstream_truncated"}}` + "\n\n"
)

// client is what the client of a gateway gets in the end.
func (st state) client() string {
	if st.Committed && !st.Complete && !st.Failed && !st.Done {
		ev := wire.AppendErrorEvent([]byte(st.Newlines), "The upstream ended early.", "upstream_error", "", "upstream_truncated")
		return st.Client + string(ev)
	}
	return st.Client
}

func (c *sidecar) wantClient(t *testing.T, body string) string {
	t.Helper()
	newlines := ""
	switch {
	case strings.HasSuffix(body, "\n\n"), strings.HasSuffix(body, "\r\n\r\n"), strings.HasSuffix(body, "\r\r"):
	case strings.HasSuffix(body, "\n"):
		newlines = "\n"
	default:
		newlines = "\n\n"
	}
	switch kind := c.Expect.ClientBody; kind {
	case "identical":
		return body
	case "identical+done":
		return body + doneEvent
	case "identical+newlines+done":
		return body + newlines + doneEvent
	case "identical+error_event_no_done":
		return body + newlines + errorEvent
	case "prefix_until_first_done":
		return body[:strings.Index(body, doneEvent)+len(doneEvent)]
	case "openai_error_envelope", "second_target_only":
		return ""
	default:
		name, ok := strings.CutPrefix(kind, "file:")
		if !ok {
			t.Fatalf("unknown expectation %q", kind)
		}
		return string(read(t, "testdata/sse/"+name))
	}
}

func (c *sidecar) check(t *testing.T, what string, st state, want string) {
	t.Helper()
	if got := st.client(); got != want {
		t.Fatalf("%s: client bytes differ (-want +got):\n%s", what, cmp.Diff(want, got))
	}
	if committed := c.Expect.ClientStatus == 200; st.Committed != committed {
		t.Errorf("%s: committed = %v, want %v", what, st.Committed, committed)
	}
	if want := c.Expect.Usage; want == nil {
		if st.HasUsage {
			t.Errorf("%s: usage = %+v, want none", what, st.Usage)
		}
	} else if got := (wire.Usage{Input: want.Prompt, Output: want.Completion}); st.Usage != got {
		t.Errorf("%s: usage = %+v, want %+v", what, st.Usage, got)
	}
	if want := c.Expect.Content; want != "*" && c.Name != "reasoning_fields" && c.Name != "big_line_70k" {
		if got := st.Stats.Chars; got != int64(len([]rune(want))) {
			t.Errorf("%s: characters = %d, want %d", what, got, len([]rune(want)))
		}
	}
	switch c.Expect.Outcome {
	case "success":
		if !st.Complete || st.Failed {
			t.Errorf("%s: complete = %v, failed = %v, want a success", what, st.Complete, st.Failed)
		}
	case "upstream_truncated":
		if st.Complete || st.Failed {
			t.Errorf("%s: complete = %v, failed = %v, want truncated", what, st.Complete, st.Failed)
		}
	case "upstream_error", "client_error":
		if !st.Failed || st.Early == st.Committed {
			t.Errorf("%s: failed = %v, early = %v", what, st.Failed, st.Early)
		}
	case "upstream_invalid":
		if !st.Empty {
			t.Errorf("%s: not empty", what)
		}
	}
}

func TestStreamFixtures(t *testing.T) {
	for _, c := range sseFixtures(t) {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			body := read(t, "testdata/sse/"+c.Upstream.BodyFile)
			plain := body
			if c.Upstream.Plain != "" {
				plain = read(t, "testdata/sse/"+c.Upstream.Plain)
			}
			if c.Expect.Outcome == "canceled" {
				c.checkCanceled(t, body)
				return
			}
			want := c.wantClient(t, string(plain))
			s := wire.NewStream(c.options())
			for _, mode := range []string{c.Upstream.Delivery.Mode, "whole", "bytes", "per_event"} {
				s.Reset(c.options())
				c.check(t, mode, follow(s, delivered(body, mode, c.Upstream.Delivery.Cuts)...), want)
			}
		})
	}
}

// checkCanceled: the client goes after 40 events; what passed is estimated.
func (c *sidecar) checkCanceled(t *testing.T, body []byte) {
	t.Helper()
	s := wire.NewStream(c.options())
	var got, want []byte
	for _, e := range bytes.SplitAfterN(body, []byte("\n\n"), 41)[:40] {
		got, want = append(got, s.Feed(e)...), append(want, e...)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("(-want +got):\n%s", cmp.Diff(string(want), string(got)))
	}
	if _, ok := s.Usage(); ok || s.Complete() || s.Estimate() < 39 {
		t.Errorf("usage = %v, complete = %v, estimate = %d", ok, s.Complete(), s.Estimate())
	}
}

// everyOption is the options that a stream may run under.
func everyOption() []wire.StreamOptions {
	var all []wire.StreamOptions
	for _, d := range []wire.Dialect{wire.OpenAI, wire.SGLang} {
		all = append(all,
			wire.StreamOptions{Dialect: d},
			wire.StreamOptions{Dialect: d, StripUsage: true},
			wire.StreamOptions{Dialect: d, StripChunkUsage: true},
			wire.StreamOptions{Dialect: d, StripUsage: true, StripChunkUsage: true, EchoModel: "alias"})
	}
	return all
}

// TestStreamSplitAnywhere: two reads instead of one change nothing, wherever
// the cut is, in each of the three framings.
func TestStreamSplitAnywhere(t *testing.T) {
	seen := make(map[string]bool)
	for _, c := range sseFixtures(t) {
		lf := read(t, "testdata/sse/"+c.Upstream.BodyFile)
		if seen[string(lf)] {
			continue
		}
		seen[string(lf)] = true
		if c.Name == "crlf" {
			lf = bytes.ReplaceAll(lf, []byte("\r\n"), []byte("\n"))
		}
		for name, eol := range map[string]string{"lf": "\n", "crlf": "\r\n", "cr": "\r"} {
			t.Run(c.Name+"/"+name, func(t *testing.T) {
				t.Parallel()
				body := bytes.ReplaceAll(lf, []byte("\n"), []byte(eol))
				for i, o := range everyOption() {
					step := 1
					if len(body) > 16<<10 {
						step = len(body)/3 + 1
					} else if i != 0 && i != 3 || name == "cr" {
						step = 17
					}
					s := wire.NewStream(o)
					whole := follow(s, body)
					if c.Expect.Usage != nil && whole.Usage.Output != c.Expect.Usage.Completion {
						t.Fatalf("usage = %+v in this framing", whole.Usage)
					}
					for cut := 1; cut < len(body); cut += step {
						s.Reset(o)
						if got := follow(s, body[:cut], body[cut:]); got != whole {
							t.Fatalf("%+v: cut at %d (%q|%q) (-whole +cut):\n%s", o, cut,
								body[max(0, cut-10):cut], body[cut:min(len(body), cut+10)], cmp.Diff(whole, got))
						}
					}
				}
			})
		}
	}
}
