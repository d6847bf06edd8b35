package jailinit

import (
	"fmt"
	"os"
	"runtime"
	"runtime/metrics"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// auditArch is AUDIT_ARCH_* of linux/audit.h by GOARCH.
var auditArch = map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}

// Offsets in struct seccomp_data (seccomp(2)). All supported processors are little-endian.
const (
	dataNumber = 0
	dataArch   = 4
	dataArgs   = 16
)

// Instructions of a classic BPF program.
var (
	filterLoad = func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	filterJump = func(test uint16, k uint32, yes, no uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | test | unix.BPF_K, K: k, Jt: yes, Jf: no}
	}
	filterReturn = func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }
)

// protect installs a seccomp filter, for this process and its descendants, against system
// calls by which root in a gVisor jail could stop or starve init: SIGSTOP, which gVisor
// delivers to the first process of a pid namespace although Linux does not, and changes of
// init's resource limits. The other runtimes use the filter of package seccomp, which runsc
// does not apply to programs in the sandbox.
//
// The filter protects the present threads of init. No thread is created later (see
// thread.Reserve).
func protect() error {
	last, err := lastThread()
	if err != nil {
		return fmt.Errorf("protect init from root in the jail: %w", err)
	}
	program := protectionFilter(last)
	prog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return fmt.Errorf("protect init from root in the jail: %w", os.NewSyscallError("seccomp", errno))
	}
	return nil
}

// lastThread returns the highest thread id of this process. It waits for threads that the Go
// runtime is about to create.
func lastThread() (uint32, error) {
	count := []metrics.Sample{{Name: "/sched/threads/total:threads"}}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		metrics.Read(count)
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return 0, err
		}
		if want := count[0].Value.Uint64(); uint64(len(threads)) < want {
			if time.Now().After(deadline) {
				return 0, fmt.Errorf("%d of %d threads have not started in time", want-uint64(len(threads)), want)
			}
			continue
		}
		last := uint64(1)
		for _, t := range threads {
			if tid, err := strconv.ParseUint(t.Name(), 10, 32); err == nil {
				last = max(last, tid)
			}
		}
		return uint32(last), nil
	}
}

// protectionFilter returns the filter of protect for an init with thread ids up to last.
func protectionFilter(last uint32) []unix.SockFilter {
	allow := filterReturn(unix.SECCOMP_RET_ALLOW)
	refuse := filterReturn(uint32(unix.SECCOMP_RET_ERRNO) | uint32(unix.EPERM))
	arg := func(n uint32) uint32 { return dataArgs + 8*n }
	program := []unix.SockFilter{
		filterLoad(dataArch),
		filterJump(unix.BPF_JEQ, auditArch[runtime.GOARCH], 1, 0),
		allow, // gVisor does not run programs of other architectures
		filterLoad(dataNumber),

		// prlimit64(pid, resource, new, old): allow pid 0, which is the caller, and calls
		// without a new limit.
		filterJump(unix.BPF_JEQ, unix.SYS_PRLIMIT64, 0, 8),
		filterLoad(arg(0)),
		filterJump(unix.BPF_JEQ, 0, 4, 0),
		filterLoad(arg(2)),
		filterJump(unix.BPF_JEQ, 0, 0, 3),
		filterLoad(arg(2) + 4),
		filterJump(unix.BPF_JEQ, 0, 0, 1),
		allow,
		refuse,
	}
	for _, call := range []struct {
		number, target, signal uint32
	}{
		{unix.SYS_KILL, 0, 1},
		{unix.SYS_TKILL, 0, 1},
		{unix.SYS_RT_SIGQUEUEINFO, 0, 1},
		{unix.SYS_TGKILL, 1, 2},
		{unix.SYS_RT_TGSIGQUEUEINFO, 1, 2},
	} {
		program = append(program,
			filterJump(unix.BPF_JEQ, call.number, 0, 8),
			filterLoad(arg(call.signal)),
			filterJump(unix.BPF_JEQ, uint32(unix.SIGSTOP), 1, 0),
			allow,
			filterLoad(arg(call.target)),
			// 0 and negative numbers, which name process groups without init, become large
			// numbers.
			unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_SUB | unix.BPF_K, K: 1},
			filterJump(unix.BPF_JGT, last-1, 0, 1),
			allow,
			refuse,
		)
	}
	return append(program,
		// pidfd_send_signal(pidfd, signal): a filter cannot see which process a
		// descriptor names, and in gVisor the directory /proc/1 is one too
		// (pkg/sentry/kernel/pidfd.go, taskFromProcPIDFD). SIGSTOP is refused for all of
		// them. Programs that stop children in this way, as Go's os.Process.Signal
		// does, get EPERM; kill(2) stops them.
		filterJump(unix.BPF_JEQ, unix.SYS_PIDFD_SEND_SIGNAL, 0, 4),
		filterLoad(arg(1)),
		filterJump(unix.BPF_JEQ, uint32(unix.SIGSTOP), 1, 0),
		allow,
		refuse,
		allow,
	)
}
