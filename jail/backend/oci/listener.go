package oci

import (
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// disableSeccompNotify makes seccomp notification listeners fail with EINVAL for this thread
// and its children, as on a kernel without them. gVisor uses notifications between its kernel
// and the threads that make host calls, if they are available. Freezing a thread interrupts
// its notification, and gVisor treats two interrupted notifications in a row as the exit of
// the thread. A jail that was paused twice would die.
func disableSeccompNotify() error {
	arch := uint32(unix.AUDIT_ARCH_X86_64)
	if runtime.GOARCH == "arm64" {
		arch = unix.AUDIT_ARCH_AARCH64
	}
	const number, convention, flags = 0, 4, 16 + 8 // in struct seccomp_data; flags is the second argument
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	unless := func(test uint16, k uint32, skip uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | test | unix.BPF_K, K: k, Jf: skip}
	}
	program := []unix.SockFilter{
		load(convention), unless(unix.BPF_JEQ, arch, 5),
		load(number), unless(unix.BPF_JEQ, unix.SYS_SECCOMP, 3),
		load(flags), unless(unix.BPF_JSET, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, 1),
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EINVAL)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	prog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	_, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(program)
	if errno != 0 {
		return os.NewSyscallError("seccomp", errno)
	}
	return nil
}
