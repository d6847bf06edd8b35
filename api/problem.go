package api

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"

	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/internal/text"
)

// A kindInfo is the documentation of an error kind.
type kindInfo struct {
	title string
	about string // the cause and the remedy
}

// kinds has all error kinds. The empty kind is an internal error.
var kinds = map[fault.Kind]kindInfo{
	fault.Invalid:         {"Invalid request", "A parameter, a header or a field of the request has a value that the operation does not accept. Correct what field and detail name, and send the request again."},
	fault.Unauthenticated: {"Authentication required", "The request has no valid token. Send one in the header Authorization: Bearer TOKEN, or log in to the web UI."},
	fault.Denied:          {"Permission denied", "The role of the caller, a policy or an approver does not permit the operation. Use a token with the role that the OpenAPI document names for the route, or ask an administrator."},
	fault.NotFound:        {"Not found", "No object has this id or name, or no route has this path. It may have been deleted."},
	fault.Conflict:        {"Conflict", "The object is in a state that does not permit the operation, or another request changed it. Read its state, then decide whether to send the request again."},
	fault.TooLarge:        {"Request too large", "The request or a part of it is larger than the limit. Send less."},
	fault.Mismatch:        {"Idempotency key reused", "The Idempotency-Key was used for a request with another method, path or body. Use a new key for a new request."},
	fault.Exhausted:       {"Limit reached", "A rate limit, a budget or a resource limit is reached. Wait as long as the header Retry-After says, or release what is no longer needed."},
	fault.NoSpace:         {"No space left", "A disk is full: the host's, or that of the jail. Free space on it, then send the request again."},
	fault.Unsupported:     {"Not supported on this host", "The host or the backend lacks what the operation needs. Run glasshouse doctor for the reason and the remedy."},
	fault.Unavailable:     {"Service unavailable", "The daemon is starting or stopping, or a service it needs does not answer. Send the request again later."},
	fault.Timeout:         {"Timeout", "The operation did not end in time and was cancelled."},
	"":                    {"Internal error", "An error that the caller cannot correct. The log of the daemon has the cause under the error_id of the response."},
}

// internalKind and methodKind are problem types without an error kind.
const (
	internalKind = "internal"
	methodKind   = "method not allowed"
)

var methodInfo = kindInfo{"Method not allowed", "The path exists, but not with this method. The header Allow lists the methods of the path."}

// problems renders errors as problem details.
type problems struct {
	log     *slog.Logger
	closing context.Context // canceled when the daemon stops
}

// of converts err for the caller. where identifies the request in the log.
func (ps *problems) of(where string, err error) wire.Problem {
	if _, ok := errors.AsType[methodError](err); ok {
		return wire.Problem{
			Type: wire.TypeOf(methodKind), Title: methodInfo.title, Status: http.StatusMethodNotAllowed, Detail: err.Error(),
		}
	}
	kind := fault.KindOf(err)
	switch {
	case (kind == "" || kind == fault.Unavailable) && fault.DiskFull(err):
		return ps.hostFull(where, err)
	case kind != "":
	case errors.Is(err, errClosing):
		return ps.stopping()
	case errors.Is(err, context.DeadlineExceeded):
		kind = fault.Timeout
	case ps.closing.Err() != nil && errors.Is(err, context.Canceled):
		return ps.stopping()
	default:
		return ps.internal(where, err)
	}
	k, ok := kinds[kind]
	if !ok {
		return ps.internal(where, err)
	}
	return wire.Problem{
		Type: wire.TypeOf(string(kind)), Title: k.title, Status: kind.Status(),
		Detail: fault.Detail(err), Field: fault.FieldOf(err), Remedy: fault.RemedyOf(err),
	}
}

