// Package ptrace observes jails with ptrace(2). It is the fallback where eBPF programs cannot
// be loaded: without root, on old kernels, and under kernel lockdown.
//
// Every call of every process stops twice, at entry and at return, until this package has
// processed the stop. Therefore no event is lost, but programs that make many calls run many
// times slower. See Note for further effects.
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

	"glasshouse/fault"
	"glasshouse/internal/fork"
	"glasshouse/observe"
	"glasshouse/observe/event"
)

// Note describes the effects of this source for users.
const Note = "every system call stops twice: programs run several times slower, programs that mostly make system calls 50 times or more; " +
	"excluding calls from recording makes them faster only if all calls and files are excluded; " +
	"debuggers do not work in the jail; a call denied by seccomp looks like a call that the kernel rejected; " +
	"nothing is recorded while the daemon is not running"

const remedy = "allow ptrace: sysctl -w kernel.yama.ptrace_scope=1, and run the daemon without a seccomp profile that denies ptrace"

// A Source is the observe.Source "ptrace". The zero value is ready to use.
type Source struct {
	Log *slog.Logger // may be nil

	oldStyle bool        // use the interface of kernels before 5.3
	works    atomic.Bool // Probe succeeded

	mu sync.Mutex
	// +checklocks:mu
	watches map[*Watch]struct{}
}

func (*Source) Name() string { return "ptrace" }

// Probe traces a child process. For an unprivileged user the child is in a user namespace,
// like jails: tracing may be allowed there even if tracing of own processes is not.
func (s *Source) Probe(ctx context.Context) error {
	const op = "ptrace.Probe"
	if s.works.Load() {
		return nil
	}
	attempt := &syscall.SysProcAttr{}
	if os.Geteuid() != 0 {
		// With ptrace_scope 2, Yama requires CAP_SYS_PTRACE in the user namespace of the tracee
		// (yama_ptrace_access_check). The creator of a namespace has it there (user_namespaces(7)).
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
	if err := fork.StartMapped(cmd); err != nil {
		return fmt.Errorf("%s: start a test process: %w", op, err)
	}
	tried := make(chan error, 1)
	onOwnThread(func() { tried <- try(cmd.Process.Pid) })
	err = <-tried
	stdin.Close()
	cmd.Wait() // fails, because nothing could be read
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.ENOSYS):
		return fault.Cannot(op, "processes cannot be traced: "+err.Error()+scope(), remedy)
	case err != nil:
		return fmt.Errorf("%s: %w", op, err)
	}
	s.works.Store(true)
	return nil
}

// try seizes a process, stops it, and detaches.
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
		return fmt.Errorf("read registers: %w", err)
	}
	return detach(pid, 0)
}

// scope describes Yama's ptrace_scope, the most frequent cause of failures.
func scope() string {
	b, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
	if err != nil {
		return ""
	}
	return " (kernel.yama.ptrace_scope is " + strings.TrimSpace(string(b)) + ")"
}

// Attach seizes all processes of a jail. Blocking calls are interrupted and restarted, as by a
// signal without a handler. Attach returns fault.Unsupported if the jail's init may not be
// traced.
//
// Processes that enter the jail later from outside are not observed. The jail's processes must
// not be children that this process waits for, because their stops would be mistaken for their
// end.
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

// Close releases all watches.
func (s *Source) Close() error {
	s.mu.Lock()
	var left []*Watch
	for w := range s.watches {
		left = append(left, w)
	}
	s.mu.Unlock()
	var errs []error
	for _, w := range left {
		// Release locks mu to remove the watch from the map, so mu is not held here.
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

// recorded lists the event types that a selection requires from this source.
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
