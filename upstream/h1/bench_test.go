package h1

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
)

// fastServer answers everything with raw and makes no garbage.
func fastServer(b *testing.B, raw string) *server {
	answer, end := []byte(raw), []byte("\r\n\r\n{}")
	return newRawServer(b, func(tn *turn) {
		buf := make([]byte, 4<<10)
		for {
			n, err := tn.Conn.Read(buf) // a request comes in one packet
			if err != nil {
				return
			}
			if string(buf[n-len(end):n]) != string(end) {
				b.Errorf("request %q", buf[:n])
			}
			if _, err := tn.Conn.Write(answer); err != nil {
				return
			}
		}
	})
}

var benchFields = []Field{{"Content-Type", "application/json"}, {"Accept", "*/*"}, {"User-Agent", "OpenAI/Python 1"}, {"X-Request-Id", "0123456789"}}

func BenchmarkDo(b *testing.B) {
	const head = "HTTP/1.1 200 OK\r\ndate: Sun, 30 Nov 2026 22:00:00 GMT\r\nserver: uvicorn\r\ncontent-type: application/json\r\n"
	event := "fb\r\n" + strings.Repeat("e", 0xfb) + "\r\n"
	for _, bb := range []struct{ name, raw string }{
		{"unary", head + "content-length: 1000\r\n\r\n" + strings.Repeat("a", 1000)},
		{"events", head + "transfer-encoding: chunked\r\n\r\n" + strings.Repeat(event, 100) + "0\r\n\r\n"},
	} {
		b.Run(bb.name+"/h1", func(b *testing.B) {
			s := fastServer(b, bb.raw)
			c := newClient(b)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			r := s.request()
			r.Fields = benchFields
			b.ReportAllocs()
			for b.Loop() {
				resp, err := c.Do(ctx, r)
				if err != nil {
					b.Fatal(err)
				}
				for err == nil {
					_, err = resp.Body.Next()
				}
				resp.Body.Close()
			}
		})
		b.Run(bb.name+"/Transport", func(b *testing.B) {
			s := fastServer(b, bb.raw)
			t := &http.Transport{DisableCompression: true}
			defer t.CloseIdleConnections()
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			h := http.Header{}
			for _, f := range benchFields {
				h[f.Name] = []string{f.Value}
			}
			u := s.request().URL.String()
			buf := make([]byte, 4<<10)
			b.ReportAllocs()
			for b.Loop() {
				req, _ := http.NewRequestWithContext(ctx, "POST", u, strings.NewReader("{}"))
				req.Header = h
				resp, err := t.RoundTrip(req)
				if err != nil {
					b.Fatal(err)
				}
				for err == nil {
					_, err = resp.Body.Read(buf)
				}
				if err != io.EOF {
					b.Fatal(err)
				}
				resp.Body.Close()
			}
		})
	}
}
