package llm

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"glasshouse/fault"
)

// Causes for which the gateway cancels a request to a provider.
var (
	errSilent = errors.New("the provider sends no data")
)

// An answer is a provider's response whose first byte has arrived.
type answer struct {
	*http.Response
	body   *bufio.Reader
	silent *time.Timer
}

func (a *answer) close() {
	a.silent.Stop()
	a.Body.Close()
}

// forward sends the request, with retries, and passes the answer on.
func (x *exchange) forward(w http.ResponseWriter, r *http.Request) error {
	x.call.Began = time.Now()
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	for try := 0; ; try++ {
		x.call.Retries = try
		a, err := x.attempt(ctx, cancel)
		wait, again := x.again(ctx, try, a, err)
		if again {
			if a != nil {
				a.close()
			}
			if sleep(ctx, wait) == nil {
				continue
			}
			err = ctx.Err()
		}
		if err != nil {
			return x.unanswered(ctx, err)
		}
		defer a.close()
		if a.StatusCode >= 300 {
			return x.passError(ctx, w, a)
		}
		if strings.HasPrefix(a.Header.Get("Content-Type"), "text/event-stream") {
			x.stream(ctx, cancel, w, a)
			return nil
		}
		return x.forwardComplete(ctx, w, a)
	}
}

// attempt sends the request once and waits for the first byte of the response.
func (x *exchange) attempt(ctx context.Context, cancel context.CancelCauseFunc) (*answer, error) {
	req, err := x.request(ctx)
	if err != nil {
		return nil, err
	}
	timeout := x.to.provider.Timeout
	silent := time.AfterFunc(timeout, func() { cancel(errSilent) })
	x.sent = true // until it is known that no provider processed it
	res, err := x.g.transport.RoundTrip(req)
	if err != nil {
		silent.Stop()
		if ctx.Err() == nil {
			x.sent = false
		}
		return nil, err
	}
	x.call.Status = res.StatusCode
	x.sent = res.StatusCode < 300
	a := &answer{Response: res, silent: silent}
	a.body, err = readable(res, &heard{res.Body, silent, timeout})
	if err != nil {
		a.close()
		return nil, err
	}
	if _, err := a.body.Peek(1); err != nil && x.sent {
		a.close()
		return nil, fmt.Errorf("the response has no body: %w", err)
	}
	x.call.FirstByte = time.Since(x.call.Began)
	return a, nil
}

// readable returns a response's body without compression, so that usage can be counted. Some
// providers compress without being asked.
func readable(res *http.Response, body io.Reader) (*bufio.Reader, error) {
	switch res.Header.Get("Content-Encoding") {
	case "", "identity":
	case "gzip":
		unpacked, err := gzip.NewReader(body)
		if err != nil {
			return nil, fmt.Errorf("decompress the response: %w", err)
		}
		body = unpacked
	default:
		return nil, fmt.Errorf("the response has the unsupported encoding %.40q", res.Header.Get("Content-Encoding"))
	}
	return bufio.NewReaderSize(body, 32<<10), nil
}

// heard resets a timer on each read.
type heard struct {
	r     io.Reader
	timer *time.Timer
	after time.Duration
}

func (h *heard) Read(p []byte) (int, error) {
	n, err := h.r.Read(p)
	if n > 0 {
		h.timer.Reset(h.after)
	}
	return n, err
}

// A keyError reports that a provider's key is not available. The cause is logged only, because
// it may contain details that a jail must not see.
type keyError struct{ err error }

func (e *keyError) Error() string { return "its key is not available: " + e.err.Error() }

// request builds the request to the provider.
func (x *exchange) request(ctx context.Context) (*http.Request, error) {
	p := x.to.provider
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.base.String()+x.url, bytes.NewReader(x.out))
	if err != nil {
		return nil, fault.Newf(fault.Invalid, "llm.request", "model "+quoted(x.to.model), "cannot build a request for it")
	}
	req.Header = passedOn(x.header, requestHeaders)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept-Encoding", "identity")
	if p.API == Anthropic && req.Header.Get("Anthropic-Version") == "" {
		req.Header.Set("Anthropic-Version", "2023-06-01")
	}
	for name, value := range p.Headers {
		req.Header.Set(name, value)
	}
	if p.Key == nil {
		return req, nil
	}
	key, err := p.Key(ctx)
	if err != nil {
		return nil, &keyError{err}
	}
	secret := string(bytes.TrimSpace(key))
	switch p.API {
	case OpenAI:
		req.Header.Set("Authorization", "Bearer "+secret)
	case Anthropic:
		req.Header.Set("X-Api-Key", secret)
	case Gemini:
		req.Header.Set("X-Goog-Api-Key", secret)
	}
	return req, nil
}

