package enforce

import (
	"encoding/binary"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/internal/notify"
	"glasshouse/policy"
)

// connect decides calls that connect or send. The daemon makes an approved connection itself,
// with the address that was judged, so the process cannot change the address afterwards.
func (w *watch) connect(c notify.Call, p *process) (verdict, error) {
	switch c.Nr {
	case unix.SYS_CONNECT:
		return w.decideConnect(c, p)
	case unix.SYS_SENDTO:
		return w.decideSend(c, p, func() ([]message, error) {
			m := message{name: c.Args[4], nameLen: uint32(c.Args[5]), flags: int(int32(c.Args[3])), iov: []span{{c.Args[1], c.Args[2]}}}
			return []message{m}, nil
		})
	case unix.SYS_SENDMSG:
		return w.decideSend(c, p, func() ([]message, error) {
			m, err := p.message(c.Args[1])
			m.flags = int(int32(c.Args[2]))
			return []message{m}, err
		})
	}
	return w.decideSend(c, p, func() ([]message, error) { return p.messages(c.Args[1], uint32(c.Args[2]), int(int32(c.Args[3]))) })
}

// isInternet returns the family of a socket and whether it can reach addresses outside of the
// jail.
func isInternet(fd int) (family int, outward bool, err error) {
	family, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	return family, family == unix.AF_INET || family == unix.AF_INET6, err
}

const maxAddress = 128 // sizeof(struct sockaddr_storage)

// address reads a socket address.
func (p *process) address(addr uint64, n uint32) ([]byte, error) {
	if n > maxAddress {
		return nil, unix.EINVAL
	}
	b := make([]byte, n)
	return b, p.read(addr, b)
}

// hostPort decodes a socket address. ok is false if it is not a complete IPv4 or IPv6 address.
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

// allowedAddr asks the judge about one address.
func (w *watch) allowedAddr(c notify.Call, p *process, sock int, to netip.AddrPort) (bool, error) {
	proto := "tcp"
	if kind, err := unix.GetsockoptInt(sock, unix.SOL_SOCKET, unix.SO_TYPE); err == nil && kind != unix.SOCK_STREAM {
		proto = "udp"
	}
	return w.allowed(c, p, policy.Question{
		Subject: w.Subject, Action: policy.ActionConnect, Resource: to.String(),
		Attributes: map[string]string{"observed": "true", "host": to.Addr().String(), "protocol": proto, "call": callName(c.Nr)},
	})
}

// decideConnect decides a connect and makes the connection if it is allowed.
func (w *watch) decideConnect(c notify.Call, p *process) (verdict, error) {
	sock, err := p.getfd(int32(c.Args[0]))
	if err != nil {
		return verdict{}, unix.EBADF
	}
	defer unix.Close(sock)
	if _, outward, err := isInternet(sock); err != nil || !outward {
		return proceed, nil // not a socket, or one that cannot leave the jail
	}
	raw, err := p.address(c.Args[1], uint32(c.Args[2]))
	if err != nil {
		return verdict{}, err
	}
	if to, ok := hostPort(raw); ok {
		if ok, err := w.allowedAddr(c, p, sock, to); err != nil || !ok {
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
		return connectVerdict(connectRaw(sock, raw)), nil
	}
	// Connect without blocking, because a blocking connect could not be interrupted. The
	// process shares the O_NONBLOCK flag (it belongs to the open file description) and could
	// observe it for a moment.
	begin := func() unix.Errno {
		unix.FcntlInt(uintptr(sock), unix.F_SETFL, flags|unix.O_NONBLOCK)
		defer unix.FcntlInt(uintptr(sock), unix.F_SETFL, flags)
		return connectRaw(sock, raw)
	}
	errno := begin()
	if errno != unix.EINPROGRESS && errno != unix.EALREADY { // EALREADY: an interrupted call has started it
		return connectVerdict(errno), nil
	}
	if err := w.waitConnected(c, sock); err != nil {
		return verdict{}, err
	}
	return connectVerdict(begin()), nil
}

// connectVerdict returns the verdict for a connect that the daemon made.
func connectVerdict(errno unix.Errno) verdict { return verdict{errno: errno, done: errno == 0} }

// waitConnected waits until a connection is established or has failed. The process must not
// wait in a call of its own, because its descriptor could refer to another socket by the time
// that call runs.
func (w *watch) waitConnected(c notify.Call, sock int) error {
	deadline := time.Time{}
	if limit, err := unix.GetsockoptTimeval(sock, unix.SOL_SOCKET, unix.SO_SNDTIMEO); err == nil && limit.Nano() > 0 {
		deadline = time.Now().Add(time.Duration(limit.Nano()))
	}
	for {
		p := []unix.PollFd{{Fd: int32(sock), Events: unix.POLLOUT}}
		n, err := unix.Poll(p, int(pollInterval/time.Millisecond))
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

// span is a range of the memory of a process.
type span struct{ base, len uint64 }

// A message is one datagram or stream segment with its destination.
type message struct {
	name       uint64
	nameLen    uint32
	iov        []span
	control    uint64
	controlLen uint64
	flags      int
	mmsghdr    uint64 // address of its struct mmsghdr, or 0
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
	m.name, m.nameLen = nativeUint64(b[0:]), binary.NativeEndian.Uint32(b[8:])
	iov, n := nativeUint64(b[16:]), nativeUint64(b[24:])
	m.control, m.controlLen = nativeUint64(b[32:]), nativeUint64(b[40:])
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
		m.iov = append(m.iov, span{nativeUint64(raw), nativeUint64(raw[8:])})
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
		m.flags, m.mmsghdr = flags, addr+64*i
		ms = append(ms, m)
	}
	return ms, nil
}

// decideSend decides the messages of a send call and sends the allowed ones.
func (w *watch) decideSend(c notify.Call, p *process, read func() ([]message, error)) (verdict, error) {
	sock, err := p.getfd(int32(c.Args[0]))
	if err != nil {
		return verdict{}, unix.EBADF
	}
	defer unix.Close(sock)
	if _, outward, err := isInternet(sock); err != nil || !outward {
		return proceed, nil
	}
	ms, err := read()
	if err != nil {
		return verdict{}, err
	}
	// A connected stream ignores the address, except with MSG_FASTOPEN, which connects and
	// sends the first data.
	kind, err := unix.GetsockoptInt(sock, unix.SOL_SOCKET, unix.SO_TYPE)
	if err == nil && kind == unix.SOCK_STREAM && (len(ms) == 0 || ms[0].flags&unix.MSG_FASTOPEN == 0) {
		return proceed, nil
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
		if m.mmsghdr == 0 {
			return verdict{done: true, value: n}, nil
		}
		if err := p.writeCount(m.mmsghdr+56, uint32(n)); err != nil {
			return verdict{}, err
		}
		sent++
	}
	return verdict{done: true, value: sent}, nil
}

// sendOne sends one message to the address that was judged.
func (w *watch) sendOne(c notify.Call, p *process, sock int, m message) (int64, error) {
	var raw []byte // empty: the peer of the socket
	if m.name != 0 {
		var err error
		if raw, err = p.address(m.name, m.nameLen); err != nil {
			return 0, err
		}
	}
	if to, ok := hostPort(raw); ok {
		ok, err := w.allowedAddr(c, p, sock, to)
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
		// The daemon would pass its own descriptors or credentials, so SOL_SOCKET messages are
		// rejected (unix(7), SCM_RIGHTS).
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
		unix.Poll([]unix.PollFd{{Fd: int32(sock), Events: unix.POLLOUT}}, int(pollInterval/time.Millisecond))
	}
}
