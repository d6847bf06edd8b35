package egress

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"glasshouse/internal/text"
)

// explicit serves a connection of a client that uses the HTTP proxy.
func (v *visit) explicit() {
	defer v.read(v.client)()
	v.proxied = true
	v.serveHTTP(v.client)
}

// serveHTTP serves the HTTP/1 requests on c, one after another. Each request is checked
// separately.
func (v *visit) serveHTTP(c net.Conn) {
	for v.serveOne(c) {
	}
}

// serveOne serves one request. It reports whether another request may follow on c.
func (v *visit) serveOne(c net.Conn) bool {
	raw, ref := v.readHead(c)
	if raw == nil && ref == nil {
		return false
	}
	ask := Request{Kind: KindRequest, Host: v.declared, Port: v.port, TLS: v.tls}
	if ask.Host == "" && v.dst.IsValid() {
		ask.Host = v.dst.Addr().String()
	}
	if bytes.HasPrefix(raw, preface) {
		v.refuseHTTP2(c, ask)
		return false
	}
	// net/http accepts some heads that servers parse differently (request smuggling). The bytes
	// are therefore checked first. They stay in v.br, from which ReadRequest reads them again.
	var h head
	if ref == nil {
		var err error
		h, err = checkHead(raw)
		if err != nil {
			ref = refuse(ReasonMalformed, "", "the request is malformed or ambiguous: %v", err)
		}
	}
	var r *http.Request
	if ref == nil {
		var err error
		r, err = http.ReadRequest(v.br)
		if err != nil {
			ref = refuse(ReasonMalformed, "", "cannot parse the request")
		}
	}
	if ref != nil {
		v.p.refused(ask, ref)
		v.refuseOn(c, &http.Request{Method: "GET", ProtoMajor: 1, ProtoMinor: 1}, ref)
		return false
	}
	v.p.count.requests.Add(1)
	if v.proxied && r.Method == http.MethodConnect {
		v.connect(c, r, h)
		return false
	}
	host, port, ref := v.target(h, r)
	ask.Method, ask.Path = r.Method, v.path(r.URL)
	if host != "" {
		ask.Host, ask.Port = host, port
	}
	if ref != nil {
		v.p.refused(ask, ref)
		v.refuseOn(c, r, ref)
		return false
	}
	w := newReply(c, r)
	body := &requestBody{r: r.Body, w: w, done: r.Body == http.NoBody, expected: strings.EqualFold(r.Header.Get("Expect"), "100-continue") && !w.old}
	r.Body = body
	v.exchange(w, r, ask, int64(len(raw)))
	// The Transport may still read the body in another goroutine after RoundTrip has returned
	// (http.RoundTripper), and would then consume bytes of the next request.
	complete := body.abandon()
	again := w.finish()
	if !complete || !again {
		v.hangUp(c)
		return false
	}
	return true
}

// readHead returns the raw head of the next request, or nil if the client closed the
// connection.
func (v *visit) readHead(c net.Conn) ([]byte, *refusal) {
	c.SetReadDeadline(time.Now().Add(v.p.times.idle))
	defer c.SetReadDeadline(time.Time{})
	first, err := v.br.Peek(1)
	if err != nil {
		return nil, nil
	}
	if !isToken(first[0]) && !bytes.ContainsAny(first, "\r\n\t ") {
		// Do not wait for a complete head: a TLS or SOCKS client waits for a response now.
		return nil, refuse(ReasonProtocol, "", "not an HTTP request: the first byte is %#02x", first[0]).with("use HTTP here, with CONNECT for everything else")
	}
	// One deadline for the whole head. A deadline for each read would let a client hold the
	// connection by sending single bytes (Slowloris).
	c.SetReadDeadline(time.Now().Add(v.p.times.head))
	for {
		b, _ := v.br.Peek(v.br.Buffered())
		if bytes.HasPrefix(b, preface) {
			return b, nil
		}
		if n := headEnd(b); n > 0 {
			return b[:n:n], nil
		}
		if len(b) == maxHead {
			return nil, refuse(ReasonLimit, "", "the request head is longer than %d bytes", maxHead)
		}
		if _, err := v.br.Peek(len(b) + 1); err != nil {
			if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
				late := refuse(ReasonLimit, "", "the request head was not received within %v", v.p.times.head)
				late.code = http.StatusRequestTimeout
				return nil, late
			}
			return nil, nil
		}
	}
}

// path returns the path of a URL for records and for the Authority.
func (v *visit) path(u *url.URL) string {
	path := u.EscapedPath()
	if v.p.conf.KeepQuery && u.RawQuery != "" {
		path += "?" + u.RawQuery
	}
	return path
}

