package otel

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"glasshouse/fault"
)

// DefaultEndpoint is the default OTLP/HTTP endpoint of a collector on this host.
const DefaultEndpoint = "http://localhost:4318"

// A Sender sends batches to a collector by OTLP over HTTP, in protobuf or JSON.
type Sender struct {
	Endpoint string      // https://collector:4318; /v1/traces and /v1/logs are added
	Header   http.Header // sent with each request
	From     Source
	JSON     bool // instead of protobuf

	// Patience is how long a request to an unavailable collector is retried; 0 means until the
	// context ends.
	Patience time.Duration

	// Rejected is called with the number of items that the collector rejected from an accepted
	// request, and with its reason. They are not sent again, because the collector would
	// reject them again.
	Rejected func(items int64, why string)

	client http.Client
}

// Check validates the endpoint. Call it before reading any records.
func (s *Sender) Check() error {
	u, err := url.Parse(s.Endpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fault.Fieldf("otel.Check", "endpoint", "%q is not a URL such as %s", s.Endpoint, DefaultEndpoint)
	}
	return nil
}

// Send sends b and returns when the collector has accepted all of it. After an error it is
// unknown what the collector has accepted; b may be sent again.
func (s *Sender) Send(ctx context.Context, b *Batch) error {
	if len(b.spans) > 0 {
		if err := s.post(ctx, "/v1/traces", b.traces(s.From)); err != nil {
			return err
		}
	}
	if len(b.logs) > 0 {
		return s.post(ctx, "/v1/logs", b.records(s.From))
	}
	return nil
}

// attempt is the timeout of one request.
const attempt = 30 * time.Second

// The delay between retries grows from the first to the last value, unless the collector sends
// Retry-After.
const (
	firstWait = 500 * time.Millisecond
	lastWait  = 30 * time.Second
	mostWait  = 10 * time.Minute // upper bound for Retry-After
)

// post sends a request until the collector accepts or rejects it, or Patience is exceeded.
func (s *Sender) post(ctx context.Context, path string, m proto.Message) error {
	encode := proto.Marshal
	if s.JSON {
		encode = marshalJSON
	}
	body, err := encode(m)
	if err != nil {
		return fmt.Errorf("encode for %s: %w", path, err)
	}
	start := time.Now()
	for wait := firstWait; ; wait = min(2*wait, lastWait) {
		again, err := s.once(ctx, path, body)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var later *tryLater
		if !errors.As(err, &later) {
			return err
		}
		pause := wait/2 + rand.N(wait) // jitter, so that exporters do not retry simultaneously
		if again > 0 {
			pause = min(again, mostWait)
		}
		if s.Patience > 0 && time.Since(start)+pause > s.Patience {
			return fault.New(fault.Unavailable, "otel.Send", s.Endpoint, err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// tryLater is an error after which a retry may succeed.
type tryLater struct{ error }

func (t *tryLater) Unwrap() error { return t.error }

// once makes one request. The duration is the value of Retry-After, if present.
func (s *Sender) once(ctx context.Context, path string, body []byte) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "POST", strings.TrimSuffix(s.Endpoint, "/")+path, bytes.NewReader(body))
	if err != nil {
		return 0, fmt.Errorf("create the request to the collector: %w", err)
	}
	for k, v := range s.Header {
		req.Header[k] = v
	}
	kind := "application/x-protobuf"
	if s.JSON {
		kind = "application/json"
	}
	req.Header.Set("Content-Type", kind)
	resp, err := s.client.Do(req)
	if err != nil {
		return 0, &tryLater{err}
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if resp.StatusCode/100 == 2 {
		if err == nil && strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json") {
			s.partialJSON(answer)
		} else if err == nil {
			s.partial(answer)
		}
		return 0, nil
	}
	err = fmt.Errorf("%s%s returned status %s", s.Endpoint, path, resp.Status)
	switch resp.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return retryAfter(resp.Header.Get("Retry-After"), time.Now()), &tryLater{err}
	case http.StatusUnauthorized, http.StatusForbidden:
		return 0, &fault.Error{Op: "otel.Send", Kind: fault.Denied, Err: err, Remedy: "set the collector's API key in OTEL_EXPORTER_OTLP_HEADERS"}
	}
	return 0, fault.New(fault.Invalid, "otel.Send", "", err)
}

// retryAfter parses Retry-After: seconds or a date (RFC 9110, section 10.2.3).
func retryAfter(h string, now time.Time) time.Duration {
	if n, err := strconv.ParseUint(h, 10, 31); err == nil {
		return time.Duration(n) * time.Second
	}
	if t, err := http.ParseTime(h); err == nil {
		return max(t.Sub(now), 0)
	}
	return 0
}

// partial reports rejected items. The responses for traces and logs have the same form: field
// 1 is a message with a count (1) and a reason (2).
func (s *Sender) partial(answer []byte) {
	inner, _ := field(answer, 1)
	_, n := field(inner, 1)
	why, _ := field(inner, 2)
	if s.Rejected != nil && (n > 0 || len(why) > 0) {
		s.Rejected(int64(n), text(string(why)))
	}
}

// partialJSON is like partial, but for a JSON response, in which the count is a string or a number.
func (s *Sender) partialJSON(answer []byte) {
	var a struct {
		Partial struct {
			Spans json.RawMessage `json:"rejectedSpans"`
			Logs  json.RawMessage `json:"rejectedLogRecords"`
			Why   string          `json:"errorMessage"`
		} `json:"partialSuccess"`
	}
	if json.Unmarshal(answer, &a) != nil || s.Rejected == nil {
		return // the request was accepted with status 200
	}
	count := func(n json.RawMessage) int64 {
		i, _ := strconv.ParseInt(strings.Trim(string(n), `"`), 10, 64)
		return i
	}
	if n := count(a.Partial.Spans) + count(a.Partial.Logs); n > 0 || a.Partial.Why != "" {
		s.Rejected(n, text(a.Partial.Why))
	}
}

// field returns the last field with this number in a message: its bytes or its number.
func field(message []byte, number protowire.Number) (data []byte, n uint64) {
	for len(message) > 0 {
		num, kind, size := protowire.ConsumeTag(message)
		if size < 0 {
			break
		}
		message = message[size:]
		if size = protowire.ConsumeFieldValue(num, kind, message); size < 0 {
			break
		}
		if num == number {
			switch kind {
			case protowire.BytesType:
				data, _ = protowire.ConsumeBytes(message)
			case protowire.VarintType:
				n, _ = protowire.ConsumeVarint(message)
			}
		}
		message = message[size:]
	}
	return data, n
}

// ParseHeaders parses OTEL_EXPORTER_OTLP_HEADERS: comma-separated key=value pairs with
// percent-encoded values.
func ParseHeaders(s string) (http.Header, error) {
	h := http.Header{}
	for pair := range strings.SplitSeq(s, ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		k, v, ok := strings.Cut(pair, "=")
		k = strings.TrimSpace(k)
		v, err := url.PathUnescape(strings.TrimSpace(v))
		if !ok || k == "" || err != nil || strings.ContainsAny(k+v, "\r\n") {
			// The value may be an API key: do not print it.
			return nil, fault.Fieldf("otel.ParseHeaders", "headers", "the header %.40q is not KEY=VALUE, with the value percent-encoded", k)
		}
		h.Set(k, v)
	}
	return h, nil
}
