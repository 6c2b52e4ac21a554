package upstream

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"sluice/upstream/h1"
	"sluice/upstream/wire"
)

// ErrShuttingDown is the cause to cancel Do's context with when the process
// ends; any other end of the context means that the client has gone.
var ErrShuttingDown = errors.New("shutting down")

// ErrVariantStopped is the cause to cancel Do's context with when what serves
// was taken out of service together with its streams.
var ErrVariantStopped = errors.New("the variant was taken out of service")

// errClientGone is the cause after a failed write to the client.
var errClientGone = errors.New("the client is gone")

// The error types of the envelope.
const (
	typeInvalidRequest = "invalid_request_error"
	typeRateLimit      = "rate_limit_error"
	typeUpstream       = "upstream_error"
	jsonType           = "application/json"
)

// Values of retry-after for our own 503s, in seconds.
const (
	retryNoEndpoint = "5"
	retryShutdown   = "1"
)

// madeFailure is a failure that the gateway found itself. The texts are fixed:
// what the network said is for the log.
func madeFailure(o Outcome) *Failure {
	f := &Failure{Status: http.StatusBadGateway, Code: string(o), Type: typeUpstream}
	switch o {
	case Unreachable:
		f.Message = "The model server could not be reached."
	case Timeout:
		f.Status = http.StatusGatewayTimeout
		f.Message = "The model server did not answer in time."
	case Truncated:
		f.Message = "The model server ended the answer before it was complete."
	case Invalid:
		f.Message = "The model server sent an answer that is not valid."
	case QueueFull:
		f.Status, f.Type = http.StatusTooManyRequests, typeRateLimit
		f.Message = "Too many requests wait for this model. Try again later."
	case NoEndpoint:
		f.Status, f.Code, f.RetryAfter = http.StatusServiceUnavailable, "no_ready_endpoint", retryNoEndpoint
		f.Message = "No server for this model is ready. Try again later."
	case ShuttingDown:
		f.Status, f.RetryAfter = http.StatusServiceUnavailable, retryShutdown
		f.Message = "The gateway is shutting down. Try again."
	default:
		f.Code = string(Error)
		f.Message = "The model server failed."
	}
	return f
}

// refused is a failed call that the upstream itself explained.
type refused struct {
	info   wire.ErrorInfo
	body   []byte // the upstream's own envelope when info.Nested, else nil
	header []h1.Field
}

// outcome maps an upstream's error to the closed set.
func (r *refused) outcome() Outcome {
	switch s := r.info.Status; {
	case s == 401, s == 403:
		return Error
	case r.info.ClientFault:
		return ClientError
	case s == 429:
		return UpRateLimited
	case s >= 500, r.info.ModelNotFound:
		return Error
	}
	return ClientError
}

// retryable tells whether another endpoint may answer what this one refused.
func (r *refused) retryable() bool {
	switch {
	case r.info.ClientFault:
		return false
	case r.info.ModelNotFound:
		return true // of the variant, not of the request: another server may have the model, or the fallback's
	}
	switch r.info.Status {
	case 401, 403, 429, 500, 502, 503, 504:
		return true
	}
	return false
}

// failure is what the client gets for it.
func (r *refused) failure(u *Upstream, now time.Time) *Failure {
	i := r.info
	if i.Status == 401 || i.Status == 403 {
		f := madeFailure(Error)
		f.Message = "The model server refused the gateway. This is a fault of its configuration, not of your request."
		return f
	}
	f := &Failure{Status: i.Status, Type: i.Type, Message: i.Message, Param: i.Param}
	f.Header = u.responseHeader(r.header)
	f.RetryAfter, f.RetryMS = f.Header.Get(hdrRetryAfter), f.Header.Get(hdrRetryMS)
	for _, k := range []string{hdrContentType, hdrEncoding, hdrRetryAfter, hdrRetryMS} {
		delete(f.Header, k)
	}
	if i.Status == http.StatusServiceUnavailable && f.RetryAfter == "" && f.RetryMS == "" {
		f.RetryAfter = retryNoEndpoint
	}
	f.ContentType = jsonType
	switch {
	case i.Nested && r.body != nil:
		f.Body = r.body
	case i.Status == http.StatusTooManyRequests && !i.ClientFault:
		f.Code, f.Type = string(UpRateLimited), typeRateLimit
	case i.Status >= 500 && !i.ClientFault:
		f.Code, f.Type = string(Error), typeUpstream
	default:
		// The upstream's refusal of this request, in an envelope that it lacked.
		if f.Type == "" {
			f.Type = typeInvalidRequest
		}
		f.Body = wire.AppendEnvelope(nil, i.Message, f.Type, i.Param, i.Code)
	}
	return f
}

// maxErrorBody bounds what is read of an error answer.
const maxErrorBody = 1 << 20

// decodeError undoes gzip, bounded; any other encoding cannot be read.
func decodeError(encoding string, body []byte) []byte {
	switch strings.ToLower(strings.TrimSpace(encoding)) {
	case "", "identity":
		return body
	case "gzip", "x-gzip":
		zr, err := gzip.NewReader(bytes.NewReader(body))
		if err != nil {
			return nil
		}
		out, _ := io.ReadAll(io.LimitReader(zr, maxErrorBody)) // what could be read is enough for a message
		return out
	}
	return nil
}

// mentions tells whether a refusal is about stream_options, and whether only
// its continuous_usage_stats is unknown there.
func mentions(status int, body []byte) (usage, continuous bool) {
	if status != 400 && status != 422 {
		return false, false
	}
	if bytes.Contains(body, []byte("continuous_usage_stats")) {
		return false, true
	}
	return bytes.Contains(body, []byte("stream_options")) || bytes.Contains(body, []byte("include_usage")), false
}

// transportOutcome classifies an error of the connection when neither our
// time-outs nor the client ended the attempt. connect tells that nothing of the
// request was sent.
func transportOutcome(err error) (o Outcome, connect bool) {
	var (
		d   *h1.DialError
		bad *h1.ProtocolError
	)
	switch {
	case errors.As(err, &d):
		if timedOut(d) {
			return Timeout, true
		}
		return Unreachable, true
	case errors.As(err, &bad):
		return Invalid, false
	}
	return Truncated, false
}

// errorKind names a network error without quoting it: addresses and an
// upstream's text do not belong in a status page.
func errorKind(err error) string {
	var (
		d    *h1.DialError
		bad  *h1.ProtocolError
		ne   net.Error
		cert *tls.CertificateVerificationError
		ua   x509.UnknownAuthorityError
		dns  *net.DNSError
	)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.As(err, &dns):
		return "the host name does not resolve"
	case errors.As(err, &cert), errors.As(err, &ua):
		return "the TLS certificate is not trusted"
	case errors.As(err, &d) && timedOut(d):
		return "connect timed out"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &ne) && ne.Timeout():
		return "timed out"
	case errors.Is(err, syscall.ECONNRESET):
		return "connection reset"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "connection closed"
	case errors.As(err, &bad):
		return "the answer is not HTTP"
	case errors.As(err, &d):
		return "cannot connect"
	}
	return "connection failed"
}
