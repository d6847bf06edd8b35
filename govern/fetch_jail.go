package govern

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"

	"glasshouse/fault"
	"glasshouse/id"
)

// Fetch makes a request through the egress proxy of a jail: by its rules and limits, and
// with its records. The caller closes the body of the response. A refusal of the proxy
// is a response, as it is for programs in the jail.
func (k *Kernel) Fetch(ctx context.Context, jid id.Jail, r *http.Request) (*http.Response, error) {
	if s := r.URL.Scheme; s != "http" && s != "https" {
		return nil, fault.Newf(fault.Invalid, "govern.Fetch", "", "the URL has the scheme %.20q, want http or https", s)
	}
	w := k.find(jid)
	if w == nil {
		return nil, fault.Newf(fault.NotFound, "govern.Fetch", string(jid), "the jail is not governed here")
	}
	w.mu.Lock()
	proxy, ca := w.proxy, w.ca
	w.mu.Unlock()
	if proxy == nil {
		return nil, &fault.Error{Op: "govern.Fetch", On: string(jid), Kind: fault.Denied,
			Err: errors.New("the jail has no network mode proxy, so nothing of it may leave"), Remedy: "create the jail with --network proxy and egress rules"}
	}
	path, err := newWay()
	if err != nil {
		return nil, err
	}
	served := make(chan error, 1)
	go func() { served <- ignoreClosed(proxy.ServeHTTP(path)) }()
	transport := &http.Transport{
		Proxy:              func(*http.Request) (*url.URL, error) { return &url.URL{Scheme: "http", Host: "proxy"}, nil },
		DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return path.dial(ctx) },
		DisableCompression: true, DisableKeepAlives: true,
	}
	if ca != nil {
		roots, err := x509.SystemCertPool()
		if err != nil {
			roots = x509.NewCertPool()
		}
		roots.AppendCertsFromPEM(ca.PEM()) // with which the proxy answers where it intercepts TLS
		transport.TLSClientConfig = &tls.Config{RootCAs: roots}
	}
	end := func() error {
		transport.CloseIdleConnections()
		return errors.Join(path.Close(), <-served)
	}
	resp, err := transport.RoundTrip(r.WithContext(ctx))
	if err != nil {
		return nil, errors.Join(fault.New(fault.Unavailable, "govern.Fetch", r.URL.Host, err), end())
	}
	resp.Body = fetched{resp.Body, end}
	return resp, nil
}

// A fetched is a body whose end is the end of what carried it.
type fetched struct {
	io.ReadCloser
	end func() error
}

func (f fetched) Close() error { return errors.Join(f.ReadCloser.Close(), f.end()) }
