package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	"glasshouse/api/replay"
	"glasshouse/fault"
	"glasshouse/policy/access"
)

// A route is a route of the API.
type route struct {
	id      string      // operation id of the OpenAPI document; the SDKs name their methods after it
	pattern string      // pattern of http.ServeMux
	role    access.Role // required role; "" allows requests without authentication
	op      operation
	doc     string // one sentence, for the OpenAPI document
}

// An operation is the handler of a route, with the types of its input and output.
type operation struct {
	params any      // struct with path and query tags, or nil
	body   any      // JSON body, or nil
	accept []string // media types of a body that is not JSON

	status  int
	result  any     // JSON response, or nil
	answers []media // further responses

	values bool // JSON input and output only: the response is for programs
	once   bool // a POST that accepts an Idempotency-Key
	stream bool // a stream of unlimited duration: its latency is not measured
	wait   bool // may wait indefinitely: canceled when the daemon stops

	missing error // set if the daemon lacks a component that the operation needs
	serve   func(replays *replayer, w http.ResponseWriter, r *http.Request) error
}

// media is a response other than the operation's JSON.
type media struct {
	status int
	kind   string
	value  any // the content, or the type of each event; nil for bytes
}

// none is the type of missing parameters, bodies and results.
type none struct{}

// call creates an operation from a function on values.
func call[P, B, R any](status int, do func(ctx context.Context, p P, b B) (R, error)) operation {
	return valueOperation(status, do, nil)
}

// create creates an operation that creates an object. It responds with 201 and the location of
// the object.
func create[P, B, R any](do func(ctx context.Context, p P, b B) (R, error), location func(P, R) string) operation {
	return valueOperation(http.StatusCreated, do, location)
}

func valueOperation[P, B, R any](status int, do func(ctx context.Context, p P, b B) (R, error), location func(P, R) string) operation {
	op := operation{params: *new(P), body: *new(B), result: *new(R), status: status, values: true, once: true}
	op.serve = func(replays *replayer, w http.ResponseWriter, r *http.Request) error {
		var p P
		var b B
		if err := readParams(r, &p); err != nil {
			return err
		}
		body, err := readBody(w, r, &b)
		if err != nil {
			return err
		}
		return replays.answer(w, r, body, func() (replay.Response, error) {
			v, err := do(context.WithValue(r.Context(), keyOfRequest{}, r.Header.Get(keyHeader)), p, b)
			if err != nil {
				return replay.Response{}, err
			}
			if status == http.StatusCreated && replays.created != nil {
				replays.created(r.Context())
			}
			a, err := jsonAnswer(status, v)
			if location != nil {
				a.Location = location(p, v)
			}
			return a, err
		})
	}
	return op
}

// keyOfRequest is the context key of the idempotency key of a request.
type keyOfRequest struct{}

func keyOf(ctx context.Context) string {
	key, _ := ctx.Value(keyOfRequest{}).(string)
	return key
}

// raw creates an operation that reads its body and writes its response itself.
func raw[P any](do func(w http.ResponseWriter, r *http.Request, p P) error) operation {
	return operation{params: *new(P), serve: func(_ *replayer, w http.ResponseWriter, r *http.Request) error {
		var p P
		if err := readParams(r, &p); err != nil {
			return err
		}
		return do(w, r, p)
	}}
}

// The methods below declare properties of a raw operation that call derives from its types.

func (op operation) takes(body any) operation { op.body = body; return op }

func (op operation) takesBytes(kinds ...string) operation { op.accept = kinds; return op }

func (op operation) replayable() operation { op.once = true; return op }

// secret declares that the response must not be stored and therefore not replayed.
func (op operation) secret() operation { op.once = false; return op }

func (op operation) streams() operation { op.stream = true; return op }

// waits declares an operation that mostly waits. It is canceled immediately when the daemon
// stops.
func (op operation) waits() operation { op.wait = true; return op }

func (op operation) gives(status int, result any) operation {
	op.status, op.result = status, result
	return op
}

func (op operation) or(status int, kind string, value any) operation {
	op.answers = append(slices.Clip(op.answers), media{status, kind, value})
	return op
}

// route returns the handler of a route.
func (s *Server) route(rt route) http.Handler {
	owned := ownershipOf(rt.pattern)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rec := w.(*recorder) // created by serveHTTP
		rec.stream = rt.op.stream
		if err := s.allow(rt, r); err != nil {
			s.problems.fail(rec, r, err)
			return
		}
		if done, err := s.forward(rt, owned, rec, r); err != nil {
			s.problems.fail(rec, r, err)
			return
		} else if done {
			return
		}
		if s.o.Fleet != nil {
			r = r.WithContext(context.WithValue(r.Context(), requestKey{}, r))
		}
		if rt.op.missing != nil {
			s.problems.fail(rec, r, rt.op.missing)
			return
		}
		if rt.op.wait {
			ctx, cancel := context.WithCancelCause(r.Context())
			defer cancel(nil)
			defer context.AfterFunc(s.closing, func() { cancel(errClosing) })()
			r = r.WithContext(ctx)
		}
		if err := rt.op.serve(s.replays, rec, r); err != nil {
			s.problems.fail(rec, r, err)
		}
	})
}

func (s *Server) allow(rt route, r *http.Request) error {
	caller := access.CallerOf(r.Context())
	if rt.role != "" && !caller.Role.Allows(rt.role) {
		return &fault.Error{
			Op: "api.allow", Kind: fault.Denied, Err: fmt.Errorf("the role %s is required, but %s has the role %s", rt.role, caller.Name, caller.Role),
			Remedy: "use a token with that role",
		}
	}
	if !rt.op.once && r.Header.Get(keyHeader) != "" && r.Method == http.MethodPost {
		return fault.Fieldf("api.allow", keyHeader, "the response to this request is not stored and cannot be replayed")
	}
	return nil
}

func jsonAnswer(status int, v any) (replay.Response, error) {
	if v == (any)(none{}) {
		return replay.Response{Status: status}, nil
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return replay.Response{}, fmt.Errorf("encode the response: %w", err)
	}
	return replay.Response{Status: status, ContentType: "application/json", Body: b.Bytes()}, nil
}

func writeAnswer(w http.ResponseWriter, a replay.Response) {
	h := w.Header()
	if a.ContentType != "" {
		h.Set("Content-Type", a.ContentType)
	}
	if a.Location != "" {
		h.Set("Location", a.Location)
	}
	w.WriteHeader(a.Status)
	w.Write(a.Body)
}

func writeJSON(w http.ResponseWriter, status int, v any) error {
	a, err := jsonAnswer(status, v)
	if err != nil {
		return fmt.Errorf("encode the response: %w", err)
	}
	writeAnswer(w, a)
	return nil
}
