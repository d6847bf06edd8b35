package criu

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"unsafe"

	sk_inet "github.com/checkpoint-restore/go-criu/v8/crit/images/sk-inet"
	tcp_stream "github.com/checkpoint-restore/go-criu/v8/crit/images/tcp-stream"
	"golang.org/x/sys/unix"

	"glasshouse/host/cgroup"
	"glasshouse/host/netns"
)

// Connections are the external TCP connections of a jail whose processes were restored to replace
// frozen old processes (a rewind). The program has the state of its reads and writes. The kernel
// has the rest: received data that was not read, sent data that was not acknowledged, the window of
// the peer. If the program has neither read nor written since the checkpoint, the restored program
// can continue with the current kernel state of the connection. Otherwise the connection is lost.
//
// So Connections copies the state of the old jail's socket to the new one while the network link of
// the jail is down.
type Connections struct {
	streams []*stream // sockets of the new processes, with the state of the checkpoint
	taken   []*stream // sockets of the old processes, with the current state, in repair mode
	made    []*stream // created here: no new process has them
	keep    []*stream // subset of streams: connections that continue
	abort   []*stream // subset of streams and made: the peer gets a reset
}

// Close closes all descriptors.
func (c *Connections) Close() {
	closeSockets(c.streams)
	closeSockets(c.taken)
	closeSockets(c.made)
	c.streams, c.taken, c.made = nil, nil, nil
}

// Move copies the state of the old processes' sockets in the network namespace bound to from to
// the sockets of the new processes. The link must be down during Move, so nothing is received or
// sent. The caller must call Resume or GiveBack next.
func (c *Connections) Move(old *cgroup.Cgroup, from, to string) error {
	taken, err := outwardStreams(old, from)
	c.taken = taken
	if err != nil {
		return err
	}
	after := map[[2]netip.AddrPort]*stream{}
	for _, s := range c.streams {
		after[s.addrs()] = s
	}
	for _, was := range c.taken {
		if err := was.readState(); err != nil {
			return fmt.Errorf("read state of connection %s to %s: %w", was.source(), was.destination(), err)
		}
		s := after[was.addrs()]
		if s == nil { // opened after the checkpoint: reset it from a new socket
			s = &stream{sk: was.sk, sock: -1}
			if s.sock, err = socketIn(to, was.source().Addr()); err != nil {
				return fmt.Errorf("make a socket for the connection from %s to %s: %w", was.source(), was.destination(), err)
			}
			c.made = append(c.made, s)
		}
		continues := s.state != nil && s.read() == was.read() && s.written() == was.written()
		s.state, s.recv, s.send = was.state, was.recv, was.send
		if continues {
			continues = errors.Join(s.restoreAddr(), s.restoreQueues()) == nil
		} else if s.restoreAddr() != nil {
			continue // the kernel will answer its packets with a reset
		}
		delete(after, s.addrs())
		if continues {
			c.keep = append(c.keep, s)
		} else {
			c.abort = append(c.abort, s)
		}
	}
	for _, s := range after { // the old jail has closed these
		if s.restoreAddr() == nil {
			c.abort = append(c.abort, s)
		}
	}
	return nil
}

// Resume resumes the kept connections after the link is up again and resets the peers of all
// others. Connections that only the new processes have are closed as well.
func (c *Connections) Resume(at string) (kept, closed int, err error) {
	stays := map[*stream]bool{}
	for _, s := range c.keep {
		if s.resume() != nil {
			c.abort = append(c.abort, s)
			continue
		}
		stays[s] = true
	}
	for _, s := range c.streams {
		if stays[s] {
			kept++
			continue
		}
		closed++
	}
	for _, s := range slices.Concat(c.streams, c.made) {
		if stays[s] {
			continue
		}
		// A socket in repair mode would report that state to its owner instead of the reset.
		// Leaving repair mode also sends a window probe. A NAT on the path ignores the reset
		// of a connection that it has not seen.
		if err := unix.SetsockoptInt(s.sock, unix.IPPROTO_TCP, unix.TCP_REPAIR, 0); err != nil {
			return kept, closed, fmt.Errorf("leave TCP repair mode: %w", err)
		}
	}
	for _, s := range c.abort {
		if err := netns.CloseConn(at, s.source(), s.destination()); err != nil {
			return kept, closed, err
		}
	}
	return kept, closed, nil
}

