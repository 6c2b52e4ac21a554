package metrics_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"sluice/metrics"
)

func TestAccessLogLine(t *testing.T) {
	var out bytes.Buffer
	r := metrics.New(metrics.Options{AccessLog: &out, Log: quiet})
	full := event("e1", "canary")
	full.ClientRequestID = "a\"b\\c\n\x7f\u2028\xff<é>"
	full.Served = "control"
	full.Attempts = append(full.Attempts, metrics.Attempt{Variant: "control", HasUsage: true, Estimated: true, Input: 1, CostNano: 1e9, Priced: true})
	full.Asks, full.TTFA, full.TTFT = 1|1<<3, 130*time.Millisecond, 120*time.Millisecond
	full.Answer = metrics.Answer{Seen: true, Flaws: 1<<2 | 1<<4, Refusal: true, Chars: 77, Events: 24, Finish: [5]uint16{1, 2}, Gap: 1234567 * time.Nanosecond}
	bare := metrics.Event{Time: full.Time, RequestID: "r2", Model: "other", Bucket: -1, Outcome: "client_error", Status: 404}
	unpriced := event("", "")
	unpriced.Attempts[0].Priced = false
	shadow := event("e1", "canary")
	shadow.Role = metrics.RoleShadow
	stop := start(r)
	for _, ev := range []metrics.Event{full, bare, unpriced, shadow} {
		r.Record(ev)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	want := `{"ts":"2026-01-02T03:04:05.000006Z","request_id":"01890a5d-ac96-774b-bcce-b302099a8057","client_request_id":"a\"b\\c\u000a\u007f\u2028\ufffd<é>","model":"chat","experiment":"e1","assigned":"canary","served":"control","version":"8b-1","bucket":17,"reason":"bucket","revision":12,"upstream":"v1","endpoint":"http://127.0.0.1:9/v1","attempts":2,"outcome":"success","status":200,"stream":true,"ttft_ms":120.000,"duration_ms":1500.000,"input_tokens":101,"output_tokens":24,"cached_tokens":40,"cost_usd":1.000012345,"estimated":true,"asks":["stream","json"],"ttfa_ms":130.000,"gap_ms":1.234,"output_chars":77,"finish":["stop","length"],"flaws":["invalid_json","reasoning_leak"],"refusal":true}
{"ts":"2026-01-02T03:04:05.000006Z","request_id":"r2","client_request_id":null,"model":"other","experiment":"none","assigned":"default","served":"default","version":null,"bucket":null,"reason":null,"revision":0,"upstream":null,"endpoint":null,"attempts":0,"outcome":"client_error","status":404,"stream":false,"ttft_ms":null,"duration_ms":0.000,"input_tokens":null,"output_tokens":null,"cached_tokens":null,"cost_usd":null,"estimated":false,"asks":[],"ttfa_ms":null,"gap_ms":null,"output_chars":null,"finish":null,"flaws":null,"refusal":null}
{"ts":"2026-01-02T03:04:05.000006Z","request_id":"01890a5d-ac96-774b-bcce-b302099a8057","client_request_id":null,"model":"chat","experiment":"none","assigned":"default","served":"default","version":"8b-1","bucket":17,"reason":"bucket","revision":12,"upstream":"v1","endpoint":"http://127.0.0.1:9/v1","attempts":1,"outcome":"success","status":200,"stream":true,"ttft_ms":120.000,"duration_ms":1500.000,"input_tokens":100,"output_tokens":24,"cached_tokens":40,"cost_usd":null,"estimated":false,"asks":[],"ttfa_ms":null,"gap_ms":null,"output_chars":null,"finish":null,"flaws":null,"refusal":null}
`
	if d := cmp.Diff(want, out.String()); d != "" {
		t.Errorf("lines (-want +got):\n%s", d)
	}
}

func FuzzAccessLogLine(f *testing.F) {
	f.Add("id", "model", "exp", "bucket", int64(1), int64(2), int64(3), true)
	f.Add("\"\n\\", "\x00\xff", "\u2029\u0085", "", int64(-1), int64(-9e18), int64(9e18), false)
	f.Fuzz(func(t *testing.T, id, model, exp, reason string, tokens, dur, cost int64, priced bool) {
		var out bytes.Buffer
		r := metrics.New(metrics.Options{AccessLog: &out, Log: quiet})
		stop := start(r)
		r.Record(metrics.Event{
			Time: time.Unix(dur%1e9, 0), ClientRequestID: id, Model: model, Experiment: exp, Reason: reason, Bucket: int(tokens % 10000), Duration: time.Duration(dur), TTFT: time.Duration(dur), Stream: true,
			Asks: uint16(tokens), Answer: metrics.Answer{Seen: priced, Flaws: uint8(dur), Chars: cost, Gap: time.Duration(dur), Refusal: priced},
			Attempts: []metrics.Attempt{{HasUsage: true, Input: tokens, Cached: dur, Output: cost, CostNano: cost, Priced: priced}, {HasUsage: true, Input: tokens, CostNano: cost, Priced: priced}},
		})
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		line := out.String()
		if strings.Count(line, "\n") != 1 || !strings.HasSuffix(line, "\n") || !utf8.ValidString(line) {
			t.Fatalf("not one line of UTF-8: %q", line)
		}
		var got struct {
			ID    *string  `json:"client_request_id"`
			Model *string  `json:"model"`
			Input *int64   `json:"input_tokens"`
			Cost  *float64 `json:"cost_usd"`
		}
		dec := json.NewDecoder(strings.NewReader(line))
		dec.UseNumber()
		var all map[string]any
		if err := dec.Decode(&all); err != nil || len(all) != 31 {
			t.Fatalf("%d members, error %v: %s", len(all), err, line)
		}
		if err := json.Unmarshal([]byte(line), &got); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if id != "" && (got.ID == nil || *got.ID != strings.ToValidUTF8(id, "\ufffd") && utf8.ValidString(id)) {
			t.Fatalf("client_request_id came back as %v, want %q", got.ID, id)
		}
		if got.Input == nil || *got.Input < 0 || (got.Cost != nil) != priced {
			t.Fatalf("tokens or cost wrong: %s", line)
		}
	})
}
