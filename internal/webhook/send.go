package webhook

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"sluice/experiment/ramp"
)

// errRefused marks an answer that another try would not change.
var errRefused = errors.New("it would be refused again")

// idOf names an event: the same for whoever tells it, and over repetitions.
func idOf(n *ramp.Notice) string {
	h := sha256.New()
	for _, part := range []string{n.Event, n.Experiment, strconv.Itoa(n.Generation), strconv.FormatInt(n.Revision, 10), strconv.FormatInt(n.Epoch, 10),
		strconv.Itoa(n.Step), n.Variant, n.Guardrail, n.Code} {
		h.Write([]byte(part))
		h.Write([]byte{0})
	}
	return "evt_" + hex.EncodeToString(h.Sum(nil)[:16])
}

// post makes one call. after is how long the receiver asks to be left alone.
func (s *Sender) post(ctx context.Context, id string, body []byte) (after time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.o.URL, bytes.NewReader(body))
	if err != nil {
		return 0, fmt.Errorf("%w: the url cannot be called", errRefused)
	}
	now := strconv.FormatInt(time.Now().Unix(), 10)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "sluice-webhook")
	req.Header.Set("Webhook-Id", id)
	req.Header.Set("Webhook-Timestamp", now)
	if s.o.Secret != nil {
		secret, ok := s.o.Secret()
		if !ok {
			return 0, errors.New("the secret that messages are signed with does not resolve; see `sluice config validate`")
		}
		signature, err := sign(secret, id, now, body)
		if err != nil {
			return 0, err
		}
		req.Header.Set("Webhook-Signature", signature)
	}
	resp, err := s.http.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // its text has the URL, which may hold a secret
		}
		return 0, err
	}
	defer resp.Body.Close()
	io.Copy(io.Discard, io.LimitReader(resp.Body, maxAnswer))
	return retryAfter(resp.Header.Get("Retry-After")), judge(resp.StatusCode)
}

// judge says what a status means for the message.
func judge(status int) error {
	switch {
	case status/100 == 2:
		return nil
	case status/100 == 3:
		return fmt.Errorf("%w: status %d is a redirect, which is not followed; correct webhook.url", errRefused, status)
	case status == http.StatusRequestTimeout, status == http.StatusConflict, status == http.StatusTooEarly, status == http.StatusTooManyRequests:
	case status/100 == 4:
		return fmt.Errorf("%w: status %d", errRefused, status)
	}
	return fmt.Errorf("status %d", status)
}

// retryAfter reads seconds; dates and nonsense are 0.
func retryAfter(v string) time.Duration {
	n, err := strconv.Atoi(v)
	if err != nil || n < 0 {
		return 0
	}
	return time.Duration(min(n, 3600)) * time.Second
}

// sign is the header of Standard Webhooks: v1 and the HMAC of id, time and body.
// A secret that begins with whsec_ is base64 behind it, any other is the key
// itself.
func sign(secret, id, timestamp string, body []byte) (string, error) {
	key := []byte(secret)
	if rest, ok := strings.CutPrefix(secret, "whsec_"); ok {
		var err error
		if key, err = base64.StdEncoding.DecodeString(rest); err != nil {
			return "", errors.New("the secret begins with whsec_ and is not base64 behind it")
		}
	}
	h := hmac.New(sha256.New, key)
	h.Write([]byte(id + "." + timestamp + "."))
	h.Write(body)
	return "v1," + base64.StdEncoding.EncodeToString(h.Sum(nil)), nil
}