// GiveBack gives the sockets back to the old processes after the link is up again. The new
// processes are about to be killed. If they have run, the connections are reset.
func (c *Connections) GiveBack(at string, ran bool) error {
	var errs []error
	for _, s := range c.taken { // leaving repair mode sends a window probe
		errs = append(errs, unix.SetsockoptInt(s.sock, unix.IPPROTO_TCP, unix.TCP_REPAIR, 0))
		if ran {
			errs = append(errs, netns.CloseConn(at, s.source(), s.destination()))
		}
	}
	return errors.Join(errs...)
}

// EndRepair resumes the connections of a jail that an interrupted Move left in repair mode.
func EndRepair(cg *cgroup.Cgroup, at string) error {
	all, err := outwardStreams(cg, at)
	defer closeSockets(all)
	for _, s := range all {
		if on, e := unix.GetsockoptInt(s.sock, unix.IPPROTO_TCP, unix.TCP_REPAIR); e == nil && on != 0 {
			err = errors.Join(err, unix.SetsockoptInt(s.sock, unix.IPPROTO_TCP, unix.TCP_REPAIR, 0))
		}
	}
	return err
}

// outwardStreams duplicates the sockets of processes that are connected out of the namespace
// bound to path, each once.
func outwardStreams(cg *cgroup.Cgroup, path string) (all []*stream, err error) {
	conns, err := netns.ExternalConns(path)
	if err != nil || len(conns) == 0 {
		return nil, err
	}
	wanted := map[string]netns.Conn{}
	for _, c := range conns {
		wanted[fmt.Sprintf("socket:[%d]", c.Inode)] = c
	}
	pids, err := cg.PIDs()
	if err != nil {
		return nil, fmt.Errorf("find the sockets of the jail: %w", err)
	}
	for _, pid := range pids {
		dir := fmt.Sprintf("/proc/%d/fd", pid)
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue // it has exited
		}
		for _, e := range entries {
			to, _ := os.Readlink(filepath.Join(dir, e.Name()))
			if _, is := wanted[to]; !is {
				continue
			}
			s := &stream{sock: -1, pid: pid}
			if _, err := fmt.Sscan(e.Name(), &s.fd); err != nil {
				return all, fmt.Errorf("parse the descriptor %s of process %d: %w", e.Name(), pid, err)
			}
			s.sock, err = s.dupSocket(map[int]int{pid: pid})
			if err != nil {
				return all, fmt.Errorf("take a socket of process %d: %w", pid, err)
			}
			all = append(all, s)
			delete(wanted, to)
			s.sk, err = socketAddrs(s.sock)
			if err != nil {
				return all, fmt.Errorf("get the addresses of a socket of process %d: %w", pid, err)
			}
		}
	}
	return all, nil
}

// socketAddrs returns the addresses of a socket in the format of an image.
func socketAddrs(fd int) (*sk_inet.InetSkEntry, error) {
	from, err := unix.Getsockname(fd)
	if err != nil {
		return nil, fmt.Errorf("getsockname: %w", err)
	}
	to, err := unix.Getpeername(fd)
	if err != nil {
		return nil, fmt.Errorf("getpeername: %w", err)
	}
	sk := &sk_inet.InetSkEntry{}
	var port uint32
	sk.SrcAddr, port = addressWords(from)
	sk.SrcPort = &port
	var far uint32
	sk.DstAddr, far = addressWords(to)
	sk.DstPort = &far
	return sk, nil
}

func addressWords(sa unix.Sockaddr) (words []uint32, port uint32) {
	switch a := sa.(type) {
	case *unix.SockaddrInet4:
		return toWords(a.Addr[:]), uint32(a.Port)
	case *unix.SockaddrInet6:
		return toWords(a.Addr[:]), uint32(a.Port)
	}
	return nil, 0
}

func toWords(b []byte) (words []uint32) {
	for ; len(b) >= 4; b = b[4:] {
		words = append(words, *(*uint32)(unsafe.Pointer(&b[0])))
	}
	return words
}

// addrs returns the two addresses, which identify a connection.
func (s *stream) addrs() [2]netip.AddrPort {
	from, to := s.source(), s.destination()
	return [2]netip.AddrPort{netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), netip.AddrPortFrom(to.Addr().Unmap(), to.Port())}
}

