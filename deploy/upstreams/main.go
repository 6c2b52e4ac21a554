// Command upstreams is what the compose file needs beside the gateway when there
// is no GPU: two model servers without a model, and users who talk to them. It
// hides nothing that production needs.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"sluice/internal/fakellm"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stderr); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(1)
	}
}

// run serves, or with -users sends requests, until ctx ends.
func run(ctx context.Context, args []string, out io.Writer) error {
	fs := flag.NewFlagSet("upstreams", flag.ContinueOnError)
	fs.SetOutput(out)
	small := fs.String("small", "127.0.0.1:9001", "address of the fast model server")
	large := fs.String("large", "127.0.0.1:9002", "address of the slow model server")
	users := fs.String("users", "", "serve nothing; send requests of synthetic users to this base URL, such as http://gateway:8080/v1")
	rate := fs.Float64("rate", 5, "requests a second of the synthetic users")
	if err := fs.Parse(args); err != nil {
		return err
	}
	log := slog.New(slog.NewJSONHandler(out, nil))
	if *users != "" {
		if !(*rate > 0 && *rate <= 1000) {
			return fmt.Errorf("-rate is above 0 and at most 1000 requests a second, got %v", *rate)
		}
		return talk(ctx, log, *users, *rate)
	}
	for _, s := range []struct {
		name, addr string
		ttft, gap  time.Duration
	}{{"small", *small, 60 * time.Millisecond, 8 * time.Millisecond}, {"large", *large, 140 * time.Millisecond, 20 * time.Millisecond}} {
		f, err := fakellm.Start(fakellm.Options{Dialect: "vllm", Models: []string{"chat"}, Addr: s.addr, Choose: paced(s.ttft, s.gap)})
		if err != nil {
			return err
		}
		defer f.Close()
		log.Info("serving", "upstream", s.name, "addr", f.Addr())
	}
	<-ctx.Done()
	return nil
}

// paced makes answers of 8 to 60 tokens with a log-normal first token; one in a
// hundred fails.
func paced(ttft, gap time.Duration) func(fakellm.Call) fakellm.Behaviour {
	return func(fakellm.Call) fakellm.Behaviour {
		scale := min(max(0.3, 1+0.4*rand.NormFloat64()), 4)
		b := fakellm.Behaviour{Tokens: 8 + rand.IntN(53), TTFT: time.Duration(float64(ttft) * scale), Gap: gap, Cached: rand.IntN(4)}
		if rand.IntN(100) == 0 {
			b.Fault, b.Status = fakellm.Status, http.StatusInternalServerError
		}
		return b
	}
}

// talk sends streamed chat requests of a few hundred users. A gateway that is
// away is a line in the log, not an end.
func talk(ctx context.Context, log *slog.Logger, base string, rate float64) error {
	client := &http.Client{Timeout: time.Minute}
	tick := time.NewTicker(time.Duration(float64(time.Second) / rate))
	defer tick.Stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, 256) // requests under way; more are skipped
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		select {
		case slots <- struct{}{}:
		default:
			continue
		}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := ask(ctx, client, base, rand.IntN(300)); err != nil && ctx.Err() == nil {
				log.Warn("the gateway did not answer", "err", err)
			}
		})
	}
}

func ask(ctx context.Context, client *http.Client, base string, user int) error {
	body := fmt.Appendf(nil, `{"model":"chat","stream":true,"messages":[{"role":"user","content":"question %d of user %d"}]}`, rand.IntN(1000), user)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/chat/completions", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-User-Id", fmt.Sprintf("user-%d", user))
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}
