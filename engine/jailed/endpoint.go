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

	"glasshouse/engine"
	"glasshouse/fault"
)

// The endpoint of a sandbox is a socket at which its programs call other capabilities:
// POST /call/{id} with the input as JSON, and the output as JSON comes back. Who calls
// is the capability that runs there, by the socket alone.

const (
	maxCalls     = 8        // of one sandbox at a time; more wait
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
		ErrorLog:          slog.NewLogLogger(s.engine.log.Handler(), slog.LevelDebug), // it is the capability's to stumble
	}
	server.SetKeepAlivesEnabled(false) // who has made his call leaves room for the next
	return server
}

// answer makes one call for the capability.
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
		return nil, fault.Newf(fault.Conflict, op, s.c.ID, "no call is being served here, of which another could be a part")
	}
	if err := s.c.MayCall(); err != nil {
		return nil, err
	}
	if now.call.Host == nil {
		return nil, fault.Newf(fault.Unsupported, op, s.c.ID, "there is nobody to call")
	}
	text, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, maxCallInput))
	if e, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, fault.Newf(fault.TooLarge, op, s.c.ID, "an input of more than %d bytes", e.Limit)
	}
	if err != nil {
		return nil, err
	}
	if !json.Valid(text) {
		return nil, fault.Newf(fault.Invalid, op, s.c.ID, "the input is not JSON")
	}
	// It ends with the call it is a part of, and when its caller hangs up.
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	defer context.AfterFunc(now.ctx, func() { cancel(context.Cause(now.ctx)) })()
	return now.call.Host.CallJSON(ctx, r.PathValue("id"), text)
}

// statuses are how kinds of faults are told over HTTP.
var statuses = map[fault.Kind]int{
	fault.Invalid: 400, fault.Unauthenticated: 401, fault.Denied: 403, fault.NotFound: 404, fault.Conflict: 409, fault.TooLarge: 413,
	fault.Mismatch: 422, fault.Exhausted: 429, fault.NoSpace: 507, fault.Unsupported: 501, fault.Unavailable: 503, fault.Timeout: 504,
}

// kindOf says in a word how a call has failed, and with which status.
func kindOf(err error) (kind string, status int) {
	if k := engine.KindOf(err); k != "" {
		return string(k), http.StatusBadGateway
	}
	if k := fault.KindOf(err); statuses[k] != 0 {
		return string(k), statuses[k]
	}
	return "failed", http.StatusInternalServerError
}

// limited lets so many in at a time as a sandbox may make calls.
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
