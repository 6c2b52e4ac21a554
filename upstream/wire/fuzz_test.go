package wire_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/upstream/wire"
)

func seeds(f *testing.F, pattern string) [][]byte {
	f.Helper()
	names, err := filepath.Glob(pattern)
	if err != nil || len(names) == 0 {
		f.Fatalf("no seeds in %s: %v", pattern, err)
	}
	var all [][]byte
	for _, name := range names {
		if b, err := os.ReadFile(name); err != nil {
			f.Fatal(err)
		} else if len(b) < 4<<10 {
			all = append(all, b)
		}
	}
	return all
}

// judged is the body with what Scan does not judge made harmless: the inside of
// strings.
func judged(b []byte) []byte {
	out := bytes.Clone(b)
	in, esc := false, false
	for i, c := range out {
		switch {
		case !in:
			in = c == '"'
		case esc:
			esc = false
			out[i] = 'x'
		case c == '"':
			in = false
		default:
			esc = c == '\\'
			out[i] = 'x'
		}
	}
	return out
}

// FuzzScan: Scan and encoding/json agree on what a JSON object is, but for the
// inside of strings, the depth, and the members that Scan looks at.
func FuzzScan(f *testing.F) {
	for _, b := range seeds(f, "testdata/requests/*.json") {
		f.Add(b)
	}
	for _, s := range []string{`{}`, `{"a":[1,2,{"b":null}],"c":-0.1e+5}`, `{"a":"\\\""}`, "\xef\xbb\xbf{}", `{"a":1}x`, `[`, `{"a":tru}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		h, err := wire.Scan(body, wire.Chat)
		plain := judged(body)
		valid := json.Valid(plain) && bytes.HasPrefix(bytes.TrimLeft(plain, " \t\r\n"), []byte("{"))
		switch {
		case err == nil && !valid:
			t.Fatalf("accepted %q", body)
		case err != nil && valid && err.Param == "" && !strings.Contains(err.Message, "512") && !strings.Contains(err.Message, "escape in a key"):
			t.Fatalf("refused %q: %s", body, err.Message)
		}
		if err == nil {
			h.Denied(body, []string{"priority"})
			h.Conversation(body)
			h.Answered(body)
		}
	})
}

// FuzzSplice: the result is valid and equal but for the members that were edited.
func FuzzSplice(f *testing.F) {
	for i, b := range seeds(f, "testdata/requests/*.json") {
		f.Add(b, byte(i), "seed", "Be brief.")
	}
	f.Add([]byte(`{"stream":true,"stream_options":{"include_usage":false},"messages":[{"role":"system","content":"x"}]}`), byte(255), "stream", "\"<&\n")
	f.Add([]byte(`{"temperature":1,"temperature":2,"top_p":null,"messages":[{"role":"system","content":[]}]}`), byte(255), "temperature", "x")
	f.Fuzz(func(t *testing.T, body []byte, mode byte, remove, system string) {
		var before map[string]any
		if !json.Valid(body) || decode(body, &before) != nil {
			return
		}
		h, ferr := wire.Scan(body, wire.Chat)
		if ferr != nil {
			return
		}
		e := wire.Edit{Model: "served", IncludeUsage: mode&1 != 0, ContinuousUsage: mode&2 != 0}
		if mode&4 != 0 {
			e.Patch = &wire.Patch{
				Force: []wire.Field{field("temperature", "0.25")}, Default: []wire.Field{field("top_p", "0.5")},
				Remove: []string{remove},
			}
			if mode&8 != 0 {
				e.Patch.SystemPrepend, e.Patch.SystemAppend = system, system
			}
		}
		out := h.Splice(nil, body, e)
		var after map[string]any
		if !json.Valid(out) || decode(out, &after) != nil {
			t.Fatalf("%q became invalid: %q", body, out)
		}
		if after["model"] != "served" {
			t.Fatalf("model = %v in %q", after["model"], out)
		}
		if e.Patch != nil && after["temperature"] != json.Number("0.25") {
			t.Fatalf("temperature = %v in %q", after["temperature"], out)
		}
		edited := map[string]bool{"model": true}
		if h.Stream {
			edited["stream_options"] = true
		}
		if e.Patch != nil {
			for _, name := range []string{"temperature", "top_p", "messages"} {
				edited[name] = true
			}
			if _, there := after[remove]; there && !edited[remove] && remove != "stream" && remove != "stream_options" {
				t.Fatalf("%q is still in %q", remove, out)
			}
			if remove != "stream" && remove != "stream_options" {
				edited[remove] = true
			}
		}
		for name := range edited {
			delete(before, name)
			delete(after, name)
		}
		if !reflect.DeepEqual(before, after) {
			t.Fatalf("(-before +after):\n%s", cmp.Diff(before, after))
		}
	})
}

func decode(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	return d.Decode(v)
}

// FuzzStream: however a stream is cut into reads, the outcome is the same; with
// nothing to take out it is the bytes that came.
func FuzzStream(f *testing.F) {
	for i, b := range seeds(f, "testdata/sse/*.sse") {
		f.Add(b, uint16(i*37), byte(i))
	}
	f.Add([]byte("data: {\r\rdata\n\r\n: x\r\ndata: [DONE]\r\n\r\ndata: 1\r"), uint16(3), byte(7))
	f.Add([]byte(sse(role, hel, hel, stop, last)), uint16(99), byte(15))
	f.Fuzz(func(t *testing.T, body []byte, step uint16, mode byte) {
		o := wire.StreamOptions{StripUsage: mode&1 != 0, StripChunkUsage: mode&2 != 0}
		if mode&4 != 0 {
			o.EchoModel = "alias"
		}
		if mode&8 != 0 {
			o.API = wire.Responses
		}
		if mode&16 != 0 {
			o.Dialect = wire.TGI
		}
		o.Judging = everything
		whole := follow(wire.NewStream(o), body)
		var pieces [][]byte
		for rest, n := body, int(step%251)+1; len(rest) > 0; n = n%97 + int(step%7) + 1 {
			n = min(n, len(rest))
			pieces = append(pieces, rest[:n])
			rest = rest[n:]
		}
		if diff := cmp.Diff(whole, follow(wire.NewStream(o), pieces...)); diff != "" {
			t.Fatalf("cut %v of %q (-whole +cut):\n%s", step, body, diff)
		}
		if mode&7 == 0 && whole.Committed {
			got := strings.TrimSuffix(whole.Client, doneEvent)
			if !strings.HasPrefix(whole.Client, string(body)) && !strings.HasPrefix(string(body), got) {
				t.Fatalf("bytes were changed: %q became %q", body, whole.Client)
			}
		}
	})
}

// FuzzTail: the follower agrees with the scan on every valid object.
func FuzzTail(f *testing.F) {
	for _, a := range answers {
		f.Add([]byte(a.body), uint16(5))
	}
	f.Fuzz(func(t *testing.T, body []byte, cut uint16) {
		if _, err := wire.Scan(body, wire.Chat); err != nil || !json.Valid(body) {
			return
		}
		var tail wire.Tail
		k := int(cut) % (len(body) + 1)
		tail.Feed(body[:k])
		tail.Feed(body[k:])
		got, want := tail.Result(), wire.ReadUnary(body, wire.Chat, wire.Judging{})
		if got.Usage != want.Usage || got.HasUsage != want.HasUsage {
			t.Fatalf("%q: %+v, want %+v", body, got, want)
		}
		if !tail.Complete() {
			t.Fatalf("%q: not complete", body)
		}
	})
}

// FuzzErrors: no body makes the mapper panic or its envelope invalid.
func FuzzErrors(f *testing.F) {
	for _, s := range []string{`{"error":{"message":"m","code":1}}`, `{"detail":[{"loc":[1]}]}`, "<title>x", `{"error":`, "\xff"} {
		f.Add(500, s)
	}
	f.Fuzz(func(t *testing.T, status int, body string) {
		e := wire.ParseError(status, "", []byte(body), wire.TGI)
		out := wire.AppendEnvelope(nil, e.Message, e.Type, e.Param, e.Code)
		if !json.Valid(out) || e.Message == "" || e.Status < 400 || e.Status > 599 {
			t.Fatalf("%d, %s", e.Status, out)
		}
		wire.UnaryVerdict([]byte(body), wire.Chat, wire.VLLM)
		wire.ReplaceModel(nil, []byte(body), "x")
	})
}