// read and written return the sequence numbers up to which the program has read and written.
func (s *stream) read() uint32    { return s.state.GetInqSeq() - s.state.GetInqLen() }
func (s *stream) written() uint32 { return s.state.GetOutqSeq() }

// socketIn creates a socket in the namespace bound to path.
func socketIn(path string, like netip.Addr) (fd int, err error) {
	family := unix.AF_INET
	if !like.Is4() {
		family = unix.AF_INET6
	}
	err = netns.Do(path, func() error {
		fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_TCP)
		return err
	})
	if err != nil {
		return -1, fmt.Errorf("socket: %w", err)
	}
	return fd, nil
}

// readState puts an established connection into repair mode and reads its kernel state. It
// changes nothing else.
func (s *stream) readState() error {
	fd := s.sock
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR, 1); err != nil {
		return fmt.Errorf("enter TCP repair mode: %w", err)
	}
	var info [32]byte // the beginning of struct tcp_info
	if err := getsockopt(fd, unix.TCP_INFO, unsafe.Pointer(&info[0]), unsafe.Sizeof(info)); err != nil {
		return fmt.Errorf("tcp_info: %w", err)
	}
	e := &tcp_stream.TcpStreamEntry{
		OptMask: ptr(uint32(info[5]) & (optTimestamps | optSACK | optWindowScale)), SndWscale: ptr(uint32(info[6] & 15)), RcvWscale: ptr(uint32(info[6] >> 4)),
	}
	for _, of := range []struct {
		name string
		opt  int
		to   **uint32
	}{{"segment size", unix.TCP_MAXSEG, &e.MssClamp}, {"clock", unix.TCP_TIMESTAMP, &e.Timestamp}} {
		n, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, of.opt)
		if err != nil {
			return fmt.Errorf("%s: %w", of.name, err)
		}
		*of.to = ptr(uint32(n))
	}
	var err error
	e.InqSeq, e.InqLen, s.recv, err = readQueue(fd, recvQueue, unix.SIOCINQ)
	if err != nil {
		return fmt.Errorf("receive queue: %w", err)
	}
	e.OutqSeq, e.OutqLen, s.send, err = readQueue(fd, sendQueue, unix.SIOCOUTQ)
	if err != nil {
		return fmt.Errorf("send queue: %w", err)
	}
	unsent, err := unix.IoctlGetInt(fd, unix.SIOCOUTQNSD)
	if err != nil {
		return fmt.Errorf("get the length of the unsent data: %w", err)
	}
	e.UnsqLen = ptr(uint32(unsent))
	var window [5]uint32
	if err := getsockopt(fd, unix.TCP_REPAIR_WINDOW, unsafe.Pointer(&window), unsafe.Sizeof(window)); err != nil {
		return fmt.Errorf("window: %w", err)
	}
	e.SndWl1, e.SndWnd, e.MaxWindow, e.RcvWnd, e.RcvWup = &window[0], &window[1], &window[2], &window[3], &window[4]
	s.state = e
	return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR_QUEUE, noQueue) // the default
}

// readQueue reads one queue of a socket in repair mode without removing the data.
func readQueue(fd, which int, length uint) (seq, n *uint32, b []byte, err error) {
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR_QUEUE, which); err != nil {
		return nil, nil, nil, fmt.Errorf("select the queue: %w", err)
	}
	at, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_QUEUE_SEQ)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("get the sequence number: %w", err)
	}
	size, err := unix.IoctlGetInt(fd, length)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("get the length: %w", err)
	}
	b = make([]byte, size)
	if size > 0 {
		got, _, err := unix.Recvfrom(fd, b, unix.MSG_PEEK|unix.MSG_DONTWAIT)
		if err != nil {
			return nil, nil, nil, fmt.Errorf("read the data: %w", err)
		}
		if got != size {
			return nil, nil, nil, fmt.Errorf("read %d bytes of %d", got, size)
		}
	}
	return ptr(uint32(at)), ptr(uint32(size)), b, nil
}

func getsockopt(fd, opt int, value unsafe.Pointer, size uintptr) error {
	n := uint32(size)
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.IPPROTO_TCP, uintptr(opt), uintptr(value), uintptr(unsafe.Pointer(&n)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
