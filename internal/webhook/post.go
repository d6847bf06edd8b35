package webhook

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"syscall"
	"time"
)

// patience is the timeout of a request.
const patience = 15 * time.Second

// A Sender sends webhooks. It does not follow redirects, which could lead to an address that
// no operator configured.
type Sender struct{ client *http.Client }

// NewSender returns a Sender that calls reach for each address before it connects; nil allows
// all addresses. reach gets the resolved address, because a name may resolve differently
// between check and connection.
func NewSender(reach func(netip.AddrPort) error) *Sender {
	t := http.DefaultTransport.(*http.Transport).Clone()
	if reach != nil {
		t.Proxy = nil // reach would get the proxy's address
		d := &net.Dialer{Timeout: patience, Control: func(_, address string, _ syscall.RawConn) error {
			at, err := netip.ParseAddrPort(address)
			if err != nil {
				return fmt.Errorf("invalid address %q: %w", address, err)
			}
			return reach(netip.AddrPortFrom(at.Addr().Unmap().WithZone(""), at.Port()))
		}}
		t.DialContext = d.DialContext
	}
	return &Sender{&http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Timeout:       patience, Transport: t,
	}}
}

// Post sends a request. A response without a success status is an error. Errors do not contain
// the URL, which may contain a secret.
func (s *Sender) Post(ctx context.Context, to string, h http.Header, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(body))
	if err != nil {
		return redacted(err)
	}
	req.Header = h
	h.Set("User-Agent", "glasshouse")
	res, err := s.client.Do(req)
	if err != nil {
		return redacted(err)
	}
	defer res.Body.Close()
	io.Copy(io.Discard, io.LimitReader(res.Body, 64<<10))
	if res.StatusCode < 200 || res.StatusCode > 299 {
		return fmt.Errorf("the server returned status %s", res.Status)
	}
	return nil
}

// Do sends a request under the same rules as Post.
func (s *Sender) Do(req *http.Request) (*http.Response, error) { return s.client.Do(req) }

// Redacted removes the URL from an error of a request.
func Redacted(err error) error { return redacted(err) }

// Close closes idle connections.
func (s *Sender) Close() { s.client.CloseIdleConnections() }

func redacted(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}
