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

// transport makes what carries requests to servers. Connections are kept for the
// next request of the same jail, never for another's.
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
		ForceAttemptHTTP2:      true,
		TLSHandshakeTimeout:    p.times.dial,
		ExpectContinueTimeout:  time.Second,
		IdleConnTimeout:        30 * time.Second,
		MaxIdleConnsPerHost:    64,
		MaxIdleConns:           256,
		DisableCompression:     true,
		MaxResponseHeaderBytes: 256 << 10,
	}
}

// A chosen is the address that a program connected to, and the rule by which it may.
type chosen struct {
	addr netip.Addr
	by   *rule
}

type chosenKey struct{}

// exchange carries one request, which is of size bytes so far, and its answer.
func (v *visit) exchange(w http.ResponseWriter, r *http.Request, ask Request, size int64) {
	p := v.p
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
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
	status, err := v.passOn(ctx, w, r, f, size, accept)
	if w, ok := w.(*reply); ok {
		w.finish() // once the flow has ended, Close may close the connection
	}
	f.end(status, err)
	if _, ok := w.(*reply); !ok && f.short {
		panic(http.ErrAbortHandler) // resets the stream, so that the client sees that it is not whole
	}
}

// passOn carries what is allowed, and returns the status the client was answered.
func (v *visit) passOn(ctx context.Context, w http.ResponseWriter, r *http.Request, f *flow, size int64, accept []string) (status int, err error) {
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
	hidden, ref := v.dress(ctx, out, f)
	if ref != nil {
		return answer(ref)
	}
	var early sync.Mutex
	begun := false
	out = out.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(c httptrace.GotConnInfo) {
			to := c.Conn.RemoteAddr().String()
			f.addr.Store(&to)
			f.server, _ = c.Conn.(*serverConn) // not if it is TLS
			if a, err := netip.ParseAddrPort(to); err == nil {
				if err := v.p.guard(a, f.grant.rule); err != nil { // it was made under other rules, or for another request
					f.stop(err)
				}
			}
		},
		Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
			early.Lock()
			defer early.Unlock()
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
		if ref := unpack(resp); ref != nil {
			return answer(ref)
		}
	}
	if resp.StatusCode == http.StatusSwitchingProtocols {
		if !upgrade {
			return answer(refuse(ReasonUpstream, "", "the server changes the protocol, which nobody asked for"))
		}
		return v.upgrade(w, resp, f, hidden)
	}
	return v.passBack(w, r, resp, f, hidden)
}

