package access

import (
	"context"
	"fmt"

	"glasshouse/id"
)

// A Caller is the authenticated origin of a request. The listener fills it in; it never comes
// from the request's content.
type Caller struct {
	Role  Role
	Name  string   // name of the token, the login or the user of a local caller
	Token id.Token // if authenticated by a token
	Login id.Login // if authenticated by a browser login
	Local bool     // connected over the unix socket
	UID   int      // user ID of a local caller
}

// ID identifies the caller by its token, login or user.
func (c Caller) ID() string {
	switch {
	case c.Token != "":
		return string(c.Token)
	case c.Login != "":
		return string(c.Login)
	}
	return fmt.Sprintf("uid %d", c.UID)
}

type callerKey struct{}

// WithCaller returns a context that carries c.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// CallerOf returns the caller that ctx carries, or one without a role.
func CallerOf(ctx context.Context) Caller {
	c, _ := ctx.Value(callerKey{}).(Caller)
	return c
}
