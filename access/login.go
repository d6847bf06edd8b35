package access

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
)

// A Link is what is kept of a link by which a browser logs in, once: all but its
// code.
type Link struct {
	Hash    string // hex SHA-256 of the code
	Role    Role
	Name    string // whose login it will be
	Created time.Time
	Expires time.Time
}

// A Login is a browser that is logged in: all but the secret in its cookie.
type Login struct {
	ID      id.Login
	Hash    string // hex SHA-256 of the secret
	Role    Role
	Name    string
	Created time.Time
	Used    time.Time // not long before it was used last
}

// Expires is when l ends, unless it is used before.
func (l Login) Expires() time.Time { return l.Used.Add(idle) }

// A LoginStore keeps links and logins.
type LoginStore interface {
	// PutLink keeps a link, and forgets those that are over when it is made.
	PutLink(ctx context.Context, l Link) error

	// Redeem forgets the link with this hash and keeps l, with the link's role
	// and name, both or nothing; fault.NotFound if there is no such link, or it
	// is over when l is made.
	Redeem(ctx context.Context, hash string, l Login) (Login, error)

	Login(ctx context.Context, hash string) (Login, error) // fault.NotFound
	Logins(ctx context.Context) ([]Login, error)           // oldest first
	UseLogin(ctx context.Context, l id.Login, at time.Time) error
	DeleteLogin(ctx context.Context, l id.Login) error             // fault.NotFound
	DeleteLogins(ctx context.Context, unusedSince time.Time) error // forgets what is over
}

// Logins lets browsers in: by a link that works once, and from then on by the
// secret in a cookie. It is safe for concurrent use if its Store is.
type Logins struct {
	Store LoginStore
}

const (
	linkTime = 10 * time.Minute
	idle     = 7 * 24 * time.Hour // a login that is not used for so long is over
	useStep  = time.Hour          // how exactly it is known when one was used

	codePrefix   = "ghl_"
	cookiePrefix = "ghb_"
)

// Link makes a link and returns it with its code, which is kept nowhere. Without a
// name the login is its maker's: one person with two doors stays one person.
func (ls *Logins) Link(ctx context.Context, maker Caller, role Role, name string) (Link, string, error) {
	const op = "access.Link"
	switch role {
	case Admin, Operator, Viewer:
	default:
		return Link{}, "", fault.Fieldf(op, "role", "%q is not one of admin, operator, viewer", role)
	}
	if len(name) > maxName || strings.ContainsFunc(name, isControl) {
		return Link{}, "", fault.Fieldf(op, "label", "must be at most %d bytes without control characters", maxName)
	}
	code := secretOf(codePrefix)
	now := time.Now().UTC()
	l := Link{Hash: hash(code), Role: role, Name: cmp.Or(name, maker.Name), Created: now, Expires: now.Add(linkTime)}
	if err := ls.Store.PutLink(ctx, l); err != nil {
		return Link{}, "", fmt.Errorf("keep a login link: %w", err)
	}
	return l, code, nil
}

// Redeem makes a login of a link's code and returns it with the secret of its
// cookie, which is kept nowhere. Once; then, and when its time is over, the
// error is fault.Unauthenticated.
func (ls *Logins) Redeem(ctx context.Context, code string) (Login, string, error) {
	refused := &fault.Error{
		Op: "access.Redeem", Kind: fault.Unauthenticated, Field: "code",
		Err:    errors.New("the link was used before, or its time is over"),
		Remedy: "make another with glasshouse ui",
	}
	if !strings.HasPrefix(code, codePrefix) || len(code) > maxToken {
		return Login{}, "", refused
	}
	secret := secretOf(cookiePrefix)
	now := time.Now().UTC()
	l, err := ls.Store.Redeem(ctx, hash(code), Login{ID: id.NewLogin(), Hash: hash(secret), Created: now, Used: now})
	switch {
	case errors.Is(err, fault.NotFound):
		return Login{}, "", refused
	case err != nil:
		return Login{}, "", fmt.Errorf("log in: %w", err)
	}
	return l, secret, nil
}

// Check returns the caller that a cookie's secret stands for, or
// fault.Unauthenticated.
func (ls *Logins) Check(ctx context.Context, secret string) (Caller, error) {
	over := &fault.Error{
		Op: "access.Check", Kind: fault.Unauthenticated, Err: errors.New("the login is over"), Remedy: "log in again, with a link of glasshouse ui",
	}
	if !strings.HasPrefix(secret, cookiePrefix) || len(secret) > maxToken {
		return Caller{}, over
	}
	l, err := ls.Store.Login(ctx, hash(secret))
	now := time.Now().UTC()
	switch {
	case errors.Is(err, fault.NotFound):
		return Caller{}, over
	case err != nil:
		return Caller{}, fmt.Errorf("look up a login: %w", err)
	case !now.Before(l.Expires()):
		return Caller{}, over
	}
	if now.Sub(l.Used) >= useStep {
		if err := ls.Store.UseLogin(ctx, l.ID, now); err != nil {
			return Caller{}, fmt.Errorf("note the use of login %s: %w", l.ID, err)
		}
	}
	return Caller{Role: l.Role, Name: l.Name, Login: l.ID}, nil
}

// List returns the logins that are not over, oldest first.
func (ls *Logins) List(ctx context.Context) ([]Login, error) {
	if err := ls.Store.DeleteLogins(ctx, time.Now().Add(-idle)); err != nil {
		return nil, fmt.Errorf("forget logins: %w", err)
	}
	return ls.Store.Logins(ctx)
}

// End ends a login: the next request of its browser is refused.
func (ls *Logins) End(ctx context.Context, l id.Login) error { return ls.Store.DeleteLogin(ctx, l) }

// secretOf returns 256 random bits behind a prefix that says what they are for.
func secretOf(prefix string) string {
	var b [32]byte
	rand.Read(b[:]) // never fails
	return prefix + base64.RawURLEncoding.EncodeToString(b[:])
}
