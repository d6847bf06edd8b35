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

// An endpoint is a socket to which one runsc connects. Only root can access its directory, and the
// socket is removed after its first use.
type endpoint struct {
	path string
	lock *os.File // the jail's directory, with an exclusive flock(2)
	dir  *os.File // directory of the socket, for access through /proc/self/fd
	sock int
}

// Names below a jail's directory and in the directory of the socket.
const (
	endpointDir  = "gvisor"
	endpointName = "sink"
	configName   = "session.json"
)

// openEndpoint creates a socket below a jail's directory. It removes a socket left by a daemon
// that has ended, and waits until another watch of the jail has closed its socket.
func openEndpoint(jail string) (_ *endpoint, err error) {
	lock, err := os.Open(jail)
	if err != nil {
		return nil, err
	}
	for err = unix.EINTR; err == unix.EINTR; {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", jail, err), lock.Close())
	}
	d := &endpoint{path: filepath.Join(jail, endpointDir), lock: lock, sock: -1}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Close())
		}
	}()
	if err := os.RemoveAll(d.path); err != nil {
		return nil, err
	}
	if err := os.Mkdir(d.path, 0o700); err != nil {
		return nil, err
	}
	if d.dir, err = os.Open(d.path); err != nil {
		return nil, err
	}
	if d.sock, err = unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	// A socket path has at most 107 bytes (unix(7)), and a jail's directory may be longer.
	short := fmt.Sprintf("/proc/self/fd/%d/%s", d.dir.Fd(), endpointName)
	if err := unix.Bind(d.sock, &unix.SockaddrUnix{Name: short}); err != nil {
		return nil, fmt.Errorf("bind %s: %w", filepath.Join(d.path, endpointName), err)
	}
	if err := unix.Listen(d.sock, 1); err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return d, nil
}

// Close removes the socket. Accepted connections stay open.
func (d *endpoint) Close() error {
	var errs []error
	if d.sock >= 0 {
		errs = append(errs, unix.Close(d.sock))
	}
	if d.dir != nil {
		errs = append(errs, d.dir.Close())
	}
	errs = append(errs, os.RemoveAll(d.path), d.lock.Close()) // closing releases the lock
	return errors.Join(errs...)
}

// accept accepts a connection from the process pid, which must run as root. It rejects other
// processes.
func (d *endpoint) accept(ctx context.Context, pid int) (*conn, error) {
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

// await waits until a descriptor is readable or ctx ends.
func await(ctx context.Context, fd int) error {
	const look = 20 // polling interval of ctx in milliseconds
	for ctx.Err() == nil {
		if ready, err := wait(look, fd); ready || err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// wait waits until a descriptor is readable, for at most the given milliseconds, or without
// limit if negative.
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

// A conn is the connection on which a sandbox writes points. It does not use the runtime's
// network poller, which would wake a thread for every point. Waking a thread costs the jail
// more than writing the point.
type conn struct {
	fd    int
	slots slots
}

func (c *conn) Close() error {
	return errors.Join(unix.Close(c.fd), c.slots.free())
}

// admit verifies the peer, performs the handshake, and enlarges the socket buffer.
func (c *conn) admit(ctx context.Context, pid int) (err error) {
	peer, err := unix.GetsockoptUcred(c.fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return fmt.Errorf("read the credentials of the peer: %w", err)
	}
	if peer.Uid != 0 || int(peer.Pid) != pid {
		return fault.Newf(fault.Denied, "gvisor.Attach", "", "process %d of user %d connected instead of runsc, process %d of root", peer.Pid, peer.Uid, pid)
	}
	// The peer's socket exists while it waits for the reply.
	if err := widen(pid); err != nil {
		return fmt.Errorf("enlarge gVisor's send buffer: %w", err)
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
		return fmt.Errorf("read gVisor's handshake: %w", err)
	}
	c.slots, err = newSlots()
	return err
}

// maxMessage is the socket buffer size and therefore the maximum message size. The arguments
// and environment of a program are in one message.
const maxMessage = 2 << 20

// widen enlarges the send buffer of the socket of process pid that is connected to this one to
// maxMessage. The default of 208 KiB holds about a hundred calls, and less than the maximum
// arguments of one program.
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
			continue // it was closed meanwhile
		}
		if isOurs(fd) {
			err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, maxMessage/2) // the kernel doubles the value (socket(7))
			unix.Close(fd)
			return err
		}
		unix.Close(fd)
	}
	return errors.New("runsc has no socket that is connected to the daemon")
}

// isOurs reports whether a descriptor is a socket connected to an endpoint.
func isOurs(fd int) bool {
	peer, err := unix.Getpeername(fd)
	if err != nil {
		return false
	}
	name, ok := peer.(*unix.SockaddrUnix)
	return ok && filepath.Base(name.Name) == endpointName
}

// slotCount is the number of messages received by one call.
const slotCount = 16

// slots is the buffer for the messages of one recvmmsg call, with the maximum size for each.
// Only pages that were written to are resident.
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
	// Transparent huge pages would make all of the buffer resident. Kernels without them
	// reject the advice.
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

// message returns the i-th message and whether it is complete.
func (s *slots) message(i int) (b []byte, complete bool) {
	h := &s.heads[i]
	return s.mem[i*maxMessage:][:h.len], h.hdr.Flags&unix.MSG_TRUNC == 0
}

// release releases the memory of a large message.
func (s *slots) release(i int) {
	const small = 64 << 10
	if s.heads[i].len > small {
		unix.Madvise(s.mem[i*maxMessage:][:maxMessage], unix.MADV_DONTNEED)
	}
}

// receive receives the available messages without blocking. It returns io.EOF if the peer has
// closed the connection.
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
	// gVisor sends no empty messages. An empty one marks the end of the connection.
	for n < int(got) && s.heads[n].len > 0 {
		n++
	}
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}
