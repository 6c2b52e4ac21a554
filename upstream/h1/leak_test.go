package h1

import (
	"context"
	"io"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"
)

// B064: no kind of end leaves a descriptor or a goroutine behind.
func TestNothingLeaks(t *testing.T) {
	fds := func() int {
		d, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip("no /proc/self/fd here")
		}
		return len(d)
	}
	s := newServer(t, func(tn *turn) {
		a := answers[tn.n%len(answers)]
		tn.send(a.raw)
		tn.stop = a.end
	})
	c := newClient(t)
	run := func(each int) {
		var wg sync.WaitGroup
		for worker := range 8 {
			wg.Go(func() {
				for i := range each {
					ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
					if resp, err := c.Do(ctx, s.request()); err == nil {
						switch (worker + i) % 4 {
						case 0:
							io.Copy(io.Discard, resp.Body)
							resp.Body.Close()
						case 1:
							resp.Body.Next()
							resp.Body.Finish()
						case 2:
							cancel()
							for err == nil {
								_, err = resp.Body.Next()
							}
							resp.Body.Close()
						case 3:
							resp.Body.Close()
						}
					}
					cancel()
				}
			})
		}
		wg.Wait()
		c.CloseIdleConnections()
		s.closed(t)
	}
	run(10)
	goroutines, files := runtime.NumGoroutine(), fds()
	run(4 * len(answers))
	waitFor(t, "goroutines and descriptors to go", func() bool {
		return runtime.NumGoroutine() <= goroutines+2 && fds() <= files+2
	})
}
