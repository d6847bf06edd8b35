package enforce

import (
	"encoding/binary"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/internal/notify"
	"glasshouse/policy"
)

// connect decides where a socket may reach. A connection that is agreed to is
// begun here, with the address that was looked at: the process cannot change it
// any more.
func (w *watch) connect(c notify.Call, p *process) (verdict, error) {
	switch c.Nr {
	case unix.SYS_CONNECT:
		return w.dial(c, p)
	case unix.SYS_SENDTO:
		return w.send(c, p, func() ([]message, error) {
			m := message{name: c.Args[4], nameLen: uint32(c.Args[5]), flags: int(int32(c.Args[3])), iov: []span{{c.Args[1], c.Args[2]}}}
			return []message{m}, nil
		})
	case unix.SYS_SENDMSG:
		return w.send(c, p, func() ([]message, error) {
			m, err := p.message(c.Args[1])
			m.flags = int(int32(c.Args[2]))
			return []message{m}, err
		})
	}
	return w.send(c, p, func() ([]message, error) { return p.messages(c.Args[1], uint32(c.Args[2]), int(int32(c.Args[3]))) })
}

// reaches tells whether sockets of a family lead anywhere but into the jail.
func reaches(fd int) (family int, outward bool, err error) {
	family, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	return family, family == unix.AF_INET || family == unix.AF_INET6, err
}

const maxAddress = 128 // the kernel's

// address reads a socket's address.
func (p *process) address(addr uint64, n uint32) ([]byte, error) {
	if n > maxAddress {
		return nil, unix.EINVAL
	}
	b := make([]byte, n)
	return b, p.read(addr, b)
}

// hostPort is what an address says, if it says something.
func hostPort(raw []byte) (to netip.AddrPort, ok bool) {
	if len(raw) < 8 {
		return to, false
	}
	port := binary.BigEndian.Uint16(raw[2:])
	switch binary.NativeEndian.Uint16(raw) {
	case unix.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(raw[4:8])), port), true
	case unix.AF_INET6:
		if len(raw) < 24 {
			return to, false
		}
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(raw[8:24])).Unmap(), port), true
	}
	return to, false
}

// destination asks about one address.
func (w *watch) destination(c notify.Call, p *process, sock int, to netip.AddrPort) (bool, error) {
	proto := "tcp"
	if kind, err := unix.GetsockoptInt(sock, unix.SOL_SOCKET, unix.SO_TYPE); err == nil && kind != unix.SOCK_STREAM {
		proto = "udp"
	}
	return w.allowed(c, p, policy.Question{
		Subject: w.Subject, Action: policy.ActionConnect, Resource: to.String(),
		Attributes: map[string]string{"observed": "true", "host": to.Addr().String(), "protocol": proto, "call": callName(c.Nr)},
	})
}

// dial decides a connect.
func (w *watch) dial(c notify.Call, p *process) (verdict, error) {
	sock, err := p.getfd(int32(c.Args[0]))
	if err != nil {
		return verdict{}, unix.EBADF
	}
	defer unix.Close(sock)
	if _, outward, err := reaches(sock); err != nil || !outward {
		return goOn, nil // not a socket, or one that stays in the jail
	}
	raw, err := p.address(c.Args[1], uint32(c.Args[2]))
	if err != nil {
		return verdict{}, err
	}
	if to, ok := hostPort(raw); ok {
		if ok, err := w.destination(c, p, sock, to); err != nil || !ok {
			return refused, err
		}
	} else if len(raw) < 2 || binary.NativeEndian.Uint16(raw) != unix.AF_UNSPEC {
		return verdict{errno: unix.EAFNOSUPPORT}, nil
	}
	flags, err := unix.FcntlInt(uintptr(sock), unix.F_GETFL, 0)
	if err != nil {
		return verdict{}, err
	}
	if flags&unix.O_NONBLOCK != 0 {
		return connectedBy(connectRaw(sock, raw)), nil
	}
	// It is begun without waiting: who waits could not be interrupted. That the
	// flag is the process's too it hardly sees.
	begin := func() unix.Errno {
		unix.FcntlInt(uintptr(sock), unix.F_SETFL, flags|unix.O_NONBLOCK)
		defer unix.FcntlInt(uintptr(sock), unix.F_SETFL, flags)
		return connectRaw(sock, raw)
	}
	errno := begin()
	if errno != unix.EINPROGRESS && errno != unix.EALREADY { // EALREADY: its first call was interrupted
		return connectedBy(errno), nil
	}
	if err := w.connecting(c, sock); err != nil {
		return verdict{}, err
	}
	return connectedBy(begin()), nil
}

// connectedBy is what a connect returns that was made here.
func connectedBy(errno unix.Errno) verdict { return verdict{errno: errno, made: errno == 0} }

// connecting waits until a connection is made, or is not. The process is not let
// go on to wait by itself: it could have another socket under that number by then.
func (w *watch) connecting(c notify.Call, sock int) error {
	deadline := time.Time{}
	if limit, err := unix.GetsockoptTimeval(sock, unix.SOL_SOCKET, unix.SO_SNDTIMEO); err == nil && limit.Nano() > 0 {
		deadline = time.Now().Add(time.Duration(limit.Nano()))
	}
	for {
		p := []unix.PollFd{{Fd: int32(sock), Events: unix.POLLOUT}}
		n, err := unix.Poll(p, int(lookAgain/time.Millisecond))
		switch {
		case n > 0:
			return nil
		case err != nil && err != unix.EINTR:
			return err
		case !w.Listener.Valid(c.ID), w.ctx.Err() != nil:
			return errInterrupted
		case !deadline.IsZero() && time.Now().After(deadline):
			return unix.EINPROGRESS
		}
	}
}