// target returns the host that a request addresses. It refuses a request with contradictory
// hosts. Otherwise a request that is allowed for one host could reach another virtual host at
// the same address.
func (v *visit) target(h head, r *http.Request) (host string, port uint16, ref *refusal) {
	written := h.host
	absolute := !strings.HasPrefix(h.target, "/") && h.target != "*"
	switch {
	case r.Method == http.MethodConnect:
		return "", 0, refuse(ReasonProtocol, "", "CONNECT is accepted only by the HTTP proxy in HTTP_PROXY")
	case h.target == "*" && r.Method != http.MethodOptions:
		return "", 0, refuse(ReasonMalformed, "", "only OPTIONS may use the target *")
	case v.proxied && !absolute:
		return "", 0, refuse(ReasonMalformed, "", "this is the HTTP proxy of the jail: it accepts CONNECT and requests with an absolute URL").with("configure it as the HTTP proxy, or connect to the host directly")
	case absolute && (r.URL.Scheme != "http" && !v.tls || r.URL.Scheme != "https" && v.tls):
		return "", 0, refuse(ReasonMalformed, "", "URL scheme %q is not supported here", text.Clip(r.URL.Scheme, 20)).with("use CONNECT for https")
	// User information disguises the host, as in http://allowed.example@other.example, and must
	// not be sent (RFC 9110, 4.2.4).
	case absolute && (r.URL.User != nil || r.URL.Opaque != "" || r.URL.Host == ""):
		return "", 0, refuse(ReasonMalformed, "", "the requested URL has no host, or has user information")
	// The URL takes precedence (RFC 9112, 3.2.2), but a server that uses the Host field would
	// serve a host that was not checked.
	case absolute && h.hasHost && !sameHost(h.host, r.URL.Host, v.tls):
		return "", 0, refuse(ReasonMismatch, "", "the URL names %s, the Host field %s", text.Clip(r.URL.Host, 100), text.Clip(h.host, 100)).with("name the same host in both")
	case absolute:
		written = r.URL.Host
	}
	port = v.port
	if v.proxied {
		port = 80
	}
	if written == "" {
		if h.hasHost {
			return "", 0, refuse(ReasonMalformed, "", "the Host field is empty")
		}
		host, ref = v.name()
		return host, port, ref
	}
	host, _, givenPort, err := parseHostPort(written)
	if err != nil {
		return "", 0, refuse(ReasonMalformed, "", "%q is not a valid host: %v", text.Clip(written, 100), err)
	}
	if v.proxied {
		if givenPort != 0 {
			port = givenPort
		}
		return host, port, nil
	}
	if givenPort != 0 && givenPort != v.port {
		return host, port, refuse(ReasonMismatch, "", "the request is for port %d of %s, the connection for port %d", givenPort, host, v.port)
	}
	if v.declared != "" && host != v.declared {
		if _, meant, _ := parseHost(v.declared); !meant.IsValid() {
			return host, port, refuse(ReasonMismatch, "", "the request is for %s, the connection for %s", host, v.declared).with("connect to the host that the request names")
		}
		host = v.declared // a listed address may serve any host name
	}
	return host, port, nil
}

// sameHost reports whether a and b name the same host and port.
func sameHost(a, b string, tls bool) bool {
	h1, _, p1, err1 := parseHostPort(a)
	h2, _, p2, err2 := parseHostPort(b)
	standard := uint16(80)
	if tls {
		standard = 443
	}
	return err1 == nil && err2 == nil && h1 == h2 && cmp.Or(p1, standard) == cmp.Or(p2, standard)
}

// connect handles a CONNECT request and the data after it.
func (v *visit) connect(c net.Conn, r *http.Request, h head) {
	ask := Request{Kind: KindConnect, Method: http.MethodConnect}
	host, addr, port, err := parseHostPort(r.RequestURI)
	if err != nil || port == 0 {
		ask.Host = text.Clip(r.RequestURI, 253)
		ref := refuse(ReasonMalformed, "", "CONNECT target %q is not a host with a port", text.Clip(r.RequestURI, 100))
		v.p.refused(ask, ref)
		v.refuseOn(c, r, ref)
		return
	}
	ask.Host, ask.Port = host, port
	var ref *refusal
	var g grant
	switch givenHost, _, sent, err := parseHostPort(h.host); {
	case h.hasHost && (err != nil || givenHost != host || sent != 0 && sent != port):
		ref = refuse(ReasonMismatch, "", "CONNECT is for %s, the Host field for %s", r.RequestURI, text.Clip(h.host, 100))
	// CONNECT has no content (RFC 9110, 9.3.6). Bytes of a body would be read as tunneled data.
	case r.ContentLength != 0:
		ref = refuse(ReasonMalformed, "", "CONNECT must not have a body")
	default:
		if addr.IsValid() {
			v.dst = netip.AddrPortFrom(addr, port)
		}
		g, ref = v.settle(v.p.ctx, ask)
		if ref == nil {
			ref = v.p.reachable(g, port)
		}
	}
	if ref != nil {
		v.p.refused(ask, ref)
		v.refuseOn(c, r, ref)
		return
	}
	// No Content-Length or Transfer-Encoding: a 2xx response to CONNECT must have neither (RFC
	// 9110, 9.3.6).
	if _, err := io.WriteString(c, "HTTP/1.1 200 Connected\r\n\r\n"); err != nil {
		return
	}
	v.proxied, v.declared, v.port, v.granted = false, host, port, &g
	v.carry()
}

