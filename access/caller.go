package access

import (
	"context"
	"fmt"

	"glasshouse/id"
)

// A Caller is who a request comes from. The listener fills it in, never the
// request's own words.
type Caller struct {
	Role  Role
	Name  string   // the token's or login's name, or the user's on the socket
	Token id.Token // of who brings one
	Login id.Login // of a browser that is logged in
	Local bool     // came over the unix socket
	UID   int      // of a local caller
}

// ID tells callers apart: by their token, login or user.
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

// CallerOf returns the caller that ctx carries, or one that may do nothing.
func CallerOf(ctx context.Context) Caller {
	c, _ := ctx.Value(callerKey{}).(Caller)
	return c
}
