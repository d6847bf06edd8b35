package otel_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"glasshouse/api/otel"
	"glasshouse/fault"
	"glasshouse/id"
)

// A collector is a fake collector. It uses the scripted answers first, and then accepts requests.
type collector struct {
	t      *testing.T
	server *httptest.Server

	mu sync.Mutex
	// +checklocks:mu
	answers []func(http.ResponseWriter)
	// +checklocks:mu
	received received
}

// received contains the requests of a collector.
type received struct {
	asked  []time.Time // when requests came
	spans  []*tracepb.ResourceSpans
	logs   []*logspb.ResourceLogs
	header http.Header // header of the last request
}

func (c *collector) got() received {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.received
}

func collect(t *testing.T, answers ...func(http.ResponseWriter)) *collector {
	c := &collector{t: t, answers: answers}
	c.server = httptest.NewServer(c)
	t.Cleanup(c.server.Close)
	return c
}

func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	got := &c.received
	got.asked, got.header = append(got.asked, time.Now()), r.Header
	body, err := io.ReadAll(r.Body)
	if err != nil || r.Method != "POST" || r.Header.Get("Content-Type") != "application/x-protobuf" {
		c.t.Errorf("%s of %s: %v", r.Method, r.Header.Get("Content-Type"), err)
	}
	if len(c.answers) > 0 {
		answer := c.answers[0]
		c.answers = c.answers[1:]
		if answer != nil {
			answer(w)
			return
		}
	}
	switch r.URL.Path {
	case "/v1/traces":
		var d tracepb.TracesData
		err = proto.Unmarshal(body, &d)
		got.spans = append(got.spans, d.ResourceSpans...)
	case "/v1/logs":
		var d logspb.LogsData
		err = proto.Unmarshal(body, &d)
		got.logs = append(got.logs, d.ResourceLogs...)
	default:
		c.t.Errorf("a request for %s", r.URL.Path)
	}
	if err != nil {
		c.t.Error(err)
	}
}

func status(code int, header ...string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(code)
	}
}

func (c *collector) sender() *otel.Sender {
	return &otel.Sender{
		Endpoint: c.server.URL + "/", Header: http.Header{"X-Key": {"k"}}, Patience: time.Minute,
		From: otel.Source{Service: "glasshouse", Host: "h", Jails: func(id.Jail) string { return "builder" }},
	}
}

func batch(t *testing.T) *otel.Batch {
	s := mapped(t, otel.NewEvents(jail, nil), shell, fork, exec, wrote, exit, bye)
	s.Jail = jail
	b := &otel.Batch{}
	b.Add(s)
	return b
}

func TestSendSpansAndLogs(t *testing.T) {
	c := collect(t)
	if err := c.sender().Send(t.Context(), batch(t)); err != nil {
		t.Fatal(err)
	}
	got := c.got()
	if len(got.spans) != 1 || len(got.spans[0].ScopeSpans[0].Spans) != 2 || len(got.logs) != 1 || len(got.logs[0].ScopeLogs[0].LogRecords) != 6 {
		t.Fatalf("received %v and %v", got.spans, got.logs)
	}
	for key, want := range map[string]string{"service.name": "glasshouse", "host.name": "h", "glasshouse.jail.id": jail, "glasshouse.jail.name": "builder"} {
		for _, r := range [][]string{{attribute(got.spans[0].Resource.Attributes, key).GetStringValue()}, {attribute(got.logs[0].Resource.Attributes, key).GetStringValue()}} {
			if r[0] != want {
				t.Errorf("%s is %q; want %q", key, r[0], want)
			}
		}
	}
	if got.header.Get("X-Key") != "k" {
		t.Error("the headers are missing")
	}
}

func TestRetryAfterBusyCollector(t *testing.T) {
	c := collect(t, status(429, "Retry-After", "1"), status(503))
	if err := c.sender().Send(t.Context(), batch(t)); err != nil {
		t.Fatal(err)
	}
	got := c.got()
	if len(got.asked) != 4 || len(got.spans) != 1 || len(got.logs) != 1 { // two refused requests, then traces and logs
		t.Fatalf("%d requests, %d spans and %d logs accepted", len(got.asked), len(got.spans), len(got.logs))
	}
	if d := got.asked[1].Sub(got.asked[0]); d < time.Second {
		t.Errorf("retried after %v, want a second", d)
	}
}

func TestRetryAfterBeyondPatience(t *testing.T) {
	at := time.Now().Add(9 * time.Minute).UTC().Format(http.TimeFormat)
	c := collect(t, status(503, "Retry-After", at))
	if err := c.sender().Send(t.Context(), batch(t)); !errors.Is(err, fault.Unavailable) {
		t.Fatalf("Send = %v", err)
	}
	if n := len(c.got().asked); n != 1 {
		t.Errorf("%d requests", n)
	}
}

func TestRefusedBatchIsNotRetried(t *testing.T) {
	for code, kind := range map[int]fault.Kind{400: fault.Invalid, 413: fault.Invalid, 401: fault.Denied} {
		c := collect(t, status(code))
		if err := c.sender().Send(t.Context(), batch(t)); !errors.Is(err, kind) {
			t.Errorf("%d is %v; want %v", code, err, kind)
		}
		if n := len(c.got().asked); n != 1 {
			t.Errorf("%d: %d requests", code, n)
		}
	}
}

func TestRejectedItemsAreReported(t *testing.T) {
	inner := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 3)
	inner = protowire.AppendString(protowire.AppendTag(inner, 2, protowire.BytesType), "too old")
	answer := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), inner)
	c := collect(t, func(w http.ResponseWriter) { w.Write(answer) })
	s := c.sender()
	var n int64
	var why string
	s.Rejected = func(items int64, reason string) { n, why = items, reason }
	if err := s.Send(t.Context(), batch(t)); err != nil {
		t.Fatal(err)
	}
	if n != 3 || why != "too old" {
		t.Errorf("%d were rejected: %q", n, why)
	}
}

func TestParseHeaders(t *testing.T) {
	h, err := otel.ParseHeaders("x-key=a%20b%3D, authorization=Basic YQ==,")
	if err != nil || h.Get("X-Key") != "a b=" || h.Get("Authorization") != "Basic YQ==" {
		t.Errorf("headers are %v, %v", h, err)
	}
	for _, s := range []string{"secret", "=v", "k=%zz", "k=a%0d%0ab"} {
		if _, err := otel.ParseHeaders(s); !errors.Is(err, fault.Invalid) || strings.Contains(err.Error(), "%zz") {
			t.Errorf("%q: %v", s, err)
		}
	}
}
