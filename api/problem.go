package api

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"strings"

	"glasshouse/api/wire"
	"glasshouse/fault"
)

// kinds is every error kind as HTTP has it. The empty kind is an internal error.
var kinds = map[fault.Kind]struct {
	status int
	title  string
}{
	fault.Invalid:         {http.StatusBadRequest, "The request is not valid"},
	fault.Unauthenticated: {http.StatusUnauthorized, "Say who you are"},
	fault.Denied:          {http.StatusForbidden, "You may not do this"},
	fault.NotFound:        {http.StatusNotFound, "There is no such thing"},
	fault.Conflict:        {http.StatusConflict, "Not in this state"},
	fault.TooLarge:        {http.StatusRequestEntityTooLarge, "The request is too large"},
	fault.Mismatch:        {http.StatusUnprocessableEntity, "The idempotency key belongs to another request"},
	fault.Exhausted:       {http.StatusTooManyRequests, "A limit is reached"},
	fault.Unsupported:     {http.StatusNotImplemented, "This host or backend cannot"},
	fault.Unavailable:     {http.StatusServiceUnavailable, "Not now"},
	fault.Timeout:         {http.StatusGatewayTimeout, "It took too long"},
	"":                    {http.StatusInternalServerError, "Something went wrong in the daemon"},
}

// problem returns err as the caller may see it. Where is the request, for the
// log.
func (s *Server) problem(where string, err error) wire.Problem {
	if _, ok := errors.AsType[methodError](err); ok {
		return wire.Problem{
			Type: wire.TypeOf("method not allowed"), Title: "There is no such method here",
			Status: http.StatusMethodNotAllowed, Detail: err.Error(),
		}
	}
	kind := fault.KindOf(err)
	switch {
	case kind != "":
	case errors.Is(err, errClosing):
		return s.closing()
	case errors.Is(err, context.DeadlineExceeded):
		kind = fault.Timeout
	case s.ctx.Err() != nil && errors.Is(err, context.Canceled):
		return s.closing()
	default:
		return s.internal(where, err)
	}
	k, ok := kinds[kind]
	if !ok {
		return s.internal(where, err)
	}
	return wire.Problem{
		Type: wire.TypeOf(string(kind)), Title: k.title, Status: k.status,
		Detail: detail(err), Field: fault.FieldOf(err), Remedy: fault.RemedyOf(err),
	}
}

// closing is the problem of who waits for a daemon that stops. A question goes on
// waiting for its answer without them.
func (s *Server) closing() wire.Problem {
	return s.problem("", &fault.Error{Op: "api", Kind: fault.Unavailable, Err: errClosing, Remedy: "ask again when it is back"})
}

// where is r without its query, the place where secrets end up by accident.
func where(r *http.Request) string {
	path := r.URL.Path
	if strings.HasPrefix(path, linksPath) {
		path = linksPath + "…" // the rest is who may decide
	}
	return r.Method + " " + path
}

// internal logs err and returns a problem that names the log's line.
func (s *Server) internal(where string, err error) wire.Problem {
	ref := rand.Text()[:12]
	s.o.Log.Error("internal error", "error_id", ref, "request", where, "err", err)
	return wire.Problem{
		Type: wire.TypeOf("internal"), Title: kinds[""].title, Status: http.StatusInternalServerError,
		Detail: "The daemon's log has it under " + ref + ".", ID: ref,
	}
}

// detail is err for a reader who already has its kind, field and remedy.
func detail(err error) string {
	e, ok := err.(*fault.Error)
	if !ok || e.Err == nil {
		return err.Error()
	}
	if e.On == "" {
		return detail(e.Err)
	}
	return e.On + ": " + detail(e.Err)
}

// fail answers with err. Where the answer has begun, it can only break off, so
// that nobody takes half of it for the whole.
func (s *Server) fail(rec *recorder, r *http.Request, err error) {
	if rec.status != 0 {
		if r.Context().Err() == nil && s.ctx.Err() == nil {
			s.o.Log.Warn("answer broken off", "request", where(r), "err", err)
		}
		panic(http.ErrAbortHandler)
	}
	if r.Context().Err() != nil && s.ctx.Err() == nil {
		rec.status = statusClientGone
		return
	}
	if allow, ok := errors.AsType[methodError](err); ok {
		rec.Header().Set("Allow", strings.Join(allow, ", "))
	}
	writeProblem(rec, s.problem(where(r), err))
}

// statusClientGone is for the log and the metrics; nobody is there to read it.
const statusClientGone = 499

func writeProblem(w http.ResponseWriter, p wire.Problem) {
	body, err := json.Marshal(p)
	if err != nil {
		panic(err) // strings and an int
	}
	h := w.Header()
	h.Set("Content-Type", wire.ProblemType)
	switch p.Status {
	case http.StatusUnauthorized:
		h.Set("WWW-Authenticate", `Bearer realm="glasshouse"`)
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		h.Set("Retry-After", "1")
	}
	w.WriteHeader(p.Status)
	w.Write(append(body, '\n'))
}

// noRoute returns why the table has no route for r.
func (s *Server) noRoute(r *http.Request) error {
	var allow []string
	for _, m := range []string{"GET", "POST", "PUT", "DELETE"} {
		probe := *r
		probe.Method = m
		if _, pattern := s.mux.Handler(&probe); pattern != "" {
			allow = append(allow, m)
		}
	}
	if len(allow) == 0 {
		return fault.Newf(fault.NotFound, "api", "", "%.200s is not a path of this API; /openapi.json lists them", r.URL.Path)
	}
	return methodError(allow)
}

// methodError says which methods there are. It is the one error that is HTTP's
// own and has no kind.
type methodError []string

func (e methodError) Error() string {
	return "the methods here are " + strings.Join(e, ", ")
}

// recover turns a handler's panic into an internal error.
func (s *Server) recover(rec *recorder, r *http.Request) {
	v := recover()
	if v == nil {
		return
	}
	if v == http.ErrAbortHandler {
		panic(v) // net/http's own way to break off an answer
	}
	err := fmt.Errorf("panic: %v\n%s", v, debug.Stack())
	if rec.status != 0 {
		s.o.Log.Error("internal error", "request", where(r), "err", err)
		panic(http.ErrAbortHandler)
	}
	writeProblem(rec, s.internal(where(r), err))
}
