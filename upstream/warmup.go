package upstream

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"sluice/upstream/wire"
)

const (
	// warmupTimeout bounds one warm-up completion: the first one of an engine may
	// compile kernels.
	warmupTimeout = time.Minute
	// warmupRetry and warmupRetryMax bound the pause after a failed warm-up; it
	// doubles.
	warmupRetry    = 2 * time.Second
	warmupRetryMax = 30 * time.Second
	maxWarmupBody  = 1 << 20
)

// warm starts the warm-up when it is due. It runs beside the checks, never
// beside another of the same endpoint, and is no call of anybody: nothing of it
// is metered.
func (w *watcher) warm(ctx context.Context, set *settings) {
	if set.warmup == 0 || time.Now().Before(w.warmAt) || !w.e.beginWarmup() {
		return
	}
	log := w.pool.log.With("upstream", w.e.upstream, "endpoint", w.e.base)
	m := w.e.models.Load()
	switch {
	case m != nil && len(m.ids) > 0:
	case w.noList:
		log.Warn("endpoint lists no models, so its warm-up is skipped: nothing says which model to ask for")
		w.warmed("")
		return
	default:
		w.warmed("its list of models cannot be read, and the completions need a name")
		return
	}
	log.Info("endpoint is warming up", "completions", set.warmup, "model", m.ids[0])
	ctx, w.stop = context.WithCancel(ctx)
	w.pool.wg.Go(func() { w.warmup <- w.e.complete(ctx, set, m.ids[0]) })
}

// warmed takes the end of a warm-up.
func (w *watcher) warmed(failure string) {
	w.stopWarmup()
	w.failures++
	w.warmAt = time.Now().Add(min(warmupRetry<<min(w.failures-1, 10), warmupRetryMax))
	if failure == "" {
		w.failures, w.warmAt = 0, time.Time{}
	} else {
		w.pool.log.Warn("endpoint failed its warm-up", "upstream", w.e.upstream, "endpoint", w.e.base, "reason", failure)
	}
	if w.e.warmed(failure, w.e.set.Load(), time.Now()) {
		w.tell()
	}
}

func (w *watcher) stopWarmup() {
	if w.stop != nil {
		w.stop()
		w.stop = nil
	}
}

// complete asks for the warm-up completions, one after the other. It returns why
// one failed, in words and without a word of the server's, or "".
func (e *endpoint) complete(ctx context.Context, set *settings, model string) string {
	name, err := json.Marshal(model)
	if err != nil {
		return "its model's name cannot be written"
	}
	body := fmt.Appendf(nil, `{"model":%s,"messages":[{"role":"user","content":"Hello"}],"max_tokens":1}`, name)
	for range set.warmup {
		if failure := e.completeOnce(ctx, set, body); failure != "" {
			return failure
		}
	}
	return ""
}

func (e *endpoint) completeOnce(ctx context.Context, set *settings, body []byte) string {
	ctx, cancel := context.WithTimeout(ctx, warmupTimeout)
	defer cancel()
	a, err := e.fetch(ctx, set, http.MethodPost, e.paths[wire.Chat].url, body, maxWarmupBody)
	switch {
	case err != nil:
		return "a completion got no answer: " + errorKind(err)
	case a.status/100 != 2:
		return fmt.Sprintf("a completion was answered with status %d", a.status)
	}
	if v, _ := wire.UnaryVerdict(a.body, wire.Chat, set.dialect); v != wire.VerdictOK {
		return "a completion was answered with 200 and no completion"
	}
	return ""
}
