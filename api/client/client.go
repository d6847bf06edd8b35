// Package client speaks the HTTP API from Go: over the daemon's unix socket or
// over TCP with a token. Errors come back as package fault's, with the kind,
// field and remedy that the daemon gave them.
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

// DefaultAddr is where a daemon listens that was told nothing else.
const DefaultAddr = "http://127.0.0.1:8082"

// Options say where the daemon is and who is calling. The zero value takes both
// from the environment.
type Options struct {
	Addr  string // unix:///path, /path, http://host:port, https://… or host:port; default $GLASSHOUSE_ADDR, then DefaultAddr
	Token string // default $GLASSHOUSE_TOKEN; a unix socket needs none

	// HTTP makes the requests, if the defaults do not serve. It must not have
	// a Timeout: commands and streams last as long as they last.
	HTTP *http.Client
}

// A Client calls one daemon. It is safe for concurrent use.
type Client struct {
	base  string // "http://host:port"
	token string
	http  *http.Client
}

// New returns a client. It does no I/O.
func New(o Options) (*Client, error) {
	addr := cmp.Or(o.Addr, os.Getenv("GLASSHOUSE_ADDR"), DefaultAddr)
	c := &Client{token: cmp.Or(o.Token, os.Getenv("GLASSHOUSE_TOKEN")), http: o.HTTP}
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
		// A daemon redirects nobody; a token must not follow whoever does.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// A request is one call before it is made.
type request struct {
	method, path string
	query        url.Values
	header       http.Header
	body         io.Reader
	json         any // the body, if it is not nil
	key          string
}

// do makes a call and decodes its JSON answer into out, unless that is nil.
func (c *Client) do(ctx context.Context, r request, out any) error {
	resp, err := c.send(ctx, r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out == nil {
		_, err := io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20)) // so that the connection is used again
		return err
	}
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		return c.lost(ctx, r, err)
	}
	return nil
}

// once makes a call that has an idempotency key, again if the connection breaks:
// the daemon does it one time.
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

// send makes a call and returns an answer of success, or an error.
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
			return nil, err
		}
		body = bytes.NewReader(data)
	}
	u := c.base + r.path
	if len(r.query) > 0 {
		u += "?" + r.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, r.method, u, body)
	if err != nil {
		return nil, err
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
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	return req, nil
}

// errBroken marks calls whose answer never came.
var errBroken = errors.New("the connection to the daemon broke")

// lost explains a call that has no answer.
func (c *Client) lost(ctx context.Context, r request, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err // the URL is no news, and its query may be long
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return &fault.Error{Op: "client", Kind: fault.Unavailable, Err: fmt.Errorf("no daemon answers: %w", err), Remedy: "start one: glasshouse serve"}
	}
	return fault.New(fault.Unavailable, "client", r.method+" "+r.path, errors.Join(errBroken, err))
}

// kinds is every error kind a daemon can name.
var kinds = []fault.Kind{
	fault.Invalid, fault.Unauthenticated, fault.Denied, fault.NotFound, fault.Conflict, fault.TooLarge,
	fault.Mismatch, fault.Exhausted, fault.NoSpace, fault.Unsupported, fault.Unavailable, fault.Timeout,
}

// problemOf returns the error that an answer is.
func problemOf(resp *http.Response) error {
	const maxProblem = 64 << 10
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxProblem))
	if err != nil {
		return fault.Newf(fault.Unavailable, "client", "", "the daemon answered %s and no more: %v", resp.Status, err)
	}
	var p wire.Problem
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), wire.ProblemType) || json.Unmarshal(body, &p) != nil {
		return fmt.Errorf("client: %s answered %s, which no glasshouse daemon says", resp.Request.URL.Host, resp.Status)
	}
	return Error(p)
}

// Error returns a problem as the error it was in the daemon.
func Error(p wire.Problem) error {
	e := &fault.Error{Field: p.Field, Remedy: p.Remedy, Err: errors.New(cmp.Or(p.Detail, p.Title))}
	if k := fault.Kind(p.Kind()); slices.Contains(kinds, k) {
		e.Kind = k
	}
	return e
}
