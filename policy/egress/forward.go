package egress

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/textproto"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"compress/gzip"

	"golang.org/x/net/http/httpguts"

	"glasshouse/internal/redact"
	"glasshouse/internal/text"
)

// transport returns the transport for requests to servers. Connections are reused only for
// requests of the same jail.
func (p *Proxy) transport() *http.Transport {
	return &http.Transport{
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			host, number, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			port, err := parsePort(number)
			if err != nil {
				return nil, err
			}
			of, _ := ctx.Value(chosenKey{}).(chosen)
			c, err := p.dial(ctx, host, port, of.addr, of.by)
			if err != nil {
				return nil, err
			}
			return &serverConn{TCPConn: c}, nil
		},
		TLSClientConfig:        &tls.Config{RootCAs: p.conf.Roots, MinVersion: tls.VersionTLS12, ClientSessionCache: tls.NewLRUClientSessionCache(64)},
		ForceAttemptHTTP2:      true, // a custom DialContext disables HTTP/2 otherwise
		TLSHandshakeTimeout:    p.times.dial,
		ExpectContinueTimeout:  time.Second,
		IdleConnTimeout:        30 * time.Second,
		MaxIdleConnsPerHost:    64,
		MaxIdleConns:           256,
		DisableCompression:     true, // otherwise net/http requests and decodes gzip
		MaxResponseHeaderBytes: 256 << 10,
	}
}

// A chosen is the address that the client connected to, and the rule that allows it.
type chosen struct {
	addr netip.Addr
	by   *rule
}

type chosenKey struct{}

// exchange forwards one request and its response. size is the number of bytes of the request
// that were already received.
func (v *visit) exchange(w http.ResponseWriter, r *http.Request, ask Request, size int64) {
	p := v.p
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	// The context of an HTTP/2 request ends with its stream. The context of an HTTP/1 request
	// never ends: abortClosed stops its flow when the client has closed the connection.
	defer context.AfterFunc(r.Context(), cancel)()
	accept := r.Header["Accept"]
	g, ref := v.settle(ctx, ask)
	ctx = context.WithValue(ctx, chosenKey{}, chosen{v.dst.Addr(), g.rule})
	var f *flow
	if ref == nil {
		f, ref = v.open(ask, g, cancel)
	}
	if ref != nil {
		p.refused(ask, ref)
		ref.answer(w, accept)
		return
	}
	status, err := v.forward(ctx, w, r, f, size, accept)
	if w, ok := w.(*reply); ok {
		w.finish() // before f.end: after the flow has ended, Close may close the connection
	}
	f.end(status, err)
	if _, ok := w.(*reply); !ok && f.short {
		panic(http.ErrAbortHandler) // resets the stream, so that the client detects the truncated response
	}
}

