package admin

import (
	"fmt"
	"testing"
	"time"
)

// Many addresses do not take the memory of a table without end, and within it
// nobody's failures are forgotten early.
func TestFailuresAreBounded(t *testing.T) {
	f, now := &failures{}, time.Unix(1e9, 0)
	ip := func(i int) string { return fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255) }
	for range maxStrikes {
		f.strike(ip(1), now)
	}
	for i := range 3 * maxPeers {
		f.strike(ip(i), now.Add(time.Duration(i)*time.Millisecond))
		if len(f.byIP) > maxPeers {
			t.Fatalf("%d peers are remembered after %d", len(f.byIP), i)
		}
		if i < maxPeers/2 && !f.blocked(ip(1), now) {
			t.Fatalf("forgotten after %d others", i)
		}
	}
}
