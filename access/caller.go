package access

import (
	"context"

	"glasshouse/id"
)

// A Caller is who a request comes from. The listener fills it in, never the
// request's own words.
type Caller struct {
	Role  Role
	Name  string   // the token's name, or the user's on the socket
	Token id.Token // empty for a caller on the socket
	Local bool     // came over the unix socket
	UID   int      // of a local caller
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
