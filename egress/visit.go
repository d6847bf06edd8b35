package egress

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/internal/text"
)

// tcpConn is named so that nil can be told from a connection.
type tcpConn = *net.TCPConn

// A visit is one connection that a program in the jail made.
type visit struct {
	p      *Proxy
	client tcpConn
	br     *bufio.Reader // what the client says, from its first byte; nil once it is only copied
	lent   bool          // a server of HTTP/2 may read from br after the visit, so br is not used again

	dst      netip.AddrPort // where the kernel says it was meant to go; zero for the explicit proxy
	port     uint16         // that is meant
	declared string         // the host of CONNECT, or that TLS was ended for; "" if none
	granted  *grant         // what CONNECT was granted
	proxied  bool           // requests are for whole URLs
	tls      bool           // TLS with the client is ended here
}

// readers are the buffers in which the first bytes of connections and heads of
// requests are looked at. Their size is how large a head may be.
var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, maxHead) }}

const maxHead = 32 << 10

func (v *visit) read(c net.Conn) func() {
	br := readers.Get().(*bufio.Reader)
	br.Reset(c)
	v.br = br
	return func() {
		if v.lent {
			return
		}
		br.Reset(nil)
		readers.Put(br)
	}
}

// transparent carries a connection that did not know of the proxy.
func (v *visit) transparent() {
	defer v.read(v.client)()
	dst, err := originalDst(v.client)
	if err != nil || dst == v.client.LocalAddr().(*net.TCPAddr).AddrPort() {
		v.abort(Request{Kind: KindConnect}, refuse(ReasonName, "", "a connection to the proxy itself, which says nowhere where it is to go").with("connect to the host that is meant"))
		return
	}
	v.dst, v.port = dst, dst.Port()
	v.carry()
}

// originalDst returns where a redirected connection was meant to go.
func originalDst(c tcpConn) (dst netip.AddrPort, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return dst, err
	}
	e := raw.Control(func(fd uintptr) {
		// The kernel fills in a struct sockaddr_in, for which this type has room.
		var sa *unix.IPv6Mreq
		if sa, err = unix.GetsockoptIPv6Mreq(int(fd), unix.SOL_IP, unix.SO_ORIGINAL_DST); err == nil {
			b := sa.Multiaddr
			dst = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), uint16(b[2])<<8|uint16(b[3]))
		}
	})
	return dst, errors.Join(e, err)
}

// state returns the state of a TCP connection, of linux/tcp_states.h.
func state(c tcpConn) int {
	s := unix.BPF_TCP_CLOSE
	if raw, err := c.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) {
			if info, err := unix.GetsockoptTCPInfo(int(fd), unix.SOL_TCP, unix.TCP_INFO); err == nil {
				s = int(info.State)
			}
		})
	}
	return s
}

