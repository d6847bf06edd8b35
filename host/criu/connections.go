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

// Connections are those that lead out of a jail whose processes were made again to
// take the place of others, which are there, frozen. What program and kernel know of
// a connection is not the same: a program has read so much and written so much, and
// all else, what has come and was not read, what went and was not acknowledged, what
// the other side can take, is the kernel's. A program that has neither read nor
// written since it was written down therefore goes on with the connection as it is
// now, and need not know what has come meanwhile. Any other has lost it.
//
// So it is the old jail's socket that is looked at, and the new one's that is put in
// its place, while the wire between the jail and all others is unplugged.
type Connections struct {
	streams []*stream // of the new processes, as they were
	taken   []*stream // of the old processes, as they are, in repair
	made    []*stream // ours: of nobody among the new
	keep    []*stream // of streams: they go on
	abort   []*stream // of streams and made: the other side is told
}

// Close lets go of everything.
func (c *Connections) Close() {
	drop(c.streams)
	drop(c.taken)
	drop(c.made)
	c.streams, c.taken, c.made = nil, nil, nil
}

// Move puts the sockets of the new processes where those of the old, in the network
// namespace bound to from, are now. The wire is between the two: nothing comes in and
// nothing is sent. GoOn or Return comes next.
func (c *Connections) Move(old *cgroup.Cgroup, from, to string) error {
	taken, err := outward(old, from)
	c.taken = taken
	if err != nil {
		return err
	}
	after := map[[2]netip.AddrPort]*stream{}
	for _, s := range c.streams {
		after[s.ends()] = s
	}
	for _, was := range c.taken {
		if err := was.look(); err != nil {
			return fmt.Errorf("look at connection %s to %s: %w", was.source(), was.destination(), err)
		}
		s := after[was.ends()]
		if s == nil { // begun since: the other side is told by us
			s = &stream{sk: was.sk, sock: -1}
			if s.sock, err = socketIn(to, was.source().Addr()); err != nil {
				return err
			}
			c.made = append(c.made, s)
		}
		goesOn := s.state != nil && s.read() == was.read() && s.written() == was.written()
		s.state, s.recv, s.send = was.state, was.recv, was.send
		if goesOn {
			goesOn = errors.Join(s.place(), s.fill()) == nil
		} else if s.place() != nil {
			continue // what is said on it will be answered as if nobody was there
		}
		delete(after, s.ends())
		if goesOn {
			c.keep = append(c.keep, s)
		} else {
			c.abort = append(c.abort, s)
		}
	}
	for _, s := range after { // the old jail had closed it
		if s.place() == nil {
			c.abort = append(c.abort, s)
		}
	}
	return nil
}

// GoOn has those that are kept talk again, when the wire is plugged in, and tells
// the other sides of all others that they are closed. What the new processes had and
// the old have not any more ends too.
func (c *Connections) GoOn(at string) (kept, closed int, err error) {
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
		// A socket in repair would tell its owner of that instead of the end. That it
		// ends, it first says something: who translates addresses on the way takes the
		// end of a conversation for nothing if it has not heard of that.
		if err := unix.SetsockoptInt(s.sock, unix.IPPROTO_TCP, unix.TCP_REPAIR, 0); err != nil {
			return kept, closed, fmt.Errorf("end repair: %w", err)
		}
	}
	for _, s := range c.abort {
		if err := netns.CloseConn(at, s.source(), s.destination()); err != nil {
			return kept, closed, err
		}
	}
	return kept, closed, nil
}

// Return gives the old processes back what Move took from them, when they have the
// wire again: the new are about to end. If those have run since, it is closed.
func (c *Connections) Return(at string, ran bool) error {
	var errs []error
	for _, s := range c.taken { // which ask the other side where it is
		errs = append(errs, unix.SetsockoptInt(s.sock, unix.IPPROTO_TCP, unix.TCP_REPAIR, 0))
		if ran {
			errs = append(errs, netns.CloseConn(at, s.source(), s.destination()))
		}
	}
	return errors.Join(errs...)
}

// EndRepair has the connections of a jail go on that somebody who has ended had
// begun to take.
func EndRepair(cg *cgroup.Cgroup, at string) error {
	all, err := outward(cg, at)
	defer drop(all)
	for _, s := range all {
		if on, e := unix.GetsockoptInt(s.sock, unix.IPPROTO_TCP, unix.TCP_REPAIR); e == nil && on != 0 {
			err = errors.Join(err, unix.SetsockoptInt(s.sock, unix.IPPROTO_TCP, unix.TCP_REPAIR, 0))
		}
	}
	return err
}

