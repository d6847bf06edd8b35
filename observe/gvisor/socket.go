package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

// A door is a socket that one runsc is to connect to. It is in a directory that
// only root may enter and is gone as soon as it has been used.
type door struct {
	path string
	dir  *os.File // of the socket: with it nobody needs a long path
	sock int
}

// What is below a jail's directory while runsc is called, and in there.
const (
	doorDir    = "gvisor"
	doorName   = "sink"
	configName = "session.json"
)

// openDoor makes a socket below a jail's directory. One of a daemon that ended
// meanwhile is removed.
func openDoor(jail string) (_ *door, err error) {
	d := &door{path: filepath.Join(jail, doorDir), sock: -1}
	if err := os.RemoveAll(d.path); err != nil {
		return nil, err
	}
	if err := os.Mkdir(d.path, 0o700); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Close())
		}
	}()
	if d.dir, err = os.Open(d.path); err != nil {
		return nil, err
	}
	if d.sock, err = unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	// A socket's path may have 107 bytes, a jail's directory more.
	short := fmt.Sprintf("/proc/self/fd/%d/%s", d.dir.Fd(), doorName)
	if err := unix.Bind(d.sock, &unix.SockaddrUnix{Name: short}); err != nil {
		return nil, fmt.Errorf("bind %s: %w", filepath.Join(d.path, doorName), err)
	}
	if err := unix.Listen(d.sock, 1); err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return d, nil
}

// Close removes the socket. Who has come in stays.
func (d *door) Close() error {
	var errs []error
	if d.sock >= 0 {
		errs = append(errs, unix.Close(d.sock))
	}
	if d.dir != nil {
		errs = append(errs, d.dir.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(d.path))...)
}

// accept lets the process pid in, which must be root's, and nobody else.
func (d *door) accept(ctx context.Context, pid int) (*conn, error) {
	if err := await(ctx, d.sock); err != nil {
		return nil, fmt.Errorf("wait for runsc: %w", err)
	}
	fd, _, err := unix.Accept4(d.sock, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("accept: %w", err)
	}
	c := &conn{fd: fd}
	if err := c.admit(ctx, pid); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// await waits until a descriptor can be read from, or ctx ends.
func await(ctx context.Context, fd int) error {
	const look = 20 // milliseconds between looks at ctx
	for ctx.Err() == nil {
		if ready, err := wait(look, fd); ready || err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// wait waits until one of the descriptors can be read from, for so many
// milliseconds, or for ever if that is negative.
func wait(ms int, fds ...int) (ready bool, err error) {
	var polled [2]unix.PollFd
	for i, fd := range fds {
		polled[i] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
	}
	n, err := unix.Poll(polled[:len(fds)], ms)
	if errors.Is(err, unix.EINTR) {
		return false, nil
	}
	return n > 0, err
}

// A conn is what a sandbox writes its points to. It is not in the runtime's
// network poller: that would wake a thread for every single point, and waking
// one costs the jail more than writing the point.
type conn struct {
	fd    int
	slots slots
}

func (c *conn) Close() error {
	return errors.Join(unix.Close(c.fd), c.slots.free())
}

// admit checks who is at the other end, greets it, and makes room.
func (c *conn) admit(ctx context.Context, pid int) (err error) {
	peer, err := unix.GetsockoptUcred(c.fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return err
	}
	if peer.Uid != 0 || int(peer.Pid) != pid {
		return fault.Newf(fault.Denied, "gvisor.Attach", "", "process %d of user %d connected, not runsc, process %d of root", peer.Pid, peer.Uid, pid)
	}
	// Now, while the peer waits for our answer, its socket is sure to be there.
	if err := widen(pid); err != nil {
		return fmt.Errorf("make room for what gVisor sends: %w", err)
	}
	if err := await(ctx, c.fd); err != nil {
		return fmt.Errorf("wait for gVisor's handshake: %w", err)
	}
	var hello [128]byte
	n, err := unix.Read(c.fd, hello[:])
	if err == nil {
		err = checkHandshake(hello[:n])
	}
	if err == nil {
		_, err = unix.Write(c.fd, handshake)
	}
	if err != nil {
		return fmt.Errorf("gVisor's handshake: %w", err)
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

// receive takes the messages that are there, if any. If there will be no more,
// that is io.EOF.
func (c *conn) receive() (n int, err error) {
	s := &c.slots
	got, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(c.fd), uintptr(unsafe.Pointer(&s.heads[0])), slotCount, unix.MSG_DONTWAIT, 0, 0)
	switch errno {
	case 0:
	case unix.EAGAIN, unix.EINTR:
		return 0, nil
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
