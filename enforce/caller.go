package enforce

import "context"

type callerKey struct{}

// Caller returns the host's number of the process that a Judge is asked about.
// It waits for the answer, and so stays what it is as long as ctx lives.
func Caller(ctx context.Context) (pid int, ok bool) {
	pid, ok = ctx.Value(callerKey{}).(int)
	return pid, ok
}

func withCaller(ctx context.Context, pid int) context.Context {
	return context.WithValue(ctx, callerKey{}, pid)
}
