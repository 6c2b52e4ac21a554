package sticky_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"sluice/internal/testenv"
)

func sorted(d []time.Duration) []time.Duration {
	d = slices.Clone(d)
	slices.Sort(d)
	return d
}

// client is a plain client, to look at keys and to break things.
func client(t *testing.T, url string) *redis.Client {
	t.Helper()
	o, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	c := redis.NewClient(o)
	t.Cleanup(func() { c.Close() })
	return c
}

// cluster is a Redis cluster of one node, which checks slots like a large one.
func cluster(t *testing.T) string {
	t.Helper()
	s := testenv.Redis(t, "--cluster-enabled", "yes")
	c := client(t, s.URL)
	if err := c.Do(t.Context(), "CLUSTER", "ADDSLOTSRANGE", 0, 16383).Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the cluster", func() bool {
		info, err := c.ClusterInfo(t.Context()).Result()
		return err == nil && len(info) > 0 && info[:16] == "cluster_state:ok"
	})
	return "redis://" + s.Addr + "?cluster=true"
}

// quantiles formats durations.
func quantiles(d []time.Duration) string {
	if len(d) == 0 {
		return "none"
	}
	d = sorted(d)
	at := func(q float64) time.Duration { return d[min(len(d)-1, int(q*float64(len(d))))] }
	return fmt.Sprintf("p50 %v, p99 %v, p99.9 %v, max %v", at(.5), at(.99), at(.999), d[len(d)-1])
}
