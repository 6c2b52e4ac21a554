package server

import (
	"net/http"
	"time"
)

// BoundBody wraps the handler of a whole listener, so that no client can hold a
// connection by not sending the rest of a body. d is how long the body may take
// unless the handler sets deadlines of its own, and how long what no handler
// has read may take to come after the answer: net/http reads that itself, before
// and after it answers, and without a deadline it waits for ever.
func BoundBody(h http.Handler, d time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength == 0 {
			h.ServeHTTP(w, r)
			return
		}
		rc := http.NewResponseController(w)
		rc.SetReadDeadline(time.Now().Add(d))
		h.ServeHTTP(w, r)
		rc.SetReadDeadline(time.Now().Add(d))
	})
}

// boundWrite gives what is written next to w a deadline. Answers that are not
// relayed need one too: a client that reads nothing would hold them for ever.
func (s *Server) boundWrite(w http.ResponseWriter) {
	http.NewResponseController(w).SetWriteDeadline(time.Now().Add(s.cfg.WriteTimeout))
}