// forward forwards an allowed request. It returns the status of the response to the client.
func (v *visit) forward(ctx context.Context, w http.ResponseWriter, r *http.Request, f *flow, size int64, accept []string) (status int, err error) {
	body, _ := r.Body.(*requestBody)
	if body != nil {
		body.f = f
	}
	answer := func(ref *refusal) (int, error) { return ref.answer(w, accept), ref }
	f.up(int(size))
	out := v.outgoing(ctx, r, f)
	upgrade := isWebSocket(r)
	if upgrade {
		out.Header.Set("Connection", "Upgrade")
		out.Header.Set("Upgrade", "websocket")
	}
	// Secrets are added after outgoing, which removes the fields that the client lists in
	// Connection (RFC 9110, 7.6.1): the client cannot have the secrets removed.
	hidden, ref := v.addSecrets(ctx, out, f)
	if ref != nil {
		return answer(ref)
	}
	// The Transport calls Got1xxResponse on the connection's read goroutine. If ctx is canceled,
	// RoundTrip returns while that goroutine runs. The mutex prevents it from using w after that.
	var early sync.Mutex
	begun := false
	out = out.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(c httptrace.GotConnInfo) {
			to := c.Conn.RemoteAddr().String()
			f.addr.Store(&to)
			f.server, _ = c.Conn.(*serverConn) // nil for TLS
			if a, err := netip.ParseAddrPort(to); err == nil {
				if err := v.p.guard(a, f.grant.rule); err != nil { // the connection was dialed under other rules, or for another request
					f.stop(err)
				}
			}
		},
		Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
			early.Lock()
			defer early.Unlock()
			// 100 Continue is sent when the Transport reads the request body: by requestBody.Read,
			// or by net/http for an HTTP/2 client.
			if begun || code == http.StatusContinue || code == http.StatusSwitchingProtocols {
				return nil
			}
			copyHeader(w.Header(), http.Header(h), hidden)
			w.WriteHeader(code)
			clear(w.Header())
			return nil
		},
	}))
	resp, err := v.p.upstream.RoundTrip(out)
	early.Lock()
	begun = true
	early.Unlock()
	if err != nil {
		return v.explain(w, f, body, err, hidden != nil, accept)
	}
	defer resp.Body.Close()

	if hidden != nil {
		if ref := decodeBody(resp); ref != nil {
			return answer(ref)
		}
	}
	if resp.StatusCode == http.StatusSwitchingProtocols {
		if !upgrade {
			return answer(refuse(ReasonUpstream, "", "the server switched protocols although the client did not request it"))
		}
		return v.upgrade(w, resp, f, hidden)
	}
	return v.forwardResponse(w, r, resp, f, hidden)
}

// addSecrets applies the injected secrets of the rule and the transform to a request. It returns a
// mask for the secrets that the request now contains, or nil if it contains none.
func (v *visit) addSecrets(ctx context.Context, out *http.Request, f *flow) (*redact.Mask, *refusal) {
	g := f.grant
	var values []string
	if g.rule != nil && len(g.rule.Inject) > 0 {
		var ref *refusal
		values, f.secrets, ref = v.p.inject(ctx, out, g.rule)
		if ref != nil {
			return nil, ref
		}
	}
	more, used, ref := v.p.transform(ctx, out.Header, g, f.ask.Host)
	if ref != nil {
		return nil, ref
	}
	values, f.secrets = append(values, more...), append(f.secrets, used...)
	if len(f.secrets) == 0 {
		return nil, nil
	}
	// Compressed data cannot be searched for secrets. That includes WebSocket messages
	// compressed with permessage-deflate (RFC 7692).
	out.Header.Set("Accept-Encoding", "identity")
	out.Header.Del("Sec-Websocket-Extensions")
	return redact.New(values...), nil
}

// outgoing builds the request to the server from the parsed request.
func (v *visit) outgoing(ctx context.Context, r *http.Request, f *flow) *http.Request {
	scheme := "http"
	if v.tls {
		scheme = "https"
	}
	named := f.ask.Host
	if host, _, _, err := parseHostPort(r.Host); err == nil {
		named = host // it may differ from the connection's host only at a listed address
	}
	out := (&http.Request{
		Method:        r.Method,
		URL:           &url.URL{Scheme: scheme, Host: net.JoinHostPort(f.grant.dial, strconv.Itoa(int(f.ask.Port))), Path: r.URL.Path, RawPath: r.URL.RawPath, RawQuery: r.URL.RawQuery, ForceQuery: r.URL.ForceQuery},
		Host:          joinHost(named, f.ask.Port, v.tls),
		Header:        http.Header{},
		Body:          r.Body,
		ContentLength: r.ContentLength,
		ProtoMajor:    1, ProtoMinor: 1,
	}).WithContext(ctx)
	if r.RequestURI == "*" || r.URL.Path == "*" {
		out.URL.Path, out.URL.RawPath, out.URL.Opaque = "", "", "*"
	}
	// net/http treats ContentLength 0 with a non-nil Body as an unknown length (http.Request).
	if rb, ok := r.Body.(*requestBody); r.ContentLength == 0 || ok && rb.ended() {
		out.Body = http.NoBody
	}
	copyHeader(out.Header, r.Header, nil)
	for _, k := range overriding {
		out.Header.Del(k)
	}
	// copyHeader has removed TE, which is for one connection. HTTP/2 allows only this value
	// (RFC 9113, 8.2.2), and gRPC uses it to detect incompatible proxies.
	if te := r.Header.Get("Te"); te != "" && httpguts.HeaderValuesContainsToken([]string{te}, "trailers") {
		out.Header.Set("Te", "trailers")
	}
	if _, ok := out.Header["User-Agent"]; !ok {
		out.Header.Set("User-Agent", "") // prevents net/http from adding its default
	}
	return out
}

