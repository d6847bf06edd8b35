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

	"glasshouse/access"
	"glasshouse/fault"
)

// A connection is what the listener knows of a caller, before any byte of a
// request is read.
type connection struct {
	local  bool
	caller access.Caller // of a local connection
	err    error         // why a local caller is nobody
}

type connKey struct{}

func withConn(ctx context.Context, peers access.Peers, c net.Conn, local bool) context.Context {
	conn := connection{local: local}
	if local {
		var p access.Peer
		if p, conn.err = access.PeerOf(c); conn.err == nil {
			conn.caller, conn.err = peers.Caller(p)
		}
	}
	return context.WithValue(ctx, connKey{}, conn)
}

func connOf(ctx context.Context) connection {
	c, _ := ctx.Value(connKey{}).(connection)
	return c
}

// wsToken is how a browser, which cannot set headers on a WebSocket, brings its
// token: as a subprotocol after "glasshouse", never in the URL.
const (
	wsProtocol = "glasshouse"
	wsToken    = "bearer."
)

// authenticate returns who sent r: by token if there is one, else by the
// credentials of the socket, or by the cookie of a browser that is logged in.
func (s *Server) authenticate(r *http.Request, c connection) (access.Caller, error) {
	secret, err := bearer(r)
	switch {
	case err != nil:
		return access.Caller{}, err
	case secret != "":
		caller, err := s.o.Tokens.Check(r.Context(), secret)
		caller.Local = c.local && err == nil
		return caller, err
	case c.local:
		return c.caller, c.err
	}
	if caller, sent, err := s.byCookie(r); sent {
		return caller, err
	}
	return access.Caller{}, &fault.Error{
		Op: "api", Kind: fault.Unauthenticated, Err: errors.New("this needs a token"),
		Remedy: "send Authorization: Bearer with a token; the first one is in the file token of the daemon's data directory; a browser logs in by a link of glasshouse ui",
	}
}

func bearer(r *http.Request) (string, error) {
	if h := r.Header.Get("Authorization"); h != "" {
		scheme, secret, _ := strings.Cut(h, " ")
		if secret = strings.TrimSpace(secret); !strings.EqualFold(scheme, "Bearer") || secret == "" {
			return "", fault.Newf(fault.Unauthenticated, "api", "", "the Authorization header is not Bearer and a token")
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

// checkHost refuses a name that is not the daemon's: a web page whose name was
// rebound to this address would send its own. Addresses cannot be rebound.
func (s *Server) checkHost(r *http.Request, c connection) error {
	if c.local {
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
	if host == "localhost" || slices.Contains(s.o.Hosts, host) {
		return nil
	}
	return &fault.Error{
		Op: "api", Kind: fault.Denied, Field: "Host", Err: fmt.Errorf("%.100q is not a name of this daemon", host),
		Remedy: "use its address, or add the name to the daemon's configuration",
	}
}

// checkOrigin refuses what a page of another web origin sends. A request
// without an Origin does not come from a page's script.
func (s *Server) checkOrigin(r *http.Request) error {
	origin := r.Header.Get("Origin")
	if origin == "" && s.csrf.Check(r) == nil {
		return nil
	}
	if sameOrigin(r) {
		return nil
	}
	return fault.Newf(fault.Denied, "api", "", "pages of %.100q may not call this daemon", origin)
}

// sameOrigin reports whether r says that a page of the daemon sent it.
func sameOrigin(r *http.Request) bool {
	u, err := url.Parse(r.Header.Get("Origin"))
	return err == nil && u.Host != "" && strings.EqualFold(u.Host, r.Host)
}
