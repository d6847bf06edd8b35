package govern

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync"

	"glasshouse/capability/engine"
	"glasshouse/fault"
	"glasshouse/policy/egress"
)

// A Fetcher makes HTTP requests for a capability without a jail. They pass through an egress
// proxy of their own, with the same rules and records as those of a jail. A Fetcher is safe
// for concurrent use.
type Fetcher struct {
	proxy     *egress.Proxy
	loopback  *loopback
	transport *http.Transport
	wg        sync.WaitGroup
}

// NewFetcher returns a Fetcher for c with the egress rules e. secret returns the value of a
// secret for a request to a host; the caller of secret owns the bytes. Close releases the
// Fetcher.
func (k *Engine) NewFetcher(c *engine.Installed, e *Egress, secret func(ctx context.Context, name, host string) ([]byte, error)) (*Fetcher, error) {
	ca, err := egress.NewCA("capability " + c.ID)
	if err != nil {
		return nil, fmt.Errorf("create a certificate authority for %s: %w", c.ID, err)
	}
	f := &Fetcher{}
	f.loopback, err = newLoopback()
	if err != nil {
		return nil, fmt.Errorf("listen for the requests of %s: %w", c.ID, err)
	}
	f.proxy, err = egress.New(egress.Config{Jail: c.ID, Rules: e.rules(), Recorder: recorder{k: k, secrets: c.Secrets}, Secret: secret, CA: ca, KeepQuery: e.recordsQuery()})
	if err != nil {
		return nil, errors.Join(err, f.loopback.Close())
	}
	f.transport = &http.Transport{
		Proxy:              func(*http.Request) (*url.URL, error) { return &url.URL{Scheme: "http", Host: "proxy"}, nil },
		DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return f.loopback.dial(ctx) },
		DisableCompression: true, MaxIdleConnsPerHost: 4,
	}
	if e.interceptsTLS() {
		roots, err := x509.SystemCertPool()
		if err != nil {
			roots = x509.NewCertPool()
		}
		roots.AppendCertsFromPEM(ca.PEM()) // the proxy signs with it when it intercepts TLS
		f.transport.TLSClientConfig = &tls.Config{RootCAs: roots}
	}
	f.wg.Go(func() {
		if err := ignoreClosed(f.proxy.ServeHTTP(f.loopback)); err != nil {
			k.cfg.Log.Error("the egress proxy of a capability failed", "capability", c.ID, "err", err)
		}
	})
	return f, nil
}

// Do makes a request. A refusal by the proxy is an HTTP response, not an error.
func (f *Fetcher) Do(ctx context.Context, r *http.Request) (*http.Response, error) {
	if s := r.URL.Scheme; s != "http" && s != "https" {
		return nil, fault.Newf(fault.Invalid, "govern.Fetch", "", "the URL has the scheme %.20q, want http or https", s)
	}
	return f.transport.RoundTrip(r.WithContext(ctx))
}

// Close closes open connections and waits for the proxy to end.
func (f *Fetcher) Close() error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err := errors.Join(f.proxy.Close(ctx), f.loopback.Close())
	f.transport.CloseIdleConnections()
	f.wg.Wait()
	return err
}

// A loopback is a listener for connections from this process only. It closes connections that
// other processes of the host make to its port.
type loopback struct {
	l      *net.TCPListener
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once

	mu sync.Mutex // serializes pair
}

func newLoopback() (*loopback, error) {
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, err
	}
	return &loopback{l: l, conns: make(chan net.Conn), closed: make(chan struct{})}, nil
}

func (w *loopback) dial(ctx context.Context) (net.Conn, error) {
	local, remote, err := w.pair(ctx)
	if err != nil {
		return nil, err
	}
	select {
	case w.conns <- remote:
		return local, nil
	case <-w.closed:
		err = net.ErrClosed
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	return nil, errors.Join(err, local.Close(), remote.Close())
}

// pair dials the listener and accepts the connection.
func (w *loopback) pair(ctx context.Context) (local, remote net.Conn, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var d net.Dialer
	local, err = d.DialContext(ctx, "tcp", w.l.Addr().String())
	if err != nil {
		return nil, nil, fmt.Errorf("connect to the loopback listener: %w", err)
	}
	for {
		remote, err = w.l.Accept()
		if err != nil {
			return nil, nil, errors.Join(err, local.Close())
		}
		if remote.RemoteAddr().String() == local.LocalAddr().String() {
			return local, remote, nil
		}
		remote.Close()
	}
}

// Accept implements net.Listener.
func (w *loopback) Accept() (net.Conn, error) {
	select {
	case c := <-w.conns:
		return c, nil
	case <-w.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (w *loopback) Close() (err error) {
	w.once.Do(func() {
		close(w.closed)
		err = w.l.Close()
	})
	return err
}

// Addr implements net.Listener.
func (w *loopback) Addr() net.Addr { return w.l.Addr() }