// dress puts into a request what its rule and its transform say, and returns the mask for
// the secrets that it has then; nil: it has none.
func (v *visit) dress(ctx context.Context, out *http.Request, f *flow) (*redact.Mask, *refusal) {
	g := f.grant
	var values []string
	if g.rule != nil && len(g.rule.Inject) > 0 {
		var ref *refusal
		if values, f.secrets, ref = v.p.inject(ctx, out, g.rule); ref != nil {
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
	// What is packed cannot be looked through, nor what a WebSocket packs.
	out.Header.Set("Accept-Encoding", "identity")
	out.Header.Del("Sec-Websocket-Extensions")
	return redact.New(values...), nil
}

// outgoing writes the request anew for the server.
func (v *visit) outgoing(ctx context.Context, r *http.Request, f *flow) *http.Request {
	scheme := "http"
	if v.tls {
		scheme = "https"
	}
	named := f.ask.Host
	if host, _, _, err := parseHostPort(r.Host); err == nil {
		named = host // which may be another only at a listed address
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
	if rb, ok := r.Body.(*requestBody); r.ContentLength == 0 || ok && rb.ended() {
		out.Body = http.NoBody
	}
	copyHeader(out.Header, r.Header, nil)
	for _, k := range overriding {
		out.Header.Del(k)
	}
	if te := r.Header.Get("Te"); te != "" && httpguts.HeaderValuesContainsToken([]string{te}, "trailers") {
		out.Header.Set("Te", "trailers")
	}
	if _, ok := out.Header["User-Agent"]; !ok {
		out.Header.Set("User-Agent", "") // so that none is made up
	}
	return out
}

// hopByHop are fields that concern one connection only.
var hopByHop = []string{
	"Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization",
	"Te", "Trailer", "Transfer-Encoding", "Upgrade", "Http2-Settings", "Host",
}

// overriding are fields by which some servers are told of another host, method or
// path than those that were checked.
var overriding = []string{
	"Forwarded", "X-Forwarded-Host", "X-Forwarded-Server", "X-Host", "X-Original-Host",
	"X-Http-Method", "X-Http-Method-Override", "X-Method-Override",
	"X-Original-Url", "X-Rewrite-Url", "X-Forwarded-Path", "X-Forwarded-Uri", "X-Forwarded-Prefix",
}

// copyHeader copies the fields that are for the other end.
func copyHeader(dst, src http.Header, hidden *redact.Mask) {
	for k, v := range src {
		dst[k] = append([]string(nil), v...)
	}
	for _, list := range src["Connection"] {
		for name := range strings.SplitSeq(list, ",") {
			if name = textproto.TrimString(name); !strings.EqualFold(name, "Content-Length") {
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

// explain tells the client why there is no answer. secret is true if there was one
// in the request.
func (v *visit) explain(w http.ResponseWriter, f *flow, body *requestBody, err error, secret bool, accept []string) (int, error) {
	ref, ok := errors.AsType[*refusal](f.stopped())
	if !ok {
		ref, ok = errors.AsType[*refusal](err)
	}
	switch {
	case ok:
	case body != nil && body.broken() != nil:
		ref = refuse(ReasonMalformed, "", "the body of the request cannot be read")
	case errors.Is(err, context.Canceled):
		ref = errGone
	case secret && !saysNothing(err):
		ref = refuse(ReasonUpstream, f.grant.label, "no answer from %s that can be read", f.ask.Host)
	default:
		ref = refuse(ReasonUpstream, f.grant.label, "no answer from %s: %v", f.ask.Host, err)
	}
	return ref.answer(w, accept), ref
}

// saysNothing reports whether the text of an error is about connections and
// certificates only. Others quote what the server sent.
func saysNothing(err error) bool {
	_, network := errors.AsType[*net.OpError](err)
	_, resolver := errors.AsType[*net.DNSError](err)
	_, certificate := errors.AsType[*tls.CertificateVerificationError](err)
	return network || resolver || certificate || err == io.EOF || err == io.ErrUnexpectedEOF
}

// unpack makes the body of an answer one that can be looked through for secrets.
func unpack(resp *http.Response) *refusal {
	switch coding := strings.ToLower(strings.Join(resp.Header["Content-Encoding"], ",")); coding {
	case "", "identity":
	case "gzip", "x-gzip":
		if resp.ContentLength == 0 || resp.Body == http.NoBody || resp.Request.Method == http.MethodHead {
			return nil
		}
		resp.Body = &gunzip{body: resp.Body}
		resp.ContentLength = -1
		resp.Header.Del("Content-Length")
		resp.Header.Del("Content-Encoding")
	default:
		return refuse(ReasonSecret, "", "the answer is packed as %s though that was not asked for, and so cannot be looked through for the secret", text.Clip(coding, 40))
	}
	return nil
}

// gunzip unpacks a body when it is first read.
type gunzip struct {
	body io.ReadCloser
	r    *gzip.Reader
}

func (g *gunzip) Read(b []byte) (n int, err error) {
	if g.r == nil {
		if g.r, err = gzip.NewReader(g.body); err != nil {
			return 0, err
		}
	}
	return g.r.Read(b)
}

func (g *gunzip) Close() error { return g.body.Close() }

// passBack writes the answer to the client as it comes.
func (v *visit) passBack(w http.ResponseWriter, r *http.Request, resp *http.Response, f *flow, hidden *redact.Mask) (int, error) {
	h := w.Header()
	copyHeader(h, resp.Header, hidden)
	if resp.ContentLength >= 0 && h.Get("Content-Length") == "" && resp.ContentLength > 0 {
		h.Set("Content-Length", strconv.FormatInt(resp.ContentLength, 10))
	}
	if rep, ok := w.(*reply); ok && len(resp.Trailer) > 0 && !rep.old {
		h.Del("Content-Length") // HTTP/1 has trailers only after chunks
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

// flusher returns what sends on what a writer holds back, after each read: bodies
// whose length is not known may be streams of events.
func flusher(w http.ResponseWriter, resp *http.Response) func() {
	f, ok := w.(http.Flusher)
	if _, held := w.(*reply); !ok || held || resp.ContentLength >= 0 && resp.ContentLength < 4<<10 {
		return func() {}
	}
	return f.Flush
}

var errWrite = errors.New("cannot write to the client")

// copyBody passes on what src gives, as it comes. count is told how much is to be
// written and says how much may be.
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

// longBody is from which length on a body in the clear is spliced.
const longBody = 1 << 20

// A serverConn is a connection to a server as http.Transport has it. When the
// Transport has given away all it had read of a body and reads again, the rest may
// be diverted.
type serverConn struct {
	*net.TCPConn
	divert func() error // instead of the next Read; nil: none. Set only by who reads the body
}

func (c *serverConn) Read(b []byte) (int, error) {
	if f := c.divert; f != nil {
		return 0, f()
	}
	return c.TCPConn.Read(b)
}

var errDiverted = errors.New("the rest went another way")

// copyLong passes on a body of known length: what was read already by copying, the
// rest by splicing. The connection to the server ends with it.
func (v *visit) copyLong(rep *reply, resp *http.Response, f *flow) error {
	left := resp.ContentLength
	var err error
	f.server.divert = func() error {
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
		return e // it had all been read already, or went wrong before
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

// upgrade carries a WebSocket, once the server has agreed to it.
func (v *visit) upgrade(w http.ResponseWriter, resp *http.Response, f *flow, hidden *redact.Mask) (int, error) {
	rep, ok := w.(*reply)
	up, ok2 := resp.Body.(io.ReadWriteCloser)
	if !ok || !ok2 || !strings.EqualFold(resp.Header.Get("Upgrade"), "websocket") {
		ref := refuse(ReasonUpstream, "", "the server changes to a protocol nobody asked for")
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
	closeWrite(rep.c)
	v.client.SetReadDeadline(time.Now().Add(v.p.times.gone))
	wg.Wait()
	if err != nil && !errors.Is(err, errSpent) && !errors.Is(err, net.ErrClosed) {
		return resp.StatusCode, errBroken
	}
	return resp.StatusCode, nil
}
