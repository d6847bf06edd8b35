package jailed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"glasshouse/capability/engine"
	"glasshouse/capability/rtfs/form"
	"glasshouse/capability/schema"
	"glasshouse/fault"
	"glasshouse/jail"
)

const (
	maxOutput  = 16 << 20 // bytes of the output of a capability
	maxReason  = 2 << 10  // bytes of an error message of a capability
	maxHeaders = 64 << 10
)

// inputOf returns the input of a call as JSON.
func inputOf(call *engine.Call) ([]byte, error) {
	text, err := schema.ToJSON(call.Input)
	if err != nil {
		return nil, fmt.Errorf("encode the input of %s: %w", call.Capability.ID, err)
	}
	return text, nil
}

// outputOf decodes the output of the program.
func outputOf(call *engine.Call, text []byte) (form.Value, error) {
	v, err := call.Capability.Output.FromJSON(text)
	if err != nil {
		return nil, troublef(engine.Garbled, err, "its output is not JSON of the declared output type: %v", err)
	}
	return v, nil
}

// startServer starts the capability's server and waits until it is healthy.
func (s *sandbox) startServer(ctx context.Context) error {
	startup := s.c.Runtime.StartupTimeout
	if startup == 0 {
		startup = defaultStartup
	}
	ctx, cancel := context.WithTimeout(ctx, startup)
	defer cancel()
	var err error
	if s.program, err = s.start(ctx); err != nil {
		return err
	}
	port := s.c.Runtime.Port
	s.http = &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return s.engine.cfg.Jails.Dial(ctx, s.jail, port)
		},
		DisableCompression:     true,
		MaxIdleConnsPerHost:    1,
		MaxResponseHeaderBytes: maxHeaders,
	}
	return s.awaitHealth(ctx, startup)
}

// start starts the program of a server.
func (s *sandbox) start(ctx context.Context) (*program, error) {
	stream, _, err := s.engine.cfg.Jails.Exec(context.WithoutCancel(ctx), s.jail, jail.ExecRequest{Argv: s.c.Runtime.Entrypoint, Ring: serverRing}, follow)
	if errors.Is(err, fault.Invalid) || errors.Is(err, fault.NotFound) {
		return nil, &engine.Failure{Kind: engine.Unstarted, Reason: "its entrypoint cannot be started: " + err.Error(), Err: err}
	}
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", s.c.ID, err)
	}
	return watch(stream), nil
}

// awaitHealth polls the server until it is healthy, it has ended, or ctx has ended.
func (s *sandbox) awaitHealth(ctx context.Context, startup time.Duration) error {
	var last error
	for wait := time.Millisecond; ; wait = min(wait*3/2, 50*time.Millisecond) {
		err := s.healthy(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		select {
		case <-s.program.done:
			return s.unstarted(ctx, s.program.exitReason(), last)
		case <-ctx.Done():
			return s.unstarted(ctx, fmt.Sprintf("it was not healthy within %v: %v", startup, last), last)
		case <-time.After(wait):
		}
	}
}

// unstarted returns the failure of a server that did not become healthy.
func (s *sandbox) unstarted(ctx context.Context, reason string, err error) error {
	f := &engine.Failure{Kind: engine.Unstarted, Reason: reason, Log: s.program.tail.String(), Err: err}
	stats, statsErr := s.engine.cfg.Jails.Stats(context.WithoutCancel(ctx), s.jail)
	if s.outOfMemory(stats, statsErr) {
		f.Kind, f.Reason = engine.Memory, "it exceeded its memory limit before it was healthy"
	}
	f.Usage = s.usage(s.mark(stats), stats.MemoryPeak, 0)
	return f
}

// healthy makes one health check. It returns nil if the server is healthy.
func (s *sandbox) healthy(ctx context.Context) error {
	r := s.c.Runtime
	if r.HealthCheck == "" {
		conn, err := s.engine.cfg.Jails.Dial(ctx, s.jail, r.Port)
		if err != nil {
			return err
		}
		return conn.Close()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url(r.HealthCheck), nil)
	if err != nil {
		return fmt.Errorf("create the health check: %w", err)
	}
	answer, err := s.http.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("GET %s: %w", r.HealthCheck, err)
	}
	defer answer.Body.Close()
	io.Copy(io.Discard, io.LimitReader(answer.Body, maxReason)) // so that the connection can be used again
	if answer.StatusCode/100 != 2 {
		return fmt.Errorf("GET %s: %s", r.HealthCheck, answer.Status)
	}
	return nil
}

func (s *sandbox) url(path string) string {
	return fmt.Sprintf("http://127.0.0.1:%d/%s", s.c.Runtime.Port, strings.TrimPrefix(path, "/"))
}

// path returns the request path of the capability: /places/search for places.search.
func (s *sandbox) path() string {
	if p := s.c.Runtime.Path; p != "" {
		return p
	}
	return "/" + strings.ReplaceAll(s.c.ID, ".", "/")
}

// ask sends a call to the server and returns its response and its log.
func (s *sandbox) ask(ctx context.Context, call *engine.Call, input []byte) (body []byte, log string, err error) {
	s.program.tail.reset()
	body, err = s.post(ctx, call, input)
	if e, ok := errors.AsType[*brokenError](err); ok && ctx.Err() == nil {
		// The connections of a program close before its exit is reported.
		s.program.settle()
		err = troublef(engine.Garbled, e.err, "its HTTP response is invalid or incomplete: %v", e.err)
		if s.program.ended() {
			err = troublef(engine.Crashed, e.err, "%s", s.program.exitReason())
		}
	}
	return body, s.program.tail.String(), err
}

func (s *sandbox) post(ctx context.Context, call *engine.Call, input []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url(s.path()), bytes.NewReader(input))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	req.Header.Set("Glasshouse-Call", call.ID)
	if call.Key != "" {
		req.Header.Set("Idempotency-Key", call.Key)
	}
	if by, ok := ctx.Deadline(); ok {
		req.Header.Set("Glasshouse-Deadline", by.UTC().Format(time.RFC3339Nano))
	}
	answer, err := s.http.RoundTrip(req)
	if err != nil {
		return nil, &brokenError{err}
	}
	defer answer.Body.Close()
	if answer.StatusCode/100 != 2 {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, maxReason))
		return nil, troublef(engine.Failed, nil, "%s: %s", answer.Status, strings.ToValidUTF8(string(bytes.TrimSpace(text)), "�"))
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxOutput+1))
	switch {
	case err != nil:
		return nil, &brokenError{err}
	case len(body) > maxOutput:
		return nil, troublef(engine.Garbled, nil, "its output exceeds %d bytes", maxOutput)
	case answer.StatusCode == http.StatusNoContent:
		return []byte("null"), nil
	}
	return body, nil
}

// A brokenError is the error of an HTTP exchange that was not completed.
type brokenError struct{ err error }

func (b *brokenError) Error() string { return b.err.Error() }
func (b *brokenError) Unwrap() error { return b.err }
