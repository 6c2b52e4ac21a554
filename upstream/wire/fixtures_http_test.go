package wire_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/upstream/wire"
)

func TestRequestFixtures(t *testing.T) {
	names, _ := filepath.Glob("testdata/requests/*.meta.json")
	if len(names) == 0 {
		t.Fatal("no fixtures in testdata/requests")
	}
	for _, name := range names {
		var meta struct {
			Name     string
			BodyFile string `json:"body_file"`
			Expect   struct {
				ClientStatus int    `json:"client_status"`
				UpstreamBody string `json:"upstream_body"`
				Param        string
				Path         string
			}
		}
		if err := json.Unmarshal(read(t, name), &meta); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		t.Run(meta.Name, func(t *testing.T) {
			body := read(t, "testdata/requests/"+meta.BodyFile)
			api := wire.Chat
			if meta.Expect.Path == "/v1/embeddings" {
				api = wire.Embeddings
			}
			h, ferr := wire.Scan(body, api)
			if meta.Expect.ClientStatus == 400 {
				if ferr == nil || ferr.Param != meta.Expect.Param || ferr.Message == "" {
					t.Fatalf("error = %+v, want one that names %q", ferr, meta.Expect.Param)
				}
				return
			}
			if ferr != nil {
				t.Fatal(ferr)
			}
			got := string(h.Splice(nil, body, wire.Edit{Model: "target <1>", IncludeUsage: true}))
			want := strings.Replace(string(body), `"`+h.Model+`"`, `"target <1>"`, 1)
			if strings.Contains(meta.Expect.UpstreamBody, "include_usage") {
				end := strings.LastIndexByte(want, '}')
				want = want[:end] + `,"stream_options":{"include_usage":true}` + want[end:]
			}
			if got != want {
				t.Errorf("(-want +got):\n%s", cmp.Diff(want, got))
			}
		})
	}
}

func TestErrorFixtures(t *testing.T) {
	var file struct {
		Cases []struct {
			From        string
			Status      int
			ContentType string          `json:"content_type"`
			Body        json.RawMessage `json:"body"`
			BodyBase64  []byte          `json:"body_base64"`
			Client      map[string]any
		}
	}
	if err := json.Unmarshal(read(t, "testdata/http/error_mapping.json"), &file); err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, c := range file.Cases {
		if c.Status == 0 { // made by the gateway, not by an upstream
			continue
		}
		seen++
		t.Run(c.From, func(t *testing.T) {
			body := []byte(c.Body)
			var text string
			if json.Unmarshal(c.Body, &text) == nil {
				body = []byte(text)
			}
			if c.BodyBase64 != nil {
				body = c.BodyBase64
			}
			e := wire.ParseError(c.Status, c.ContentType, body, wire.OpenAI)
			if want := int(c.Client["status"].(float64)); e.Status != want {
				t.Errorf("status = %d, want %d", e.Status, want)
			}
			if want := c.Client["body"] == "identical"; e.Nested != want {
				t.Errorf("nested = %v, want %v", e.Nested, want)
			}
			out := wire.AppendEnvelope(nil, e.Message, e.Type, e.Param, e.Code)
			var env struct{ Error map[string]any }
			if err := json.Unmarshal(out, &env); err != nil || len(env.Error) != 4 {
				t.Fatalf("envelope %s: %v", out, err)
			}
			if e.Message == "" {
				t.Error("no message")
			}
			if want, ok := c.Client["error.type"]; ok && env.Error["type"] != want {
				t.Errorf("type = %v, want %v", env.Error["type"], want)
			}
			switch want := fmt.Sprint(c.Client["error.message"]); {
			case c.Client["error.message"] == nil, want == "non-empty":
			case strings.HasPrefix(want, "contains "):
				if want = strings.Trim(want[9:], "'"); !strings.Contains(e.Message, want) {
					t.Errorf("message %q does not contain %q", e.Message, want)
				}
			case e.Message != want:
				t.Errorf("message = %q, want %q", e.Message, want)
			}
			if bad, ok := c.Client["must_not_contain"].(string); ok && bytes.Contains(out, []byte(bad)) {
				t.Errorf("envelope contains %q: %s", bad, out)
			}
		})
	}
	if seen < 10 {
		t.Fatalf("only %d cases", seen)
	}
}
