package metrics

import "github.com/prometheus/client_golang/prometheus"

var gapBuckets = []float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 30}

// answerFamilies tell what requests ask for and what answers are like.
type answerFamilies struct {
	asks, judged, flaws, finish, chars, refusals *prometheus.CounterVec
	ttfa, gap                                    *prometheus.HistogramVec
}

func (f *families) addAnswers(arm func(more ...string) []string) {
	a := &f.answers
	a.asks = f.counter("sluice_request_asks_total", "Requests by what they ask for; one may ask for several things.", arm("ask"))
	a.judged = f.counter("sluice_answers_judged_total", "Answers in which a flaw was looked for: what sluice_answer_flaws_total is a share of.", arm("flaw"))
	a.flaws = f.counter("sluice_answer_flaws_total", "Answers under a 200 with something wrong; one may have several flaws.", arm("flaw"))
	a.finish = f.counter("sluice_answer_finish_reasons_total", "Choices of answers by why they ended.", arm("reason"))
	a.chars = f.counter("sluice_answer_characters_total", "Characters generated: comparable between variants whose tokenizers are not.", arm())
	a.refusals = f.counter("sluice_answer_refusals_total", "Answers that begin like a refusal: a label, no flaw.", arm())
	a.ttfa = f.histogram("sluice_time_to_first_answer_token_seconds", "Time to the first token of content or of a tool call, after any reasoning, of streamed answers.", ttftBuckets, arm())
	a.gap = f.histogram("sluice_answer_gap_seconds", "Longest wait for the upstream between two events with content of one streamed answer.", gapBuckets, arm())
}

// answerSeries are the series that one arm makes of them: 21 (TTFA) + 13 (gap)
// + 29 counters.
const answerSeries = 63

// answerArm are an arm's children of answerFamilies.
type answerArm struct {
	asks            [len(AskNames)]prometheus.Counter
	judged, flaws   [len(FlawNames)]prometheus.Counter
	finish          [len(FinishNames)]prometheus.Counter
	chars, refusals prometheus.Counter
	ttfa, gap       prometheus.Observer
}

func newAnswerArm(f *answerFamilies, lvs []string) (a answerArm) {
	with := func(v *prometheus.CounterVec, word string) prometheus.Counter {
		return v.WithLabelValues(append(lvs[:len(lvs):len(lvs)], word)...)
	}
	for i, n := range AskNames {
		a.asks[i] = with(f.asks, n)
	}
	for i, n := range FlawNames {
		a.judged[i], a.flaws[i] = with(f.judged, n), with(f.flaws, n)
	}
	for i, n := range FinishNames {
		a.finish[i] = with(f.finish, n)
	}
	a.chars, a.refusals = f.chars.WithLabelValues(lvs...), f.refusals.WithLabelValues(lvs...)
	a.ttfa, a.gap = &lazyObserver{vec: f.ttfa, lvs: lvs}, &lazyObserver{vec: f.gap, lvs: lvs}
	return a
}

// observe books what an event's request asked for and what its answer was like.
func (a *answerArm) observe(e *Event) {
	for i := range a.asks {
		if e.Asks>>i&1 == 1 {
			a.asks[i].Inc()
		}
	}
	if e.TTFA > 0 {
		a.ttfa.Observe(e.TTFA.Seconds())
	}
	w := &e.Answer
	if !w.Seen {
		return
	}
	for i := range a.flaws {
		if w.Judged>>i&1 == 1 {
			a.judged[i].Inc()
		}
		if w.Flaws>>i&1 == 1 {
			a.flaws[i].Inc()
		}
	}
	for i, n := range w.Finish {
		if n > 0 {
			a.finish[i].Add(float64(n))
		}
	}
	if w.Chars > 0 {
		a.chars.Add(float64(w.Chars))
	}
	if w.Refusal {
		a.refusals.Inc()
	}
	if w.Gap > 0 {
		a.gap.Observe(w.Gap.Seconds())
	}
}
