package jailinit

import (
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// initCap is the capability that only init has.
const initCap = uint(unix.CAP_WAKE_ALARM)

// makeDumpable allows checkpoints to read init's memory again. The kernel makes init
// undumpable when a command is started as another user: until execve(2) the command shares
// init's memory and has other ids. If init is protected by being undumpable (see
// preventTracing), this does nothing.
func makeDumpable() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&header, &caps[0]); err != nil {
		return os.NewSyscallError("capget", err)
	}
	if caps[initCap/32].Effective&(1<<(initCap%32)) == 0 {
		return nil
	}
	return os.NewSyscallError("prctl PR_SET_DUMPABLE", unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0))
}

// preventTracing prevents processes in the jail from reading init's memory or tracing it.
//
// A process cannot trace another that has a capability it lacks (ptrace(2)). If the runtime
// gives init one capability more than commands get, init keeps it. It is CAP_WAKE_ALARM, which
// has no effect in a user namespace. Otherwise, and in a program with cgo, which cannot change
// the capabilities of all threads, init makes itself undumpable. That is also sufficient, but
// a later checkpoint of a restored jail could not read init's memory.
func preventTracing() error {
	const keep, drop = initCap, uint(unix.CAP_SETPCAP)
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&header, &caps[0]); err != nil {
		return os.NewSyscallError("capget", err)
	}
	has := func(c uint) bool { return caps[c/32].Effective&(1<<(c%32)) != 0 }
	if !has(keep) || !has(drop) {
		return makeUndumpable()
	}
	// At execve(2) programs of root get the capabilities in the bounding set (capabilities(7)),
	// so commands would regain keep. Each thread has its own sets.
	for _, c := range []uint{keep, drop} {
		_, _, errno := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, uintptr(c), 0)
		if errno == unix.ENOTSUP {
			return makeUndumpable()
		}
		if errno != 0 {
			return fmt.Errorf("drop capability %d from the bounding set: %w", c, errno)
		}
	}
	caps[drop/32].Effective &^= 1 << (drop % 32)
	caps[drop/32].Permitted &^= 1 << (drop % 32)
	for i := range caps {
		caps[i].Inheritable = 0
	}
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&caps)), 0); errno != 0 {
		return os.NewSyscallError("capset", errno)
	}
	return nil
}

func makeUndumpable() error {
	return os.NewSyscallError("prctl PR_SET_DUMPABLE", unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))
}
