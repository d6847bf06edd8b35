package jailinit

import (
	"os"
	"os/signal"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// shield gives every signal that can end init a handler: signals do not end
// init, whoever in the jail sends them and however. A handler, unlike SIG_IGN,
// is not inherited by the commands.
//
// That PID 1 is immune to signals it has no handler for is true only of a
// process with one thread. The kernel drops such a signal unless the main
// thread has it blocked, as it does while it handles another; then any
// other thread that has not blocked it dies of it, and the process with it.
func shield() error {
	catch()
	if err := dropSent(); err != nil {
		return err
	}
	return dropForeign()
}

// faults are the signals by which the kernel tells a program what it did wrong.
var faults = []unix.Signal{unix.SIGILL, unix.SIGTRAP, unix.SIGBUS, unix.SIGFPE, unix.SIGSEGV, unix.SIGSYS}

// catch has package signal catch what it can.
func catch() {
	var all []os.Signal
	for n := unix.Signal(1); n <= 64; n++ {
		switch {
		case n == unix.SIGKILL, n == unix.SIGSTOP: // nobody can
		case n == unix.SIGCHLD: // reapLoop does
		case n == unix.SIGCONT, n == unix.SIGURG, n == unix.SIGPROF: // harmless; the runtime uses the latter two
		case slices.Contains(faults, n), n == unix.SIGSTKFLT, n >= 32 && n <= 34: // see below
		default:
			all = append(all, n)
		}
	}
	// Nobody receives: package signal drops what the channel cannot take.
	signal.Notify(make(chan os.Signal, 1), all...)
}

// The handlers, in assembly: the kernel calls them on the signal stack of a
// thread about which Go code may assume nothing.
var (
	// handleFaultPC is the address of one that passes a signal to faultHandler
	// if the kernel raised it, and drops it if a process sent it.
	handleFaultPC uintptr
	// handleNothingPC is the address of one that returns.
	handleNothingPC uintptr

	faultHandler uintptr // the Go runtime's
)

// dropSent keeps the signals of faults from the runtime unless there was one: it
// would panic or throw.
func dropSent() error {
	for _, n := range faults {
		a, err := actionOf(n)
		if err != nil {
			return err
		}
		if a.handler != handleFaultPC {
			faultHandler = a.handler // the same for all
		}
		a.handler = handleFaultPC
		if err := a.set(n); err != nil {
			return err
		}
	}
	return nil
}

// dropForeign takes the signals that are of no use in a Go program: one that
// Linux never raises, at which the runtime throws, and the C library's own,
// which the runtime leaves alone. The latter may have been ignored by who
// started init, which the commands would inherit.
func dropForeign() error {
	a, err := actionOf(unix.SIGSTKFLT)
	if err != nil {
		return err
	}
	a.handler = handleNothingPC
	if err := a.set(unix.SIGSTKFLT); err != nil {
		return err
	}
	const defaultAction, ignore = 0, 1
	for n := unix.Signal(32); n <= 34; n++ {
		was, err := actionOf(n)
		if err != nil {
			return err
		}
		if was.handler != defaultAction && was.handler != ignore { // the runtime or the C library needs it
			continue
		}
		if err := a.set(n); err != nil {
			return err
		}
	}
	return nil
}

// action is the kernel's struct sigaction. An action taken from the runtime has
// the flags that its threads need: to run on the signal stack, above all.
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