// Headers that are passed from a request to a provider, and from its response to the caller. A
// trailing * matches any suffix. Headers that identify the caller or an account are not
// included.
var (
	requestHeaders = []string{"accept", "user-agent", "anthropic-*", "openai-beta", "x-stainless-*", "x-goog-api-client", "originator"}
	answerHeaders  = []string{"content-type", "cache-control", "retry-after", "retry-after-ms", "request-id", "x-request-id", "x-should-retry",
		"x-ratelimit-*", "anthropic-ratelimit-*", "openai-model", "openai-processing-ms", "openai-version"}
)

func passedOn(from http.Header, names []string) http.Header {
	to := http.Header{}
	for name, values := range from {
		if has(names, strings.ToLower(name), true) || has(names, strings.ToLower(name), false) {
			to[name] = slices.Clone(values)
		}
	}
	return to
}

// upstreamPath returns the path of a request relative to a provider's base.
func upstreamPath(f *format, path, model string) string {
	if f.action != "" {
		return "/v1beta/models/" + url.PathEscape(model) + f.action
	}
	return path
}

// query returns the query to pass on, without keys.
func query(q url.Values) string {
	for _, secret := range []string{"key", "api_key", "api-key", "access_token"} {
		q.Del(secret)
	}
	if len(q) == 0 {
		return ""
	}
	return "?" + q.Encode()
}

// Delays between retries.
const (
	firstWait   = 500 * time.Millisecond
	longestWait = 8 * time.Second
	patience    = time.Minute // maximum Retry-After of a provider that is waited for
)

// again reports whether to retry, and after which delay.
func (x *exchange) again(ctx context.Context, try int, a *answer, err error) (time.Duration, bool) {
	if try >= x.g.cfg.Retries || ctx.Err() != nil {
		return 0, false
	}
	wait := min(firstWait<<min(try, 10), longestWait)
	wait += rand.N(wait/2) - wait/4
	if err != nil {
		_, noKey := errors.AsType[*keyError](err)
		return wait, !noKey && fault.KindOf(err) == ""
	}
	switch a.StatusCode {
	case http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable,
		http.StatusGatewayTimeout, 529: // Anthropic's "overloaded"
	default:
		return 0, false
	}
	if a.Header.Get("X-Should-Retry") == "false" {
		return 0, false
	}
	if requested, ok := retryAfter(a.Header, time.Now()); ok {
		return requested, requested <= patience
	}
	return wait, true
}

