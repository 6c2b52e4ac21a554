// Command sluice is the gateway and its command line: flags, wiring, signals,
// subcommands. It hides nothing else.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second signal ends the process at once; not within a moment, because
	// supervisors such as timeout(1) send the same one twice.
	context.AfterFunc(ctx, func() { time.Sleep(time.Second / 2); stop() })
	os.Exit(run(ctx, os.Args[1:], os.Environ(), os.Stdin, os.Stdout, os.Stderr))
}
