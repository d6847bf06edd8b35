package ptrace

import (
	"bytes"
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// pathMax is PATH_MAX, which includes the terminating zero.
const pathMax = 4096

// readMemory reads as much as possible of a task's memory from addr.
func readMemory(tid int, addr uint64, b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	local := [1]unix.Iovec{{Base: &b[0]}}
	local[0].SetLen(len(b))
	remote := [1]unix.RemoteIovec{{Base: uintptr(addr), Len: len(b)}}
	return unix.ProcessVMReadv(tid, local[:], remote[:], 0)
}

// readString reads a zero-terminated string. It reads at most to the end of a page at a time,
// because the next page may not be mapped. Most strings are short.
func (tr *tracer) readString(tid int, addr uint64) (s string, complete, ok bool) {
	if addr == 0 {
		return "", true, true
	}
	const page = 4096 // the smallest page size of all architectures
	for n := 0; n < pathMax; {
		size := min(page-int((addr+uint64(n))%page), pathMax-n)
		if n == 0 {
			size = min(size, 256)
		}
		got, err := readMemory(tid, addr+uint64(n), tr.text[n:n+size])
		if err != nil || got == 0 {
			return "", false, false
		}
		if end := bytes.IndexByte(tr.text[n:n+got], 0); end >= 0 {
			return string(tr.text[:n+end]), true, true
		}
		n += got
	}
	return string(tr.text[:pathMax]), false, true
}

// readWord reads a number of 4 or 8 bytes.
func readWord(tid int, addr uint64, size int) (uint64, bool) {
	var b [8]byte
	if n, err := readMemory(tid, addr, b[:size]); err != nil || n != size {
		return 0, false
	}
	if size == 4 {
		return uint64(binary.NativeEndian.Uint32(b[:])), true
	}
	return binary.NativeEndian.Uint64(b[:]), true
}

// writeWord writes 8 bytes, also to memory that the task cannot write to.
func writeWord(tid int, addr, v uint64) error {
	_, err := ptrace(unix.PTRACE_POKEDATA, tid, uintptr(addr), uintptr(v))
	return err
}
