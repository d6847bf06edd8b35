package ptrace

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	nativeArch = unix.AUDIT_ARCH_X86_64
	compatArch = unix.AUDIT_ARCH_I386
)

// Registers are the registers of a call at its entry or after it.
type registers struct {
	arch uint32
	nr   int64 // -1 if not in a call
	args [6]uint64
	ret  int64
}

func getRegisters(tid int) (registers, error) {
	var r unix.PtraceRegs
	if err := unix.PtraceGetRegs(tid, &r); err != nil {
		return registers{}, err
	}
	regs := registers{
		arch: nativeArch, nr: int64(r.Orig_rax), ret: int64(r.Rax),
		args: [6]uint64{r.Rdi, r.Rsi, r.Rdx, r.R10, r.R8, r.R9},
	}
	// 0x23 is __USER32_CS, the code segment of 32-bit programs (arch/x86/include/asm/segment.h).
	if r.Cs == 0x23 || int80(tid, r.Rip) {
		regs.arch, regs.nr, regs.ret = compatArch, int64(int32(r.Orig_rax)), int64(int32(r.Rax))
		for i, v := range []uint64{r.Rbx, r.Rcx, r.Rdx, r.Rsi, r.Rdi, r.Rbp} {
			regs.args[i] = uint64(uint32(v))
		}
	}
	return regs, nil
}

// int80 reports whether a 64-bit program has called with int 0x80, the 32-bit interface.
func int80(tid int, ip uint64) bool {
	var code [2]byte
	n, _ := readMemory(tid, ip-2, code[:])
	return n == 2 && code == [2]byte{0xcd, 0x80}
}

// setFirstArg changes the first argument of a call at its entry.
func setFirstArg(tid int, compat bool, v uint64) error {
	var r unix.PtraceRegs
	offset := unsafe.Offsetof(r.Rdi)
	if compat {
		offset = unsafe.Offsetof(r.Rbx)
	}
	_, err := ptrace(unix.PTRACE_POKEUSR, tid, offset, uintptr(v))
	return err
}

// restoreFirstArg restores it after the call.
func restoreFirstArg(tid int, compat bool, v uint64) { setFirstArg(tid, compat, v) }
