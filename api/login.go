package api

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"time"

	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/policy/access"
)

// loginHandler serves the routes of browser logins.
type loginHandler struct {
	logins    *access.Logins
	addresses func() []string
	streams   *streams
}

var noLogins = fault.Cannot("api.logins", "browser login is not available", "use an API token")

// createLoginLink creates a link for a browser login.
func (h *loginHandler) createLoginLink(ctx context.Context, _ none, b wire.CreateLoginLink) (wire.LoginLink, error) {
	var at []string
	if h.addresses != nil {
		at = h.addresses()
	}
	if len(at) == 0 {
		return wire.LoginLink{}, fault.Cannot("api.createLoginLink", "this daemon has no address that a browser can reach", "start the daemon with glasshouse serve or make up")
	}
	caller := access.CallerOf(ctx)
	l, code, err := h.logins.Link(ctx, caller, cmp.Or(access.Role(b.Role), caller.Role), b.Label)
	if err != nil {
		return wire.LoginLink{}, err
	}
	return wire.LoginLink{Code: code, ExpiresAt: l.Expires, URLs: each(at, func(base string) string { return base + "/login#" + code })}, nil
}

// logIn exchanges the code of a login link for a cookie.
func (h *loginHandler) logIn(w http.ResponseWriter, r *http.Request, _ none) error {
	var b wire.LogIn
	if _, err := readBody(w, r, &b); err != nil {
		return err
	}
	l, secret, err := h.logins.Redeem(r.Context(), b.Code)
	if err != nil {
		return err
	}
	http.SetCookie(w, cookie(r, secret, cookieAge))
	return writeJSON(w, http.StatusOK, wire.Me{Name: l.Name, Role: string(l.Role), Login: l.ID})
}

// logOut ends the login of the request.
func (h *loginHandler) logOut(w http.ResponseWriter, r *http.Request, _ none) error {
	if _, err := readBody(w, r, &none{}); err != nil {
		return err
	}
	caller := access.CallerOf(r.Context())
	if caller.Login == "" {
		return fault.Newf(fault.Conflict, "api.logOut", "", "the request has no browser login")
	}
	if err := h.endLogin(r.Context(), caller.Login); err != nil && !errors.Is(err, fault.NotFound) {
		return err
	}
	http.SetCookie(w, cookie(r, "", -time.Second))
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// endLogin ends a login and its open streams.
func (h *loginHandler) endLogin(ctx context.Context, l id.Login) error {
	err := h.logins.End(ctx, l)
	if err == nil {
		h.streams.logins.end(l)
	}
	return err
}

func (h *loginHandler) getCaller(ctx context.Context, _, _ none) (wire.Me, error) {
	c := access.CallerOf(ctx)
	return wire.Me{Name: c.Name, Role: string(c.Role), Login: c.Login}, nil
}

func (h *loginHandler) listLogins(ctx context.Context, p paging, _ none) (wire.Page[wire.Login], error) {
	return pageAfter(p.Limit, p.After, func() ([]access.Login, error) { return h.logins.List(ctx) },
		func(l access.Login) string { return string(l.ID) }, func(l access.Login) wire.Login {
			return wire.Login{ID: l.ID, Name: l.Name, Role: string(l.Role), CreatedAt: l.Created, UsedAt: l.Used, ExpiresAt: l.Expires()}
		})
}

type oneLogin struct {
	ID id.Login `path:"login"`
}

func (h *loginHandler) deleteLogin(ctx context.Context, p oneLogin, _ none) (none, error) {
	return none{}, h.endLogin(ctx, p.ID)
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
func (a *authenticator) byCookie(r *http.Request) (access.Caller, bool, error) {
	sent := r.CookiesNamed(cookieName(r))
	if len(sent) == 0 || a.logins == nil {
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
	c, err := a.logins.Check(r.Context(), sent[0].Value)
	return c, true, err
}

// changes reports whether r may have side effects.
func changes(r *http.Request) bool {
	return r.Method != http.MethodGet && r.Method != http.MethodHead || r.Header.Get("Upgrade") != ""
}
