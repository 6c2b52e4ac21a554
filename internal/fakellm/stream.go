package fakellm

import (
	"fmt"
	"io"
)

// send writes one event and flushes; false when the client is gone.
func (a *answer) send(data string) bool {
	if _, err := io.WriteString(a.w, "data: "+data+"\n\n"); err != nil {
		return false
	}
	if a.fl != nil {
		a.fl.Flush()
	}
	return a.r.Context().Err() == nil
}

func (a *answer) asked() (usage, continuous bool) {
	if a.req.Options == nil {
		return false, false
	}
	d := a.s.opt.Dialect
	return a.req.Options.IncludeUsage, a.req.Options.Continuous && (d == "vllm" || d == "sglang")
}

// each reports whether ordinary chunks carry usage.
func (a *answer) each() bool {
	usage, continuous := a.asked()
	return continuous && (usage || a.s.opt.Dialect == "sglang")
}

// rest are the members after choices in an ordinary chunk.
func (a *answer) rest(out int) string {
	usage, _ := a.asked()
	switch {
	case a.each():
		return `,"usage":` + a.usage(out)
	case a.s.opt.Dialect == "tgi", a.s.opt.Dialect == "openai" && usage:
		return `,"usage":null`
	}
	return ""
}

func (a *answer) stream() {
	h := a.w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	s := a.s
	switch a.b.Fault {
	case Empty:
		s.failed.Add(1)
		a.w.WriteHeader(200)
		return
	case DoneOnly:
		s.failed.Add(1)
		a.send("[DONE]")
		return
	case Garbage:
		s.failed.Add(1)
		a.send(`{"choices":[{"index":0,"delta":{"content":"x`)
		return
	}
	if a.api == "responses" {
		a.streamResponses()
		return
	}
	s.in.Add(int64(a.in))
	if a.api == "chat" && s.opt.Dialect != "tgi" && !(a.b.Fault == ErrorEvent && a.b.After == 0) {
		for i := range a.req.N {
			if !a.send(a.chunk(fmt.Sprintf(`{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}`, i), a.rest(0))) {
				s.abort()
				return
			}
			if a.each() {
				a.told(0)
			}
		}
	}
	parts := a.words
	if a.b.Tool && a.api == "chat" {
		parts = append([]string{""}, pieces(a.arguments(), len(a.words)-1)...)
	}
	for i, text := range parts {
		if a.b.Fault != NoFault && i == a.b.After && a.faultHere() {
			return
		}
		if i > 0 && !wait(a.r.Context(), a.b.Gap) {
			s.abort()
			return
		}
		for c := range a.req.N {
			s.out.Add(1)
			choice := a.delta(c, text)
			if a.b.Tool && a.api == "chat" {
				choice = a.toolDelta(c, i, text)
			}
			if !a.send(a.chunk(choice, a.rest(i+1))) {
				s.abort()
				return
			}
			if a.each() {
				a.told(i + 1)
			}
		}
	}
	a.end()
}

// faultHere does the fault that the behaviour has planned for this event.
func (a *answer) faultHere() bool {
	s := a.s
	switch a.b.Fault {
	case Truncate, Reset:
		s.failed.Add(1)
		a.cut(a.b.Fault == Reset)
	case Hang:
		<-a.r.Context().Done()
		s.abort()
	case ErrorEvent:
		s.failed.Add(1)
		event, done := a.errorEvent()
		if a.send(event) && done {
			a.send("[DONE]")
		}
	default:
		return false
	}
	return true
}

func (a *answer) end() {
	s := a.s
	for i := range a.req.N {
		if !a.send(a.chunk(a.finish(i), a.rest(len(a.words)))) {
			s.abort()
			return
		}
	}
	usage, _ := a.asked()
	if usage {
		if !a.send(a.chunk("", `,"usage":`+a.usage(len(a.words)))) {
			s.abort()
			return
		}
		a.told(len(a.words))
	}
	if a.b.Fault != NoDone {
		a.send("[DONE]")
	}
	s.completed.Add(1)
}

func (a *answer) streamResponses() {
	s := a.s
	s.in.Add(int64(a.in))
	ev := func(typ, rest string) bool {
		if _, err := fmt.Fprintf(a.w, "event: %s\n", typ); err != nil {
			return false
		}
		return a.send(fmt.Sprintf(`{"type":%q%s}`, typ, rest))
	}
	ok := ev("response.created", fmt.Sprintf(`,"response":{"id":"resp_fake","object":"response","status":"in_progress","model":%s,"output":[],"usage":null}`, quote(a.req.Model)))
	for i, text := range a.words {
		if a.b.Fault != NoFault && i == a.b.After && a.faultHere() {
			return
		}
		if !ok || (i > 0 && !wait(a.r.Context(), a.b.Gap)) {
			s.abort()
			return
		}
		s.out.Add(1)
		ok = ev("response.output_text.delta", fmt.Sprintf(`,"item_id":"msg_1","output_index":0,"content_index":0,"delta":%s`, quote(text)))
	}
	if !ok || !ev("response.completed", `,"response":`+a.response()) {
		s.abort()
		return
	}
	a.told(len(a.words))
	s.completed.Add(1)
}

func (a *answer) unary() {
	s := a.s
	a.w.Header().Set("Content-Type", "application/json")
	switch a.b.Fault {
	case Empty, DoneOnly:
		s.failed.Add(1)
		a.w.WriteHeader(200)
		return
	case Garbage:
		s.failed.Add(1)
		io.WriteString(a.w, "<html>not json")
		return
	case ErrorEvent:
		s.failed.Add(1)
		event, _ := a.errorEvent()
		io.WriteString(a.w, event)
		return
	}
	s.in.Add(int64(a.in))
	body := ""
	switch a.api {
	case "embeddings":
		body = a.embeddings()
	case "responses":
		body = a.response()
	default:
		body = a.whole()
	}
	out := 0
	if a.api != "embeddings" {
		out = len(a.words)
		s.out.Add(int64(out * a.req.N))
	}
	if a.b.Fault == Truncate || a.b.Fault == Reset {
		s.failed.Add(1)
		a.w.Header().Set("Content-Length", fmt.Sprint(len(body)))
		io.WriteString(a.w, body[:len(body)/2])
		if a.fl != nil {
			a.fl.Flush()
		}
		a.cut(a.b.Fault == Reset)
		return
	}
	a.told(out)
	a.w.Header().Set("Content-Length", fmt.Sprint(len(body)))
	if _, err := io.WriteString(a.w, body); err != nil {
		s.abort()
		return
	}
	s.completed.Add(1)
}
