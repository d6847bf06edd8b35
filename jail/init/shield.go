package jailinit

import (
	"fmt"
	"os"
	"os/signal"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// shield installs a handler for every signal that can end init, so that processes in the jail
// cannot end it by signals. A handler, unlike SIG_IGN, is not inherited by commands.
//
// The kernel ignores signals without a handler for PID 1, but this is reliable only for a
// process with one thread. The kernel does not drop such a signal if the main thread has it
// blocked, as during another handler. Then any other thread that has not blocked it receives
// it, which ends the process.
func shield() error {
	catchSignals()
	if err := ignoreSentFaults(); err != nil {
		return err
	}
	return ignoreForeignSignals()
}

// faults are the signals by which the kernel reports errors of a program.
var faults = []unix.Signal{unix.SIGILL, unix.SIGTRAP, unix.SIGBUS, unix.SIGFPE, unix.SIGSEGV, unix.SIGSYS}

// catchSignals makes package signal handle all signals that it can.
func catchSignals() {
	var all []os.Signal
	for n := unix.Signal(1); n <= 64; n++ {
		switch {
		case n == unix.SIGKILL, n == unix.SIGSTOP: // cannot be handled, signal(7)
		case n == unix.SIGCHLD: // handled by reapLoop
		case n == unix.SIGCONT, n == unix.SIGURG, n == unix.SIGPROF: // harmless; the runtime uses the latter two
		case slices.Contains(faults, n), n == unix.SIGSTKFLT, n >= 32 && n <= 34: // see below
		default:
			all = append(all, n)
		}
	}
	// The channel has no receiver: package signal drops signals that do not fit.
	signal.Notify(make(chan os.Signal, 1), all...)
}

// The handlers are in assembly, because the kernel calls them on the signal stack of a thread
// on which Go code cannot run.
var (
	// handleFaultPC is the address of a handler that passes a signal to faultHandler if the
	// kernel raised it, and drops it if a process sent it.
	handleFaultPC uintptr
	// handleNothingPC is the address of a handler that returns.
	handleNothingPC uintptr

	faultHandler uintptr // handler of the Go runtime
)

// ignoreSentFaults hides fault signals that a process has sent from the Go runtime, which
// would panic or abort.
func ignoreSentFaults() error {
	for _, n := range faults {
		a, err := actionOf(n)
		if err != nil {
			return fmt.Errorf("read the handler of signal %d: %w", n, err)
		}
		if a.handler != handleFaultPC {
			faultHandler = a.handler // the same for all faults
		}
		a.handler = handleFaultPC
		if err := a.set(n); err != nil {
			return fmt.Errorf("replace the handler of signal %d: %w", n, err)
		}
	}
	return nil
}

// ignoreForeignSignals handles the signals that have no use in a Go program: SIGSTKFLT, which
// Linux never raises and at which the runtime aborts, and signals 32 to 34 of the C library,
// which the runtime does not handle. The parent of init may have set the latter to SIG_IGN,
// which commands would inherit.
func ignoreForeignSignals() error {
	a, err := actionOf(unix.SIGSTKFLT)
	if err != nil {
		return fmt.Errorf("read the handler of signal %d: %w", unix.SIGSTKFLT, err)
	}
	a.handler = handleNothingPC
	if err := a.set(unix.SIGSTKFLT); err != nil {
		return fmt.Errorf("replace the handler of signal %d: %w", unix.SIGSTKFLT, err)
	}
	const defaultAction, ignore = 0, 1
	for n := unix.Signal(32); n <= 34; n++ {
		was, err := actionOf(n)
		if err != nil {
			return fmt.Errorf("read the handler of signal %d: %w", n, err)
		}
		if was.handler != defaultAction && was.handler != ignore { // the runtime or the C library needs it
			continue
		}
		if err := a.set(n); err != nil {
			return fmt.Errorf("replace the handler of signal %d: %w", n, err)
		}
	}
	return nil
}

// action is the kernel's struct sigaction. An action that is copied from the runtime has the
// flags that its threads need, above all SA_ONSTACK.
type action struct {
	handler, flags, restorer uintptr
	mask                     uint64
}

func actionOf(n unix.Signal) (a action, err error) {
	err = sigaction(n, nil, &a)
	return a, err
}

func (a *action) set(n unix.Signal) error { return sigaction(n, a, nil) }

func sigaction(n unix.Signal, to, was *action) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(n),
		uintptr(unsafe.Pointer(to)), uintptr(unsafe.Pointer(was)), unsafe.Sizeof(action{}.mask), 0, 0)
	if errno != 0 {
		return os.NewSyscallError("rt_sigaction", errno)
	}
	return nil
}
