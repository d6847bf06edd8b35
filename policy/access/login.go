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

// A Link is a stored single-use login link for a browser, without its code.
type Link struct {
	Hash    string // hex SHA-256 of the code
	Role    Role
	Name    string // name of the resulting login
	Created time.Time
	Expires time.Time
}

// A Login is a stored browser session, without the secret of its cookie.
type Login struct {
	ID      id.Login
	Hash    string // hex SHA-256 of the secret
	Role    Role
	Name    string
	Created time.Time
	Used    time.Time // last use, accurate to useStep
}

// Expires returns when l expires if it is not used before.
func (l Login) Expires() time.Time { return l.Used.Add(idle) }

// A LoginStore stores links and logins.
type LoginStore interface {
	// PutLink stores a link and deletes links that have expired at its creation time.
	PutLink(ctx context.Context, l Link) error

	// Redeem deletes the link with this hash and stores l with the link's role and name,
	// atomically. It returns fault.NotFound if there is no such link or it has expired at the
	// creation time of l.
	Redeem(ctx context.Context, hash string, l Login) (Login, error)

	Login(ctx context.Context, hash string) (Login, error) // fault.NotFound
	Logins(ctx context.Context) ([]Login, error)           // oldest first
	UseLogin(ctx context.Context, l id.Login, at time.Time) error
	DeleteLogin(ctx context.Context, l id.Login) error             // fault.NotFound
	DeleteLogins(ctx context.Context, unusedSince time.Time) error // deletes expired logins
}

// Logins authenticates browsers: first by a single-use link, then by the secret in a cookie.
// It is safe for concurrent use if its Store is.
type Logins struct {
	Store LoginStore
}

const (
	linkTime = 10 * time.Minute
	idle     = 7 * 24 * time.Hour // idle time after which a login expires
	useStep  = time.Hour          // resolution of Login.Used

	codePrefix   = "ghl_"
	cookiePrefix = "ghb_"
)

// Link creates a link and returns it with its code, which is not stored. Without a name the
// login gets the name of its creator, so that a person has the same name with both.
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
		return Link{}, "", fmt.Errorf("store login link: %w", err)
	}
	return l, code, nil
}

// Redeem exchanges a link's code for a login and returns it with the secret of its cookie,
// which is not stored. A link works once. For a used or expired link the error is
// fault.Unauthenticated.
func (ls *Logins) Redeem(ctx context.Context, code string) (Login, string, error) {
	refused := &fault.Error{
		Op: "access.Redeem", Kind: fault.Unauthenticated, Field: "code",
		Err:    errors.New("the login link was already used or has expired"),
		Remedy: "create a new link with glasshouse ui",
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

// Check returns the caller authenticated by a cookie's secret, or fault.Unauthenticated.
func (ls *Logins) Check(ctx context.Context, secret string) (Caller, error) {
	over := &fault.Error{
		Op: "access.Check", Kind: fault.Unauthenticated, Err: errors.New("the login has expired"), Remedy: "log in again, with a link of glasshouse ui",
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
			return Caller{}, fmt.Errorf("record the use of login %s: %w", l.ID, err)
		}
	}
	return Caller{Role: l.Role, Name: l.Name, Login: l.ID}, nil
}

// List returns the logins that have not expired, oldest first.
func (ls *Logins) List(ctx context.Context) ([]Login, error) {
	if err := ls.Store.DeleteLogins(ctx, time.Now().Add(-idle)); err != nil {
		return nil, fmt.Errorf("delete expired logins: %w", err)
	}
	return ls.Store.Logins(ctx)
}

// End revokes a login: the next request of its browser is refused.
func (ls *Logins) End(ctx context.Context, l id.Login) error { return ls.Store.DeleteLogin(ctx, l) }

// secretOf returns 256 random bits with a prefix that names their purpose.
func secretOf(prefix string) string {
	var b [32]byte
	rand.Read(b[:]) // never fails
	return prefix + base64.RawURLEncoding.EncodeToString(b[:])
}
