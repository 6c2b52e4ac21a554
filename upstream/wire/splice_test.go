package wire_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/upstream/wire"
)

func field(name, value string) wire.Field { return wire.Field{Name: name, Value: []byte(value)} }

func TestSplice(t *testing.T) {
	usage := wire.Edit{IncludeUsage: true}
	both := wire.Edit{IncludeUsage: true, ContinuousUsage: true}
	patch := func(p wire.Patch) wire.Edit { return wire.Edit{Patch: &p} }
	prompt := patch(wire.Patch{SystemPrepend: "P\"", SystemAppend: "A"})
	for name, tc := range map[string]struct {
		api        wire.API
		e          wire.Edit
		body, want string
	}{
		"nothing":            {0, wire.Edit{}, ` {"model" : "m", "x":[1, 2 ]} `, ` {"model" : "m", "x":[1, 2 ]} `},
		"model":              {0, wire.Edit{Model: "a<b>&\"c\u00e9"}, `{"x":"model","model": "m" ,"y":1}`, `{"x":"model","model": "a<b>&\"cé" ,"y":1}`},
		"model was null":     {0, wire.Edit{Model: "a"}, `{"model":null}`, `{"model":"a"}`},
		"model was absent":   {0, wire.Edit{Model: "a"}, `{"x":1}`, `{"x":1,"model":"a"}`},
		"model, empty body":  {0, wire.Edit{Model: "a"}, `{}`, `{"model":"a"}`},
		"options created":    {0, usage, `{"stream":true}`, `{"stream":true,"stream_options":{"include_usage":true}}`},
		"options for null":   {0, usage, `{"stream_options":null,"stream":true}`, `{"stream_options":{"include_usage":true},"stream":true}`},
		"options empty":      {0, usage, `{"stream":true,"stream_options":{ }}`, `{"stream":true,"stream_options":{ "include_usage":true}}`},
		"options kept":       {0, usage, `{"stream":true,"stream_options":{"x": 1}}`, `{"stream":true,"stream_options":{"x": 1,"include_usage":true}}`},
		"options false":      {0, usage, `{"stream":true,"stream_options":{"include_usage": false,"x":2}}`, `{"stream":true,"stream_options":{"include_usage": true,"x":2}}`},
		"options null":       {0, usage, `{"stream":true,"stream_options":{"include_usage":null}}`, `{"stream":true,"stream_options":{"include_usage":true}}`},
		"options already":    {0, usage, `{"stream":true,"stream_options":{"include_usage":true}}`, `{"stream":true,"stream_options":{"include_usage":true}}`},
		"options odd":        {0, usage, `{"stream":true,"stream_options":{"include_usage":"yes"}}`, `{"stream":true,"stream_options":{"include_usage":"yes"}}`},
		"options escaped":    {0, usage, `{"stream":true,"stream_options":{"include\u005fusage":false}}`, `{"stream":true,"stream_options":{"include\u005fusage":true}}`},
		"no stream":          {0, both, `{"stream":false}`, `{"stream":false}`},
		"responses":          {wire.Responses, both, `{"stream":true}`, `{"stream":true}`},
		"completions":        {wire.Completions, usage, `{"stream":true}`, `{"stream":true,"stream_options":{"include_usage":true}}`},
		"continuous created": {0, both, `{"stream":true}`, `{"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`},
		"continuous only":    {0, wire.Edit{ContinuousUsage: true}, `{"stream":true}`, `{"stream":true,"stream_options":{"continuous_usage_stats":true}}`},
		"continuous merged":  {0, both, `{"stream":true,"stream_options":{"continuous_usage_stats":false}}`, `{"stream":true,"stream_options":{"continuous_usage_stats":true,"include_usage":true}}`},

		"force absent":        {0, patch(wire.Patch{Force: []wire.Field{field("top_k", "5")}}), `{"a":1}`, `{"a":1,"top_k":5}`},
		"force present":       {0, patch(wire.Patch{Force: []wire.Field{field("a", "[2]")}}), `{ "a" : 1 , "b":2}`, `{ "a" : [2] , "b":2}`},
		"force several":       {0, patch(wire.Patch{Force: []wire.Field{field("a", "9")}}), `{"a":1,"b":2,"\u0061":3,"a":4}`, `{"a":9,"b":2}`},
		"force ours":          {0, patch(wire.Patch{Force: []wire.Field{field("model", `"x"`), field("stream", "true")}}), `{"model":"m"}`, `{"model":"m"}`},
		"default absent":      {0, patch(wire.Patch{Default: []wire.Field{field("a", "9")}}), `{}`, `{"a":9}`},
		"default null":        {0, patch(wire.Patch{Default: []wire.Field{field("a", "9")}}), `{"a":null}`, `{"a":9}`},
		"default zero":        {0, patch(wire.Patch{Default: []wire.Field{field("a", "9")}}), `{"a":0}`, `{"a":0}`},
		"default last null":   {0, patch(wire.Patch{Default: []wire.Field{field("a", "9")}}), `{"a":1,"a":null}`, `{"a":1,"a":9}`},
		"default last set":    {0, patch(wire.Patch{Default: []wire.Field{field("a", "9")}}), `{"a":null,"a":1}`, `{"a":null,"a":1}`},
		"remove only":         {0, patch(wire.Patch{Remove: []string{"a"}}), `{ "a":1 }`, `{  }`},
		"remove first":        {0, patch(wire.Patch{Remove: []string{"a"}}), `{ "a":1 , "b":2}`, `{ "b":2}`},
		"remove last":         {0, patch(wire.Patch{Remove: []string{"b"}}), `{"a":1 , "b":2 }`, `{"a":1 }`},
		"remove middle":       {0, patch(wire.Patch{Remove: []string{"b"}}), `{"a":1, "b":2, "c":3}`, `{"a":1, "c":3}`},
		"remove all of it":    {0, patch(wire.Patch{Remove: []string{"a"}}), `{"a":1,"b":2,"\u0061":3,"a":4}`, `{"b":2}`},
		"remove runs":         {0, patch(wire.Patch{Remove: []string{"a", "b", "d"}}), `{"a":1,"b":2,"c":3,"d":4}`, `{"c":3}`},
		"remove and add":      {0, patch(wire.Patch{Remove: []string{"a"}, Default: []wire.Field{field("b", "1")}}), `{"a":1}`, `{"b":1}`},
		"remove with default": {0, patch(wire.Patch{Remove: []string{"a"}, Default: []wire.Field{field("a", "9")}}), `{"a":1,"b":2}`, `{"b":2,"a":9}`},
		"remove, then usage":  {0, wire.Edit{IncludeUsage: true, Patch: &wire.Patch{Remove: []string{"x"}}}, `{"stream":true,"x":1}`, `{"stream":true,"stream_options":{"include_usage":true}}`},
		"all together": {0, wire.Edit{Model: "z", IncludeUsage: true, Patch: &wire.Patch{Force: []wire.Field{field("t", "1")}, Remove: []string{"a"}}},
			`{"a":1,"model":"m","stream":true,"t":0.5}`, `{"model":"z","stream":true,"t":1,"stream_options":{"include_usage":true}}`},

		"prompt into text":        {0, prompt, `{"messages":[{"role":"user","content":"u"},{"role":"system","content":"S\n"}]}`, `{"messages":[{"role":"user","content":"u"},{"role":"system","content":"P\"\n\nS\n\n\nA"}]}`},
		"prompt into developer":   {0, prompt, `{"messages":[{"content":"S","role":"developer"}]}`, `{"messages":[{"content":"P\"\n\nS\n\nA","role":"developer"}]}`},
		"prompt into empty":       {0, prompt, `{"messages":[{"role":"system","content":""}]}`, `{"messages":[{"role":"system","content":"P\"\n\nA"}]}`},
		"prompt into null":        {0, prompt, `{"messages":[{"role":"system","content":null}]}`, `{"messages":[{"role":"system","content":"P\"\n\nA"}]}`},
		"prompt, no content":      {0, prompt, `{"messages":[{"role":"system"}]}`, `{"messages":[{"content":"P\"\n\nA","role":"system"}]}`},
		"prompt into parts":       {0, prompt, `{"messages":[{"role":"system","content":[{"type":"text","text":"S"}]}]}`, `{"messages":[{"role":"system","content":[{"type":"text","text":"P\""},{"type":"text","text":"S"},{"type":"text","text":"A"}]}]}`},
		"prompt into no parts":    {0, prompt, `{"messages":[{"role":"system","content":[]}]}`, `{"messages":[{"role":"system","content":[{"type":"text","text":"P\""},{"type":"text","text":"A"}]}]}`},
		"prompt into odd":         {0, prompt, `{"messages":[{"role":"system","content":7}]}`, `{"messages":[{"role":"system","content":7}]}`},
		"prompt alone":            {0, prompt, `{"messages":[ {"role":"user","content":"u"}]}`, `{"messages":[{"role":"system","content":"P\"\n\nA"}, {"role":"user","content":"u"}]}`},
		"prompt, no messages":     {0, prompt, `{"messages":[]}`, `{"messages":[{"role":"system","content":"P\"\n\nA"}]}`},
		"prompt, nothing":         {0, prompt, `{"x":1}`, `{"x":1}`},
		"prompt, completions":     {wire.Completions, prompt, `{"prompt":"x"}`, `{"prompt":"x"}`},
		"prompt, responses":       {wire.Responses, prompt, `{"input":"x"}`, `{"input":"x","instructions":"P\"\n\nA"}`},
		"prompt, instructions":    {wire.Responses, prompt, `{"instructions":"I","input":"x"}`, `{"instructions":"P\"\n\nI\n\nA","input":"x"}`},
		"prompt append only":      {0, patch(wire.Patch{SystemAppend: "A"}), `{"messages":[{"role":"system","content":"S"}]}`, `{"messages":[{"role":"system","content":"S\n\nA"}]}`},
		"prompt, messages forced": {0, patch(wire.Patch{SystemAppend: "A", Force: []wire.Field{field("messages", "[]")}}), `{"messages":[{"role":"system","content":"S"}]}`, `{"messages":[]}`},
	} {
		t.Run(name, func(t *testing.T) {
			body := []byte(tc.body)
			h, err := wire.Scan(body, tc.api)
			if err != nil {
				t.Fatal(err)
			}
			got := string(h.Splice([]byte("dst:"), body, tc.e))
			if diff := cmp.Diff("dst:"+tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if string(body) != tc.body {
				t.Error("the body was changed")
			}
			if _, err := wire.Scan([]byte(got[4:]), tc.api); err != nil {
				t.Errorf("the result does not scan: %v", err)
			}
		})
	}
}

// TestSpliceMany: members beyond those the Head remembers are edited too.
func TestSpliceMany(t *testing.T) {
	body := []byte(`{"model":"m"` + strings.Repeat(`,"x":1,"y":2`, 500) + `}`)
	h, err := wire.Scan(body, wire.Chat)
	if err != nil {
		t.Fatal(err)
	}
	got := string(h.Splice(nil, body, wire.Edit{Patch: &wire.Patch{Remove: []string{"x"}, Force: []wire.Field{field("y", "3")}}}))
	if want := `{"model":"m","y":3}`; got != want {
		t.Errorf("got %.100s, want %s", got, want)
	}
}

func TestSpliceDoesNotAllocate(t *testing.T) {
	body := prompt(4 << 10)
	h, err := wire.Scan(body, wire.Chat)
	if err != nil {
		t.Fatal(err)
	}
	dst := make([]byte, 0, len(body)+256)
	if n := testing.AllocsPerRun(100, func() { dst = h.Splice(dst[:0], body, wire.Edit{Model: "x", IncludeUsage: true}) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestReplaceModel(t *testing.T) {
	for name, tc := range map[string]struct{ body, want string }{
		"top":       {`{"id":1, "model" :"m","choices":[{"model":"in"}]}`, `{"id":1, "model" :"new","choices":[{"model":"in"}]}`},
		"response":  {`{"type":"x","response":{"model":"m","x":{"model":"in"}}}`, `{"type":"x","response":{"model":"new","x":{"model":"in"}}}`},
		"absent":    {`{"id":1}`, `{"id":1}`},
		"null":      {`{"model":null}`, `{"model":null}`},
		"no object": {`[1]`, `[1]`},
		"cut":       {`{"model":"m`, `{"model":"m`},
	} {
		t.Run(name, func(t *testing.T) {
			if got := string(wire.ReplaceModel(nil, []byte(tc.body), "new")); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}
