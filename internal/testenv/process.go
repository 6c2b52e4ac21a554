package testenv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// process is one child. Its goroutine ends when the child does, so a stopped
// service leaves no goroutine behind for a leak check to find.
type process struct {
	cmd  *exec.Cmd
	log  string // path of its output
	done chan struct{}
	err  error // valid after done
}

// start runs cmd with its output appended to the file logPath. The child dies
// with this process: Pdeathsig is bound to the thread that forked, hence the
// locked thread that stays until the child has ended.
func start(cmd *exec.Cmd, logPath string) (*process, error) {
	out, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	if cmd.SysProcAttr.Pdeathsig == 0 {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	p := &process{cmd: cmd, log: logPath, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		p.err = cmd.Wait()
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return p, nil
}

// ready polls probe until it answers nil, the child ends, or startTimeout.
func (p *process) ready(probe func() error) error {
	deadline := time.Now().Add(startTimeout)
	for {
		err := probe()
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s ended while starting (%w): %s", p.cmd.Path, p.err, tail(p.log))
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s does not answer after %s (%w): %s", p.cmd.Path, startTimeout, err, tail(p.log))
		}
	}
}

// signal sends sig; a child that has ended already is no error.
func (p *process) signal(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s: %w", p.cmd.Path, err)
	}
	return nil
}

// end signals and waits for the end, with SIGKILL after 10 s.
func (p *process) end(sig syscall.Signal) {
	_ = p.signal(syscall.SIGCONT) // a stopped process only takes SIGKILL
	_ = p.signal(sig)
	select {
	case <-p.done:
	case <-time.After(10 * time.Second):
		_ = p.signal(syscall.SIGKILL)
		<-p.done
	}
}

// kill is the crash: SIGKILL, then wait until the port is closed.
func (p *process) kill() {
	_ = p.signal(syscall.SIGKILL)
	<-p.done
}

// holder owns at most one process and serialises what is done to it.
type holder struct {
	mu sync.Mutex
	p  *process
}

func tail(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	if len(b) > 2000 {
		b = b[len(b)-2000:]
	}
	return string(b)
}
