// Package client is a Go client of the HTTP API. It connects to the daemon's unix socket, or
// over TCP with a token. The errors of the daemon are returned as fault.Error, with their kind,
// field and remedy.
package client

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"glasshouse/api/wire"
	"glasshouse/fault"
)

// DefaultAddr is the default listen address of the daemon.
const DefaultAddr = "http://127.0.0.1:8082"

// Options are the address of the daemon and the credentials of the caller. The zero value
// uses the environment.
type Options struct {
	Addr  string // unix:///path, /path, http://host:port, https://… or host:port; default $GLASSHOUSE_ADDR, then DefaultAddr
	Token string // default $GLASSHOUSE_TOKEN; a unix socket does not require a token
	Node  string // name or ID of the node of the fleet that serves the requests; "": the one that has the object

	// HTTP replaces the default HTTP client. It must not have a Timeout, because
	// commands and streams have no maximum duration.
	HTTP *http.Client

	// Wrap, if not nil, returns a transport that uses the client's own, for example to show
	// the progress of requests.
	Wrap func(http.RoundTripper) http.RoundTripper
}

// A Client calls one daemon. It is safe for concurrent use.
type Client struct {
	base  string // "http://host:port"
	token string
	node  string
	http  *http.Client
}

// New returns a client. It does no I/O.
func New(o Options) (*Client, error) {
	c, err := newClient(o)
	if err == nil && o.Wrap != nil {
		wrapped := *c.http
		wrapped.Transport = o.Wrap(cmp.Or(wrapped.Transport, http.DefaultTransport))
		c.http = &wrapped
	}
	return c, err
}

func newClient(o Options) (*Client, error) {
	addr := cmp.Or(o.Addr, os.Getenv("GLASSHOUSE_ADDR"), DefaultAddr)
	c := &Client{token: cmp.Or(o.Token, os.Getenv("GLASSHOUSE_TOKEN")), node: o.Node, http: o.HTTP}
	if path, ok := strings.CutPrefix(addr, "unix://"); ok || strings.HasPrefix(addr, "/") {
		if !strings.HasPrefix(path, "/") {
			path = addr
		}
		if !strings.HasPrefix(path, "/") {
			return nil, fault.Fieldf("client.New", "addr", "%q is not unix:// and an absolute path", addr)
		}
		c.base = "http://glasshouse"
		if c.http == nil {
			c.http = httpClient(func(ctx context.Context, _, _ string) (net.Conn, error) {
				return dialer.DialContext(ctx, "unix", path)
			})
		}
		return c, nil
	}
	if !strings.Contains(addr, "://") {
		addr = "http://" + addr
	}
	u, err := url.Parse(addr)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || strings.Trim(u.Path, "/") != "" {
		return nil, fault.Fieldf("client.New", "addr", "%q is not one of unix:///path, http://host:port, https://host:port", addr)
	}
	c.base = u.Scheme + "://" + u.Host
	if c.http == nil {
		c.http = httpClient(dialer.DialContext)
	}
	return c, nil
}

var dialer = net.Dialer{Timeout: 10 * time.Second}

func httpClient(dial func(ctx context.Context, network, addr string) (net.Conn, error)) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DialContext: dial, MaxIdleConnsPerHost: 16, IdleConnTimeout: time.Minute,
			TLSHandshakeTimeout: 10 * time.Second, ForceAttemptHTTP2: true,
		},
		// The daemon never redirects. A redirect of another server must not receive the token.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// A request is an HTTP request of the API.
type request struct {
	method, path string
	query        url.Values
	header       http.Header
	body         io.Reader
	json         any // the JSON body; takes precedence over body if it is not nil
	key          string
}

// do sends a request and decodes the JSON response into out, unless out is nil.
func (c *Client) do(ctx context.Context, r request, out any) error {
	resp, err := c.send(ctx, r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out == nil {
		_, err := io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20)) // an unread body would prevent the reuse of the connection
		if err != nil {
			return fmt.Errorf("discard the response of %s %s: %w", r.method, r.path, err)
		}
		return nil
	}
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		return c.lost(ctx, r, err)
	}
	return nil
}

