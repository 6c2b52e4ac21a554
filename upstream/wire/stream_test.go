package wire_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/upstream/wire"
)

const (
	role   = `{"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}`
	hel    = `{"id":"c","choices":[{"index":0,"delta":{"content":"Hel"},"finish_reason":null}]}`
	stop   = `{"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`
	counts = `"usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12}`
	last   = `{"id":"c","model":"m","choices":[],` + counts + `}`
)

// sse writes each as one event; those that begin with a colon as they are.
func sse(events ...string) string {
	var b strings.Builder
	for _, e := range events {
		if strings.HasPrefix(e, ":") || strings.Contains(e, "data:") {
			b.WriteString(e + "\n\n")
		} else {
			b.WriteString("data: " + e + "\n\n")
		}
	}
	return b.String()
}

func run(o wire.StreamOptions, body string) state { return follow(wire.NewStream(o), []byte(body)) }

// bytewise is run with one byte a read; both must agree in everything.
func bothWays(t *testing.T, o wire.StreamOptions, body string) state {
	t.Helper()
	whole := run(o, body)
	if diff := cmp.Diff(whole, follow(wire.NewStream(o), delivered([]byte(body), "bytes", nil)...)); diff != "" {
		t.Errorf("whole and bytewise differ (-whole +bytewise):\n%s", diff)
	}
	return whole
}

