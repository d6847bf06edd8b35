package egress

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// intercept terminates TLS with the client, with a certificate for the requested host, and
// serves the requests inside.
func (v *visit) intercept(host string, g grant, h hello) {
	p := v.p
	ask := Request{Kind: KindConnect, Host: host, Port: v.port, TLS: true}
	name := host
	if h.name != "" {
		name, _, _ = parseHost(h.name) // carryTLS has checked it
	}
	protos := []string{"http/1.1"}
	if slices.Contains(h.alpn, "h2") {
		protos = []string{"h2", "http/1.1"}
	}
	c := tls.Server(peeked{v.client, v.br}, &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     protos,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return p.conf.CA.leaf(name) },
	})
	ctx, stop := context.WithTimeout(p.ctx, p.times.head)
	err := c.HandshakeContext(ctx)
	stop()
	if err != nil {
		p.refused(ask, handshakeRefusal(host, g.label, err))
		linger(v.client)
		return
	}
	v.tls, v.declared, v.proxied = true, host, false
	if c.ConnectionState().NegotiatedProtocol == "h2" {
		v.brShared = true
		p.h2.serve(v, c)
		return
	}
	defer v.read(c)()
	v.serveHTTP(c)
}

// handshakeRefusal returns the reason why the TLS handshake with a client failed.
func handshakeRefusal(host, rule string, err error) *refusal {
	remote, isOp := errors.AsType[*net.OpError](err)
	switch {
	// crypto/tls returns an alert of the peer as a net.OpError with this Op.
	case isOp && remote.Op == "remote error":
		return refuse(ReasonTrust, rule, "the client rejected the proxy's certificate for %s: %v", host, remote.Err).
			with("make the client trust the jail's certificate authority; a client with certificate pinning cannot be intercepted")
	case errors.Is(err, io.EOF) || isOp:
		return refuse(ReasonTrust, rule, "the client closed the connection after it received the proxy's certificate for %s", host).
			with("make the client trust the jail's certificate authority; a client with certificate pinning cannot be intercepted")
	case errors.Is(err, context.DeadlineExceeded):
		return refuse(ReasonLimit, rule, "the TLS handshake for %s timed out", host)
	}
	return refuse(ReasonProtocol, rule, "cannot intercept TLS to %s: %v", host, err)
}

// peeked is a connection whose first bytes are buffered in br.
type peeked struct {
	net.Conn
	br *bufio.Reader
}

func (c peeked) Read(b []byte) (int, error) { return c.br.Read(b) }

// streams serves HTTP/2 requests on intercepted connections.
type streams struct {
	p     *Proxy
	srv   http.Server
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
	wg    sync.WaitGroup

	mu sync.Mutex
	// +checklocks:mu
	visits map[net.Conn]*stream
}

type stream struct {
	v     *visit
	ended chan struct{}
}

func newStreams(p *Proxy) *streams {
	s := &streams{p: p, conns: make(chan net.Conn), done: make(chan struct{}), visits: map[net.Conn]*stream{}}
	// Because TLSConfig is nil, Serve uses HTTP/2 on a *tls.Conn that has negotiated h2 (net/http,
	// shouldConfigureHTTP2ForServe).
	s.srv = http.Server{
		Handler:        http.HandlerFunc(s.handle),
		MaxHeaderBytes: maxHead,
		IdleTimeout:    p.times.idle,
		ErrorLog:       log.New(io.Discard, "", 0),
		ConnContext:    func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, streamKey{}, c) },
		ConnState:      s.state,
	}
	return s
}

type streamKey struct{}

// serve serves the requests on c until c is closed.
func (s *streams) serve(v *visit, c *tls.Conn) {
	s.once.Do(func() { s.wg.Go(func() { s.srv.Serve(s) }) })
	one := &stream{v: v, ended: make(chan struct{})}
	s.mu.Lock()
	s.visits[c] = one
	s.mu.Unlock()
	select {
	case s.conns <- c:
		<-one.ended
	case <-s.done:
	}
	s.mu.Lock()
	delete(s.visits, c)
	s.mu.Unlock()
}

func (s *streams) state(c net.Conn, st http.ConnState) {
	if st != http.StateClosed {
		return
	}
	if one := s.of(c); one != nil {
		close(one.ended)
	}
}

func (s *streams) of(c net.Conn) *stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.visits[c]
}

// begin returns the stream of a connection for a new request on it. close waits for that
// request. begin returns nil after stop.
func (s *streams) begin(c net.Conn) *stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.visits[c]
	select {
	case <-s.done:
		return nil
	default:
	}
	if one != nil {
		// stop closes done with s.mu held before close calls Wait, so this Add happens before
		// that Wait, as sync.WaitGroup requires.
		s.wg.Add(1)
	}
	return one
}

// Accept, Close and Addr implement net.Listener for the HTTP/2 server.

func (s *streams) Accept() (net.Conn, error) {
	select {
	case c := <-s.conns:
		return c, nil
	case <-s.done:
		return nil, net.ErrClosed
	}
}

func (s *streams) Close() error { return nil }

func (s *streams) Addr() net.Addr { return &net.TCPAddr{} }

// drain waits until the server has written the ends of all responses, which happens after the
// handlers return. No further connections are accepted.
func (s *streams) drain(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	s.stop()
	s.srv.Shutdown(ctx)
}

func (s *streams) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.done:
	default:
		close(s.done)
	}
}

func (s *streams) close() {
	s.stop()
	// http.Server.Close does not wait for handlers.
	s.srv.Close()
	s.wg.Wait()
}

// handle serves one HTTP/2 request.
func (s *streams) handle(w http.ResponseWriter, r *http.Request) {
	c, _ := r.Context().Value(streamKey{}).(net.Conn)
	one := s.begin(c)
	if one == nil {
		panic(http.ErrAbortHandler)
	}
	defer s.wg.Done()
	v, p := one.v, s.p
	p.count.requests.Add(1)
	ask := Request{Kind: KindRequest, Host: v.declared, Port: v.port, TLS: true, Method: r.Method, Path: v.path(r.URL)}
	host, port, ref := v.target(head{method: r.Method, target: r.RequestURI, host: r.Host, hasHost: r.Host != ""}, r)
	if host != "" {
		ask.Host, ask.Port = host, port
	}
	// RFC 9113, 8.3.1 recommends this check. net/http does not make it.
	if ref == nil && len(r.Header["Host"]) > 0 && !sameHost(r.Header.Get("Host"), r.Host, true) {
		ref = refuse(ReasonMismatch, "", "the request names two hosts")
	}
	if ref != nil {
		p.refused(ask, ref)
		ref.answer(w, r.Header["Accept"])
		return
	}
	size := int64(len(r.Method) + len(r.RequestURI) + len(r.Host))
	for k, vs := range r.Header {
		for _, val := range vs {
			size += int64(len(k) + len(val) + 4)
		}
	}
	// expected stays false: net/http sends 100 Continue itself when the body is read.
	body := &requestBody{r: r.Body, done: r.Body == http.NoBody}
	r.Body = body
	v.exchange(w, r, ask, size)
	body.abandon()
}
