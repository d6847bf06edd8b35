package egress

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/internal/text"
)

// tcpConn is a distinct name so that a nil pointer can be compared before a conversion to
// net.Conn.
type tcpConn = *net.TCPConn

// A visit is one connection from a program in the jail.
type visit struct {
	p        *Proxy
	client   tcpConn
	br       *bufio.Reader // buffered data of the client, from the first byte; unused once pipe copies
	brShared bool          // an HTTP/2 server may read from br after the visit, so br is not returned to the pool

	dst      netip.AddrPort // original destination according to the kernel; zero for the explicit proxy
	port     uint16         // requested port
	declared string         // host of CONNECT or of the intercepted connection; "" if none
	granted  *grant         // grant of the CONNECT request
	proxied  bool           // requests have absolute URLs
	tls      bool           // TLS with the client is terminated by the proxy
}

// readers are buffers for the first bytes of connections and the heads of requests. Their size
// is the maximum size of a head.
var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, maxHead) }}

const maxHead = 32 << 10

func (v *visit) read(c net.Conn) func() {
	br := readers.Get().(*bufio.Reader)
	br.Reset(c)
	v.br = br
	return func() {
		if v.brShared {
			return
		}
		br.Reset(nil)
		readers.Put(br)
	}
}

// transparent serves a redirected connection.
func (v *visit) transparent() {
	defer v.read(v.client)()
	// For a connection that was not redirected, the kernel returns ENOENT or the address of the
	// listener (net/netfilter/nf_conntrack_proto.c, getorigdst).
	dst, err := originalDst(v.client)
	if err != nil || dst == v.client.LocalAddr().(*net.TCPAddr).AddrPort() {
		v.abort(Request{Kind: KindConnect}, refuse(ReasonName, "", "a direct connection to the proxy has no destination").with("connect to the destination host"))
		return
	}
	v.dst, v.port = dst, dst.Port()
	v.carry()
}

// originalDst returns the original destination of a redirected connection.
func originalDst(c tcpConn) (dst netip.AddrPort, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return dst, fmt.Errorf("get the descriptor of the connection: %w", err)
	}
	e := raw.Control(func(fd uintptr) {
		// The kernel writes a struct sockaddr_in (include/uapi/linux/netfilter_ipv4.h,
		// SO_ORIGINAL_DST), for which an IPv6Mreq is large enough.
		var sa *unix.IPv6Mreq
		sa, err = unix.GetsockoptIPv6Mreq(int(fd), unix.SOL_IP, unix.SO_ORIGINAL_DST)
		if err == nil {
			b := sa.Multiaddr
			dst = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), uint16(b[2])<<8|uint16(b[3]))
		}
	})
	return dst, errors.Join(e, err)
}

// state returns the state of a TCP connection (include/net/tcp_states.h).
func state(c tcpConn) int {
	// The kernel asserts at build time that BPF_TCP_* equal its TCP states (net/ipv4/tcp.c,
	// tcp_set_state).
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

// isTemporary reports whether err is a temporary shortage of resources, or another temporary error
// of accept(2), which returns pending network errors of the new connection and advises to retry.
func isTemporary(err error) bool {
	for _, e := range []syscall.Errno{
		unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM, unix.ECONNABORTED, unix.EINTR, unix.ENETDOWN, unix.EPROTO,
		unix.ENOPROTOOPT, unix.EHOSTDOWN, unix.ENONET, unix.EHOSTUNREACH, unix.EOPNOTSUPP, unix.ENETUNREACH,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// reset closes a connection with an RST segment, so that the client detects the refusal.
func reset(c tcpConn) {
	// A linger time of 0 makes close(2) discard queued data and send RST (net/ipv4/tcp.c,
	// __tcp_close).
	c.SetLinger(0)
	c.Close()
}

// abort refuses and resets a connection. ask contains what is known about it.
func (v *visit) abort(ask Request, ref *refusal) {
	v.p.refused(ask, ref)
	reset(v.client)
}

// carry detects the protocol of the client and serves the connection if the rules allow it.
func (v *visit) carry() {
	p := v.p
	spoken, err := v.detect(p.times.silence)
	if spoken == protoUnknown && err == nil {
		if v.serverFirst() {
			return
		}
		spoken, err = v.detect(p.times.head)
	}
	ask := Request{Kind: KindConnect, Host: v.declared, Port: v.port}
	if ask.Host == "" && v.dst.IsValid() {
		ask.Host = v.dst.Addr().String()
	}
	switch {
	case err == io.EOF && v.br.Buffered() == 0:
		// A port scanner does this. It learns nothing, because all ports look open.
		p.refused(ask, refuse(ReasonClient, "", "the client closed the connection without sending data"))
	case err != nil:
		v.abort(ask, refuse(ReasonClient, "", "the client closed the connection before its protocol was known"))
	case spoken == protoTLS:
		v.carryTLS()
	case spoken == protoHTTP:
		v.serveHTTP(v.client)
	case spoken == protoOther:
		v.carryRaw()
	case v.br.Buffered() == 0:
		v.abort(ask, refuse(ReasonName, "", "the client sent nothing, and the address does not belong to an allowed name").with("resolve the host name again and reconnect"))
	default:
		v.abort(ask, refuse(ReasonLimit, "", "the first message of the client is too long or too slow"))
	}
}

// detect waits until the protocol of the client is known. It returns protoUnknown without an
// error if the client has not sent enough in time, and with an error if the connection failed.
func (v *visit) detect(d time.Duration) (protocol, error) {
	v.client.SetReadDeadline(time.Now().Add(d))
	defer v.client.SetReadDeadline(time.Time{})
	for started := false; ; {
		b, _ := v.br.Peek(v.br.Buffered())
		if s := classify(b); s != protoUnknown {
			return s, nil
		}
		if len(b) == maxHead {
			return protoUnknown, nil
		}
		// Once the client has started, the timeout for a whole head applies. Like that of readHead,
		// it is not extended by further bytes.
		if len(b) > 0 && !started {
			started = true
			v.client.SetReadDeadline(time.Now().Add(v.p.times.head))
		}
		// bufio.Reader clears an error after it has returned it, so reads after a timeout work.
		if _, err := v.br.Peek(len(b) + 1); err != nil {
			if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
				return protoUnknown, nil
			}
			return protoUnknown, err
		}
	}
}

// name returns the host of a connection that sends no name: the host of CONNECT, the only
// allowed name for which DNS returned the address, or the address itself, which a rule must
// then list.
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
		return "", refuse(ReasonName, "", "%s is the address of several allowed hosts, and the client does not name one", addr).with("use CONNECT to the HTTP proxy in HTTP_PROXY")
	case len(all) == 1:
		return all[0], nil
	}
	return addr.String(), nil
}