// hostFull returns the problem for a full disk of the host. The error may contain paths of the
// host, so only the log has it.
func (ps *problems) hostFull(where string, err error) wire.Problem {
	p := ps.internal(where, err)
	p.Type, p.Title, p.Status = wire.TypeOf(string(fault.NoSpace)), kinds[fault.NoSpace].title, fault.NoSpace.Status()
	p.Detail = "The host's disk, on which the daemon keeps its data, is full. " + p.Detail
	p.Remedy = "free space on the host's disk, or delete jails and snapshots: glasshouse snapshot rm"
	return p
}

// stopping returns the problem for requests that wait while the daemon stops. The pending
// approval is not affected.
func (ps *problems) stopping() wire.Problem {
	return ps.of("", &fault.Error{Op: "api.stopping", Kind: fault.Unavailable, Err: errClosing, Remedy: "retry when the daemon is running again"})
}

// where returns the method and path of r. It omits the query, which may contain secrets by
// accident.
func where(r *http.Request) string {
	path := r.URL.Path
	if strings.HasPrefix(path, linksPath) {
		path = linksPath + "…" // the rest is a secret token
	}
	return r.Method + " " + path
}

// internal logs err and returns a problem with the id of the log entry.
func (ps *problems) internal(where string, err error) wire.Problem {
	ref := rand.Text()[:12]
	attrs := []any{"error_id", ref, "request", where, "err", err}
	if p, ok := errors.AsType[*fault.Panic](err); ok {
		attrs = append(attrs, "stack", string(p.Stack))
	}
	ps.log.Error("internal error", attrs...)
	return wire.Problem{
		Type: wire.TypeOf(internalKind), Title: kinds[""].title, Status: http.StatusInternalServerError,
		Detail: "The daemon's log has it under " + ref + ".", ID: ref,
	}
}

// fail responds with err. If the response has begun, it aborts the connection, so that the
// client detects the incomplete response.
func (ps *problems) fail(rec *recorder, r *http.Request, err error) {
	if rec.status != 0 {
		if r.Context().Err() == nil && ps.closing.Err() == nil {
			ps.log.Warn("response aborted", "request", where(r), "err", err)
		}
		panic(http.ErrAbortHandler)
	}
	if r.Context().Err() != nil && ps.closing.Err() == nil {
		rec.status = statusClientGone
		return
	}
	if allow, ok := errors.AsType[methodError](err); ok {
		rec.Header().Set("Allow", strings.Join(allow, ", "))
	}
	writeProblem(rec, ps.of(where(r), err))
}

// statusClientGone is used in the log and metrics for a client that disconnected.
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
	w.Write(append(text.JSON(body), '\n'))
}

// noRoute returns the error for a request without a matching route.
func (s *Server) noRoute(r *http.Request) error {
	var allow []string
	for _, m := range []string{"GET", "POST", "PUT", "PATCH", "DELETE"} {
		probe := *r
		probe.Method = m
		if _, pattern := s.mux.Handler(&probe); pattern != "" {
			allow = append(allow, m)
		}
	}
	if len(allow) == 0 {
		return fault.Newf(fault.NotFound, "api.noRoute", "", "%s is not a path of this API; /openapi.json lists all paths", text.Visible(text.Clip(r.URL.Path, 200)))
	}
	return methodError(allow)
}

// methodError lists the allowed methods. It is the only HTTP error without an error kind.
type methodError []string

func (e methodError) Error() string {
	return "method not allowed; allowed methods: " + strings.Join(e, ", ")
}

// recover converts a panic of a handler to an internal error.
func (ps *problems) recover(rec *recorder, r *http.Request) {
	v := recover()
	if v == nil {
		return
	}
	if v == http.ErrAbortHandler {
		panic(v) // net/http aborts the response
	}
	err := fmt.Errorf("panic: %v\n%s", v, debug.Stack())
	if rec.status != 0 {
		ps.log.Error("internal error", "request", where(r), "err", err)
		panic(http.ErrAbortHandler)
	}
	writeProblem(rec, ps.internal(where(r), err))
}
