package egress

import (
	"bytes"
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

// explicit carries a connection of a program that knows of the proxy.
func (v *visit) explicit() {
	defer v.read(v.client)()
	v.proxied = true
	v.serveHTTP(v.client)
}

// serveHTTP carries the requests of HTTP/1 that come on c, one after another. Each
// is checked by itself.
func (v *visit) serveHTTP(c net.Conn) {
	for v.serveOne(c) {
	}
}

// serveOne carries one request and reports whether another may follow.
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
	var h head
	if ref == nil {
		var err error
		if h, err = checkHead(raw); err != nil {
			ref = refuse(ReasonMalformed, "", "the request can be read in more than one way, or in none: %v", err)
		}
	}
	var r *http.Request
	if ref == nil {
		var err error
		if r, err = http.ReadRequest(v.br); err != nil {
			ref = refuse(ReasonMalformed, "", "the request cannot be read")
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
	body := &requestBody{r: r.Body, c: c, w: w, done: r.Body == http.NoBody, expected: strings.EqualFold(r.Header.Get("Expect"), "100-continue") && !w.old}
	r.Body = body
	v.exchange(w, r, ask, int64(len(raw)))
	whole := body.abandon()
	again := w.finish()
	if !whole || !again {
		v.hangUp(c)
		return false
	}
	return true
}

// readHead returns the head of the next request as it came, or nothing if there
// is none.
func (v *visit) readHead(c net.Conn) ([]byte, *refusal) {
	c.SetReadDeadline(time.Now().Add(v.p.times.idle))
	defer c.SetReadDeadline(time.Time{})
	first, err := v.br.Peek(1)
	if err != nil {
		return nil, nil
	}
	if !isToken(first[0]) && !bytes.ContainsAny(first, "\r\n\t ") {
		// Nothing more would come from who waits for an answer to TLS or SOCKS.
		return nil, refuse(ReasonProtocol, "", "this is no HTTP, as its first byte, %#02x, says", first[0]).with("use HTTP here, with CONNECT for everything else")
	}
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
			return nil, refuse(ReasonLimit, "", "the head of the request is longer than %d bytes", maxHead)
		}
		if _, err := v.br.Peek(len(b) + 1); err != nil {
			if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
				late := refuse(ReasonLimit, "", "the head of the request did not come within %v", v.p.times.head)
				late.code = http.StatusRequestTimeout
				return nil, late
			}
			return nil, nil
		}
	}
}

// path returns what is recorded of a URL and shown to the Authority.
func (v *visit) path(u *url.URL) string {
	path := u.EscapedPath()
	if v.p.conf.KeepQuery && u.RawQuery != "" {
		path += "?" + u.RawQuery
	}
	return path
}