// serverFirst connects to the server of a silent client, if the host is known and allowed, so
// that the server can speak first. It returns false if the client speaks first after all.
func (v *visit) serverFirst() bool {
	p := v.p
	host, ref := v.name()
	// Port 80 is for HTTP only (see carryRaw), in which the client sends first.
	if ref != nil || v.port == 80 {
		return false
	}
	ask := Request{Kind: KindConnect, Host: host, Port: v.port}
	g, ref := v.settle(p.ctx, ask)
	if ref != nil || g.needsIntercept() {
		return false // the refusal is reported when the client sends data
	}
	if g.rule == nil {
		v.declared, v.granted = host, &g // the Authority need not be called again
	}
	up, err := p.dial(p.ctx, g.dial, v.port, v.dst.Addr(), g.rule)
	if err != nil {
		v.failed(ask, g, err)
		reset(v.client)
		return true
	}
	first, err := v.firstSender(up)
	if err != nil || len(first) == 0 {
		up.Close()
		return err != nil
	}
	if answersHTTP(first) {
		up.Close()
		v.abort(ask, refuse(ReasonProtocol, g.label, "the server uses HTTP, but the client sent no request").with("send the request immediately after connecting"))
		return true
	}
	v.tunnel(ask, g, up, first)
	return true
}

// answersHTTP reports whether a server that sent data first uses HTTP: it sent a timeout
// response, or HTTP/2 SETTINGS (RFC 9113, 3.4). The data of the client would then be a request
// whose host was not checked.
func answersHTTP(first []byte) bool {
	settings := len(first) >= 9 && first[0] == 0 && first[3] == 4 && bytes.Equal(first[5:9], []byte{0, 0, 0, 0})
	return settings || bytes.HasPrefix(first, []byte("HTTP/"))
}