// isScarce reports whether the process or host is short of something for now.
func isScarce(err error) bool {
	for _, e := range []syscall.Errno{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM, unix.ECONNABORTED, unix.EINTR} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// reset ends a connection so that the other side sees that it was refused.
func reset(c tcpConn) {
	c.SetLinger(0)
	c.Close()
}

// abort refuses a connection of which no more is known than what ask says.
func (v *visit) abort(ask Request, ref *refusal) {
	v.p.refused(ask, ref)
	reset(v.client)
}

// carry finds out what the client speaks and with whom, and lets it if it may.
func (v *visit) carry() {
	p := v.p
	spoken, err := v.listen(p.times.silence)
	if spoken == spokeNothing && err == nil {
		var done bool
		if done = v.serverFirst(); done {
			return
		}
		spoken, err = v.listen(p.times.head)
	}
	ask := Request{Kind: KindConnect, Host: v.declared, Port: v.port}
	if ask.Host == "" && v.dst.IsValid() {
		ask.Host = v.dst.Addr().String()
	}
	switch {
	case err == io.EOF && v.br.Buffered() == 0:
		// Who looks which ports are open does so. It has learnt nothing: all are.
		p.refused(ask, refuse(ReasonClient, "", "the client said nothing and went away"))
	case err != nil:
		v.abort(ask, refuse(ReasonClient, "", "the client broke off before it was known what it wants"))
	case spoken == spokeTLS:
		v.carryTLS()
	case spoken == spokeHTTP:
		v.serveHTTP(v.client)
	case spoken == spokeOther:
		v.carryRaw()
	case v.br.Buffered() == 0:
		v.abort(ask, refuse(ReasonName, "", "the client says nothing, and the address was not given out for a name that is allowed").with("look the host up by its name and connect to it anew"))
	default:
		v.abort(ask, refuse(ReasonLimit, "", "what the client says first is too long or comes too slowly"))
	}
}

// listen waits until it is clear what the client speaks. It is spokeNothing if the
// client has not said enough in time, with an error only if it broke off.
func (v *visit) listen(d time.Duration) (spoken, error) {
	v.client.SetReadDeadline(time.Now().Add(d))
	defer v.client.SetReadDeadline(time.Time{})
	for {
		b, _ := v.br.Peek(v.br.Buffered())
		if s := classify(b); s != spokeNothing {
			return s, nil
		}
		if len(b) == maxHead {
			return spokeNothing, nil
		}
		if len(b) > 0 { // now it has to go on
			v.client.SetReadDeadline(time.Now().Add(v.p.times.head))
		}
		if _, err := v.br.Peek(len(b) + 1); err != nil {
			if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
				return spokeNothing, nil
			}
			return spokeNothing, err
		}
	}
}

// name returns the host that is meant by a connection that names none: that of
// CONNECT, or the one allowed name for which the address was given out, or the
// address itself, which then has to be listed.
func (v *visit) name() (string, *refusal) {
	if v.declared != "" {
		return v.declared, nil
	}
	p, addr := v.p, v.dst.Addr()
	rules := p.rules.Load()
	var allowed, all []string
	for _, name := range p.known.of(addr) {
		all = append(all, name)
		if _, ref := rules.settle(Request{Kind: KindConnect, Host: name, Port: v.port}, netip.AddrPort{}); ref == nil {
			allowed = append(allowed, name)
		}
	}
	switch {
	case len(allowed) == 1:
		return allowed[0], nil
	case rules.direct(addr, v.port):
		return addr.String(), nil
	case len(allowed) > 1:
		return "", refuse(ReasonName, "", "%s is the address of several hosts that are allowed, and the client does not say which it means", addr).with("use the HTTP proxy that HTTP_PROXY names, with CONNECT")
	case len(all) == 1:
		return all[0], nil
	}
	return addr.String(), nil
}

// serverFirst lets the server speak first, if it is known and allowed which one
// it is. It reports false if the client speaks first after all.
func (v *visit) serverFirst() bool {
	p := v.p
	host, ref := v.name()
	if ref != nil || v.port == 80 {
		return false
	}
	ask := Request{Kind: KindConnect, Host: host, Port: v.port}
	g, ref := v.settle(p.ctx, ask)
	if ref != nil || g.looksInside() {
		return false // if it says something, it is told why
	}
	if g.rule == nil {
		v.declared, v.granted = host, &g // and need not be asked again
	}
	up, err := p.dial(p.ctx, g.dial, v.port, v.dst.Addr(), g.rule)
	if err != nil {
		v.failed(ask, g, err)
		reset(v.client)
		return true
	}
	first, err := v.whoIsFirst(up)
	if err != nil || len(first) == 0 {
		up.Close()
		return err != nil
	}
	if answersHTTP(first) {
		up.Close()
		v.abort(ask, refuse(ReasonProtocol, g.label, "the server speaks HTTP, and the client said nothing").with("send the request at once"))
		return true
	}
	v.tunnel(ask, g, up, first)
	return true
}

