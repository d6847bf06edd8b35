package jailed

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"glasshouse/capability/engine"
	"glasshouse/fault"
)

// The endpoint of a sandbox is a socket on which its programs call other capabilities with
// POST /call/{id}. Input and output are JSON. The socket identifies the caller: it is the
// capability of the sandbox.

const (
	maxCalls     = 8        // concurrent connections of one sandbox; others wait
	maxCallInput = 16 << 20 // in bytes
)

// newEndpoint returns the server of a sandbox's endpoint.
func newEndpoint(s *sandbox) *http.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /call/{id}", s.answer)
	server := &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 10 * time.Second,
		MaxHeaderBytes:    maxHeaders,
		ErrorLog:          slog.NewLogLogger(s.engine.log.Handler(), slog.LevelDebug), // errors of the client are not errors of the daemon
	}
	server.SetKeepAlivesEnabled(false) // an idle connection would count towards maxCalls
	return server
}

// answer handles one nested call of the capability.
func (s *sandbox) answer(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	output, err := s.callOther(r)
	if err == nil {
		w.Write(output)
		return
	}
	kind, status := kindOf(err)
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string]string{"kind": kind, "message": err.Error()})
}

func (s *sandbox) callOther(r *http.Request) (json.RawMessage, error) {
	const op = "jailed.call"
	now := s.serving.Load()
	if now == nil {
		return nil, fault.Newf(fault.Conflict, op, s.c.ID, "no call is in progress in this sandbox; nested calls are allowed only during a call")
	}
	if err := s.c.MayCall(); err != nil {
		return nil, err
	}
	if now.call.Host == nil {
		return nil, fault.Newf(fault.Unsupported, op, s.c.ID, "nested calls are not supported here")
	}
	text, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, maxCallInput))
	if e, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, fault.Newf(fault.TooLarge, op, s.c.ID, "the input exceeds %d bytes", e.Limit)
	}
	if err != nil {
		return nil, err
	}
	if !json.Valid(text) {
		return nil, fault.Newf(fault.Invalid, op, s.c.ID, "the input is not JSON")
	}
	// The nested call ends with the outer call, and when the client disconnects.
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	defer context.AfterFunc(now.ctx, func() { cancel(context.Cause(now.ctx)) })()
	return now.call.Host.CallJSON(ctx, r.PathValue("id"), text)
}

// statuses maps kinds of faults to HTTP status codes.
var statuses = map[fault.Kind]int{
	fault.Invalid: 400, fault.Unauthenticated: 401, fault.Denied: 403, fault.NotFound: 404, fault.Conflict: 409, fault.TooLarge: 413,
	fault.Mismatch: 422, fault.Exhausted: 429, fault.NoSpace: 507, fault.Unsupported: 501, fault.Unavailable: 503, fault.Timeout: 504,
}

// kindOf returns the kind of an error and the HTTP status code for it.
func kindOf(err error) (kind string, status int) {
	if k := engine.KindOf(err); k != "" {
		return string(k), http.StatusBadGateway
	}
	if k := fault.KindOf(err); statuses[k] != 0 {
		return string(k), statuses[k]
	}
	return "failed", http.StatusInternalServerError
}

// limited returns a listener that accepts at most maxCalls concurrent connections.
func limited(l net.Listener) net.Listener {
	return &limitedListener{Listener: l, free: make(chan struct{}, maxCalls)}
}

type limitedListener struct {
	net.Listener
	free chan struct{} // a token per connection
}

func (l *limitedListener) Accept() (net.Conn, error) {
	l.free <- struct{}{}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.free
		return nil, err
	}
	return &limitedConn{Conn: c, free: sync.OnceFunc(func() { <-l.free })}, nil
}

type limitedConn struct {
	net.Conn
	free func()
}

func (c *limitedConn) Close() error {
	defer c.free()
	return c.Conn.Close()
}
