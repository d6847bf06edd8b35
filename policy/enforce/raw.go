package enforce

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// connectRaw connects to an address in its raw form.
func connectRaw(sock int, address []byte) unix.Errno {
	for {
		_, _, e := unix.Syscall(unix.SYS_CONNECT, uintptr(sock), uintptr(unsafe.Pointer(&address[0])), uintptr(len(address)))
		if e != unix.EINTR {
			return e
		}
	}
}

// sendRaw sends a message to an address in its raw form.
func sendRaw(sock int, address, data, control []byte, flags int) (int64, unix.Errno) {
	var iov unix.Iovec
	if len(data) > 0 {
		iov.Base = &data[0]
		iov.SetLen(len(data))
	}
	h := unix.Msghdr{Iov: &iov}
	h.SetIovlen(1)
	if len(address) > 0 {
		h.Name, h.Namelen = &address[0], uint32(len(address))
	}
	if len(control) > 0 {
		h.Control = &control[0]
		h.SetControllen(len(control))
	}
	for {
		n, _, e := unix.Syscall(unix.SYS_SENDMSG, uintptr(sock), uintptr(unsafe.Pointer(&h)), uintptr(flags))
		if e != unix.EINTR {
			return int64(n), e
		}
	}
}

// writeCount writes a 32-bit number to the memory of a process.
func (p *process) writeCount(addr uint64, n uint32) error {
	local := []unix.Iovec{{Base: (*byte)(unsafe.Pointer(&n))}}
	local[0].SetLen(4)
	_, err := unix.ProcessVMWritev(p.tid, local, []unix.RemoteIovec{{Base: uintptr(addr), Len: 4}}, 0)
	return err
}