// answersHTTP reports whether a server that spoke first speaks HTTP all the same:
// it lost patience, or sends the settings of HTTP/2. What then came from the
// client would be a request of which nobody has read the host.
func answersHTTP(first []byte) bool {
	settings := len(first) >= 9 && first[0] == 0 && first[3] == 4 && bytes.Equal(first[5:9], []byte{0, 0, 0, 0})
	return settings || bytes.HasPrefix(first, []byte("HTTP/"))
}

// whoIsFirst waits until either side speaks, and returns what the server said: it
// is nothing if the client was first. It is an error if both are silent for long.
func (v *visit) whoIsFirst(up tcpConn) (first []byte, err error) {
	limit := time.Now().Add(v.p.times.idle)
	v.client.SetReadDeadline(limit)
	defer v.client.SetReadDeadline(time.Time{})
	var server sync.WaitGroup
	b := make([]byte, 4<<10)
	var n int
	var upErr error
	server.Go(func() {
		n, upErr = up.Read(b)
		v.client.SetReadDeadline(time.Unix(1, 0))
	})
	_, clientErr := v.br.Peek(1)
	up.SetReadDeadline(time.Unix(1, 0))
	server.Wait()
	up.SetReadDeadline(time.Time{})
	switch {
	case n > 0:
		return b[:n], nil
	case clientErr == nil:
		return nil, nil
	case time.Now().After(limit) || clientErr == io.EOF:
		return nil, clientErr
	}
	return nil, errors.Join(upErr, clientErr)
}

// carryRaw carries what is neither TLS nor HTTP.
func (v *visit) carryRaw() {
	host, ref := v.name()
	ask := Request{Kind: KindConnect, Host: host, Port: v.port}
	if ref != nil {
		ask.Host = v.dst.Addr().String()
		v.abort(ask, ref)
		return
	}
	g, ref := v.settle(v.p.ctx, ask)
	switch {
	case ref != nil:
	case v.port == 80:
		ref = refuse(ReasonProtocol, g.label, "port 80 carries HTTP, and this is not")
	case g.looksInside():
		ref = refuse(ReasonProtocol, g.label, "the rule is about requests of HTTP, and this is none")
	}
	if ref != nil {
		v.abort(ask, ref)
		return
	}
	up, err := v.p.dial(v.p.ctx, g.dial, v.port, v.dst.Addr(), g.rule)
	if err != nil {
		v.failed(ask, g, err)
		reset(v.client)
		return
	}
	v.tunnel(ask, g, up, nil)
}

// failed records that what was granted could not be connected to.
func (v *visit) failed(ask Request, g grant, err error) *refusal {
	ref, ok := errors.AsType[*refusal](err)
	if !ok {
		ref = refuse(ReasonUpstream, g.label, "cannot connect to %s: %v", ask.Host, err)
	}
	v.p.keep(Record{At: time.Now(), Request: ask, Rule: g.label, Allowed: !ok, Reason: ref.Reason, Detail: ref.Detail})
	return ref
}

// carryTLS carries a connection that begins with a TLS hello.
func (v *visit) carryTLS() {
	p := v.p
	b, _ := v.br.Peek(v.br.Buffered())
	hello, _, err := parseHello(b)
	ask := Request{Kind: KindConnect, Host: v.declared, Port: v.port, TLS: true}
	if ask.Host == "" && v.dst.IsValid() {
		ask.Host = v.dst.Addr().String()
	}
	if err != nil {
		v.alert(ask, alertDecode, refuse(ReasonMalformed, "", "the TLS hello cannot be read: %v", err))
		return
	}
	host, ref := v.tlsName(hello)
	if ref != nil {
		v.alert(ask, alertName, ref)
		return
	}
	ask.Host = host
	g, ref := v.settle(p.ctx, ask)
	if ref != nil {
		v.alert(ask, alertDenied, ref)
		return
	}
	if g.looksInside() {
		if p.conf.CA == nil { // the rule is for port 80 only
			v.alert(ask, alertDenied, refuse(ReasonProtocol, g.label, "port %d of %s is for HTTP without TLS", v.port, host))
			return
		}
		v.intercept(host, g, hello)
		return
	}
	if hello.ech {
		v.alert(ask, alertDenied, refuse(ReasonName, g.label, "the hello to %s has an encrypted part (ECH), in which another host may be named", host).
			with("turn ECH off in the client, or ask for the host to be intercepted"))
		return
	}
	up, err := p.dial(p.ctx, g.dial, v.port, v.dst.Addr(), g.rule)
	if err != nil {
		alert := byte(alertDenied)
		if v.failed(ask, g, err).Reason == ReasonUpstream {
			alert = alertInternal
		}
		sendAlert(v.client, alert)
		return
	}
	v.tunnel(ask, g, up, nil)
}

