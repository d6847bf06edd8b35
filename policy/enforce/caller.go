package enforce

import "context"

type callerKey struct{}

// Caller returns the pid on the host of the process that a Judge is asked about. The process
// is suspended in its call, so the pid stays valid as long as ctx.
func Caller(ctx context.Context) (pid int, ok bool) {
	pid, ok = ctx.Value(callerKey{}).(int)
	return pid, ok
}

func withCaller(ctx context.Context, pid int) context.Context {
	return context.WithValue(ctx, callerKey{}, pid)
}