// hopByHop are the header fields that apply to a single connection (RFC 9110, 7.6.1).
var hopByHop = []string{
	"Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization",
	"Te", "Trailer", "Transfer-Encoding", "Upgrade", "Http2-Settings", "Host",
}

// overriding are header fields that make some servers use a host, method or path other than
// the ones that the proxy checked.
var overriding = []string{
	"Forwarded", "X-Forwarded-Host", "X-Forwarded-Server", "X-Host", "X-Original-Host",
	"X-Http-Method", "X-Http-Method-Override", "X-Method-Override",
	"X-Original-Url", "X-Rewrite-Url", "X-Forwarded-Path", "X-Forwarded-Uri", "X-Forwarded-Prefix",
}

// copyHeader copies the end-to-end fields of a header.
func copyHeader(dst, src http.Header, hidden *redact.Mask) {
	for k, v := range src {
		dst[k] = append([]string(nil), v...)
	}
	for _, list := range src["Connection"] {
		for name := range strings.SplitSeq(list, ",") {
			name = textproto.TrimString(name)
			// A peer must not list a field that is for all recipients (RFC 9110, 7.6.1).
			if !strings.EqualFold(name, "Content-Length") {
				dst.Del(name)
			}
		}
	}
	for _, k := range hopByHop {
		dst.Del(k)
	}
	if hidden != nil {
		hidden.Header(dst)
	}
}

func isWebSocket(r *http.Request) bool {
	return r.ProtoMajor == 1 && r.Method == http.MethodGet && r.ContentLength == 0 &&
		httpguts.HeaderValuesContainsToken(r.Header["Connection"], "upgrade") &&
		strings.EqualFold(r.Header.Get("Upgrade"), "websocket")
}

// explain reports to the client why there is no response. secret is true if the request
// contained a secret.
func (v *visit) explain(w http.ResponseWriter, f *flow, body *requestBody, err error, secret bool, accept []string) (int, error) {
	// The reason of stop comes first: stop cancels the request, so err is then only
	// context.Canceled.
	ref, ok := errors.AsType[*refusal](f.stopped())
	if !ok {
		ref, ok = errors.AsType[*refusal](err)
	}
	switch {
	case ok:
	case body != nil && body.broken() != nil:
		ref = refuse(ReasonMalformed, "", "cannot read the request body")
	case errors.Is(err, context.Canceled):
		ref = errGone
	case secret && !safeToQuote(err):
		ref = refuse(ReasonUpstream, f.grant.label, "no valid response from %s", f.ask.Host)
	default:
		ref = refuse(ReasonUpstream, f.grant.label, "no response from %s: %v", f.ask.Host, err)
	}
	return ref.answer(w, accept), ref
}

// safeToQuote reports whether the text of an error describes only connections and
// certificates. Other errors may quote data from the server, which may contain the secret.
func safeToQuote(err error) bool {
	_, network := errors.AsType[*net.OpError](err)
	_, resolver := errors.AsType[*net.DNSError](err)
	_, certificate := errors.AsType[*tls.CertificateVerificationError](err)
	return network || resolver || certificate || err == io.EOF || err == io.ErrUnexpectedEOF
}

