package wire_test

import (
	"bytes"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"sluice/upstream/wire"
)

// prompt is a chat request of about n bytes whose text has quotes and newlines.
func prompt(n int) []byte {
	text := strings.Repeat(`He said \"no\" and left.\nThen nothing happened for a while, as is usual. `, n/70+1)
	return fmt.Appendf(nil, `{"model":"chat","messages":[{"role":"system","content":"You are brief."},{"role":"user","content":"%s"}],`+
		`"temperature":0.7,"max_tokens":256,"user":"u-1","stream":true}`, text[:max(0, n-180)/70*70])
}

var sizes = []struct {
	name string
	n    int
}{{"1KB", 1 << 10}, {"32KB", 32 << 10}, {"1MB", 1 << 20}}

func BenchmarkScan(b *testing.B) {
	for _, size := range sizes {
		b.Run(size.name, func(b *testing.B) {
			body := prompt(size.n)
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			cpu := cpuTime(b)
			for b.Loop() {
				if _, err := wire.Scan(body, wire.Chat); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(cpuTime(b)-cpu)/float64(b.N), "cpu-ns/op")
		})
	}
}

func BenchmarkSplice(b *testing.B) {
	for _, size := range sizes {
		b.Run(size.name, func(b *testing.B) {
			body := prompt(size.n)
			h, err := wire.Scan(body, wire.Chat)
			if err != nil {
				b.Fatal(err)
			}
			dst := make([]byte, 0, len(body)+256)
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			cpu := cpuTime(b)
			for b.Loop() {
				dst = h.Splice(dst[:0], body, wire.Edit{Model: "Qwen3-8B", IncludeUsage: true})
			}
			b.ReportMetric(float64(cpuTime(b)-cpu)/float64(b.N), "cpu-ns/op")
		})
	}
}

func BenchmarkConversation(b *testing.B) {
	body := prompt(1 << 10)
	h, err := wire.Scan(body, wire.Chat)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		h.Conversation(body)
	}
}

// chunk230 is an ordinary event of 230 bytes, as vLLM sends it.
const chunk230 = `data: {"id":"chatcmpl-5f2d0c7e9a1b4c3d","object":"chat.completion.chunk","created":1700000000,"model":"Qwen3-8B",` +
	`"choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null,"token_ids":null}]}` + "\n\n"

// BenchmarkStreamFeed reports the cost of one event, in reads of 1 and 16.
func BenchmarkStreamFeed(b *testing.B) {
	for _, bc := range []struct {
		name  string
		batch int
		o     wire.StreamOptions
		event string
	}{
		{"pass/1", 1, wire.StreamOptions{}, chunk230},
		{"pass/16", 16, wire.StreamOptions{}, chunk230},
		{"strip/1", 1, wire.StreamOptions{StripUsage: true, Dialect: wire.VLLM}, chunk230},
		{"strip-null/16", 16, wire.StreamOptions{StripUsage: true}, strings.Replace(chunk230, "}]}", `}],"usage":null}`, 1)},
		{"echo/16", 16, wire.StreamOptions{EchoModel: "chat"}, chunk230},
	} {
		b.Run(bc.name, func(b *testing.B) {
			read := bytes.Repeat([]byte(bc.event), bc.batch)
			s := wire.NewStream(bc.o)
			b.SetBytes(int64(len(bc.event)))
			b.ReportAllocs()
			cpu := cpuTime(b)
			for i := 0; b.Loop(); i++ {
				if i%bc.batch == 0 {
					s.Feed(read)
				}
			}
			b.ReportMetric(float64(cpuTime(b)-cpu)/float64(b.N), "cpu-ns/op")
		})
	}
}

// cpuTime is the user time of the process in ns: on a shared machine it says
// more than the clock.
func cpuTime(b *testing.B) int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u.Utime.Nano()
}

// BenchmarkStreamFeedCut: every event comes in two reads.
func BenchmarkStreamFeedCut(b *testing.B) {
	s := wire.NewStream(wire.StreamOptions{})
	ev := []byte(chunk230)
	b.ReportAllocs()
	for b.Loop() {
		s.Feed(ev[:100])
		s.Feed(ev[100:])
	}
}

func BenchmarkTail(b *testing.B) {
	body := []byte(`{"object":"list","data":[` + strings.Repeat(`{"embedding":[0.0123,-0.4567,0.891],"index":0},`, 20000) + `{}],"usage":{"prompt_tokens":1}}`)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	cpu := cpuTime(b)
	for b.Loop() {
		var t wire.Tail
		t.Feed(body)
	}
	b.ReportMetric(float64(cpuTime(b)-cpu)/float64(b.N), "cpu-ns/op")
}
