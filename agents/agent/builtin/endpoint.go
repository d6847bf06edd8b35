package builtin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"glasshouse/internal/text"
)

const (
	// maxUnavailable is how long requests are retried while the endpoint does not respond,
	// for example because the daemon restarts. Then the agent exits and may be restarted.
	maxUnavailable = 10 * time.Minute

	minBackoff       = 100 * time.Millisecond
	maxBackoff       = 10 * time.Second
	maxPausedBackoff = 30 * time.Second // while the run is paused

	maxReply = 32 << 20

	// maxAnswerErrors is how many consecutive model answers may be malformed or end with
	// an error event before the run fails.
	maxAnswerErrors = 5
)

// An endpoint is a client of the agent endpoint. Its methods block until they have a
// response: they retry while the endpoint is unavailable and while the run is paused.
type endpoint struct {
	base   string
	token  string
	client *http.Client
	log    *slog.Logger
}

func newEndpoint(cfg Config) (*endpoint, error) {
	address := cfg.Endpoint
	if address == "" {
		address = "http://localhost:4097"
	}
	u, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("parse the endpoint address: %w", err)
	}
	e := &endpoint{base: strings.TrimSuffix(address, "/"), token: cfg.Token, log: cfg.Log}
	transport := &http.Transport{} // no proxy: the endpoint is local
	switch {
	case u.Scheme == "unix" && u.Host == "" && u.Path != "":
		e.base = "http://door"
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			var dialer net.Dialer
			return dialer.DialContext(ctx, "unix", u.Path)
		}
	case u.Scheme != "http" || u.Host == "":
		return nil, fmt.Errorf("endpoint address %q is neither http://host:port nor unix:///path", address)
	}
	e.client = &http.Client{Transport: transport}
	if cfg.Transport != nil {
		e.client.Transport = cfg.Transport
	}
	return e, nil
}

func (e *endpoint) close() { e.client.CloseIdleConnections() }

// A problem is an error response (RFC 9457) that a retry would not change.
type problem struct {
	Status int    `json:"status"`
	Title  string `json:"title"`
	Detail string `json:"detail"`
	Remedy string `json:"remedy"`
}

func (p *problem) Error() string {
	s := p.Title
	if s == "" {
		s = http.StatusText(p.Status)
	}
	if p.Detail != "" {
		s += ": " + p.Detail
	}
	if p.Remedy != "" {
		s += "\nRemedy: " + p.Remedy
	}
	return strings.TrimSpace(s)
}

// A retryableError is an error of a request that may succeed later.
type retryableError struct {
	err    error
	after  time.Duration // Retry-After of the response, 0 if absent
	paused bool          // the endpoint responds, but the run is paused
}

func (a *retryableError) Error() string { return a.err.Error() }
func (a *retryableError) Unwrap() error { return a.err }

// An answerError is a model answer that is malformed or ended with an error event.
type answerError struct{ why string }

func (b *answerError) Error() string { return "the answer is incomplete: " + b.why }

func (e *endpoint) get(ctx context.Context, path string, out any) error {
	return e.retry(ctx, func() error { return e.exchange(ctx, http.MethodGet, path, nil, out) })
}

func (e *endpoint) post(ctx context.Context, path string, in, out any) error {
	body, err := encode(in)
	if err != nil {
		return fmt.Errorf("encode the request to %s: %w", path, err)
	}
	return e.retry(ctx, func() error { return e.exchange(ctx, http.MethodPost, path, body, out) })
}

// postOnce is like post, but without retries. It returns within timeout.
func (e *endpoint) postOnce(ctx context.Context, timeout time.Duration, path string, in, out any) error {
	body, err := encode(in)
	if err != nil {
		return fmt.Errorf("encode the request to %s: %w", path, err)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return e.exchange(ctx, http.MethodPost, path, body, out)
}

// encode returns v as JSON without HTML escapes.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return b.Bytes(), err
}

// retry calls try until it succeeds or fails permanently. It gives up after maxUnavailable
// without a response. While the run is paused it retries until the run ends.
func (e *endpoint) retry(ctx context.Context, try func() error) error {
	var unavailable, pause time.Duration
	answerErrors := 0
	for {
		err := try()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if b, ok := errors.AsType[*answerError](err); ok {
			answerErrors++
			if answerErrors >= maxAnswerErrors {
				return &fatalError{fmt.Sprintf("%d times in a row: %v", answerErrors, b)}
			}
			err = &retryableError{err: err}
		}
		again, ok := errors.AsType[*retryableError](err)
		if !ok {
			return err
		}
		limit := maxBackoff
		if again.paused {
			limit, unavailable = maxPausedBackoff, 0
			if e.runEnded(ctx) {
				return errRunEnded
			}
		} else if unavailable >= maxUnavailable {
			return fmt.Errorf("the endpoint has not responded for %v: %v", maxUnavailable, again.err) // not wrapped: Run would report a wrapped problem as fatal
		}
		pause = min(max(2*pause, minBackoff, again.after), limit)
		e.log.Debug("retrying a request", "after", pause, "error", again.err)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}
		if !again.paused {
			unavailable += pause
		}
	}
}

