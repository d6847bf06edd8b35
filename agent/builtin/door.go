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
	// patience is how long a door that does not answer is waited for: the daemon may be
	// starting again. Whoever watches the agent may start it again after that.
	patience = 10 * time.Minute

	firstPause = 100 * time.Millisecond
	longPause  = 10 * time.Second
	longWait   = 30 * time.Second // between questions whether a paused run goes on

	maxReply = 32 << 20

	// maxBroken is how many answers of the model may break off in a row for a reason
	// that the door itself has told.
	maxBroken = 5
)

// A door is the way out of the jail. Its methods return when they have an answer: they
// wait for a door that is away, and while the run is paused.
type door struct {
	base   string
	token  string
	client *http.Client
	log    *slog.Logger
}

func newDoor(cfg Config) (*door, error) {
	address := cfg.Door
	if address == "" {
		address = "http://localhost:4097"
	}
	u, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("the address of the door: %w", err)
	}
	d := &door{base: strings.TrimSuffix(address, "/"), token: cfg.Token, log: cfg.Log}
	transport := &http.Transport{} // of its own, and with no proxy: the door is here
	switch {
	case u.Scheme == "unix" && u.Host == "" && u.Path != "":
		d.base = "http://door"
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			var dialer net.Dialer
			return dialer.DialContext(ctx, "unix", u.Path)
		}
	case u.Scheme != "http" || u.Host == "":
		return nil, fmt.Errorf("the address of the door is http://host:port or unix:///path, not %q", address)
	}
	d.client = &http.Client{Transport: transport}
	if cfg.Transport != nil {
		d.client.Transport = cfg.Transport
	}
	return d, nil
}

func (d *door) close() { d.client.CloseIdleConnections() }

// A problem is an answer that says no, and will again.
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

// away is the error of a door that may answer later.
type away struct {
	err   error
	after time.Duration // as the door says, 0 if it does not
	wait  bool          // the door is there, and the run has to wait
}

func (a *away) Error() string { return a.err.Error() }
func (a *away) Unwrap() error { return a.err }

// broken is the error of a model's answer that broke off for a reason.
type broken struct{ why string }

func (b *broken) Error() string { return "the answer broke off: " + b.why }

func (d *door) get(ctx context.Context, path string, out any) error {
	return d.until(ctx, func() error { return d.exchange(ctx, http.MethodGet, path, nil, out) })
}

func (d *door) post(ctx context.Context, path string, in, out any) error {
	body, err := encode(in)
	if err != nil {
		return err
	}
	return d.until(ctx, func() error { return d.exchange(ctx, http.MethodPost, path, body, out) })
}

// once is post without patience.
func (d *door) once(ctx context.Context, most time.Duration, path string, in, out any) error {
	body, err := encode(in)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	return d.exchange(ctx, http.MethodPost, path, body, out)
}

// encode writes JSON without the escapes that are for web pages.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return b.Bytes(), err
}

// until tries again what may yet work: for as long as patience lasts if the door is
// away, and without end while the run is paused, unless it turns out to be over.
func (d *door) until(ctx context.Context, try func() error) error {
	var silent, pause time.Duration
	breaks := 0
	for {
		err := try()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if b, ok := errors.AsType[*broken](err); ok {
			if breaks++; breaks >= maxBroken {
				return &giveUp{fmt.Sprintf("%d times in a row %v", breaks, b)}
			}
			err = &away{err: err}
		}
		not, ok := errors.AsType[*away](err)
		if !ok {
			return err
		}
		most := longPause
		if not.wait {
			most, silent = longWait, 0
			if d.over(ctx) {
				return errOver
			}
		} else if silent >= patience {
			return fmt.Errorf("the door has not answered for %v: %v", patience, not.err) // not wrapped: it is no answer
		}
		pause = min(max(2*pause, firstPause, not.after), most)
		d.log.Debug("waiting", "for", pause, "because", not.err)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}
		if !not.wait {
			silent += pause
		}
	}
}

// over reports whether the run is.
func (d *door) over(ctx context.Context) bool {
	var r runInfo
	return d.exchange(ctx, http.MethodGet, "/run", nil, &r) == nil && terminal(r.State)
}

// exchange makes one request and reads its answer into out.
func (d *door) exchange(ctx context.Context, method, path string, body []byte, out any) error {
	resp, err := d.send(ctx, method, path, "", body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxReply+1))
	if err != nil {
		return &away{err: err}
	}
	if len(b) > maxReply {
		return &problem{Status: http.StatusRequestEntityTooLarge, Title: "too large", Detail: fmt.Sprintf("the answer is larger than %d MiB", maxReply>>20), Remedy: "ask for less at a time"}
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return &away{err: fmt.Errorf("%s %s answered what is no JSON: %w", method, path, err)}
	}
	return nil
}

// send makes one request and returns a response that says yes.
func (d *door) send(ctx context.Context, method, path, key string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, d.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	if d.token != "" {
		req.Header.Set(TokenHeader, d.token)
	}
	resp, err := d.client.Do(req)
	if err != nil {
		return nil, &away{err: err}
	}
	if resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, judge(resp)
}

// TokenHeader carries an agent's token to the door, where one was given to it.
const TokenHeader = "Glasshouse-Token"

// judge tells an answer that says no from one that says not now.
func judge(resp *http.Response) error {
	p := &problem{}
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if json.Unmarshal(b, p) != nil || p.Title == "" && p.Detail == "" {
		p.Detail = modelError(b)
	}
	p.Status = resp.StatusCode
	after, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
	not := &away{err: p, after: time.Duration(min(max(after, 0), 3600)) * time.Second}
	switch {
	case p.Status == http.StatusConflict || p.Status == http.StatusPaymentRequired || p.Status == http.StatusTooManyRequests:
		not.wait = true
		return not
	case p.Status >= 500 && p.Status != http.StatusNotImplemented:
		return not
	}
	return p
}

// modelError finds the message in an error of the chat completions API.
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
	return text.Prefix(plain(raw), 500)
}

// complete asks the model, and returns its whole answer.
func (d *door) complete(ctx context.Context, key string, in request) (*answer, error) {
	body, err := encode(in)
	if err != nil {
		return nil, err
	}
	var ans *answer
	err = d.until(ctx, func() error {
		resp, err := d.send(ctx, http.MethodPost, "/v1/chat/completions", key, body)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		ans, err = readAnswer(resp)
		return err
	})
	return ans, err
}

// finish ends the run. If the run may not end yet, why says what is missing.
func (d *door) finish(ctx context.Context, result, key string) (why string, err error) {
	in, err := encode(struct {
		Result string `json:"result"`
		Key    string `json:"key"`
	}{result, key})
	if err != nil {
		return "", err
	}
	var out struct {
		State string `json:"state"`
		Why   string `json:"why"`
	}
	err = d.until(ctx, func() error {
		err := d.exchange(ctx, http.MethodPost, "/run/finish", in, &out)
		if p, ok := errors.AsType[*problem](err); ok && p.Status == http.StatusConflict && d.active(ctx) {
			out.State, out.Why = "active", p.Detail
			return nil
		}
		if err == nil && !terminal(out.State) && !d.active(ctx) {
			return &away{err: fmt.Errorf("the run is %s", out.State), wait: true}
		}
		return err
	})
	if err == nil && terminal(out.State) {
		err = errOver
	}
	return out.Why, err
}

// active reports whether the run is neither over nor waiting for anything.
func (d *door) active(ctx context.Context) bool {
	var r runInfo
	return d.exchange(ctx, http.MethodGet, "/run", nil, &r) == nil && r.State == "active"
}
