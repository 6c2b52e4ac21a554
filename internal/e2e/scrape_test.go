package e2e

import (
	"bufio"
	"net/http"
	"strconv"
	"strings"
	"testing"
)

// samples are the lines of one scrape.
type samples []struct {
	name, labels string
	value        float64
}

func scrape(t testing.TB, base string) samples {
	t.Helper()
	resp, err := http.Get(base + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var out samples
	sc := bufio.NewScanner(resp.Body)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		line := sc.Text()
		if strings.HasPrefix(line, "#") {
			continue
		}
		i := strings.LastIndexByte(line, ' ')
		if i < 0 {
			continue
		}
		v, err := strconv.ParseFloat(line[i+1:], 64)
		if err != nil {
			continue
		}
		name, labels, _ := strings.Cut(line[:i], "{")
		out = append(out, struct {
			name, labels string
			value        float64
		}{name, labels, v})
	}
	return out
}

// sum adds the samples of a metric whose labels have all of with.
func (s samples) sum(name string, with ...string) (total float64) {
next:
	for _, x := range s {
		if x.name != name {
			continue
		}
		for _, w := range with {
			if !strings.Contains(x.labels, w) {
				continue next
			}
		}
		total += x.value
	}
	return total
}