// runEnded reports whether the run has ended. It returns false if the request fails.
func (e *endpoint) runEnded(ctx context.Context) bool {
	var r runInfo
	return e.exchange(ctx, http.MethodGet, "/run", nil, &r) == nil && terminal(r.State)
}

// exchange sends one request and decodes the response into out.
func (e *endpoint) exchange(ctx context.Context, method, path string, body []byte, out any) error {
	resp, err := e.send(ctx, method, path, "", body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxReply+1))
	if err != nil {
		return &retryableError{err: err}
	}
	if len(b) > maxReply {
		return &problem{Status: http.StatusRequestEntityTooLarge, Title: "too large", Detail: fmt.Sprintf("the response is larger than %d MiB", maxReply>>20), Remedy: "request less data at a time"}
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return &retryableError{err: fmt.Errorf("response to %s %s is not JSON: %w", method, path, err)}
	}
	return nil
}

// send sends one request and returns the response if its status is below 300.
func (e *endpoint) send(ctx context.Context, method, path, key string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, e.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("create the request to %s: %w", path, err)
	}
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	if e.token != "" {
		req.Header.Set(TokenHeader, e.token)
	}
	resp, err := e.client.Do(req)
	if err != nil {
		return nil, &retryableError{err: err}
	}
	if resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, responseError(resp)
}

// TokenHeader is the request header with the agent's token, if it has one.
const TokenHeader = "Glasshouse-Token"

// responseError returns a retryableError if a later request may succeed, and a problem
// otherwise.
func responseError(resp *http.Response) error {
	p := &problem{}
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if json.Unmarshal(b, p) != nil || p.Title == "" && p.Detail == "" {
		p.Detail = modelError(b)
	}
	p.Status = resp.StatusCode
	after, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
	again := &retryableError{err: p, after: time.Duration(min(max(after, 0), 3600)) * time.Second}
	switch {
	case p.Status == http.StatusConflict || p.Status == http.StatusPaymentRequired || p.Status == http.StatusTooManyRequests:
		again.paused = true
		return again
	case p.Status >= 500 && p.Status != http.StatusNotImplemented:
		return again
	}
	return p
}

// modelError returns the message of an error response of the chat completions API.
func modelError(b []byte) string {
	var e struct {
		Error json.RawMessage `json:"error"`
	}
	if json.Unmarshal(b, &e) == nil && len(e.Error) > 0 {
		return errorText(e.Error)
	}
	return text.Prefix(readable(strings.TrimSpace(string(b))), 500)
}

func errorText(raw json.RawMessage) string {
	var object struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(raw, &object) == nil && object.Message != "" {
		return object.Message
	}
	return text.Prefix(outputText(raw), 500)
}

// complete sends a request to the model and returns its complete answer.
func (e *endpoint) complete(ctx context.Context, key string, in request) (*answer, error) {
	body, err := encode(in)
	if err != nil {
		return nil, fmt.Errorf("encode the model request: %w", err)
	}
	var ans *answer
	err = e.retry(ctx, func() error {
		resp, err := e.send(ctx, http.MethodPost, "/v1/chat/completions", key, body)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		ans, err = readAnswer(resp)
		return err
	})
	return ans, err
}

// finish ends the run. If the run may not end yet, why is the reason.
func (e *endpoint) finish(ctx context.Context, result, key string) (why string, err error) {
	in, err := encode(struct {
		Result string `json:"result"`
		Key    string `json:"key"`
	}{result, key})
	if err != nil {
		return "", fmt.Errorf("encode the result: %w", err)
	}
	var out struct {
		State string `json:"state"`
		Why   string `json:"why"`
	}
	err = e.retry(ctx, func() error {
		err := e.exchange(ctx, http.MethodPost, "/run/finish", in, &out)
		if p, ok := errors.AsType[*problem](err); ok && p.Status == http.StatusConflict && e.runActive(ctx) {
			out.State, out.Why = "active", p.Detail
			return nil
		}
		if err == nil && !terminal(out.State) && !e.runActive(ctx) {
			return &retryableError{err: fmt.Errorf("the run is %s", out.State), paused: true}
		}
		return err
	})
	if err == nil && terminal(out.State) {
		err = errRunEnded
	}
	return out.Why, err
}

// runActive reports whether the run is in the state active.
func (e *endpoint) runActive(ctx context.Context) bool {
	var r runInfo
	return e.exchange(ctx, http.MethodGet, "/run", nil, &r) == nil && r.State == "active"
}
