package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"glasshouse/fault"
	"glasshouse/policy/access"
)

// A connection contains the properties of a client that are known before its first request.
type connection struct {
	local  bool
	peer   bool          // another daemon of the fleet, which has checked host and origin
	caller access.Caller // caller of a local connection
	err    error         // why a local client was not identified
}

type connKey struct{}

func withConn(ctx context.Context, peers access.Peers, c net.Conn, local bool) context.Context {
	conn := connection{local: local}
	if local {
		var p access.Peer
		p, conn.err = access.PeerOf(c)
		if conn.err == nil {
			conn.caller, conn.err = peers.Caller(p)
		}
	}
	return context.WithValue(ctx, connKey{}, conn)
}

func connOf(ctx context.Context) connection {
	c, _ := ctx.Value(connKey{}).(connection)
	return c
}

// wsToken is the subprotocol that carries the token of a browser, after the subprotocol
// "glasshouse". Browsers cannot set headers on a WebSocket, and a URL must not contain a
// token.
const (
	wsProtocol = "glasshouse"
	wsToken    = "bearer."
)

// An authenticator identifies the callers of requests.
type authenticator struct {
	tokens *access.Tokens
	logins *access.Logins // nil: browsers need tokens
	hosts  []string       // accepted host names, in addition to localhost and addresses
	csrf   *http.CrossOriginProtection
}

// authenticate returns the caller of r. It checks the token first, then the credentials of the
// local socket, then the login cookie of a browser.
func (a *authenticator) authenticate(r *http.Request, c connection) (access.Caller, error) {
	secret, err := bearer(r)
	switch {
	case err != nil:
		return access.Caller{}, err
	case secret != "":
		caller, err := a.tokens.Check(r.Context(), secret)
		caller.Local = c.local && err == nil
		return caller, err
	case c.local:
		return c.caller, c.err
	}
	if caller, sent, err := a.byCookie(r); sent {
		return caller, err
	}
	return access.Caller{}, &fault.Error{
		Op: "api.authenticate", Kind: fault.Unauthenticated, Err: errors.New("authentication required"),
		Remedy: "send the header Authorization: Bearer TOKEN; the initial token is in the file token in the daemon's data directory; to log in with a browser, run glasshouse ui",
	}
}

func bearer(r *http.Request) (string, error) {
	if h := r.Header.Get("Authorization"); h != "" {
		scheme, secret, _ := strings.Cut(h, " ")
		secret = strings.TrimSpace(secret)
		if !strings.EqualFold(scheme, "Bearer") || secret == "" {
			return "", fault.Newf(fault.Unauthenticated, "api.bearer", "", "the Authorization header does not have the form Bearer TOKEN")
		}
		return secret, nil
	}
	for p := range subprotocols(r) {
		if secret, ok := strings.CutPrefix(p, wsToken); ok {
			return secret, nil
		}
	}
	return "", nil
}

func subprotocols(r *http.Request) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for _, h := range r.Header.Values("Sec-WebSocket-Protocol") {
			for p := range strings.SplitSeq(h, ",") {
				if !yield(strings.TrimSpace(p)) {
					return
				}
			}
		}
	}
}

// checkHost refuses a request whose Host is not a name of the daemon. This prevents DNS
// rebinding: a web page whose name resolves to the daemon's address sends its own name.
// Addresses are accepted, because they cannot be rebound.
func (a *authenticator) checkHost(r *http.Request, c connection) error {
	if c.local || c.peer {
		return nil
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
	if _, err := netip.ParseAddr(host); err == nil {
		return nil
	}
	if host == "localhost" || slices.Contains(a.hosts, host) {
		return nil
	}
	return &fault.Error{
		Op: "api.checkHost", Kind: fault.Denied, Field: "Host", Err: fmt.Errorf("%.100q is not a name of this daemon", host),
		Remedy: "use the daemon's address, or add the name to hosts in its configuration",
	}
}

// checkOrigin refuses requests from pages of other web origins. A request without an Origin
// header does not come from a script of a page.
func (a *authenticator) checkOrigin(r *http.Request) error {
	origin := r.Header.Get("Origin")
	if origin == "" && a.csrf.Check(r) == nil {
		return nil
	}
	if sameOrigin(r) {
		return nil
	}
	return fault.Newf(fault.Denied, "api.checkOrigin", "", "pages of %.100q may not call this daemon", origin)
}

// sameOrigin reports whether r was sent by a page of the daemon, according to its headers.
func sameOrigin(r *http.Request) bool {
	u, err := url.Parse(r.Header.Get("Origin"))
	return err == nil && u.Host != "" && strings.EqualFold(u.Host, r.Host)
}
