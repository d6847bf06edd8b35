// Package ptrace watches jails as a debugger does, where the kernel lets nobody
// load programs of BPF: without root, on old kernels, on locked ones.
//
// Every call of every process is stopped twice, at entry and at return, until
// this package has looked at it. So nothing is ever lost and nothing can be too
// fast for it, and programs that make many calls run many times slower. What is
// more, see Note.
package ptrace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"glasshouse/event"
	"glasshouse/fault"
	"glasshouse/observe"
)

// Note says what a user should know of jails that are watched like this.
const Note = "every system call is stopped twice: programs run several times slower, those that do little but call fifty times and more; " +
	"leaving calls out of the record does not make them faster, except all of them and files too; " +
	"debuggers do not work inside; a call that seccomp refused looks like one that the kernel refused; " +
	"what a jail does while the daemon is not there is not recorded"

const remedy = "let processes be traced: sysctl -w kernel.yama.ptrace_scope=1, and no seccomp profile that refuses ptrace around the daemon"

// A Source is the observe.Source "ptrace". Its zero value works.
type Source struct {
	Log *slog.Logger // nil is none

	oldStyle bool        // act as on a kernel before 5.3
	works    atomic.Bool // Probe has found so

	mu sync.Mutex
	// +checklocks:mu
	watches map[*Watch]struct{}
}

func (*Source) Name() string { return "ptrace" }

// Probe traces a process of its own. As an ordinary user it does so in a user
// namespace, as jails are: that is allowed where tracing one's own processes is
// not.
func (s *Source) Probe(ctx context.Context) error {
	const op = "ptrace.Probe"
	if s.works.Load() {
		return nil
	}
	attempt := &syscall.SysProcAttr{}
	if os.Geteuid() != 0 {
		attempt.Cloneflags = unix.CLONE_NEWUSER
		attempt.UidMappings = []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}}
		attempt.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}
	}
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", "read x")
	cmd.SysProcAttr = attempt
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%s: a process to try it on: %w", op, err)
	}
	tried := make(chan error, 1)
	onOwnThread(func() { tried <- try(cmd.Process.Pid) })
	err = <-tried
	stdin.Close()
	cmd.Wait() // it says that nothing could be read
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.ENOSYS):
		return fault.Cannot(op, "processes may not be traced: "+err.Error()+scope(), remedy)
	case err != nil:
		return fmt.Errorf("%s: %w", op, err)
	}
	s.works.Store(true)
	return nil
}

// try seizes a process, has it stop, and lets it go.
func try(pid int) error {
	if err := seize(pid); err != nil {
		return fmt.Errorf("seize: %w", err)
	}
	if err := interrupt(pid); err != nil {
		return fmt.Errorf("interrupt: %w", err)
	}
	if _, err := wait(unix.P_PID, pid, 0); err != nil {
		return fmt.Errorf("wait: %w", err)
	}
	if _, err := getRegisters(pid); err != nil {
		return fmt.Errorf("registers: %w", err)
	}
	return detach(pid, 0)
}

// scope says how yama is set, which most often is why.
func scope() string {
	b, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
	if err != nil {
		return ""
	}
	return " (kernel.yama.ptrace_scope is " + strings.TrimSpace(string(b)) + ")"
}

// Attach seizes all processes of a jail. A call that a process is waiting in is
// interrupted and made again, as by a signal without a handler. It returns
// fault.Unsupported if the jail's init may not be traced.
//
// What enters the jail from outside later, and is no child of a process inside,
// is not seen. The jail's processes must not be children of this process that it waits for:
// their stops would be taken for their end.
func (s *Source) Attach(ctx context.Context, t observe.Target, sink observe.Sink) (observe.Watch, error) {
	w, err := attach(ctx, t, sink, s.log().With("jail", t.Jail), s.oldStyle)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watches == nil {
		s.watches = map[*Watch]struct{}{}
	}
	s.watches[w] = struct{}{}
	w.forget = func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watches, w)
	}
	return w, nil
}

// Close releases what is still watched.
func (s *Source) Close() error {
	s.mu.Lock()
	var left []*Watch
	for w := range s.watches {
		left = append(left, w)
	}
	s.mu.Unlock()
	var errs []error
	for _, w := range left {
		errs = append(errs, w.Release())
	}
	return errors.Join(errs...)
}

func (s *Source) log() *slog.Logger {
	if s.Log != nil {
		return s.Log
	}
	return slog.New(slog.DiscardHandler)
}

// recorded lists the types of records that a selection asks this source for.
func recorded(s event.Selection) []event.Type {
	types := []event.Type{event.Proc}
	if calls(s) {
		types = append(types, event.Syscall)
	}
	if files(s) {
		types = append(types, event.File)
	}
	return types
}

func calls(s event.Selection) bool { return s.Syscalls != "off" || len(s.Allow) > 0 }
func files(s event.Selection) bool { return s.Files != "off" }