// once sends a request with an idempotency key and retries it if the connection breaks. The
// daemon executes it only once.
func (c *Client) once(ctx context.Context, r request, out any) error {
	const tries = 3
	r.key = rand.Text()
	for n := 1; ; n++ {
		err := c.do(ctx, r, out)
		if n == tries || ctx.Err() != nil || !errors.Is(err, errBroken) {
			return err
		}
		select {
		case <-time.After(time.Duration(n) * 200 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

// send sends a request. It returns the response if its status is 2xx, and an error
// otherwise. The caller closes the body of the response.
func (c *Client) send(ctx context.Context, r request) (*http.Response, error) {
	req, err := c.prepare(ctx, r)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.lost(ctx, r, err)
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, problemOf(resp)
}

func (c *Client) prepare(ctx context.Context, r request) (*http.Request, error) {
	body := r.body
	if r.json != nil {
		data, err := json.Marshal(r.json)
		if err != nil {
			return nil, fmt.Errorf("encode the body of %s %s: %w", r.method, r.path, err)
		}
		body = bytes.NewReader(data)
	}
	u := c.base + r.path
	if len(r.query) > 0 {
		u += "?" + r.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, r.method, u, body)
	if err != nil {
		return nil, fmt.Errorf("create the request %s %s: %w", r.method, r.path, err)
	}
	for k, v := range r.header {
		req.Header[k] = v
	}
	if r.json != nil {
		req.Header.Set("Content-Type", "application/json")
	} else if r.body != nil {
		req.Header.Set("Content-Type", "application/octet-stream")
	}
	if r.key != "" {
		req.Header.Set("Idempotency-Key", r.key)
	}
	c.identify(req.Header)
	return req, nil
}

// At returns a client with the same connections whose requests are answered by a node of the fleet.
func (c *Client) At(node string) *Client {
	at := *c
	at.node = node
	return &at
}

// identify adds the headers with the caller and the node.
func (c *Client) identify(h http.Header) {
	if c.token != "" {
		h.Set("Authorization", "Bearer "+c.token)
	}
	if c.node != "" {
		h.Set("Glasshouse-Node", c.node)
	}
}

// errBroken marks requests whose response was not received completely.
var errBroken = errors.New("connection to the daemon lost")

// lost returns the error of a request without a complete response.
func (c *Client) lost(ctx context.Context, r request, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err // omit the URL: its query may be long
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return &fault.Error{Op: "client.lost", Kind: fault.Unavailable, Err: fmt.Errorf("cannot connect to the daemon: %w", err), Remedy: "start one: glasshouse serve"}
	}
	return fault.New(fault.Unavailable, "client.lost", r.method+" "+r.path, errors.Join(errBroken, err))
}

// kinds are the error kinds that a daemon can return.
var kinds = []fault.Kind{
	fault.Invalid, fault.Unauthenticated, fault.Denied, fault.NotFound, fault.Conflict, fault.TooLarge,
	fault.Mismatch, fault.Exhausted, fault.NoSpace, fault.Unsupported, fault.Unavailable, fault.Timeout,
}

// problemOf returns the error that a response describes.
func problemOf(resp *http.Response) error {
	const maxProblem = 64 << 10
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxProblem))
	if err != nil {
		return fault.Newf(fault.Unavailable, "client.problemOf", "", "cannot read the body of the daemon's %s response: %v", resp.Status, err)
	}
	var p wire.Problem
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), wire.ProblemType) || json.Unmarshal(body, &p) != nil {
		return fmt.Errorf("client: unexpected response %s: %s is not a glasshouse daemon", resp.Status, resp.Request.URL.Host)
	}
	return Error(p)
}

// Error converts a problem to the error that it had in the daemon.
func Error(p wire.Problem) error {
	e := &fault.Error{Field: p.Field, Remedy: p.Remedy, Err: errors.New(cmp.Or(p.Detail, p.Title))}
	if k := fault.Kind(p.Kind()); slices.Contains(kinds, k) {
		e.Kind = k
	}
	return e
}
