package readings

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// refresh asks for one reading and keeps what came.
func (r *Reader) refresh(base *url.URL, src source, q *query) {
	value, err := 0.0, error(nil)
	select {
	case r.turn <- struct{}{}:
		value, err = r.ask(base, src.query)
		<-r.turn
	case <-r.ctx.Done():
		err = r.ctx.Err()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	q.under = false
	was := q.why
	if err != nil {
		q.value, q.at, q.why = 0, time.Time{}, err.Error()
		if was != q.why && r.ctx.Err() == nil {
			r.o.Log.Warn("a query of a guardrail has no reading", "server", base.Host, "err", err)
		}
		return
	}
	q.value, q.at, q.why = value, time.Now(), ""
}

// answer is that of /api/v1/query.
type answer struct {
	Status    string `json:"status"`
	ErrorType string `json:"errorType"`
	Data      struct {
		Type   string          `json:"resultType"`
		Result json.RawMessage `json:"result"`
	} `json:"data"`
}

// ask makes an instant query. Its errors quote nothing of what the server wrote:
// it may be another one than was meant.
func (r *Reader) ask(base *url.URL, query string) (float64, error) {
	u := *base
	u.Path = strings.TrimRight(u.Path, "/") + "/api/v1/query"
	u.RawPath = ""
	u.RawQuery = url.Values{"query": {query}, "timeout": {timeout.String()}}.Encode()
	req, err := http.NewRequestWithContext(r.ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return 0, errors.New("the server cannot be asked: its url is not valid")
	}
	req.Header.Set("User-Agent", "sluice-guardrail")
	resp, err := r.http.Do(req)
	if err != nil {
		var t interface{ Timeout() bool }
		if errors.As(err, &t) && t.Timeout() {
			return 0, fmt.Errorf("the server does not answer within %s", timeout)
		}
		return 0, errors.New("the server cannot be reached")
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return 0, errors.New("the server's answer broke off")
	case len(body) > maxAnswer:
		return 0, fmt.Errorf("the answer is longer than %d bytes; aggregate the query to one value", maxAnswer)
	}
	return parse(resp.StatusCode, body)
}

// parse takes the value out of an answer: a scalar, or a vector of one element.
func parse(status int, body []byte) (float64, error) {
	var a answer
	if err := json.Unmarshal(body, &a); err != nil {
		return 0, fmt.Errorf("status %d and no answer of Prometheus; correct the url", status)
	}
	if status != http.StatusOK || a.Status != "success" {
		if a.ErrorType == "bad_data" {
			return 0, errors.New("the server does not understand the query")
		}
		return 0, fmt.Errorf("the query failed with status %d", status)
	}
	var sample []json.RawMessage
	switch a.Data.Type {
	case "scalar":
		if json.Unmarshal(a.Data.Result, &sample) != nil {
			return 0, errMalformed
		}
	case "vector":
		var list []struct {
			Value []json.RawMessage `json:"value"`
		}
		if json.Unmarshal(a.Data.Result, &list) != nil {
			return 0, errMalformed
		}
		if len(list) == 0 {
			return 0, errors.New("the query has no result")
		}
		if len(list) > 1 {
			return 0, fmt.Errorf("the query has %d results; aggregate it to one, as by max()", len(list))
		}
		sample = list[0].Value
	default:
		return 0, errors.New("the query's result is neither a scalar nor an instant vector")
	}
	return number(sample)
}

var errMalformed = errors.New("the answer is not one of Prometheus")

// number reads [time, "value"].
func number(sample []json.RawMessage) (float64, error) {
	var text string
	if len(sample) != 2 || json.Unmarshal(sample[1], &text) != nil {
		return 0, errMalformed
	}
	v, err := strconv.ParseFloat(text, 64)
	switch {
	case err != nil:
		return 0, errMalformed
	case math.IsNaN(v) || math.IsInf(v, 0):
		return 0, errors.New("the query's result is not a finite number")
	}
	return v, nil
}
