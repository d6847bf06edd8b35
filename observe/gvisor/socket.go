package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

// A door is a socket that one runsc is to connect to. It is in a directory that
// only root may enter and is gone as soon as it has been used.
type door struct {
	path string
	dir  *os.File // of the socket: what is called with it needs no short path
	sock *os.File
}

// doorDir and doorName are the directory in a jail's own, and what is in it.
const (
	doorDir    = "gvisor"
	doorName   = "sink"
	configName = "session.json"
)

// openDoor makes a socket below a jail's directory. One that a daemon left that
// ended meanwhile is removed.
func openDoor(jail string) (_ *door, err error) {
	d := &door{path: filepath.Join(jail, doorDir)}
	if err := os.RemoveAll(d.path); err != nil {
		return nil, err
	}
	if err := os.Mkdir(d.path, 0o700); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			d.Close()
		}
	}()
	if d.dir, err = os.Open(d.path); err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	d.sock = os.NewFile(uintptr(fd), doorName)
	// A socket's path may have 107 bytes, a jail's directory more.
	short := fmt.Sprintf("/proc/self/fd/%d/%s", d.dir.Fd(), doorName)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: short}); err != nil {
		return nil, fmt.Errorf("bind %s: %w", filepath.Join(d.path, doorName), err)
	}
	if err := unix.Listen(fd, 1); err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return d, nil
}

// Close removes the socket. Who has come in stays.
func (d *door) Close() error {
	return errors.Join(d.sock.Close(), d.dir.Close(), os.RemoveAll(d.path))
}

// accept lets the process pid in, which must be root's, and nobody else.
func (d *door) accept(ctx context.Context, pid int) (*conn, error) {
	fd, err := d.next(ctx)
	if err != nil {
		return nil, fmt.Errorf("wait for runsc: %w", err)
	}
	c := &conn{f: os.NewFile(uintptr(fd), "trace")}
	if err := c.admit(ctx, pid); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (d *door) next(ctx context.Context) (fd int, err error) {
	err = interruptible(ctx, d.sock, func(raw syscall.RawConn) error {
		var failed error
		err := raw.Read(func(sock uintptr) bool {
			fd, _, failed = unix.Accept4(int(sock), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
			return !errors.Is(failed, unix.EAGAIN) && !errors.Is(failed, unix.EINTR)
		})
		return errors.Join(err, failed)
	})
	return fd, err
}

// interruptible calls f with a file that can be waited for until ctx ends.
func interruptible(ctx context.Context, file *os.File, f func(syscall.RawConn) error) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := f(raw); err != nil {
		return errors.Join(ctx.Err(), err)
	}
	return nil
}

// A conn is what a sandbox writes its points to.
type conn struct {
	f     *os.File
	raw   syscall.RawConn
	slots slots
}

func (c *conn) Close() error {
	return errors.Join(c.f.Close(), c.slots.free())
}

// admit checks who is at the other end, greets it, and makes room.
func (c *conn) admit(ctx context.Context, pid int) (err error) {
	if c.raw, err = c.f.SyscallConn(); err != nil {
		return err
	}
	var peer *unix.Ucred
	var failed error
	if err := c.raw.Control(func(fd uintptr) {
		peer, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil || failed != nil {
		return errors.Join(err, failed)
	}
	if peer.Uid != 0 || int(peer.Pid) != pid {
		return fault.Newf(fault.Denied, "gvisor.Attach", "", "process %d of user %d connected, not runsc, process %d of root", peer.Pid, peer.Uid, pid)
	}
	// Now, while the peer waits for our answer, its socket is sure to be there.
	if err := widen(pid); err != nil {
		return fmt.Errorf("make room for what gVisor sends: %w", err)
	}
	hello := make([]byte, 128)
	err = interruptible(ctx, c.f, func(syscall.RawConn) error {
		n, err := c.f.Read(hello)
		hello = hello[:n]
		return err
	})
	if err != nil {
		return fmt.Errorf("read gVisor's handshake: %w", err)
	}
	if err := checkHandshake(hello); err != nil {
		return fmt.Errorf("gVisor's handshake: %w", err)
	}
	if _, err := c.f.Write(handshake); err != nil {
		return fmt.Errorf("answer gVisor's handshake: %w", err)
	}
	c.slots, err = newSlots()
	return err
}

// maxMessage is the room for messages on their way, and so what one may have at
// most. The arguments and environment of a program are in one message.
const maxMessage = 2 << 20

// widen gives the socket of the process pid that is connected to us room for
// maxMessage. The usual 208 KiB are a hundred calls, and less than the arguments
// of one program may have.
func widen(pid int) error {
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("open process %d: %w", pid, err)
	}
	defer unix.Close(pidfd)
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return err
	}
	for _, entry := range fds {
		var n int
		if _, err := fmt.Sscan(entry.Name(), &n); err != nil {
			continue
		}
		fd, err := unix.PidfdGetfd(pidfd, n, 0)
		if err != nil {
			continue // closed meanwhile
		}
		if isOurs(fd) {
			err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, maxMessage/2) // which the kernel doubles
			unix.Close(fd)
			return err
		}
		unix.Close(fd)
	}
	return errors.New("runsc has no socket that is connected to us")
}

