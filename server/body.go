package server

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"sluice/upstream"
)

// checkHeaders refuses what the body's headers already show to be unreadable.
func checkHeaders(r *http.Request) *upstream.Failure {
	if enc := r.Header.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		return failure(http.StatusUnsupportedMediaType, "unsupported_media_type",
			"content-encoding "+cut(enc, 40)+" is not supported on requests; send the JSON body uncompressed.")
	}
	if ct := r.Header.Get("Content-Type"); strings.HasPrefix(strings.ToLower(ct), "multipart/") {
		return failure(http.StatusUnsupportedMediaType, "unsupported_media_type",
			"content-type "+cut(ct, 40)+" is not supported; send application/json.")
	}
	return nil
}

// readBody reads the request whole, within the limit of one request and the
// budget of all. release gives the budget back and must be called once the body
// is no longer needed; it is never nil.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request) (body []byte, release func(), f *upstream.Failure, err error) {
	limit := s.cfg.MaxBody
	release = func() {}
	if r.ContentLength > limit {
		return nil, release, tooLarge(limit), nil
	}
	// What is reserved grows with what is read, so that a client that announces
	// much and sends nothing holds nothing.
	var held int64
	reserve := func(n int64) bool {
		held += n
		return s.buffered.Add(n) <= s.cfg.MaxBuffered
	}
	release = func() { s.buffered.Add(-held); held = 0 }

	// The deadline is BoundBody's at first. It ends with the body only: what is
	// left of one that is given up must not be waited for.
	rc := http.NewResponseController(w)
	size := int64(4096)
	if r.ContentLength >= 0 {
		size = min(r.ContentLength+1, 1<<20)
	}
	if !reserve(size) {
		return nil, release, s.full(), nil
	}
	body = make([]byte, 0, size)
	last := time.Now()
	for {
		if len(body) == cap(body) {
			grown := min(int64(cap(body))*2, limit+1)
			if r.ContentLength >= 0 {
				grown = min(grown, r.ContentLength+1)
			}
			if grown <= int64(cap(body)) {
				return nil, release, tooLarge(limit), nil
			}
			if !reserve(grown - int64(cap(body))) {
				return nil, release, s.full(), nil
			}
			body = append(make([]byte, 0, grown), body...)
		}
		n, err := r.Body.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		if int64(len(body)) > limit {
			return nil, release, tooLarge(limit), nil
		}
		switch {
		case err == io.EOF:
			rc.SetReadDeadline(time.Time{})
			return body, release, nil, nil
		case err != nil:
			return nil, release, bodyFailure(err), err
		}
		if now := time.Now(); n > 0 && now.Sub(last) > s.cfg.ReadTimeout/8 {
			last = now
			rc.SetReadDeadline(now.Add(s.cfg.ReadTimeout))
		}
	}
}

func tooLarge(limit int64) *upstream.Failure {
	return failure(http.StatusRequestEntityTooLarge, "request_too_large",
		"The request body is larger than this gateway's limit of "+byteSize(limit)+".")
}

func (s *Server) full() *upstream.Failure {
	f := failure(http.StatusServiceUnavailable, "queue_full", "The gateway holds as many request bytes as it may; try again in a second.")
	f.RetryAfter = "1"
	return f
}

// bodyFailure tells a slow sender from a broken one; nil means the client is gone.
func bodyFailure(err error) *upstream.Failure {
	var ne net.Error
	if errors.Is(err, os.ErrDeadlineExceeded) || (errors.As(err, &ne) && ne.Timeout()) {
		return failure(http.StatusBadRequest, "invalid_request", "The request body did not arrive in time.")
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) {
		return nil
	}
	var op *net.OpError
	if errors.As(err, &op) {
		return nil
	}
	return failure(http.StatusBadRequest, "invalid_request", "The request body could not be read: its HTTP framing is broken.")
}

func byteSize(n int64) string {
	const mib = 1 << 20
	if n >= mib && n%mib == 0 {
		return strconv.FormatInt(n/mib, 10) + " MiB"
	}
	return strconv.FormatInt(n, 10) + " bytes"
}
