package engine

import (
	"strings"
	"testing"
)

func TestParseLoad(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		dialect, page string
		want          Load
		ok            bool
	}{
		"vllm": {"vllm", "# HELP vllm:num_requests_running x\n# TYPE vllm:num_requests_running gauge\n" +
			`vllm:num_requests_running{engine="0",model_name="m"} 3.0` + "\n" + `vllm:num_requests_waiting{engine="0",model_name="m"} 2.0` + "\n" +
			`vllm:kv_cache_usage_perc{engine="0"} 0.25` + "\n", Load{3, 2, 0.25}, true},
		"several engines": {"vllm", `vllm:num_requests_running{engine="0"} 3` + "\n" + `vllm:num_requests_running{engine="1"} 4` + "\n" +
			`vllm:kv_cache_usage_perc{engine="0"} 0.2` + "\n" + `vllm:kv_cache_usage_perc{engine="1"} 0.9`, Load{7, 0, 0.9}, true},
		"old name":          {"vllm", "vllm:num_requests_waiting 1\nvllm:gpu_cache_usage_perc 0.5\n", Load{0, 1, 0.5}, true},
		"by reason is not":  {"vllm", `vllm:num_requests_waiting_by_reason{reason="capacity"} 9` + "\nvllm:num_requests_waiting 1\n", Load{0, 1, -1}, true},
		"sglang":            {"sglang", "sglang:num_running_reqs{tp_rank=\"0\"} 5\nsglang:num_queue_reqs 1\nsglang:token_usage 0.75\n", Load{5, 1, 0.75}, true},
		"tgi":               {"tgi", "tgi_queue_size 4\ntgi_batch_current_size 2\ntgi_batch_current_max_tokens 100\ntgi_batch_max_total_tokens 400\n", Load{2, 4, 0.25}, true},
		"llamacpp":          {"llamacpp", "llamacpp:requests_processing 1\r\nllamacpp:requests_deferred 7\r\n", Load{1, 7, -1}, true},
		"quoted braces":     {"vllm", `vllm:num_requests_running{model_name="a}\"b} 9"} 2` + "\n", Load{2, 0, -1}, true},
		"time and exemplar": {"vllm", "vllm:num_requests_running 2 1700000000000\nvllm:num_requests_waiting 1 # {} 3\n", Load{2, 1, -1}, true},
		"exponent":          {"vllm", "vllm:num_requests_running 1.2e+01\n", Load{12, 0, -1}, true},
		"nonsense": {"vllm", "vllm:num_requests_running NaN\nvllm:num_requests_waiting +Inf\nvllm:num_requests_running -3\nvllm:num_requests_running\n" +
			"vllm:num_requests_running{ 3\n{} 2\n \n", Load{0, 0, -1}, false},
		"huge":            {"vllm", "vllm:num_requests_running 1e300\nvllm:kv_cache_usage_perc 7\n", Load{most, 0, 1}, true},
		"another dialect": {"tgi", "vllm:num_requests_running 3\n", Load{0, 0, -1}, false},
		"unknown dialect": {"openai", "vllm:num_requests_running 3\n", Load{0, 0, -1}, false},
		"empty":           {"vllm", "", Load{0, 0, -1}, false},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := ParseLoad(c.dialect, []byte(c.page))
			if got != c.want || ok != c.ok {
				t.Errorf("got %+v %v, want %+v %v", got, ok, c.want, c.ok)
			}
		})
	}
}

func FuzzParseLoad(f *testing.F) {
	f.Add("vllm", []byte(`vllm:num_requests_running{engine="0"} 3`))
	f.Add("tgi", []byte("tgi_batch_current_max_tokens 1\ntgi_batch_max_total_tokens 0\ntgi_queue_size 1e9"))
	f.Fuzz(func(t *testing.T, dialect string, page []byte) {
		l, ok := ParseLoad(dialect, page)
		if l.Running < 0 || l.Waiting < 0 || l.Running > most || l.Waiting > most || l.KVUse > 1 || ok && !Known(dialect) {
			t.Errorf("%+v %v", l, ok)
		}
	})
}

func BenchmarkParseLoad(b *testing.B) {
	page := []byte(strings.Repeat("# HELP a b\nvllm:request_latency_bucket{le=\"0.5\",model_name=\"m\"} 12.0\n", 500) + "vllm:num_requests_running 3\n")
	b.ReportAllocs()
	for b.Loop() {
		ParseLoad("vllm", page)
	}
}

func TestParseVitals(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		dialect, page string
		want          Vitals
	}{
		"vllm": {"vllm", "process_start_time_seconds 1.7e+09\n" + `vllm:num_preemptions_total{engine="0"} 3.0` + "\n" + `vllm:num_preemptions_total{engine="1"} 4.0` + "\n" +
			`vllm:request_success_total{engine="0",finished_reason="stop"} 100` + "\n" + `vllm:request_success_total{engine="0",finished_reason="abort"} 5` + "\n", Vitals{1.7e9, 7, 5}},
		"sglang":          {"sglang", "sglang:num_retracted_requests_total 2\nsglang:num_aborted_requests_total{a=\"b\"} 1\n", Vitals{0, 2, 1}},
		"several started": {"vllm", "process_start_time_seconds 10\nprocess_start_time_seconds{pid=\"2\"} 12.5\n", Vitals{12.5, -1, -1}},
		"tgi tells none":  {"tgi", "tgi_queue_size 4\nvllm:num_preemptions_total 3\n", Vitals{0, -1, -1}},
		"nonsense":        {"vllm", "process_start_time_seconds NaN\nvllm:num_preemptions_total -1\nvllm:request_success_total{finished_reason=\"abort\"} +Inf\n", Vitals{0, -1, -1}},
		"empty":           {"vllm", "", Vitals{0, -1, -1}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := ParseVitals(c.dialect, []byte(c.page)); got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}
