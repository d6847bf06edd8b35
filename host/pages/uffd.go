package pages

import (
	"encoding/binary"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Constants of linux/userfaultfd.h.
const (
	ioctlCopy = 0xc028aa03
	ioctlZero = 0xc020aa04
	ioctlWake = 0x8010aa02

	messageSize = 32

	eventFault  = 0x12
	eventFork   = 0x13
	eventRemap  = 0x14
	eventRemove = 0x15
	eventUnmap  = 0x16
)

// A message is an event of an address space (struct uffd_msg).
type message [messageSize]byte

func (m *message) event() byte      { return m[0] }
func (m *message) arg(i int) uint64 { return binary.NativeEndian.Uint64(m[8+8*i:]) }

// fork returns the descriptor of the child's address space.
func (m *message) fork() int { return int(binary.NativeEndian.Uint32(m[8:])) }

// fault returns the address that was touched.
func (m *message) fault() uint64 { return m.arg(1) }

// untilReadable waits until a message is available or the deadline of f has passed.
func untilReadable(f *os.File) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	return conn.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n > 0 || err != nil && err != unix.EINTR
	})
}

// receive reads the available messages without blocking and returns their number.
func receive(f *os.File, into []message) (n int, err error) {
	conn, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	var failed error
	err = conn.Control(func(fd uintptr) {
		n, failed = unix.Read(int(fd), unsafe.Slice(&into[0][0], len(into)*messageSize))
	})
	switch {
	case err != nil:
		return 0, err
	case failed == unix.EAGAIN, failed == unix.EINTR:
		return 0, nil
	case failed != nil:
		return 0, failed
	}
	return n / messageSize, nil
}

// copyIn copies memory to addr, wakes waiting threads, and returns the number of copied bytes.
func copyIn(f *os.File, addr uint64, from []byte) (n int64, err error) {
	arg := struct{ dst, src, n, mode, copied uint64 }{dst: addr, src: uint64(uintptr(unsafe.Pointer(&from[0]))), n: uint64(len(from))}
	err = ioctl(f, ioctlCopy, unsafe.Pointer(&arg))
	// After an error copied is the number of bytes before it, or the negated errno
	// (ioctl_userfaultfd(2)).
	return max(0, int64(arg.copied)), err
}

// zeroIn maps a page of zeros at addr, if none is present (UFFDIO_ZEROPAGE).
func zeroIn(f *os.File, addr, page uint64) error {
	arg := struct{ start, n, mode, zeroed uint64 }{start: addr, n: page}
	return ioctl(f, ioctlZero, unsafe.Pointer(&arg))
}

// wake wakes the threads that wait for the page at addr. They access it again.
func wake(f *os.File, addr, page uint64) error {
	arg := struct{ start, n uint64 }{addr, page}
	return ioctl(f, ioctlWake, unsafe.Pointer(&arg))
}

func ioctl(f *os.File, req uintptr, arg unsafe.Pointer) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var errno unix.Errno
	err = conn.Control(func(fd uintptr) {
		_, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, req, uintptr(arg))
	})
	if err == nil && errno != 0 {
		return errno
	}
	return err
}
