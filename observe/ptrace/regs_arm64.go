package ptrace

import (
	"encoding/binary"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	nativeArch = unix.AUDIT_ARCH_AARCH64
	compatArch = unix.AUDIT_ARCH_ARM
)

const (
	ntPrstatus   = 1
	ntSystemCall = 0x404
)

// Registers are the registers of a call at its entry or after it.
type registers struct {
	arch uint32
	nr   int64 // -1 if not in a call
	args [6]uint64
	ret  int64
}

func getRegisters(tid int) (registers, error) {
	var r unix.PtraceRegsArm64
	if err := unix.PtraceGetRegSetArm64(tid, ntPrstatus, &r); err != nil {
		return registers{}, err
	}
	regs := registers{arch: nativeArch, ret: int64(r.Regs[0])}
	copy(regs.args[:], r.Regs[:6])
	const thirtyTwo = 1 << 4 // in PSTATE
	if r.Pstate&thirtyTwo != 0 {
		regs.arch, regs.ret = compatArch, int64(int32(r.Regs[0]))
	}
	var nr [4]byte
	iov := unix.Iovec{Base: &nr[0]}
	iov.SetLen(len(nr))
	_, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_GETREGSET, uintptr(tid), ntSystemCall, uintptr(unsafe.Pointer(&iov)), 0, 0)
	if errno != 0 {
		return registers{}, errno
	}
	regs.nr = int64(int32(binary.NativeEndian.Uint32(nr[:])))
	return regs, nil
}

// setFirstArg changes the first argument of a call at its entry.
func setFirstArg(tid int, _ bool, v uint64) error {
	var r unix.PtraceRegsArm64
	if err := unix.PtraceGetRegSetArm64(tid, ntPrstatus, &r); err != nil {
		return err
	}
	r.Regs[0] = v
	return unix.PtraceSetRegSetArm64(tid, ntPrstatus, &r)
}

// restoreFirstArg has no effect: the return value replaces the register of the first argument.
func restoreFirstArg(int, bool, uint64) {}
