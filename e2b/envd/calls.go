package envd

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"connectrpc.com/connect"

	"glasshouse/fault"
)

// maxMessage is the maximum size of a client's message in bytes.
const maxMessage = 8 << 20

// procedures returns the handlers of the Connect RPCs by path.
func (s *Server) procedures() map[string]http.Handler {
	calls := map[string]http.Handler{}
	unary(calls, "/process.Process/List", s.list)
	streamed(calls, "/process.Process/Start", s.start)
	streamed(calls, "/process.Process/Connect", s.connect)
	unary(calls, "/process.Process/Update", s.update)
	unary(calls, "/process.Process/SendInput", s.sendInput)
	calls["/process.Process/StreamInput"] = connect.NewClientStreamHandlerSimple("/process.Process/StreamInput", s.streamInput, options...)
	unary(calls, "/process.Process/SendSignal", s.sendSignal)
	unary(calls, "/process.Process/CloseStdin", s.closeStdin)

	unary(calls, "/filesystem.Filesystem/Stat", s.stat)
	unary(calls, "/filesystem.Filesystem/MakeDir", s.makeDir)
	unary(calls, "/filesystem.Filesystem/Move", s.move)
	unary(calls, "/filesystem.Filesystem/ListDir", s.listDir)
	unary(calls, "/filesystem.Filesystem/Remove", s.remove)
	streamed(calls, "/filesystem.Filesystem/WatchDir", s.watchDir)
	unary(calls, "/filesystem.Filesystem/CreateWatcher", s.createWatcher)
	unary(calls, "/filesystem.Filesystem/GetWatcherEvents", s.getWatcherEvents)
	unary(calls, "/filesystem.Filesystem/RemoveWatcher", s.removeWatcher)
	return calls
}

var options = []connect.HandlerOption{
	connect.WithReadMaxBytes(maxMessage),
	connect.WithCompressMinBytes(4 << 10),
}

func unary[Q, A any](calls map[string]http.Handler, path string, f func(context.Context, *visit, *Q) (*A, error)) {
	calls[path] = connect.NewUnaryHandlerSimple(path, func(ctx context.Context, q *Q) (*A, error) {
		a, err := f(ctx, visited(ctx), q)
		return a, answer(err)
	}, options...)
}

func streamed[Q, A any](calls map[string]http.Handler, path string, f func(context.Context, *visit, *Q, *connect.ServerStream[A]) error) {
	calls[path] = connect.NewServerStreamHandlerSimple(path, func(ctx context.Context, q *Q, to *connect.ServerStream[A]) error {
		return answer(f(ctx, visited(ctx), q, to))
	}, options...)
}

// codes maps kinds of errors to Connect status codes.
var codes = map[fault.Kind]connect.Code{
	fault.Invalid:         connect.CodeInvalidArgument,
	fault.Unauthenticated: connect.CodeUnauthenticated,
	fault.Denied:          connect.CodePermissionDenied,
	fault.NotFound:        connect.CodeNotFound,
	fault.Conflict:        connect.CodeFailedPrecondition,
	fault.TooLarge:        connect.CodeInvalidArgument,
	fault.Exhausted:       connect.CodeResourceExhausted,
	fault.NoSpace:         connect.CodeResourceExhausted,
	fault.Unsupported:     connect.CodeUnimplemented,
	fault.Unavailable:     connect.CodeUnavailable,
	fault.Timeout:         connect.CodeDeadlineExceeded,
}

// answer converts err to a *connect.Error.
func answer(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*connect.Error](err); ok {
		return err
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return connect.NewError(connect.CodeDeadlineExceeded, err)
	case errors.Is(err, context.Canceled):
		return connect.NewError(connect.CodeCanceled, err)
	}
	code, ok := codes[fault.KindOf(err)]
	if !ok {
		code = connect.CodeInternal
	}
	return connect.NewError(code, err)
}

// ended returns the error of a stream that was interrupted with err. If the sandbox has been
// killed or paused, the error says so in the words that E2B's SDK matches.
func (s *Server) ended(v *visit, err error) error {
	if err == nil || connect.CodeOf(answer(err)) != connect.CodeUnavailable {
		return err
	}
	now := s.boxes.Check(v.sandbox)
	switch {
	case errors.Is(now, fault.NotFound):
		return connect.NewError(connect.CodeUnavailable, fmt.Errorf("%s: the sandbox was killed or reached its end of life", v.sandbox))
	case errors.Is(now, fault.Conflict):
		return connect.NewError(connect.CodeUnavailable, fmt.Errorf("%s: the sandbox was paused", v.sandbox))
	}
	return err
}

// refuse returns an error with this code.
func refuse(code connect.Code, why string) error { return connect.NewError(code, errors.New(why)) }
