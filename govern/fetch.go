package govern

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/url"
	"sync"

	"glasshouse/egress"
	"glasshouse/engine"
	"glasshouse/fault"
)

// A Fetcher makes the requests of a capability that has no jail, by the same rules and
// with the same records: they go through a proxy of its own. It is safe for concurrent
// use.
type Fetcher struct {
	proxy  *egress.Proxy
	way    *way
	client *http.Transport
	served sync.WaitGroup
}

// NewFetcher returns what carries the requests of c as e says. secret returns the value
// of a secret that a request to a host is to carry; the bytes are the caller's.
func (k *Kernel) NewFetcher(c *engine.Installed, e *Egress, secret func(ctx context.Context, name, host string) ([]byte, error)) (*Fetcher, error) {
	ca, err := egress.NewCA("capability " + c.ID)
	if err != nil {
		return nil, err
	}
	f := &Fetcher{}
	if f.way, err = newWay(); err != nil {
		return nil, err
	}
	f.proxy, err = egress.New(egress.Config{Jail: c.ID, Rules: e.rules(), Recorder: recorder{k: k, secrets: c.Secrets}, Secret: secret, CA: ca, KeepQuery: e.query()})
	if err != nil {
		return nil, errors.Join(err, f.way.Close())
	}
	f.client = &http.Transport{
		Proxy:              func(*http.Request) (*url.URL, error) { return &url.URL{Scheme: "http", Host: "proxy"}, nil },
		DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return f.way.dial(ctx) },
		DisableCompression: true, MaxIdleConnsPerHost: 4,
	}
	if e.looksInside() {
		roots, err := x509.SystemCertPool()
		if err != nil {
			roots = x509.NewCertPool()
		}
		roots.AppendCertsFromPEM(ca.PEM()) // that the proxy answers with where it looks inside
		f.client.TLSClientConfig = &tls.Config{RootCAs: roots}
	}
	f.served.Go(func() {
		if err := ignoreClosed(f.proxy.ServeHTTP(f.way)); err != nil {
			k.cfg.Log.Error("the requests of a capability are not carried any more", "capability", c.ID, "err", err)
		}
	})
	return f, nil
}

// Do makes a request. A refusal of the proxy is an answer like a server's.
func (f *Fetcher) Do(ctx context.Context, r *http.Request) (*http.Response, error) {
	if s := r.URL.Scheme; s != "http" && s != "https" {
		return nil, fault.Newf(fault.Invalid, "govern.Fetch", "", "a request to a URL of the scheme %.20q", s)
	}
	return f.client.RoundTrip(r.WithContext(ctx))
}

// Close cuts what is being carried.
func (f *Fetcher) Close() error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err := errors.Join(f.proxy.Close(ctx), f.way.Close())
	f.client.CloseIdleConnections()
	f.served.Wait()
	return err
}

// A way leads from the one who dials to the one who listens, and nobody else on the
// host can take it: what others connect is closed.
type way struct {
	l      *net.TCPListener
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once

	mu sync.Mutex // one connection is made at a time
}

func newWay() (*way, error) {
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, err
	}
	return &way{l: l, conns: make(chan net.Conn), closed: make(chan struct{})}, nil
}

func (w *way) dial(ctx context.Context) (net.Conn, error) {
	here, there, err := w.pair(ctx)
	if err != nil {
		return nil, err
	}
	select {
	case w.conns <- there:
		return here, nil
	case <-w.closed:
		err = net.ErrClosed
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	return nil, errors.Join(err, here.Close(), there.Close())
}

// pair makes a connection, and takes its other end.
func (w *way) pair(ctx context.Context) (here, there net.Conn, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var d net.Dialer
	if here, err = d.DialContext(ctx, "tcp", w.l.Addr().String()); err != nil {
		return nil, nil, err
	}
	for {
		if there, err = w.l.Accept(); err != nil {
			return nil, nil, errors.Join(err, here.Close())
		}
		if there.RemoteAddr().String() == here.LocalAddr().String() {
			return here, there, nil
		}
		there.Close()
	}
}

// Accept implements net.Listener.
func (w *way) Accept() (net.Conn, error) {
	select {
	case c := <-w.conns:
		return c, nil
	case <-w.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (w *way) Close() (err error) {
	w.once.Do(func() {
		close(w.closed)
		err = w.l.Close()
	})
	return err
}

// Addr implements net.Listener.
func (w *way) Addr() net.Addr { return w.l.Addr() }
