package sticky_test

import (
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