// firstSender waits until one side sends data, and returns the data of the server. The data is
// empty if the client was first. firstSender returns an error if neither side sends data in
// time.
func (v *visit) firstSender(up tcpConn) (first []byte, err error) {
	limit := time.Now().Add(v.p.times.idle)
	// Both sides are read. Whichever read ends first sets a deadline in the past for the other
	// side, which also fails a pending read (net.Conn, SetDeadline).
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

// carryRaw serves a connection that is neither TLS nor HTTP.
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
		ref = refuse(ReasonProtocol, g.label, "port 80 is for HTTP, and the client uses another protocol")
	case g.needsIntercept():
		ref = refuse(ReasonProtocol, g.label, "the rule allows HTTP requests, and the client uses another protocol")
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

// failed records that the connection to an allowed server failed.
func (v *visit) failed(ask Request, g grant, err error) *refusal {
	ref, ok := errors.AsType[*refusal](err)
	if !ok {
		ref = refuse(ReasonUpstream, g.label, "cannot connect to %s: %v", ask.Host, err)
	}
	v.p.record(Record{At: time.Now(), Request: ask, Rule: g.label, Allowed: !ok, Reason: ref.Reason, Detail: ref.Detail})
	return ref
}

// carryTLS serves a connection that starts with a TLS ClientHello.
func (v *visit) carryTLS() {
	p := v.p
	b, _ := v.br.Peek(v.br.Buffered())
	hello, _, err := parseHello(b)
	ask := Request{Kind: KindConnect, Host: v.declared, Port: v.port, TLS: true}
	if ask.Host == "" && v.dst.IsValid() {
		ask.Host = v.dst.Addr().String()
	}
	if err != nil {
		v.alert(ask, alertDecode, refuse(ReasonMalformed, "", "cannot parse the TLS ClientHello: %v", err))
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
	if g.needsIntercept() {
		if p.conf.CA == nil { // the rule has only port 80
			v.alert(ask, alertDenied, refuse(ReasonProtocol, g.label, "port %d of %s is for HTTP without TLS", v.port, host))
			return
		}
		v.intercept(host, g, hello)
		return
	}
	// Some servers use the inner name, which the proxy cannot decrypt, and GREASE ECH looks like
	// real ECH. With interception, the proxy is the server and uses only the outer name.
	if hello.ech {
		v.alert(ask, alertDenied, refuse(ReasonName, g.label, "the ClientHello to %s is encrypted (ECH) and may name another host", host).
			with("disable ECH in the client, or ask an administrator to enable interception for the host"))
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

// tlsName returns the host that a ClientHello addresses.
func (v *visit) tlsName(h hello) (string, *refusal) {
	if h.name == "" {
		host, ref := v.name()
		if ref != nil {
			return "", ref
		}
		if _, addr, _ := parseHost(host); v.declared == "" && !addr.IsValid() || addr.IsValid() && !v.p.rules.Load().direct(addr, v.port) {
			return "", refuse(ReasonName, "", "the TLS ClientHello to %s has no server name (SNI)", v.dst.Addr()).with("use a client that sends SNI")
		}
		return host, nil
	}
	host, addr, err := parseHost(h.name)
	if err != nil || addr.IsValid() {
		return "", refuse(ReasonMalformed, "", "the server name (SNI) %q in the TLS ClientHello is not a host name", text.Clip(h.name, 100))
	}
	if _, meant, _ := parseHost(v.declared); v.declared != "" && v.declared != host && !meant.IsValid() {
		return "", refuse(ReasonMismatch, "", "CONNECT was for %s, the TLS ClientHello is for %s", v.declared, host).with("name the same host in both")
	} else if meant.IsValid() {
		return v.declared, nil // a listed address may serve any host name
	}
	return host, nil
}

// TLS alerts for refusals (RFC 8446, 6.2).
const (
	alertDenied   = 49  // access_denied
	alertDecode   = 50  // decode_error
	alertInternal = 80  // internal_error
	alertName     = 112 // unrecognized_name
)

// alert refuses a connection with a TLS alert.
func (v *visit) alert(ask Request, alert byte, ref *refusal) {
	v.p.refused(ask, ref)
	sendAlert(v.client, alert)
}

// sendAlert sends a fatal alert and closes the connection. linger prevents an RST that would
// discard the alert.
func sendAlert(c tcpConn, alert byte) {
	c.SetDeadline(time.Now().Add(time.Second))
	// A plaintext record of type alert (21) with legacy_record_version 0x0303, length 2 and level
	// fatal (2) (RFC 8446, 5.1 and 6).
	c.Write([]byte{21, 3, 3, 0, 2, 2, alert})
	linger(c)
}

// linger closes c after the client had time to read the last data. Meanwhile it reads and
// discards data of the client: closing a socket with unread data sends an RST (RFC 2525,
// 2.17), and the client then loses the response.
func linger(c tcpConn) {
	c.SetDeadline(time.Now().Add(time.Second))
	c.CloseWrite()
	io.Copy(io.Discard, c)
	c.Close()
}

// dial connects to a host that rule by allowed. It uses addresses from the host's resolver,
// and prefers the address that the client chose.
func (p *Proxy) dial(ctx context.Context, host string, port uint16, chosen netip.Addr, by *rule) (tcpConn, error) {
	ctx, stop := context.WithTimeout(ctx, p.times.dial)
	defer stop()
	addrs, err := p.resolve(ctx, host)
	if err != nil {
		return nil, err
	}
	// net.Dialer calls ControlContext with the numeric address, after it has created the socket
	// and before connect(2). So the checked address is the dialed one: a second resolution
	// cannot replace it (DNS rebinding).
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
		// Half of the total time, so that an address that does not answer leaves time for another.
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