// retryAfter returns the delay that a provider requests (RFC 9110, section 10.2.3).
func retryAfter(h http.Header, now time.Time) (time.Duration, bool) {
	if ms, err := strconv.ParseFloat(h.Get("Retry-After-Ms"), 64); err == nil && ms >= 0 && ms < 1e12 {
		return time.Duration(ms * float64(time.Millisecond)), true
	}
	v := h.Get("Retry-After")
	if s, err := strconv.ParseFloat(v, 64); err == nil && s >= 0 && s < 1e9 {
		return time.Duration(s * float64(time.Second)), true
	}
	if at, err := http.ParseTime(v); err == nil {
		return max(at.Sub(now), 0), true
	}
	return 0, false
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// unanswered ends a call without a response.
func (x *exchange) unanswered(ctx context.Context, err error) error {
	how, name := Failed, x.to.provider.Name
	unreachable := fault.Newf(fault.Unavailable, "llm.unanswered", "provider "+name, "the provider cannot be reached")
	_, noKey := errors.AsType[*keyError](err)
	switch {
	case errors.Is(context.Cause(ctx), errSilent):
		unreachable = fault.Newf(fault.Timeout, "llm.unanswered", "provider "+name, "no response for %v", x.to.provider.Timeout)
	case ctx.Err() != nil:
		how, err = Cancelled, errors.New("the caller disconnected")
		unreachable = fault.Newf(fault.Unavailable, "llm.unanswered", "", "the request was cancelled")
	case noKey:
		unreachable = fault.Newf(fault.Unavailable, "llm.unanswered", "provider "+name, "the provider's key is not available; see the daemon's log")
	case fault.KindOf(err) != "":
		unreachable = err
	}
	x.g.cfg.Log.Warn("a model call failed", "call", x.call.ID, "provider", name, "model", x.to.model, "outcome", how, "error", err)
	if err := x.finish(ctx, how, unreachable.Error()); err != nil {
		return err
	}
	return unreachable
}

// passError passes a provider's error on. Errors about the daemon's credentials are replaced
// by their status, and the key itself is removed from all texts.
func (x *exchange) passError(ctx context.Context, w http.ResponseWriter, a *answer) error {
	name := x.to.provider.Name
	body, err := io.ReadAll(io.LimitReader(a.body, maxProblem))
	problem := fmt.Sprintf("provider %s answered %d", name, a.StatusCode)
	if a.StatusCode < 400 || a.StatusCode == http.StatusUnauthorized || a.StatusCode == http.StatusForbidden || err != nil {
		x.g.cfg.Log.Warn("a provider refused a request", "call", x.call.ID, "provider", name, "status", a.StatusCode)
		if err := x.finish(ctx, Failed, problem); err != nil {
			return err
		}
		return &fault.Error{Op: "llm.passError", On: "provider " + name, Kind: fault.Unavailable, Remedy: "ask the daemon's operator to check the provider's key and address",
			Err: fmt.Errorf("the provider responded to the daemon with status %d", a.StatusCode)}
	}
	body = x.withoutKey(ctx, body)
	x.note(body)
	if err := x.finish(ctx, Failed, problem); err != nil {
		return err
	}
	x.giveHeader(w, a)
	w.WriteHeader(a.StatusCode)
	w.Write(body)
	return nil
}

// withoutKey removes the provider's key from a text.
func (x *exchange) withoutKey(ctx context.Context, text []byte) []byte {
	if x.to.provider.Key == nil {
		return text
	}
	key, err := x.to.provider.Key(ctx)
	if key = bytes.TrimSpace(key); err != nil || len(key) == 0 {
		return text
	}
	return bytes.ReplaceAll(text, key, []byte("[key]"))
}

// giveHeader writes the response header for the caller.
func (x *exchange) giveHeader(w http.ResponseWriter, a *answer) {
	for name, values := range passedOn(a.Header, answerHeaders) {
		w.Header()[name] = values
	}
}

// forwardComplete passes on a response that is not a stream, after it was counted, stored and
// recorded.
func (x *exchange) forwardComplete(ctx context.Context, w http.ResponseWriter, a *answer) error {
	body, err := io.ReadAll(io.LimitReader(a.body, maxAnswer+1))
	x.f.complete(&x.tally, body)
	switch {
	case len(body) > maxAnswer:
		return x.broke(ctx, fault.Newf(fault.Unavailable, "llm.forwardComplete", "provider "+x.to.provider.Name, "the response has more than %d bytes", maxAnswer))
	case err != nil && ctx.Err() != nil:
		return x.unanswered(ctx, err)
	case err != nil:
		return x.broke(ctx, fault.Newf(fault.Unavailable, "llm.forwardComplete", "provider "+x.to.provider.Name, "the response is truncated"))
	}
	x.note(body)
	if err := x.finish(ctx, Answered, ""); err != nil {
		return err
	}
	if x.tally.done {
		if err := x.keep(ctx, a.StatusCode, a.Header.Get("Content-Type")); err != nil {
			return err
		}
	}
	x.giveHeader(w, a)
	w.WriteHeader(a.StatusCode)
	w.Write(body)
	return nil
}

// broke ends a call whose response is incomplete and is not passed on.
func (x *exchange) broke(ctx context.Context, why error) error {
	if err := x.finish(ctx, Truncated, why.Error()); err != nil {
		return err
	}
	return why
}