// reachable refuses a host that does not resolve, or has no permitted address. The check runs
// before the response to CONNECT, so that the client receives an HTTP error with the reason.
func (p *Proxy) reachable(g grant, port uint16) *refusal {
	addrs, err := p.resolve(p.ctx, g.dial)
	if err != nil || len(addrs) == 0 {
		return refuse(ReasonUpstream, g.label, "cannot resolve %s", g.dial)
	}
	var last error
	for _, a := range addrs {
		last = p.guard(netip.AddrPortFrom(a, port), g.rule)
		if last == nil {
			return nil
		}
	}
	if ref, ok := errors.AsType[*refusal](last); ok {
		return ref
	}
	return nil // dial reports the error
}

// refuseOn sends a refusal to an HTTP/1 client and closes the connection.
func (v *visit) refuseOn(c net.Conn, r *http.Request, ref *refusal) {
	c.SetWriteDeadline(time.Now().Add(v.p.times.head))
	ref.answer(newReply(c, r), r.Header["Accept"])
	v.hangUp(c)
}

// hangUp closes a connection, but first gives the client time to read the last response on c.
func (v *visit) hangUp(c net.Conn) {
	// On a TLS connection this sends close_notify. Without it, the client cannot distinguish the
	// end of the response from a truncation attack (RFC 8446, 6.1).
	closeWrite(c)
	linger(v.client)
}

// closeWrite closes the write side of c.
func closeWrite(c net.Conn) {
	if c, ok := c.(interface{ CloseWrite() error }); ok {
		c.CloseWrite()
	}
}

// refuseHTTP2 refuses a client that uses HTTP/2 without TLS. It sends SETTINGS and GOAWAY with
// HTTP_1_1_REQUIRED (RFC 9113, 6.8 and 7).
func (v *visit) refuseHTTP2(c net.Conn, ask Request) {
	ref := refuse(ReasonProtocol, "", "HTTP/2 without TLS is not supported").with("use HTTP/1.1, or https")
	v.p.refused(ask, ref)
	const settings, goaway, http11Required = 4, 7, 13
	// SETTINGS must be the first frame that a server sends (RFC 9113, 3.4).
	b := []byte{0, 0, 0, settings, 0, 0, 0, 0, 0}
	text := ref.message()
	// The length has 24 bits (RFC 9113, 4.1). This text is short enough for the last 8.
	b = append(b, 0, 0, byte(8+len(text)), goaway, 0, 0, 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, 0)
	b = binary.BigEndian.AppendUint32(b, http11Required)
	b = append(b, text...)
	c.SetWriteDeadline(time.Now().Add(v.p.times.head))
	c.Write(b)
	linger(v.client)
}

// requestBody is the body of a request that is being forwarded.
type requestBody struct {
	r        io.Reader
	w        *reply // nil if expected is false
	f        *flow  // counts the bytes; nil until the request is allowed
	expected bool   // the client waits for 100 Continue

	mu sync.Mutex
	// +checklocks:mu
	done bool // the body was read to its end
	// +checklocks:mu
	given bool // abandon was called
	// +checklocks:mu
	err error
}

func (b *requestBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.done:
		return 0, io.EOF
	case b.given:
		return 0, net.ErrClosed
	case b.err != nil:
		return 0, b.err
	}
	// The body is read only after the rules have allowed the request. A client that waits for 100
	// Continue (RFC 9110, 10.1.1) therefore need not send the body of a refused request.
	if b.expected {
		b.expected = false
		if err := b.w.proceed(); err != nil {
			return 0, err
		}
	}
	n, err := b.r.Read(p)
	if n > 0 && b.f != nil {
		if may := b.f.up(n); may < n {
			n, err = may, errSpent
		}
	}
	if err == io.EOF {
		b.done = true
	} else if err != nil {
		b.err = err
	}
	return n, err
}

// ended reports whether the body was read to its end. It does not wait for a concurrent Read.
//
// The checklocks analyzer does not support TryLock.
//
// +checklocksignore
func (b *requestBody) ended() bool {
	if !b.mu.TryLock() {
		return false
	}
	defer b.mu.Unlock()
	return b.done
}

// Close does nothing. Unread data is discarded with the connection.
func (b *requestBody) Close() error { return nil }

// broken returns the error that occurred when the body was read from the client.
//
// The checklocks analyzer does not support TryLock.
//
// +checklocksignore
func (b *requestBody) broken() error {
	if !b.mu.TryLock() {
		return nil // a Read is in progress
	}
	defer b.mu.Unlock()
	return b.err
}

// abandon prevents further reads. It reports whether the body was read to its end; if not, the
// caller must close the connection.
//
// The checklocks analyzer does not support TryLock.
//
// +checklocksignore
func (b *requestBody) abandon() bool {
	if !b.mu.TryLock() {
		return false // a Read is in progress: the connection must be closed
	}
	defer b.mu.Unlock()
	b.given = true
	return b.done
}