// decodeBody removes the content coding of a response body, so that it can be searched for
// secrets.
func decodeBody(resp *http.Response) *refusal {
	switch coding := strings.ToLower(strings.Join(resp.Header["Content-Encoding"], ",")); coding {
	case "", "identity":
	// Accept-Encoding is only a preference (RFC 9110, 12.5.3), so a server may send gzip.
	case "gzip", "x-gzip":
		if resp.ContentLength == 0 || resp.Body == http.NoBody || resp.Request.Method == http.MethodHead {
			return nil
		}
		resp.Body = &gunzip{body: resp.Body}
		resp.ContentLength = -1
		resp.Header.Del("Content-Length")
		resp.Header.Del("Content-Encoding")
	default:
		return refuse(ReasonSecret, "", "the response is encoded as %s although identity was requested, so it cannot be searched for the secret", text.Clip(coding, 40))
	}
	return nil
}

// gunzip decompresses a body. It reads the gzip header at the first Read.
type gunzip struct {
	body io.ReadCloser
	r    *gzip.Reader
}

func (g *gunzip) Read(b []byte) (n int, err error) {
	if g.r == nil {
		g.r, err = gzip.NewReader(g.body)
		if err != nil {
			return 0, err
		}
	}
	return g.r.Read(b)
}

func (g *gunzip) Close() error { return g.body.Close() }

// forwardResponse streams the response to the client.
func (v *visit) forwardResponse(w http.ResponseWriter, r *http.Request, resp *http.Response, f *flow, hidden *redact.Mask) (int, error) {
	h := w.Header()
	copyHeader(h, resp.Header, hidden)
	if resp.ContentLength >= 0 && h.Get("Content-Length") == "" && resp.ContentLength > 0 {
		h.Set("Content-Length", strconv.FormatInt(resp.ContentLength, 10))
	}
	if rep, ok := w.(*reply); ok && len(resp.Trailer) > 0 && !rep.old {
		h.Del("Content-Length") // HTTP/1.1 allows trailers only with chunked encoding (RFC 9112, 7.1.2)
	}
	size := 64
	for k, vs := range h {
		for _, val := range vs {
			size += len(k) + len(val) + 4
		}
	}
	f.down(size)
	w.WriteHeader(resp.StatusCode)
	flush := flusher(w, resp)
	flush()

	var src io.Reader = resp.Body
	if hidden != nil {
		src = hidden.Reader(src)
	}
	var err error
	if rep, ok := w.(*reply); ok && hidden == nil && f.server != nil && rep.c == net.Conn(v.client) && resp.ContentLength >= longBody && !rep.bare {
		err = v.copyLong(rep, resp, f)
	} else {
		err = copyBody(w, src, f.down, flush)
	}
	if err == nil {
		for k, vs := range resp.Trailer {
			// Trailers must not change framing or routing, which the recipient has evaluated
			// already (RFC 9110, 6.5.1).
			if framing[http.CanonicalHeaderKey(k)] {
				continue
			}
			for _, val := range vs {
				w.Header().Add(http.TrailerPrefix+k, hidden.Text(val))
			}
		}
		return resp.StatusCode, nil
	}
	f.short = true
	if rep, ok := w.(*reply); ok {
		rep.cut()
		reset(v.client)
	}
	if f.stopped() != nil {
		return resp.StatusCode, nil
	}
	if errors.Is(err, errWrite) {
		return resp.StatusCode, errGone
	}
	return resp.StatusCode, errBroken
}

// flusher returns a function that flushes w after each read. A body of unknown length may be
// an event stream, which must not be delayed.
func flusher(w http.ResponseWriter, resp *http.Response) func() {
	f, ok := w.(http.Flusher)
	if _, held := w.(*reply); !ok || held || resp.ContentLength >= 0 && resp.ContentLength < 4<<10 {
		return func() {}
	}
	return f.Flush
}

var errWrite = errors.New("cannot write to the client")

