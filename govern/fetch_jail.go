package govern

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"

	"glasshouse/fault"
	"glasshouse/id"
)

// Fetch makes a request through the egress proxy of a jail, with its rules, limits and
// records. The caller closes the body of the response. A refusal by the proxy is a response,
// as it is for programs in the jail.
func (k *Engine) Fetch(ctx context.Context, jid id.Jail, r *http.Request) (*http.Response, error) {
	if s := r.URL.Scheme; s != "http" && s != "https" {
		return nil, fault.Newf(fault.Invalid, "govern.Fetch", "", "the URL has the scheme %.20q, want http or https", s)
	}
	jp := k.find(jid)
	if jp == nil {
		return nil, fault.Newf(fault.NotFound, "govern.Fetch", string(jid), "the jail is not running or has no policy context")
	}
	jp.mu.Lock()
	proxy, ca := jp.proxy, jp.ca
	jp.mu.Unlock()
	if proxy == nil {
		return nil, &fault.Error{Op: "govern.Fetch", On: string(jid), Kind: fault.Denied,
			Err: errors.New("the jail has no egress proxy"), Remedy: "create the jail with --network proxy and egress rules"}
	}
	path, err := newLoopback()
	if err != nil {
		return nil, fmt.Errorf("listen for the requests of jail %s: %w", jid, err)
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
		roots.AppendCertsFromPEM(ca.PEM()) // the proxy signs with it when it intercepts TLS
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
	resp.Body = proxiedBody{resp.Body, end}
	return resp, nil
}

// A proxiedBody is a response body. Closing it ends the proxy connection that serves it.
type proxiedBody struct {
	io.ReadCloser
	end func() error
}

func (f proxiedBody) Close() error { return errors.Join(f.ReadCloser.Close(), f.end()) }