// span is a piece of a process's memory.
type span struct{ base, len uint64 }

// A message is what is sent to an address.
type message struct {
	name       uint64
	nameLen    uint32
	iov        []span
	control    uint64
	controlLen uint64
	flags      int
	at         uint64 // of its struct mmsghdr, or 0
}

const (
	maxIov     = 1024
	maxMessage = 1 << 20
	maxControl = 4096
	maxBatch   = 1024
)

// message reads a struct msghdr.
func (p *process) message(addr uint64) (m message, err error) {
	var b [56]byte
	if err := p.read(addr, b[:]); err != nil {
		return m, err
	}
	m.name, m.nameLen = native(b[0:]), binary.NativeEndian.Uint32(b[8:])
	iov, n := native(b[16:]), native(b[24:])
	m.control, m.controlLen = native(b[32:]), native(b[40:])
	if m.name == 0 || m.nameLen == 0 {
		m.name, m.nameLen = 0, 0
	}
	if n > maxIov {
		return m, unix.EMSGSIZE
	}
	raw := make([]byte, 16*n)
	if err := p.read(iov, raw); err != nil {
		return m, err
	}
	for ; len(raw) > 0; raw = raw[16:] {
		m.iov = append(m.iov, span{native(raw), native(raw[8:])})
	}
	return m, nil
}

// messages reads an array of struct mmsghdr.
func (p *process) messages(addr uint64, n uint32, flags int) (ms []message, err error) {
	for i := range uint64(min(n, maxBatch)) {
		m, err := p.message(addr + 64*i)
		if err != nil {
			return nil, err
		}
		m.flags, m.at = flags, addr+64*i
		ms = append(ms, m)
	}
	return ms, nil
}

// send decides what is sent to an address that is said with it, and sends it.
func (w *watch) send(c notify.Call, p *process, read func() ([]message, error)) (verdict, error) {
	sock, err := p.getfd(int32(c.Args[0]))
	if err != nil {
		return verdict{}, unix.EBADF
	}
	defer unix.Close(sock)
	if _, outward, err := reaches(sock); err != nil || !outward {
		return goOn, nil
	}
	ms, err := read()
	if err != nil {
		return verdict{}, err
	}
	// A stream goes where it is connected to, whatever address is said, but to
	// begin it with its first bytes.
	kind, err := unix.GetsockoptInt(sock, unix.SOL_SOCKET, unix.SO_TYPE)
	if err == nil && kind == unix.SOCK_STREAM && (len(ms) == 0 || ms[0].flags&unix.MSG_FASTOPEN == 0) {
		return goOn, nil
	}
	var sent int64
	for i, m := range ms {
		n, err := w.sendOne(c, p, sock, m)
		if err != nil {
			if i > 0 {
				break
			}
			return verdict{}, err
		}
		if m.at == 0 {
			return verdict{made: true, value: n}, nil
		}
		if err := p.writeCount(m.at+56, uint32(n)); err != nil {
			return verdict{}, err
		}
		sent++
	}
	return verdict{made: true, value: sent}, nil
}

// sendOne sends one message with the address that was judged.
func (w *watch) sendOne(c notify.Call, p *process, sock int, m message) (int64, error) {
	var raw []byte // none: where the socket is connected to
	if m.name != 0 {
		var err error
		if raw, err = p.address(m.name, m.nameLen); err != nil {
			return 0, err
		}
	}
	if to, ok := hostPort(raw); ok {
		ok, err := w.destination(c, p, sock, to)
		if err != nil {
			return 0, err
		}
		if !ok {
			return 0, unix.EPERM
		}
	} else if len(raw) > 0 {
		return 0, unix.EAFNOSUPPORT
	}
	var data []byte
	for _, s := range m.iov {
		if s.len > maxMessage || len(data)+int(s.len) > maxMessage {
			return 0, unix.EMSGSIZE
		}
		b := make([]byte, s.len)
		if err := p.read(s.base, b); err != nil {
			return 0, err
		}
		data = append(data, b...)
	}
	var control []byte
	if m.control != 0 && m.controlLen > 0 {
		if m.controlLen > maxControl {
			return 0, unix.ENOBUFS
		}
		control = make([]byte, m.controlLen)
		if err := p.read(m.control, control); err != nil {
			return 0, err
		}
		// A descriptor here would be one of ours.
		messages, err := unix.ParseSocketControlMessage(control)
		if err != nil {
			return 0, unix.EINVAL
		}
		for _, cm := range messages {
			if cm.Header.Level == unix.SOL_SOCKET {
				return 0, unix.EINVAL
			}
		}
	}
	waits := m.flags&unix.MSG_DONTWAIT == 0
	if flags, err := unix.FcntlInt(uintptr(sock), unix.F_GETFL, 0); err == nil && flags&unix.O_NONBLOCK != 0 {
		waits = false
	}
	for {
		n, errno := sendRaw(sock, raw, data, control, m.flags|unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if errno == 0 {
			return n, nil
		}
		if errno != unix.EAGAIN || !waits || !w.Listener.Valid(c.ID) || w.ctx.Err() != nil {
			return 0, errno
		}
		unix.Poll([]unix.PollFd{{Fd: int32(sock), Events: unix.POLLOUT}}, int(lookAgain/time.Millisecond))
	}
}
