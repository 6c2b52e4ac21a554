package server

import (
	"net/http"
	"time"
)

// BoundBody wraps the handler of a whole listener, so that no client can hold a
// connection by not sending the rest of a body: it has d to come. What no
// handler has read net/http reads itself, before and after it answers, and
// without a deadline it waits for ever. Hence a handler that has read the body
// lifts the deadline, and one that has given up leaves it.
func BoundBody(h http.Handler, d time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			http.NewResponseController(w).SetReadDeadline(time.Now().Add(d))
		}
		h.ServeHTTP(w, r)
	})
}

// boundWrite gives what is written next to w a deadline. Answers that are not
// relayed need one too: a client that reads nothing would hold them for ever.
// net/http may wait for the rest of the body before it writes.
func (s *Server) boundWrite(w http.ResponseWriter) {
	http.NewResponseController(w).SetWriteDeadline(time.Now().Add(s.cfg.ReadTimeout + s.cfg.WriteTimeout))
}