// copyBody streams src to w. Before each write it calls count with the number of bytes; count
// returns how many of them may be written.
func copyBody(w io.Writer, src io.Reader, count func(int) int, flush func()) error {
	buf := chunks.Get().(*[]byte)
	defer chunks.Put(buf)
	for {
		n, err := src.Read(*buf)
		if n > 0 {
			may := count(n)
			if _, err := w.Write((*buf)[:may]); err != nil {
				return errors.Join(errWrite, err)
			}
			flush()
			if may < n {
				return errSpent
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// longBody is the minimum length of a plaintext body that is spliced.
const longBody = 1 << 20

// A serverConn is the connection to a server that http.Transport uses. When the Transport has
// delivered all buffered bytes of a body and reads again, divert can take over the rest of the
// body.
type serverConn struct {
	*net.TCPConn
	divert func() error // called instead of the next Read; nil: not diverted. Set only by the reader of the body
}

func (c *serverConn) Read(b []byte) (int, error) {
	if f := c.divert; f != nil {
		return 0, f()
	}
	return c.TCPConn.Read(b)
}

var errDiverted = errors.New("the rest of the body was diverted")

// copyLong forwards a body of known length. It copies the bytes that are already buffered and
// splices the rest. The connection to the server cannot be reused afterwards.
func (v *visit) copyLong(rep *reply, resp *http.Response, f *flow) error {
	left := resp.ContentLength
	var err error
	f.server.divert = func() error {
		// No other goroutine reads the connection: the read loop of net/http waits until the
		// body ends (persistConn.readLoop). It closes the connection because of the error.
		in, e := f.server.SyscallConn()
		if e == nil {
			e = splice(v.client, in, left, func(n int) int {
				left -= int64(n)
				return f.down(n)
			})
		}
		err = e
		return errDiverted
	}
	e := copyBody(rep, resp.Body, func(n int) int {
		left -= int64(n)
		return f.down(n)
	}, func() {})
	if !errors.Is(e, errDiverted) {
		return e // the whole body was already buffered, or an error occurred before the diversion
	}
	if err == nil {
		rep.left = 0
	} else if err == io.EOF {
		err = io.ErrUnexpectedEOF
	} else if !errors.Is(err, errSource) {
		err = errors.Join(errWrite, err)
	}
	return err
}

// upgrade forwards a WebSocket connection after the server has accepted it.
func (v *visit) upgrade(w http.ResponseWriter, resp *http.Response, f *flow, hidden *redact.Mask) (int, error) {
	rep, ok := w.(*reply)
	up, ok2 := resp.Body.(io.ReadWriteCloser)
	if !ok || !ok2 || !strings.EqualFold(resp.Header.Get("Upgrade"), "websocket") {
		ref := refuse(ReasonUpstream, "", "the server switched to a protocol that the client did not request")
		return ref.answer(w, nil), ref
	}
	copyHeader(rep.header, resp.Header, hidden)
	rep.header.Set("Connection", "Upgrade")
	rep.header.Set("Upgrade", "websocket")
	rep.last = true
	rep.WriteHeader(http.StatusSwitchingProtocols)
	ctx := resp.Request.Context()
	defer context.AfterFunc(ctx, func() { reset(v.client); up.Close() })()

	var wg sync.WaitGroup
	wg.Go(func() {
		copyBody(up, v.br, f.up, func() {})
		up.Close()
	})
	var src io.Reader = up
	if hidden != nil {
		src = hidden.Reader(src)
	}
	err := copyBody(rep.c, src, f.down, func() {})
	// The server has closed. The deadline ends the other copy if the client does not close.
	closeWrite(rep.c)
	v.client.SetReadDeadline(time.Now().Add(v.p.times.halfClosed))
	wg.Wait()
	if err != nil && !errors.Is(err, errSpent) && !errors.Is(err, net.ErrClosed) {
		return resp.StatusCode, errBroken
	}
	return resp.StatusCode, nil
}