// target returns which host a request means. That it says in one way only is what
// keeps a request that is allowed for one host from reaching another behind the
// same address.
func (v *visit) target(h head, r *http.Request) (host string, port uint16, ref *refusal) {
	written := h.host
	whole := !strings.HasPrefix(h.target, "/") && h.target != "*"
	switch {
	case r.Method == http.MethodConnect:
		return "", 0, refuse(ReasonProtocol, "", "CONNECT is for the HTTP proxy that HTTP_PROXY names")
	case h.target == "*" && r.Method != http.MethodOptions:
		return "", 0, refuse(ReasonMalformed, "", "only OPTIONS may have the target *")
	case v.proxied && !whole:
		return "", 0, refuse(ReasonMalformed, "", "this is the HTTP proxy of the jail: it takes requests for whole URLs, and CONNECT").with("use it as a proxy, or connect to the host itself")
	case whole && (r.URL.Scheme != "http" && !v.tls || r.URL.Scheme != "https" && v.tls):
		return "", 0, refuse(ReasonMalformed, "", "a URL with the scheme %q cannot be asked for here", text.Clip(r.URL.Scheme, 20)).with("use CONNECT for https")
	case whole && (r.URL.User != nil || r.URL.Opaque != "" || r.URL.Host == ""):
		return "", 0, refuse(ReasonMalformed, "", "the URL asked for names no host, or a user")
	case whole && h.hasHost && !sameHost(h.host, r.URL.Host):
		return "", 0, refuse(ReasonMismatch, "", "the URL names %s, the Host field %s", text.Clip(r.URL.Host, 100), text.Clip(h.host, 100)).with("name the same host in both")
	case whole:
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
	host, _, said, err := parseHostPort(written)
	if err != nil {
		return "", 0, refuse(ReasonMalformed, "", "%q cannot be a host: %v", text.Clip(written, 100), err)
	}
	if v.proxied {
		if said != 0 {
			port = said
		}
		return host, port, nil
	}
	if said != 0 && said != v.port {
		return host, port, refuse(ReasonMismatch, "", "the request is for port %d of %s, the connection for port %d", said, host, v.port)
	}
	if v.declared != "" && host != v.declared {
		if _, meant, _ := parseHost(v.declared); !meant.IsValid() {
			return host, port, refuse(ReasonMismatch, "", "the request is for %s, the connection for %s", host, v.declared).with("connect to the host that is meant")
		}
		host = v.declared // a listed address: its hosts have any name
	}
	return host, port, nil
}

// sameHost reports whether two fields name the same host and port of http.
func sameHost(a, b string) bool {
	h1, _, p1, err1 := parseHostPort(a)
	h2, _, p2, err2 := parseHostPort(b)
	if p1 == 0 {
		p1 = 80
	}
	if p2 == 0 {
		p2 = 80
	}
	return err1 == nil && err2 == nil && h1 == h2 && p1 == p2
}

// connect carries what comes after CONNECT.
func (v *visit) connect(c net.Conn, r *http.Request, h head) {
	ask := Request{Kind: KindConnect, Method: http.MethodConnect}
	host, addr, port, err := parseHostPort(r.RequestURI)
	if err != nil || port == 0 {
		ask.Host = text.Clip(r.RequestURI, 253)
		ref := refuse(ReasonMalformed, "", "CONNECT is for %q, which is no host with a port", text.Clip(r.RequestURI, 100))
		v.p.refused(ask, ref)
		v.refuseOn(c, r, ref)
		return
	}
	ask.Host, ask.Port = host, port
	var ref *refusal
	var g grant
	switch said, _, sent, err := parseHostPort(h.host); {
	case h.hasHost && (err != nil || said != host || sent != 0 && sent != port):
		ref = refuse(ReasonMismatch, "", "CONNECT is for %s, the Host field for %s", r.RequestURI, text.Clip(h.host, 100))
	case r.ContentLength != 0:
		ref = refuse(ReasonMalformed, "", "CONNECT has no body")
	default:
		if addr.IsValid() {
			v.dst = netip.AddrPortFrom(addr, port)
		}
		if g, ref = v.settle(v.p.ctx, ask); ref == nil {
			ref = v.p.reachable(g, port)
		}
	}
	if ref != nil {
		v.p.refused(ask, ref)
		v.refuseOn(c, r, ref)
		return
	}
	if _, err := io.WriteString(c, "HTTP/1.1 200 Connected\r\n\r\n"); err != nil {
		return
	}
	v.proxied, v.declared, v.port, v.granted = false, host, port, &g
	v.carry()
}

// reachable refuses a host whose name leads nowhere, or nowhere it may, while it
// still can be told in words.
func (p *Proxy) reachable(g grant, port uint16) *refusal {
	addrs, err := p.resolve(p.ctx, g.dial)
	if err != nil || len(addrs) == 0 {
		return refuse(ReasonUpstream, g.label, "the address of %s cannot be found", g.dial)
	}
	var last error
	for _, a := range addrs {
		if last = p.guard(netip.AddrPortFrom(a, port), g.rule); last == nil {
			return nil
		}
	}
	if ref, ok := errors.AsType[*refusal](last); ok {
		return ref
	}
	return nil // it will be seen when it is dialled
}

// refuseOn tells a client of HTTP/1 that it is refused, and ends the connection.
func (v *visit) refuseOn(c net.Conn, r *http.Request, ref *refusal) {
	c.SetWriteDeadline(time.Now().Add(v.p.times.head))
	ref.answer(newReply(c, r), r.Header["Accept"])
	v.hangUp(c)
}

// hangUp ends a connection after the client had a moment to read what was last
// written on c.
func (v *visit) hangUp(c net.Conn) {
	closeWrite(c)
	linger(v.client)
}

// closeWrite says to the other side of c that no more comes.
func closeWrite(c net.Conn) {
	if c, ok := c.(interface{ CloseWrite() error }); ok {
		c.CloseWrite()
	}
}

// refuseHTTP2 tells a client that begins with HTTP/2 in the clear to use HTTP/1.1,
// in its own words: SETTINGS and GOAWAY (RFC 9113, 6.8).
func (v *visit) refuseHTTP2(c net.Conn, ask Request) {
	ref := refuse(ReasonProtocol, "", "HTTP/2 without TLS is not carried").with("use HTTP/1.1, or https")
	v.p.refused(ask, ref)
	const settings, goaway, http11Required = 4, 7, 13
	b := []byte{0, 0, 0, settings, 0, 0, 0, 0, 0}
	text := ref.message()
	b = append(b, 0, 0, byte(8+len(text)), goaway, 0, 0, 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, 0)
	b = binary.BigEndian.AppendUint32(b, http11Required)
	b = append(b, text...)
	c.SetWriteDeadline(time.Now().Add(v.p.times.head))
	c.Write(b)
	linger(v.client)
}

// requestBody is the body of a request while it is passed on.
type requestBody struct {
	r        io.Reader
	c        net.Conn
	w        *reply
	f        *flow // that counts it; nil until it is known
	expected bool  // the client waits to be told to go on

	mu sync.Mutex
	// +checklocks:mu
	done bool // the end has been read
	// +checklocks:mu
	given bool // the reader is gone
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
	if b.expected {
		b.expected = false
		if _, err := io.WriteString(b.c, "HTTP/1.1 100 Continue\r\n\r\n"); err != nil {
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

// ended reports whether the end of the body has been read. It does not wait for a read.
//
// The analyzer does not know TryLock.
//
// +checklocksignore
func (b *requestBody) ended() bool {
	if !b.mu.TryLock() {
		return false
	}
	defer b.mu.Unlock()
	return b.done
}

// Close leaves what has not been read: the connection ends with it.
func (b *requestBody) Close() error { return nil }

// broken returns what was wrong with the body as it came from the client.
//
// The analyzer does not know TryLock.
//
// +checklocksignore
func (b *requestBody) broken() error {
	if !b.mu.TryLock() {
		return nil // it is being read
	}
	defer b.mu.Unlock()
	return b.err
}

// abandon reports whether the body has been read to its end. If not, nobody reads
// it any more, once the connection is closed.
//
// The analyzer does not know TryLock.
//
// +checklocksignore
func (b *requestBody) abandon() bool {
	if !b.mu.TryLock() {
		return false // it is being read: the connection has to end
	}
	defer b.mu.Unlock()
	b.given = true
	return b.done
}
