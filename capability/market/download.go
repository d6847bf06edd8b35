package market

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"glasshouse/fault"
)

const (
	// stall is the longest time without data from the server.
	stall = 30 * time.Second

	// longest is the timeout of a whole response.
	longest = 15 * time.Minute

	maxRedirects = 3
)

var errStalled = errors.New("the server sent no data for too long")

// download fetches a file of the market from a web server.
func (m *Market) download(ctx context.Context, name string, most int64, to io.Writer) error {
	base, err := url.Parse(m.Base)
	if err != nil || base.Host == "" || base.User != nil || base.RawQuery != "" || base.Fragment != "" {
		return fault.Newf(fault.Invalid, "market.download", m.Base, "not a URL such as https://example.com/bundles")
	}
	ctx, cancel := context.WithTimeoutCause(ctx, longest, errStalled)
	defer cancel()
	ctx, give := context.WithCancelCause(ctx)
	defer give(nil)
	timer := time.AfterFunc(stall, func() { give(errStalled) })
	defer timer.Stop()

	err = m.get(ctx, base, name, most, &patient{to: to, timer: timer})
	if err != nil && errors.Is(context.Cause(ctx), errStalled) {
		return refuse(Slow, "", "%s: %w", name, errStalled)
	}
	return err
}

func (m *Market) get(ctx context.Context, base *url.URL, name string, most int64, to io.Writer) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base.JoinPath(name).String(), nil)
	if err != nil {
		return err
	}
	// Bundles are already compressed, and other responses should have a Content-Length.
	req.Header.Set("Accept-Encoding", "identity")
	client := http.Client{Transport: m.Transport, CheckRedirect: sameHost(base)}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusNotFound:
		return fault.Newf(fault.NotFound, "market.get", "", "%s does not exist", name)
	case resp.StatusCode != http.StatusOK:
		return fault.Newf(fault.Unavailable, "market.get", "", "the server responded to the request for %s with status %d", name, resp.StatusCode)
	case resp.ContentLength > most:
		return refuse(TooLarge, "", "%s has %d bytes, more than %d", name, resp.ContentLength, most)
	}
	return copyUpTo(to, resp.Body, most, name)
}

// sameHost follows only redirects within the market's host.
func sameHost(base *url.URL) func(*http.Request, []*http.Request) error {
	return func(req *http.Request, via []*http.Request) error {
		if req.URL.Host != base.Host || req.URL.Scheme != base.Scheme {
			return refuse(OffHostRedirect, "", "the server redirects to %q", fmt.Sprintf("%.200s", req.URL.Redacted()))
		}
		if len(via) > maxRedirects {
			return refuse(OffHostRedirect, "", "more than %d redirects", maxRedirects)
		}
		return nil
	}
}

// A patient writer restarts the timeout with each write.
type patient struct {
	to    io.Writer
	timer *time.Timer
}

func (p *patient) Write(b []byte) (int, error) {
	p.timer.Reset(stall)
	return p.to.Write(b)
}