// outward takes the sockets of processes that are connected out of the namespace
// bound to path, each once.
func outward(cg *cgroup.Cgroup, path string) (all []*stream, err error) {
	conns, err := netns.Outward(path)
	if err != nil || len(conns) == 0 {
		return nil, err
	}
	wanted := map[string]netns.Conn{}
	for _, c := range conns {
		wanted[fmt.Sprintf("socket:[%d]", c.Inode)] = c
	}
	pids, err := cg.PIDs()
	if err != nil {
		return nil, err
	}
	for _, pid := range pids {
		dir := fmt.Sprintf("/proc/%d/fd", pid)
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue // it has ended
		}
		for _, e := range entries {
			to, _ := os.Readlink(filepath.Join(dir, e.Name()))
			if _, is := wanted[to]; !is {
				continue
			}
			s := &stream{sock: -1, pid: pid}
			if _, err := fmt.Sscan(e.Name(), &s.fd); err != nil {
				return all, err
			}
			if s.sock, err = s.take(map[int]int{pid: pid}); err != nil {
				return all, err
			}
			all = append(all, s)
			delete(wanted, to)
			if s.sk, err = endsOf(s.sock); err != nil {
				return all, err
			}
		}
	}
	return all, nil
}

// endsOf returns the addresses of a socket as an image has them.
func endsOf(fd int) (*sk_inet.InetSkEntry, error) {
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
	sk.SrcAddr, port = wordsOf(from)
	sk.SrcPort = &port
	var far uint32
	sk.DstAddr, far = wordsOf(to)
	sk.DstPort = &far
	return sk, nil
}

func wordsOf(sa unix.Sockaddr) (words []uint32, port uint32) {
	switch a := sa.(type) {
	case *unix.SockaddrInet4:
		return words4(a.Addr[:]), uint32(a.Port)
	case *unix.SockaddrInet6:
		return words4(a.Addr[:]), uint32(a.Port)
	}
	return nil, 0
}

func words4(b []byte) (words []uint32) {
	for ; len(b) >= 4; b = b[4:] {
		words = append(words, *(*uint32)(unsafe.Pointer(&b[0])))
	}
	return words
}

// ends name a connection.
func (s *stream) ends() [2]netip.AddrPort {
	from, to := s.source(), s.destination()
	return [2]netip.AddrPort{netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), netip.AddrPortFrom(to.Addr().Unmap(), to.Port())}
}

// read and written are how far the program is.
func (s *stream) read() uint32    { return s.state.GetInqSeq() - s.state.GetInqLen() }
func (s *stream) written() uint32 { return s.state.GetOutqSeq() }

// socketIn makes a socket in the namespace bound to path.
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

// look puts an established connection into repair and reads what the kernel knows of
// it. It changes nothing more.
func (s *stream) look() error {
	fd := s.sock
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR, 1); err != nil {
		return fmt.Errorf("repair: %w", err)
	}
	var info [32]byte // the beginning of struct tcp_info
	if err := getRaw(fd, unix.TCP_INFO, unsafe.Pointer(&info[0]), unsafe.Sizeof(info)); err != nil {
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
	if e.InqSeq, e.InqLen, s.recv, err = queue(fd, recvQueue, unix.SIOCINQ); err != nil {
		return fmt.Errorf("what came: %w", err)
	}
	if e.OutqSeq, e.OutqLen, s.send, err = queue(fd, sendQueue, unix.SIOCOUTQ); err != nil {
		return fmt.Errorf("what went: %w", err)
	}
	unsent, err := unix.IoctlGetInt(fd, unix.SIOCOUTQNSD)
	if err != nil {
		return err
	}
	e.UnsqLen = ptr(uint32(unsent))
	var window [5]uint32
	if err := getRaw(fd, unix.TCP_REPAIR_WINDOW, unsafe.Pointer(&window), unsafe.Sizeof(window)); err != nil {
		return fmt.Errorf("window: %w", err)
	}
	e.SndWl1, e.SndWnd, e.MaxWindow, e.RcvWnd, e.RcvWup = &window[0], &window[1], &window[2], &window[3], &window[4]
	s.state = e
	return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR_QUEUE, noQueue) // as one finds it
}

// queue reads one queue of a socket in repair, which keeps it.
func queue(fd, which int, length uint) (seq, n *uint32, b []byte, err error) {
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR_QUEUE, which); err != nil {
		return nil, nil, nil, err
	}
	at, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_QUEUE_SEQ)
	if err != nil {
		return nil, nil, nil, err
	}
	size, err := unix.IoctlGetInt(fd, length)
	if err != nil {
		return nil, nil, nil, err
	}
	b = make([]byte, size)
	if size > 0 {
		got, _, err := unix.Recvfrom(fd, b, unix.MSG_PEEK|unix.MSG_DONTWAIT)
		if err != nil {
			return nil, nil, nil, err
		}
		if got != size {
			return nil, nil, nil, fmt.Errorf("%d bytes of %d", got, size)
		}
	}
	return ptr(uint32(at)), ptr(uint32(size)), b, nil
}

func getRaw(fd, opt int, value unsafe.Pointer, size uintptr) error {
	n := uint32(size)
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.IPPROTO_TCP, uintptr(opt), uintptr(value), uintptr(unsafe.Pointer(&n)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
