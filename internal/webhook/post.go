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

// patience is how long a receiver may take.
const patience = 15 * time.Second

// A Sender posts to others. It goes where it is told and nowhere else: a redirect would
// carry a message to a place that nobody configured.
type Sender struct{ client *http.Client }

// NewSender returns a Sender that asks reach about each address before it connects
// there; nil means that it may go anywhere. It is asked about addresses and not about
// names, whose meaning may change between the question and the connection.
func NewSender(reach func(netip.AddrPort) error) *Sender {
	t := http.DefaultTransport.(*http.Transport).Clone()
	if reach != nil {
		t.Proxy = nil // it would be the proxy that is asked about
		d := &net.Dialer{Timeout: patience, Control: func(_, address string, _ syscall.RawConn) error {
			at, err := netip.ParseAddrPort(address)
			if err != nil {
				return fmt.Errorf("the address %q: %w", address, err)
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

// Post posts. Anything but an answer of success is an error, which does not have the
// address in it: that may hold a secret.
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
		return fmt.Errorf("answered %s", res.Status)
	}
	return nil
}

// Do sends a request that somebody else has made, as Post would.
func (s *Sender) Do(req *http.Request) (*http.Response, error) { return s.client.Do(req) }

// Redacted is an error of sending without the address in it.
func Redacted(err error) error { return redacted(err) }

// Close lets go of connections that nobody uses.
func (s *Sender) Close() { s.client.CloseIdleConnections() }

func redacted(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}
