package jailinit

import (
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// capKept is the capability that no command has.
const capKept = uint(unix.CAP_WAKE_ALARM)

// dumpable has a checkpoint look into init again. To start a command as another user
// makes init undumpable: until its program is there, the command is in init's memory
// with ids that are not init's. An init that is guarded by that alone stays so.
func dumpable() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&header, &caps[0]); err != nil {
		return os.NewSyscallError("capget", err)
	}
	if caps[capKept/32].Effective&(1<<(capKept%32)) == 0 {
		return nil
	}
	return os.NewSyscallError("prctl PR_SET_DUMPABLE", unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0))
}

// guard prevents processes in the jail from reading init's memory or tracing it.
//
// A process cannot trace another that has a capability it lacks (ptrace(2)). Where
// the runtime gives init one capability more than commands get, init keeps it. It is
// CAP_WAKE_ALARM, which has no effect within a user namespace. Elsewhere, and in a program with cgo, which cannot change the
// capabilities of all threads at once, init makes itself undumpable. That is enough too, but a
// checkpoint of a restored jail could then not look into init either.
func guard() error {
	const keep, drop = capKept, uint(unix.CAP_SETPCAP)
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&header, &caps[0]); err != nil {
		return os.NewSyscallError("capget", err)
	}
	has := func(c uint) bool { return caps[c/32].Effective&(1<<(c%32)) != 0 }
	if !has(keep) || !has(drop) {
		return undumpable()
	}
	for _, c := range []uint{keep, drop} {
		_, _, errno := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, uintptr(c), 0)
		if errno == unix.ENOTSUP {
			return undumpable()
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

func undumpable() error {
	return os.NewSyscallError("prctl PR_SET_DUMPABLE", unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))
}
