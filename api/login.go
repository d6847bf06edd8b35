package api

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/policy/access"
)

func (s *Server) logins() (*access.Logins, error) {
	if s.o.Logins == nil {
		return nil, fault.Cannot("api.logins", "browser login is not available", "use an API token")
	}
	return s.o.Logins, nil
}

// createLoginLink creates a link for a browser login.
func (s *Server) createLoginLink(ctx context.Context, _ none, b wire.CreateLoginLink) (wire.LoginLink, error) {
	ls, err := s.logins()
	if err != nil {
		return wire.LoginLink{}, err
	}
	var at []string
	if s.o.Addresses != nil {
		at = s.o.Addresses()
	}
	if len(at) == 0 {
		return wire.LoginLink{}, fault.Cannot("api.createLoginLink", "this daemon has no address that a browser can reach", "start the daemon with glasshouse serve or make up")
	}
	caller := access.CallerOf(ctx)
	l, code, err := ls.Link(ctx, caller, cmp.Or(access.Role(b.Role), caller.Role), b.Label)
	if err != nil {
		return wire.LoginLink{}, err
	}
	return wire.LoginLink{Code: code, ExpiresAt: l.Expires, URLs: each(at, func(base string) string { return base + "/login#" + code })}, nil
}

// logIn exchanges the code of a login link for a cookie.
func (s *Server) logIn(w http.ResponseWriter, r *http.Request, _ none) error {
	var b wire.LogIn
	if _, err := s.readBody(w, r, &b); err != nil {
		return err
	}
	ls, err := s.logins()
	if err != nil {
		return err
	}
	l, secret, err := ls.Redeem(r.Context(), b.Code)
	if err != nil {
		return err
	}
	http.SetCookie(w, cookie(r, secret, cookieAge))
	return writeJSON(w, http.StatusOK, wire.Me{Name: l.Name, Role: string(l.Role), Login: l.ID})
}

// logOut ends the login of the request.
func (s *Server) logOut(w http.ResponseWriter, r *http.Request, _ none) error {
	if _, err := s.readBody(w, r, &none{}); err != nil {
		return err
	}
	caller := access.CallerOf(r.Context())
	if caller.Login == "" {
		return fault.Newf(fault.Conflict, "api.logOut", "", "the request has no browser login")
	}
	if err := s.endLogin(r.Context(), caller.Login); err != nil && !errors.Is(err, fault.NotFound) {
		return err
	}
	http.SetCookie(w, cookie(r, "", -time.Second))
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// endLogin ends a login and its open streams.
func (s *Server) endLogin(ctx context.Context, l id.Login) error {
	ls, err := s.logins()
	if err != nil {
		return err
	}
	err = ls.End(ctx, l)
	if err == nil {
		s.present.end(l)
	}
	return err
}

func (s *Server) getCaller(ctx context.Context, _, _ none) (wire.Me, error) {
	c := access.CallerOf(ctx)
	return wire.Me{Name: c.Name, Role: string(c.Role), Login: c.Login}, nil
}

func (s *Server) listLogins(ctx context.Context, p paging, _ none) (wire.Page[wire.Login], error) {
	var page wire.Page[wire.Login]
	n, err := limit(p.Limit)
	if err != nil {
		return page, err
	}
	ls, err := s.logins()
	if err != nil {
		return page, err
	}
	list, err := ls.List(ctx)
	if err != nil {
		return page, err
	}
	list, err = afterID(list, p.After, func(l access.Login) string { return string(l.ID) })
	if err != nil {
		return page, err
	}
	list, page.Next = cut(list, n, func(l access.Login) string { return string(l.ID) })
	page.Items = each(list, func(l access.Login) wire.Login {
		return wire.Login{ID: l.ID, Name: l.Name, Role: string(l.Role), CreatedAt: l.Created, UsedAt: l.Used, ExpiresAt: l.Expires()}
	})
	return page, nil
}

type oneLogin struct {
	ID id.Login `path:"login"`
}

func (s *Server) deleteLogin(ctx context.Context, p oneLogin, _ none) (none, error) {
	return none{}, s.endLogin(ctx, p.ID)
}

// cookieAge is the lifetime of the cookie: the maximum that browsers accept. The daemon
// decides when a login expires.
const cookieAge = 400 * 24 * time.Hour

// cookieName contains the port: a browser sends cookies to all ports of a host, and several
// daemons may run on one host.
func cookieName(r *http.Request) string {
	if _, port, err := net.SplitHostPort(r.Host); err == nil && port != "" {
		return "glasshouse-" + port
	}
	return "glasshouse"
}

func cookie(r *http.Request, value string, age time.Duration) *http.Cookie {
	secure := r.TLS != nil || strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https")
	return &http.Cookie{
		Name: cookieName(r), Value: value, Path: "/", MaxAge: int(age / time.Second),
		HttpOnly: true, Secure: secure, SameSite: http.SameSiteStrictMode,
	}
}

// byCookie returns the caller for the login cookie of r, or false if r has no valid one.
//
// A browser also sends the cookie with requests that other sites trigger, and the other ports
// of this host are the same site. The cookie is therefore accepted only in requests of the
// daemon's own pages and for typed addresses. A request with side effects, and a WebSocket,
// must prove by its headers that a page of the daemon sent it.
func (s *Server) byCookie(r *http.Request) (access.Caller, bool, error) {
	sent := r.CookiesNamed(cookieName(r))
	if len(sent) == 0 || s.o.Logins == nil {
		return access.Caller{}, false, nil
	}
	const op = "api.byCookie"
	site := r.Header.Get("Sec-Fetch-Site")
	own := site == "same-origin" || site == "" && sameOrigin(r)
	if !own && (site != "" && site != "none" || changes(r)) {
		return access.Caller{}, true, &fault.Error{
			Op: op, Kind: fault.Denied, Err: errors.New("the login cookie is accepted only from the daemon's own pages"), Remedy: "use a token",
		}
	}
	if len(sent) > 1 { // another server on this host set a cookie of the same name
		return access.Caller{}, true, &fault.Error{
			Op: op, Kind: fault.Unauthenticated, Err: errors.New("the request has several login cookies"), Remedy: "remove this site's cookies and log in again",
		}
	}
	c, err := s.o.Logins.Check(r.Context(), sent[0].Value)
	return c, true, err
}

// changes reports whether r may have side effects.
func changes(r *http.Request) bool {
	return r.Method != http.MethodGet && r.Method != http.MethodHead || r.Header.Get("Upgrade") != ""
}

// presence maps logins to their open streams, which end with the login.
type presence struct {
	mu sync.Mutex
	// +checklocks:mu
	m map[id.Login]map[*context.CancelFunc]struct{}
}

// enter registers cancel, to be called when l ends. The caller calls leave at the end of the
// stream.
func (p *presence) enter(l id.Login, cancel context.CancelFunc) (leave func()) {
	if l == "" {
		return func() {}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.m == nil {
		p.m = map[id.Login]map[*context.CancelFunc]struct{}{}
	}
	if p.m[l] == nil {
		p.m[l] = map[*context.CancelFunc]struct{}{}
	}
	p.m[l][&cancel] = struct{}{}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.m[l], &cancel)
		if len(p.m[l]) == 0 {
			delete(p.m, l)
		}
	}
}

func (p *presence) end(l id.Login) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for cancel := range p.m[l] {
		(*cancel)()
	}
}
