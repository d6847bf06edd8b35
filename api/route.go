package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	"glasshouse/access"
	"glasshouse/api/replay"
	"glasshouse/fault"
)

// A route is one line of the API.
type route struct {
	pattern string      // of http.ServeMux
	role    access.Role // that a caller needs; "" is anyone, without a token
	op      operation
	doc     string // one sentence, for the OpenAPI document
}

// An operation is what a route does, with the types it takes and gives.
type operation struct {
	params any      // struct with path and query tags, or nil
	body   any      // JSON body, or nil
	accept []string // media types of a body that is not JSON

	status  int
	result  any     // JSON answer, or nil
	answers []media // what else it answers with

	values bool // takes and gives values alone: its answer is for programs
	once   bool // as a POST, takes an Idempotency-Key
	stream bool // goes on for as long as the caller likes: no latency to measure
	wait   bool // waits for what may never come: ends when the daemon is to

	serve func(s *Server, w http.ResponseWriter, r *http.Request) error
}

// media is an answer that is not the operation's JSON.
type media struct {
	status int
	kind   string
	value  any // what it holds, or what each of its events holds; nil for bytes
}

// none says that an operation has no parameters, body or result.
type none struct{}

// call is an operation from values to a value.
func call[P, B, R any](status int, do func(s *Server, ctx context.Context, p P, b B) (R, error)) operation {
	return valueOperation(status, do, nil)
}

// create is call for what makes a thing: it answers 201 with the thing's place.
func create[P, B, R any](do func(s *Server, ctx context.Context, p P, b B) (R, error), place func(P, R) string) operation {
	return valueOperation(http.StatusCreated, do, place)
}

func valueOperation[P, B, R any](status int, do func(s *Server, ctx context.Context, p P, b B) (R, error), place func(P, R) string) operation {
	op := operation{params: *new(P), body: *new(B), result: *new(R), status: status, values: true, once: true}
	op.serve = func(s *Server, w http.ResponseWriter, r *http.Request) error {
		var p P
		var b B
		if err := readParams(r, &p); err != nil {
			return err
		}
		body, err := s.readBody(w, r, &b)
		if err != nil {
			return err
		}
		return s.answer(w, r, body, func() (replay.Answer, error) {
			v, err := do(s, context.WithValue(r.Context(), keyOfRequest{}, r.Header.Get(keyHeader)), p, b)
			if err != nil {
				return replay.Answer{}, err
			}
			a, err := jsonAnswer(status, v)
			if place != nil {
				a.Location = place(p, v)
			}
			return a, err
		})
	}
	return op
}

// keyOfRequest is under what a context has the idempotency key of its request.
type keyOfRequest struct{}

func keyOf(ctx context.Context) string {
	key, _ := ctx.Value(keyOfRequest{}).(string)
	return key
}

// raw is an operation that reads its body and writes its answer itself.
func raw[P any](do func(s *Server, w http.ResponseWriter, r *http.Request, p P) error) operation {
	return operation{params: *new(P), serve: func(s *Server, w http.ResponseWriter, r *http.Request) error {
		var p P
		if err := readParams(r, &p); err != nil {
			return err
		}
		return do(s, w, r, p)
	}}
}

// The methods below say of a raw operation what call knows from its types.

func (op operation) takes(body any) operation { op.body = body; return op }

func (op operation) takesBytes(kinds ...string) operation { op.accept = kinds; return op }

func (op operation) replayable() operation { op.once = true; return op }

// secret says that the answer must not be kept, and so not replayed.
func (op operation) secret() operation { op.once = false; return op }

func (op operation) streams() operation { op.stream = true; return op }

// waits says that what takes the time is waiting. Whoever waits is told at once that
// the daemon stops.
func (op operation) waits() operation { op.wait = true; return op }

func (op operation) gives(status int, result any) operation {
	op.status, op.result = status, result
	return op
}

func (op operation) or(status int, kind string, value any) operation {
	op.answers = append(slices.Clip(op.answers), media{status, kind, value})
	return op
}

// route returns the handler of one line of the table.
func (s *Server) route(rt route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rec := w.(*recorder) // serveHTTP made it
		rec.stream = rt.op.stream
		if err := s.allow(rt, r); err != nil {
			s.fail(rec, r, err)
			return
		}
		if rt.op.wait {
			ctx, cancel := context.WithCancelCause(r.Context())
			defer cancel(nil)
			defer context.AfterFunc(s.ctx, func() { cancel(errClosing) })()
			r = r.WithContext(ctx)
		}
		if err := rt.op.serve(s, rec, r); err != nil {
			s.fail(rec, r, err)
		}
	})
}

func (s *Server) allow(rt route, r *http.Request) error {
	caller := access.CallerOf(r.Context())
	if rt.role != "" && !caller.Role.Allows(rt.role) {
		return &fault.Error{
			Op: "api", Kind: fault.Denied, Err: fmt.Errorf("this needs the role %s, and %s is %s", rt.role, caller.Name, caller.Role),
			Remedy: "use a token with that role",
		}
	}
	if !rt.op.once && r.Header.Get(keyHeader) != "" && r.Method == http.MethodPost {
		return fault.Fieldf("api", keyHeader, "the answer to this request is not kept, and so cannot be replayed")
	}
	return nil
}

func jsonAnswer(status int, v any) (replay.Answer, error) {
	if v == (any)(none{}) {
		return replay.Answer{Status: status}, nil
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return replay.Answer{}, fmt.Errorf("render the answer: %w", err)
	}
	return replay.Answer{Status: status, ContentType: "application/json", Body: b.Bytes()}, nil
}

func writeAnswer(w http.ResponseWriter, a replay.Answer) {
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
		return err
	}
	writeAnswer(w, a)
	return nil
}