// tlsName returns the host that a hello means.
func (v *visit) tlsName(h hello) (string, *refusal) {
	if h.name == "" {
		host, ref := v.name()
		if ref != nil {
			return "", ref
		}
		if _, addr, _ := parseHost(host); v.declared == "" && !addr.IsValid() || addr.IsValid() && !v.p.rules.Load().direct(addr, v.port) {
			return "", refuse(ReasonName, "", "the TLS hello to %s names no host (SNI)", v.dst.Addr()).with("use a client that sends the server's name")
		}
		return host, nil
	}
	host, addr, err := parseHost(h.name)
	if err != nil || addr.IsValid() {
		return "", refuse(ReasonMalformed, "", "the TLS hello names %q, which is no host name", text.Clip(h.name, 100))
	}
	if _, meant, _ := parseHost(v.declared); v.declared != "" && v.declared != host && !meant.IsValid() {
		return "", refuse(ReasonMismatch, "", "CONNECT was for %s, the TLS hello is for %s", v.declared, host).with("name the same host in both")
	} else if meant.IsValid() {
		return v.declared, nil // a listed address: its hosts have any name
	}
	return host, nil
}

// The alerts of TLS by which refusals are told (RFC 8446, 6).
const (
	alertDenied   = 49  // access_denied
	alertDecode   = 50  // decode_error
	alertInternal = 80  // internal_error
	alertName     = 112 // unrecognized_name
)

// alert refuses a connection whose client waits for TLS.
func (v *visit) alert(ask Request, alert byte, ref *refusal) {
	v.p.refused(ask, ref)
	sendAlert(v.client, alert)
}

// sendAlert sends a fatal alert and closes. What the client still sends is read,
// or else the kernel would take the alert back with a reset.
func sendAlert(c tcpConn, alert byte) {
	c.SetDeadline(time.Now().Add(time.Second))
	c.Write([]byte{21, 3, 3, 0, 2, 2, alert})
	linger(c)
}

// linger closes c after the other side has had a moment to read what was last
// written. What it still sends is read for so long: bytes that nobody has read make
// the kernel break the connection, and the answer is lost with it.
func linger(c tcpConn) {
	c.SetDeadline(time.Now().Add(time.Second))
	c.CloseWrite()
	io.Copy(io.Discard, c)
	c.Close()
}

// dial connects to a host by an address that the host's resolver gives for it, if
// it can to the one that the program chose, for what a rule allowed.
func (p *Proxy) dial(ctx context.Context, host string, port uint16, chosen netip.Addr, by *rule) (tcpConn, error) {
	ctx, stop := context.WithTimeout(ctx, p.times.dial)
	defer stop()
	addrs, err := p.resolve(ctx, host)
	if err != nil {
		return nil, err
	}
	d := net.Dialer{KeepAlive: time.Minute, ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		return p.guard(to, by)
	}}
	var last error
	for i, a := range prefer(addrs, chosen) {
		if i == 4 {
			break
		}
		one, stop := context.WithTimeout(ctx, p.times.dial/2)
		c, err := d.DialContext(one, "tcp", netip.AddrPortFrom(a, port).String())
		stop()
		if err == nil {
			return c.(*net.TCPConn), nil
		}
		if ref, ok := errors.AsType[*refusal](err); ok {
			err = ref
		}
		if last == nil {
			last = err
		}
	}
	return nil, last
}