// isOurs reports whether a descriptor is a socket connected to a door.
func isOurs(fd int) bool {
	peer, err := unix.Getpeername(fd)
	if err != nil {
		return false
	}
	name, ok := peer.(*unix.SockaddrUnix)
	return ok && filepath.Base(name.Name) == doorName
}

// slotCount is how many messages are received by one call.
const slotCount = 16

// slots is memory for the messages of one call, each as large as one can be. Only
// what was written to is really there.
type slots struct {
	mem   []byte
	heads []mmsghdr
	iovs  []unix.Iovec
}

type mmsghdr struct {
	hdr unix.Msghdr
	len uint32
	_   [4]byte
}

func newSlots() (slots, error) {
	mem, err := unix.Mmap(-1, 0, slotCount*maxMessage, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return slots{}, fmt.Errorf("map a buffer: %w", err)
	}
	// Huge pages would make all of it be there at once. Kernels without them
	// refuse the advice and need none.
	unix.Madvise(mem, unix.MADV_NOHUGEPAGE)
	s := slots{mem, make([]mmsghdr, slotCount), make([]unix.Iovec, slotCount)}
	for i := range s.heads {
		s.iovs[i].Base = &mem[i*maxMessage]
		s.iovs[i].SetLen(maxMessage)
		s.heads[i].hdr.Iov = &s.iovs[i]
		s.heads[i].hdr.SetIovlen(1)
	}
	return s, nil
}

func (s *slots) free() error {
	if s.mem == nil {
		return nil
	}
	mem := s.mem
	*s = slots{}
	return unix.Munmap(mem)
}

// message returns the i-th message received, and whether it is whole.
func (s *slots) message(i int) (b []byte, whole bool) {
	h := &s.heads[i]
	return s.mem[i*maxMessage:][:h.len], h.hdr.Flags&unix.MSG_TRUNC == 0
}

// release gives the memory of a large message back.
func (s *slots) release(i int) {
	const small = 64 << 10
	if s.heads[i].len > small {
		unix.Madvise(s.mem[i*maxMessage:][:maxMessage], unix.MADV_DONTNEED)
	}
}

// poll returns how many messages are there now; io.EOF if there will be no more.
func (c *conn) poll() (n int, err error) {
	var failed error
	err = c.raw.Control(func(fd uintptr) { n, failed = c.slots.receive(fd) })
	if errors.Is(failed, unix.EAGAIN) {
		return 0, err
	}
	return n, errors.Join(err, failed)
}

// wait is poll, which waits for a message, or returns os.ErrDeadlineExceeded when
// the deadline of the file has come.
func (c *conn) wait() (n int, err error) {
	var failed error
	err = c.raw.Read(func(fd uintptr) bool {
		n, failed = c.slots.receive(fd)
		return !errors.Is(failed, unix.EAGAIN)
	})
	if err != nil {
		return 0, err
	}
	return n, failed
}

// receive takes the messages that are there, or returns EAGAIN.
func (s *slots) receive(fd uintptr) (n int, err error) {
	got, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(&s.heads[0])), slotCount, unix.MSG_DONTWAIT, 0, 0)
	switch errno {
	case 0:
	case unix.EINTR:
		return s.receive(fd)
	case unix.ECONNRESET:
		return 0, io.EOF
	default:
		return 0, errno
	}
	// No message of gVisor's is empty. What has lost its sender ends with one.
	for n < int(got) && s.heads[n].len > 0 {
		n++
	}
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}
