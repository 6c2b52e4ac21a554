package wire_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/upstream/wire"
)

// seenHead is the exported part of a Head.
type seenHead struct {
	Model                               string
	Stream                              bool
	N                                   int
	User, Safety, MetaUser, MetaSession string
	IncludeUsage, ContinuousUsage       bool
}

func seen(h wire.Head) seenHead {
	return seenHead{h.Model, h.Stream, h.N, h.User, h.SafetyIdentifier, h.MetadataUserID, h.MetadataSessionID,
		h.IncludeUsage, h.ContinuousUsage}
}

func TestScanFinds(t *testing.T) {
	for name, tc := range map[string]struct {
		body string
		want seenHead
	}{
		"empty object":     {` { } `, seenHead{N: 1}},
		"plain":            {`{"model":"m","stream":true,"n":3,"user":"u"}`, seenHead{Model: "m", Stream: true, N: 3, User: "u"}},
		"nulls are absent": {`{"model":null,"stream":null,"n":null,"user":null,"stream_options":null}`, seenHead{N: 1}},
		"escaped keys": {`{"\u006dodel":"a","\u0073tream":true,"metad\u0061ta":{"user\u005fid":"x"}}`,
			seenHead{Model: "a", Stream: true, N: 1, MetaUser: "x"}},
		"escaped values": {`{"model":"a\/b\u00e9\ud83e\udd80","user":"\"q\\"}`, seenHead{Model: "a/bé🦀", N: 1, User: `"q\`}},
		"half a pair":    {`{"model":"a\ud83ez"}`, seenHead{Model: "a\uFFFDz", N: 1}},
		"case matters":   {`{"Model":"x","model":"y","STREAM":3}`, seenHead{Model: "y", N: 1}},
		"identity": {`{"safety_identifier":"s","metadata":{"user_id":"mu","session_id":"ms","other":[{}]}}`,
			seenHead{N: 1, Safety: "s", MetaUser: "mu", MetaSession: "ms"}},
		"identity of other types": {`{"safety_identifier":7,"metadata":["user_id"],"user":""}`, seenHead{N: 1}},
		"the last metadata counts": {`{"metadata":{"user_id":"a"},"metadata":{"session_id":"b"}}`,
			seenHead{N: 1, MetaSession: "b"}},
		"nested members are not ours": {`{"x":{"model":"no","stream":1,"n":"x"},"model":"yes"}`, seenHead{Model: "yes", N: 1}},
		"options": {`{"stream_options":{"include_usage":true,"continuous_usage_stats":false}}`,
			seenHead{N: 1, IncludeUsage: true}},
		"options by escape": {`{"stream_options":{"include\u005fusage":true}}`, seenHead{N: 1, IncludeUsage: true}},
		"odd options are asked": {`{"stream_options":{"include_usage":1,"continuous_usage_stats":"on"}}`,
			seenHead{N: 1, IncludeUsage: true, ContinuousUsage: true}},
		"integral n":                 {`{"n":2.0}`, seenHead{N: 2}},
		"huge n is clamped":          {`{"n":1e300}`, seenHead{N: 1<<31 - 1}},
		"strings are not judged":     {"{\"a\":\"\x01\xff\\q\",\"model\":\"m\"}", seenHead{Model: "m", N: 1}},
		"a quote behind backslashes": {`{"a":"\\\\\\\"","b":"\\\\","model":"m"}`, seenHead{Model: "m", N: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			h, err := wire.Scan([]byte(tc.body), wire.Chat)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, seen(h)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestScanRefuses(t *testing.T) {
	for name, tc := range map[string]struct{ body, param, says string }{
		"nothing":               {``, "", "empty"},
		"space":                 {" \n", "", "empty"},
		"array":                 {`[]`, "", "object"},
		"string":                {`"model"`, "", "object"},
		"byte order mark":       {"\xef\xbb\xbf{}", "", "byte order mark"},
		"trailing data":         {`{} {}`, "", "behind"},
		"trailing comma":        {`{"a":1,}`, "", "not valid JSON"},
		"trailing array comma":  {`{"a":[1,]}`, "", "not valid JSON"},
		"no colon":              {`{"a" 1}`, "", "not valid JSON"},
		"no value":              {`{"a":}`, "", "not valid JSON"},
		"bare key":              {`{a:1}`, "", "not valid JSON"},
		"open":                  {`{"a":1`, "", "too early"},
		"open string":           {`{"a":"b\"}`, "", "does not end"},
		"open key":              {`{"a`, "", "does not end"},
		"wrong bracket":         {`{"a":[1}}`, "", "not valid JSON"},
		"wrong brace":           {`{"a":{"b":1]}`, "", "not valid JSON"},
		"bad literal":           {`{"a":nul}`, "", "not valid JSON"},
		"long literal":          {`{"a":truely}`, "", "not valid JSON"},
		"leading zero":          {`{"a":01}`, "", "not valid JSON"},
		"plus":                  {`{"a":+1}`, "", "not valid JSON"},
		"bare minus":            {`{"a":-}`, "", "number"},
		"no fraction":           {`{"a":1.}`, "", "number"},
		"no exponent":           {`{"a":1e+}`, "", "number"},
		"NaN":                   {`{"a":NaN}`, "", "not valid JSON"},
		"comment":               {`{/**/"a":1}`, "", "not valid JSON"},
		"escape in a key":       {`{"a\q":1}`, "", "escape"},
		"too deep":              {`{"a":` + strings.Repeat("[", 600) + strings.Repeat("]", 600) + `}`, "", "512"},
		"model twice":           {`{"model":"a","model":"a"}`, "model", "more than once"},
		"model twice by escape": {`{"model":"a","\u006dodel":"b"}`, "model", "more than once"},
		"model twice, one null": {`{"model":null,"model":"b"}`, "model", "more than once"},
		"stream twice":          {`{"stream":true,"stream":true}`, "stream", "more than once"},
		"user twice":            {`{"user":"a","user":"b"}`, "user", "more than once"},
		"n twice":               {`{"n":1,"n":1}`, "n", "more than once"},
		"options twice":         {`{"stream_options":{},"stream_options":{}}`, "stream_options", "more than once"},
		"model a number":        {`{"model":1}`, "model", "string"},
		"model a bad escape":    {`{"model":"\q"}`, "model", "string"},
		"stream a string":       {`{"stream":"true"}`, "stream", "boolean"},
		"stream a number":       {`{"stream":1}`, "stream", "boolean"},
		"user an object":        {`{"user":{}}`, "user", "string"},
		"n a fraction":          {`{"n":1.5}`, "n", "integer"},
		"n a string":            {`{"n":"1"}`, "n", "integer"},
		"n true":                {`{"n":true}`, "n", "integer"},
		"options an array":      {`{"stream_options":[]}`, "stream_options", "object"},
		"options true":          {`{"stream_options":true}`, "stream_options", "object"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := wire.Scan([]byte(tc.body), wire.Chat)
			if err == nil {
				t.Fatal("accepted")
			}
			if err.Param != tc.param || !strings.Contains(err.Message, tc.says) {
				t.Errorf("param %q, message %q; want param %q and %q", err.Param, err.Message, tc.param, tc.says)
			}
		})
	}
}

func TestScanDepth(t *testing.T) {
	nest := func(n int) []byte {
		return []byte(`{"a":` + strings.Repeat("[", n) + strings.Repeat("]", n) + `}`)
	}
	if _, err := wire.Scan(nest(511), wire.Chat); err != nil {
		t.Errorf("512 levels: %v", err)
	}
	if _, err := wire.Scan(nest(512), wire.Chat); err == nil {
		t.Error("513 levels accepted")
	}
}

func TestHasAndDenied(t *testing.T) {
	many := `{`
	for i := range 600 {
		many += fmt.Sprintf(`"k%d":%d,`, i, i)
	}
	for name, tc := range map[string]struct {
		body string
		deny []string
		want string
		ok   bool
	}{
		"none":           {`{"model":"m"}`, wire.DenyDefaults(wire.VLLM), "", false},
		"plain":          {`{"model":"m","priority":1}`, wire.DenyDefaults(wire.VLLM), "priority", true},
		"null too":       {`{"priority":null}`, wire.DenyDefaults(wire.SGLang), "priority", true},
		"escaped":        {`{"pri\u006Frity":1}`, wire.DenyDefaults(wire.VLLM), "priority", true},
		"nested":         {`{"extra_body":{"priority":1}}`, wire.DenyDefaults(wire.VLLM), "", false},
		"case":           {`{"Priority":1}`, wire.DenyDefaults(wire.VLLM), "", false},
		"llama":          {`{"id_slot":1}`, wire.DenyDefaults(wire.LlamaCPP), "id_slot", true},
		"openai":         {`{"priority":1}`, wire.DenyDefaults(wire.OpenAI), "", false},
		"far behind":     {many + `"rid":"x"}`, wire.DenyDefaults(wire.SGLang), "rid", true},
		"not among many": {many + `"z":"x"}`, wire.DenyDefaults(wire.SGLang), "", false},
	} {
		t.Run(name, func(t *testing.T) {
			body := []byte(tc.body)
			h, err := wire.Scan(body, wire.Chat)
			if err != nil {
				t.Fatal(err)
			}
			if got, ok := h.Denied(body, tc.deny); got != tc.want || ok != tc.ok {
				t.Errorf("Denied = %q, %v; want %q, %v", got, ok, tc.want, tc.ok)
			}
			if tc.ok && !h.Has(body, tc.want) {
				t.Errorf("Has(%q) = false", tc.want)
			}
		})
	}
}

func TestConversation(t *testing.T) {
	id := func(t *testing.T, api wire.API, body string) string {
		t.Helper()
		h, err := wire.Scan([]byte(body), api)
		if err != nil {
			t.Fatal(err)
		}
		sum, ok := h.Conversation([]byte(body))
		if !ok {
			return ""
		}
		return fmt.Sprintf("%x", sum)
	}
	chat := func(msgs string) string { return `{"model":"m","messages":[` + msgs + `]}` }
	const sys, dev, u1 = `{"role":"system","content":"S"}`, `{"role":"developer","content":"D"}`, `{"role":"user","content":"hi"}`
	first := id(t, wire.Chat, chat(sys+","+u1))
	for name, tc := range map[string]struct {
		api  wire.API
		body string
		same bool
	}{
		"next turn":            {wire.Chat, chat(sys + "," + u1 + `,{"role":"assistant","content":"x"},{"role":"user","content":"more"}`), true},
		"other parameters":     {wire.Chat, `{"temperature":1,"messages":[` + sys + `, ` + u1 + `],"model":"other"}`, true},
		"members in any order": {wire.Chat, chat(`{"content":"S","role":"system"},{"name":"x","content":"hi","role":"user"}`), true},
		"later system text":    {wire.Chat, chat(sys + "," + u1 + "," + dev), true},
		"other system":         {wire.Chat, chat(dev + "," + u1), false},
		"no system":            {wire.Chat, chat(u1), false},
		"other user":           {wire.Chat, chat(sys + `,{"role":"user","content":"ho"}`), false},
		"parts":                {wire.Chat, chat(sys + `,{"role":"user","content":[{"type":"text","text":"hi"}]}`), true},
		"system in parts":      {wire.Chat, chat(`{"role":"system","content":[{"type":"text","text":"S"}]},` + u1), true},
		"a part marked":        {wire.Chat, chat(sys + `,{"role":"user","content":[ {"text" : "hi", "cache_control":{"type":"ephemeral"}, "type":"text"} ]}`), true},
		"escaped":              {wire.Chat, chat(sys + `,{"role":"user","content":"\u0068i"}`), true},
		"two parts":            {wire.Chat, chat(sys + `,{"role":"user","content":[{"type":"text","text":"h"},{"type":"text","text":"i"}]}`), false},
		"with an image":        {wire.Chat, chat(sys + `,{"role":"user","content":[{"type":"text","text":"hi"},{"type":"image_url","image_url":{"url":"data:1"}}]}`), false},
		"not text":             {wire.Chat, chat(sys + `,{"role":"user","content":[{"type":"x","text":"hi"}]}`), false},
		"bad escape":           {wire.Chat, chat(sys + `,{"role":"user","content":"\q"}`), false},
		"text moved":           {wire.Chat, chat(`{"role":"system","content":""},{"role":"user","content":"Shi"}`), false},
	} {
		t.Run(name, func(t *testing.T) {
			got := id(t, tc.api, tc.body)
			if got == "" || (got == first) != tc.same {
				t.Errorf("id %s, first %s, want same = %v", got, first, tc.same)
			}
		})
	}
	text, items := id(t, wire.Responses, `{"input":"p","instructions":"i"}`), id(t, wire.Responses,
		`{"instructions":"i","input":[{"role":"user","content":[{"type":"input_text","text":"p"}]},{"role":"assistant","content":"x"}]}`)
	if text != items {
		t.Errorf("input as text %s, as items %s", text, items)
	}
	for name, tc := range map[string]struct {
		api  wire.API
		body string
		ok   bool
	}{
		"no messages":         {wire.Chat, `{"model":"m"}`, false},
		"only system":         {wire.Chat, chat(sys), false},
		"messages no array":   {wire.Chat, `{"messages":{"role":"user"}}`, false},
		"user without text":   {wire.Chat, chat(`{"role":"user"},{"role":"user","content":null}`), false},
		"prompt":              {wire.Completions, `{"prompt":"p"}`, true},
		"prompt null":         {wire.Completions, `{"prompt":null}`, false},
		"input text":          {wire.Responses, `{"input":"p","instructions":"i"}`, true},
		"input items":         {wire.Responses, `{"input":[{"role":"user","content":"p"}]}`, true},
		"input of tools only": {wire.Responses, `{"input":[{"type":"function_call_output","output":"p"}]}`, false},
		"embeddings":          {wire.Embeddings, `{"input":"p"}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := id(t, tc.api, tc.body); (got != "") != tc.ok {
				t.Errorf("id = %q, want ok = %v", got, tc.ok)
			}
		})
	}
}