func TestStreamStrip(t *testing.T) {
	withUsage := func(chunk, usage string) string { return chunk[:len(chunk)-1] + `,"usage":` + usage + `}` }
	const running = `{"prompt_tokens":9,"completion_tokens":1}`
	strip, chunks := wire.StreamOptions{StripUsage: true}, wire.StreamOptions{StripChunkUsage: true}
	with := func(o wire.StreamOptions, d wire.Dialect) wire.StreamOptions { o.Dialect = d; return o }
	for name, tc := range map[string]struct {
		o          wire.StreamOptions
		body, want string
	}{
		"usage event goes":          {strip, sse(hel, stop, last, "[DONE]"), sse(hel, stop, "[DONE]")},
		"usage event of any server": {with(strip, wire.TGI), sse(hel, stop, last, "[DONE]"), sse(hel, stop, "[DONE]")},
		"usage without choices":     {strip, sse(hel, stop, `{"id":"c",`+counts+`}`, `{"choices":null,`+counts+`}`, "[DONE]"), sse(hel, stop, "[DONE]")},
		"null goes, openai":         {strip, sse(withUsage(hel, "null"), stop, last), sse(hel, stop, "[DONE]")},
		"null goes, vllm":           {with(strip, wire.VLLM), sse(withUsage(hel, "null"), stop, last), sse(hel, stop, "[DONE]")},
		"null stays, tgi":           {with(strip, wire.TGI), sse(withUsage(hel, "null"), stop, last), sse(withUsage(hel, "null"), stop, "[DONE]")},
		"null stays, sglang":        {with(strip, wire.SGLang), sse(withUsage(hel, "null"), stop, last), sse(withUsage(hel, "null"), stop, "[DONE]")},
		"tgi completions keep theirs": {with(wire.StreamOptions{API: wire.Completions, StripUsage: true}, wire.TGI),
			sse(`{"choices":[{"index":0,"text":"a","finish_reason":"length"}],` + counts + `}`), sse(`{"choices":[{"index":0,"text":"a","finish_reason":"length"}],`+counts+`}`, "[DONE]")},
		"value with content goes, vllm": {with(strip, wire.VLLM), sse(withUsage(hel, running), stop, last), sse(hel, stop, "[DONE]")},
		"first member":                  {strip, sse(`{"usage": null , "choices":[{"index":0,"delta":{"content":"x"}}]}`), sse(`{"choices":[{"index":0,"delta":{"content":"x"}}]}`)},
		"middle member":                 {strip, sse(`{"a":1, "usage":null, "choices":[{"index":0,"delta":{"content":"x"}}]}`), sse(`{"a":1, "choices":[{"index":0,"delta":{"content":"x"}}]}`)},
		"only member":                   {strip, sse(hel, `{ "usage":null }`), sse(hel, `{  }`)},
		"escaped key":                   {strip, sse(hel, `{"choices":[],"us\u0061ge":{"prompt_tokens":1}}`), sse(hel)},
		"usage in the text stays":       {strip, sse(`{"choices":[{"index":0,"delta":{"content":"\"usage\":{\"prompt_tokens\":1}"}}],"x":{"usage":null}}`), sse(`{"choices":[{"index":0,"delta":{"content":"\"usage\":{\"prompt_tokens\":1}"}}],"x":{"usage":null}}`)},
		"empty choices stay":            {strip, sse(hel, `{"id":"c","choices":[]}`), sse(hel, `{"id":"c","choices":[]}`)},
		"timings without an end stay": {with(strip, wire.LlamaCPP), sse(hel, `{"choices":[],`+counts+`,"timings":{"prompt_n":9}}`, "[DONE]"),
			sse(hel, `{"choices":[],"timings":{"prompt_n":9}}`, "[DONE]")},
		"sglext stays":         {with(strip, wire.SGLang), sse(hel, `{"choices":[],"sglext":{"a":1},`+counts+`}`), sse(hel, `{"choices":[],"sglext":{"a":1}}`)},
		"null extras are none": {strip, sse(hel, `{"choices":[],"metrics":null,`+counts+`}`), sse(hel)},
		"running counts go":    {with(chunks, wire.VLLM), sse(withUsage(hel, running), stop, last), sse(hel, stop, last, "[DONE]")},
		"running counts go, sglang": {with(chunks, wire.SGLang), sse(withUsage(hel, running), withUsage(hel, "null"), stop, last),
			sse(hel, withUsage(hel, "null"), stop, last, "[DONE]")},
		"both": {with(wire.StreamOptions{StripUsage: true, StripChunkUsage: true}, wire.SGLang), sse(withUsage(hel, running), stop, last), sse(hel, stop, "[DONE]")},
		"an error stays": {strip, sse(hel, `{"error":{"message":"m","code":500},"usage":null}`, last, "[DONE]"),
			sse(hel, `{"error":{"message":"m","code":500},"usage":null}`, "[DONE]")},
		"comments stay": {strip, sse(hel, stop) + ": ping\ndata: " + last + "\n\n" + sse("[DONE]"), sse(hel, stop) + ": ping\n" + sse("[DONE]")},
		"several lines": {strip, sse(hel) + "id: 1\ndata: {\"choices\":[{\"index\":0,\"finish_reason\":\"stop\"}],\ndata:\"usage\":null,\ndata: \"x\":1}\nretry: 1\n\n",
			sse(hel) + "id: 1\ndata: {\"choices\":[{\"index\":0,\"finish_reason\":\"stop\"}],\ndata: \"x\":1}\nretry: 1\n\n" + sse("[DONE]")},
		"several lines, dropped":  {strip, sse(hel) + "event: message\ndata: {\"choices\":[],\ndata: " + counts + "}\n\n", sse(hel)},
		"last event cut, dropped": {strip, sse(hel, stop) + "data: " + last, sse(hel, stop, "[DONE]")},
		"last event cut, kept":    {strip, sse(hel) + "data: " + stop, sse(hel, stop, "[DONE]")},
		"broken tail is passed":   {strip, sse(hel) + `data: {"cho`, sse(hel) + `data: {"cho`},
		"echo": {wire.StreamOptions{EchoModel: `a"<b>`}, sse(`{"model":"m","choices":[{"index":0,"delta":{"content":"\"model\":\"m\""}}],"usage":null}`),
			sse(`{"model":"a\"<b>","choices":[{"index":0,"delta":{"content":"\"model\":\"m\""}}],"usage":null}`)},
		"echo and strip": {wire.StreamOptions{EchoModel: "a", StripUsage: true}, sse(`{"usage":null,"choices":[{"index":0,"delta":{"content":"x"}}],"model":"m"}`),
			sse(`{"choices":[{"index":0,"delta":{"content":"x"}}],"model":"a"}`)},
		"echo, responses": {wire.StreamOptions{API: wire.Responses, EchoModel: "a"}, sse(`{"type":"response.completed","response":{"model":"m","status":"completed"}}`),
			sse(`{"type":"response.completed","response":{"model":"a","status":"completed"}}`)},
	} {
		t.Run(name, func(t *testing.T) {
			st := bothWays(t, tc.o, tc.body)
			if diff := cmp.Diff(tc.want, st.Client); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestStreamCommit feeds event by event and says which one commits.
func TestStreamCommit(t *testing.T) {
	choice := func(members string) string { return `{"choices":[{"index":0,` + members + `}]}` }
	for name, tc := range map[string]struct {
		api    wire.API
		event  string
		commit bool
	}{
		"comment":            {0, ": ping", false},
		"role":               {0, role, false},
		"null content":       {0, choice(`"delta":{"role":"assistant","content":null,"tool_calls":[],"reasoning":""},"logprobs":null,"finish_reason":null`), false},
		"empty finish":       {0, choice(`"delta":{"content":""},"finish_reason":""`), false},
		"nested nothing":     {0, choice(`"delta":{"content":[]},"logprobs":{"content":[]}`), false},
		"no choices":         {0, `{"choices":[]}`, false},
		"usage only":         {0, last, false},
		"progress":           {0, `{"choices":[{"index":0,"delta":{"role":"assistant","content":null}}],"prompt_progress":{"total":9}}`, false},
		"not json":           {0, `hello`, false},
		"empty data":         {0, "data:", false},
		"event name only":    {0, "event: ping\ndata", false},
		"text":               {0, hel, true},
		"space":              {0, choice(`"delta":{"content":" "}`), true},
		"reasoning":          {0, choice(`"delta":{"reasoning":"x"}`), true},
		"tool call":          {0, choice(`"delta":{"tool_calls":[{"index":0,"id":"a"}]}`), true},
		"content parts":      {0, choice(`"delta":{"content":[{"type":"text","text":"x"}]}`), true},
		"other delta":        {0, choice(`"delta":{"x":false}`), true},
		"token ids":          {0, choice(`"delta":{},"token_ids":[1]`), true},
		"finish":             {0, stop, true},
		"second choice":      {0, `{"choices":[{"index":0,"delta":{"role":"assistant"}},{"index":1,"delta":{"content":"x"}}]}`, true},
		"unknown shape":      {0, `{"content":"x"}`, true},
		"completions":        {wire.Completions, choice(`"text":"x"`), true},
		"completions, empty": {wire.Completions, choice(`"text":"","finish_reason":""`), false},
		"responses, created": {wire.Responses, `{"type":"response.created","response":{"status":"in_progress"}}`, false},
		"responses, delta":   {wire.Responses, `{"type":"response.output_text.delta","delta":"x"}`, true},
		"responses, nothing": {wire.Responses, `{"type":"response.output_text.delta","delta":""}`, false},
		"responses, done":    {wire.Responses, `{"type":"response.completed","response":{"status":"completed"}}`, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := wire.NewStream(wire.StreamOptions{API: tc.api})
			first := sse(tc.event)
			out := string(s.Feed([]byte(first)))
			if s.Committed() != tc.commit {
				t.Fatalf("committed = %v, want %v", s.Committed(), tc.commit)
			}
			if want := map[bool]string{true: first}[tc.commit]; out != want {
				t.Errorf("out = %q, want %q", out, want)
			}
			if !tc.commit && (s.Held() != len(first) || !s.Boundary()) {
				t.Errorf("held = %d of %d, boundary = %v", s.Held(), len(first), s.Boundary())
			}
			rest := sse(choice(`"delta":{"content":"now"}`))
			if tc.api == wire.Responses {
				rest = sse(`{"type":"response.output_text.delta","delta":"now"}`)
			}
			if out += string(s.Feed([]byte(rest))); out != first+rest {
				t.Errorf("out = %q, want all", out)
			}
			if s.Held() != 0 {
				t.Errorf("held = %d behind the commit point", s.Held())
			}
		})
	}
}

func TestStreamHoldLimit(t *testing.T) {
	s := wire.NewStream(wire.StreamOptions{})
	pings := []byte(strings.Repeat(": ping\n\n", 4096)) // 32 KiB
	if out := s.Feed(pings); out != nil || s.Committed() {
		t.Fatalf("32 KiB: %d bytes, committed = %v", len(out), s.Committed())
	}
	if out := s.Feed([]byte(":")); len(out) != len(pings)+1 || !s.Committed() {
		t.Fatalf("one more: %d bytes, committed = %v", len(out), s.Committed())
	}
}

func TestStreamForceCommit(t *testing.T) {
	s := wire.NewStream(wire.StreamOptions{})
	s.Feed([]byte(sse(role)))
	if got := string(s.Commit()); got != sse(role) || !s.Committed() {
		t.Errorf("Commit = %q", got)
	}
	if got := s.Commit(); got != nil {
		t.Errorf("second Commit = %q", got)
	}
	s.Feed([]byte(sse(`{"error":{"message":"m","code":503}}`)))
	if _, early, ok := s.Error(); !ok || early {
		t.Errorf("early = %v, ok = %v: a sent comment has committed", early, ok)
	}
}

func TestStreamEnds(t *testing.T) {
	n2 := func(i int, members string) string { return fmt.Sprintf(`{"choices":[{"index":%d,%s}]}`, i, members) }
	for name, tc := range map[string]struct {
		api      wire.API
		body     string
		added    string // to the body
		complete bool
		finish   string
	}{
		"done":                  {0, sse(hel, stop, "[DONE]"), "", true, "stop"},
		"no done":               {0, sse(hel, stop), doneEvent, true, "stop"},
		"no done, one newline":  {0, sse(hel) + "data: " + stop + "\n", "\n" + doneEvent, true, "stop"},
		"no done, no newline":   {0, sse(hel) + "data: " + stop, "\n\n" + doneEvent, true, "stop"},
		"no done, crlf":         {0, strings.ReplaceAll(sse(hel, stop), "\n", "\r\n"), doneEvent, true, "stop"},
		"no done, half crlf":    {0, "data: " + hel + "\r\n\r\ndata: " + stop + "\r", "\n\n" + doneEvent, true, "stop"},
		"no done, cr":           {0, strings.ReplaceAll(sse(hel, stop), "\n", "\r"), doneEvent, true, "stop"},
		"no done, one cr":       {0, "data: " + hel + "\r\rdata: " + stop + "\r", "\n\n" + doneEvent, true, "stop"},
		"no done, comment":      {0, sse(hel, stop) + ": bye", "\n\n" + doneEvent, true, "stop"},
		"cut":                   {0, sse(hel), "", false, ""},
		"cut in the finish":     {0, sse(hel) + `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"x`, "", false, ""},
		"done, no finish":       {0, sse(hel, "[DONE]"), "", false, ""},
		"empty finish":          {0, sse(`{"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":""}]}`), "", false, ""},
		"two of two":            {0, sse(n2(0, `"finish_reason":"stop"`), n2(1, `"delta":{"content":"x"}`), n2(1, `"finish_reason":"length"`)), doneEvent, true, "stop"},
		"one of two":            {0, sse(n2(0, `"finish_reason":"stop"`), n2(1, `"delta":{"content":"x"}`)), "", false, "stop"},
		"in one chunk":          {0, sse(`{"choices":[{"index":1,"finish_reason":"length"},{"index":0,"finish_reason":"stop"}]}`), doneEvent, true, "stop"},
		"finish with text":      {0, sse(`{"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}]}`), doneEvent, true, "stop"},
		"error, then end":       {0, sse(hel, stop, `{"error":{"message":"m"}}`), "", true, "stop"},
		"completions":           {wire.Completions, sse(n2(0, `"text":"x","finish_reason":"eos_token"`)), doneEvent, true, "eos_token"},
		"responses":             {wire.Responses, sse(`{"type":"response.output_text.delta","delta":"x"}`, `{"type":"response.completed","response":{"status":"completed"}}`), "", true, "completed"},
		"responses, incomplete": {wire.Responses, sse(`{"type":"response.incomplete","response":{"incomplete_details":{}}}`), "", true, "incomplete"},
		"responses, cut":        {wire.Responses, sse(`{"type":"response.output_text.delta","delta":"x"}`), "", false, ""},
		"byte order mark":       {0, "\xef\xbb\xbf" + sse(hel, stop), doneEvent, true, "stop"},
		"spaced done":           {0, sse(hel, stop) + "data:  [DONE] \n\n", "", true, "stop"},
	} {
		t.Run(name, func(t *testing.T) {
			st := bothWays(t, wire.StreamOptions{API: tc.api}, tc.body)
			if diff := cmp.Diff(tc.body+tc.added, st.Client); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if st.Complete != tc.complete || st.Finish != tc.finish {
				t.Errorf("complete = %v, finish = %q; want %v, %q", st.Complete, st.Finish, tc.complete, tc.finish)
			}
		})
	}
}

func TestStreamAfterDone(t *testing.T) {
	for name, eol := range map[string]string{"lf": "\n", "crlf": "\r\n", "cr": "\r"} {
		t.Run(name, func(t *testing.T) {
			frame := func(s string) string { return strings.ReplaceAll(s, "\n", eol) }
			for _, o := range []wire.StreamOptions{{}, {StripUsage: true}} {
				st := bothWays(t, o, frame(sse(hel, stop, "[DONE]", last, `{"error":{"message":"x"}}`, "[DONE]", hel)))
				if want := frame(sse(hel, stop, "[DONE]")); st.Client != want {
					t.Errorf("client = %q, want %q", st.Client, want)
				}
				if !st.HasUsage || st.Failed || st.Stats.Events != 2 {
					t.Errorf("late usage = %v, failed = %v, events = %d", st.HasUsage, st.Failed, st.Stats.Events)
				}
			}
		})
	}
}

func TestStreamBoundary(t *testing.T) {
	for name, tc := range map[string]struct {
		o        wire.StreamOptions
		body     string
		boundary bool
		newlines string
	}{
		"nothing yet":       {wire.StreamOptions{}, "", true, ""},
		"between events":    {wire.StreamOptions{}, sse(hel), true, ""},
		"in a line":         {wire.StreamOptions{}, sse(hel) + "data: {", false, "\n\n"},
		"behind a line":     {wire.StreamOptions{}, sse(hel) + "data: {}\n", false, "\n"},
		"behind a comment":  {wire.StreamOptions{}, sse(hel) + ": x\n", false, "\n"},
		"half a crlf":       {wire.StreamOptions{}, strings.ReplaceAll(sse(hel, hel), "\n", "\r\n")[:len(sse(hel, hel))+3], false, "\n"},
		"cr, not yet lone":  {wire.StreamOptions{}, sse(hel) + "data: {}\r", false, "\n\n"},
		"held, half a line": {wire.StreamOptions{}, sse(role) + "data: {", true, ""},
		"known lone cr":     {wire.StreamOptions{}, strings.ReplaceAll(sse(hel, hel), "\n", "\r"), true, ""},
		"held when strict":  {wire.StreamOptions{StripUsage: true}, sse(hel) + "data: {", true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := wire.NewStream(tc.o)
			s.Feed([]byte(tc.body))
			if s.Boundary() != tc.boundary || s.Newlines() != tc.newlines {
				t.Errorf("boundary = %v, newlines = %q; want %v, %q", s.Boundary(), s.Newlines(), tc.boundary, tc.newlines)
			}
		})
	}
}

// TestStreamOversize: an event over 4 MiB passes whole and is not metered.
func TestStreamOversize(t *testing.T) {
	big := `{"choices":[{"index":0,"delta":{"content":"` + strings.Repeat("x", 5<<20) + `"}}],` + counts + `}`
	body := sse(hel, big, stop, "[DONE]")
	for name, o := range map[string]wire.StreamOptions{"pass": {}, "strip": {StripUsage: true}} {
		t.Run(name, func(t *testing.T) {
			whole := run(o, body)
			var pieces [][]byte
			for rest := []byte(body); len(rest) > 0; {
				n := min(len(rest), 32<<10-7)
				pieces = append(pieces, rest[:n])
				rest = rest[n:]
			}
			s := wire.NewStream(o)
			cut := follow(s, pieces...)
			if whole.Client != body || cut.Client != body {
				t.Errorf("%d and %d bytes of %d", len(whole.Client), len(cut.Client), len(body))
			}
			whole.Client, cut.Client = "", ""
			if diff := cmp.Diff(whole, cut); diff != "" {
				t.Errorf("(-whole +cut):\n%s", diff)
			}
			if !whole.Stats.Oversize || whole.HasUsage || !whole.Complete || whole.Stats.Events != 3 {
				t.Errorf("%+v", whole)
			}
		})
	}
}

// TestStreamPassesAtOnce: with nothing to take out, bytes go on in mid-line.
func TestStreamPassesAtOnce(t *testing.T) {
	s := wire.NewStream(wire.StreamOptions{})
	s.Feed([]byte(sse(hel)))
	for i, b := range []byte(sse(hel, stop)) {
		if got := s.Feed([]byte{b}); !bytes.Equal(got, []byte{b}) {
			t.Fatalf("byte %d: %q, want %q", i, got, b)
		}
	}
}

func TestStreamFeedDoesNotAllocate(t *testing.T) {
	for name, o := range map[string]wire.StreamOptions{"pass": {}, "strip": {StripUsage: true}, "echo": {EchoModel: "x"}} {
		s := wire.NewStream(o)
		ev := []byte(strings.Replace(chunk230, "}]}", `}],"usage":null}`, 1))
		s.Feed(ev)
		if n := testing.AllocsPerRun(200, func() { s.Feed(ev[:77]); s.Feed(ev[77:]); s.Feed(ev) }); n > 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func TestStreamResetForgets(t *testing.T) {
	s := wire.NewStream(wire.StreamOptions{StripUsage: true, EchoModel: "x"})
	follow(s, []byte(sse(role, hel, `{"error":{"message":"m"}}`, stop, last)+"data: {\r"))
	s.Reset(wire.StreamOptions{})
	body := []byte(sse(role, hel, stop, last))
	if diff := cmp.Diff(follow(wire.NewStream(wire.StreamOptions{}), body), follow(s, body)); diff != "" {
		t.Errorf("(-new +reset):\n%s", diff)
	}
}
