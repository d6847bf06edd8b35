// Package otel converts the events of jails and the audit log to OpenTelemetry spans and log
// records and sends them to a collector.
//
// The conversion depends on the records alone: a repeated export produces the same spans with
// the same ids and times.
package otel

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
	"strings"
	"time"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"glasshouse/id"
)

// scope is the name of the instrumentation scope.
const scope = "glasshouse"

// Signals are the telemetry of one record. They belong to Jail, which may be empty.
type Signals struct {
	Jail  id.Jail
	Logs  []*logspb.LogRecord
	Spans []*tracepb.Span
}

// position is a position in a trace.
type position struct{ trace, span []byte }

// digest returns the hash of parts. Different lists of parts have different encodings.
func digest(parts []string) [sha256.Size]byte {
	h := sha256.New()
	for _, p := range parts {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(p)))
		h.Write(n[:])
		h.Write([]byte(p))
	}
	return [sha256.Size]byte(h.Sum(nil))
}

func traceID(parts ...string) []byte {
	d := digest(append([]string{"trace"}, parts...))
	return d[:16]
}

func spanID(parts ...string) []byte {
	d := digest(append([]string{"span"}, parts...))
	return d[:8]
}

// jailPosition returns the root span of a jail's trace.
func jailPosition(j id.Jail) position {
	return position{traceID("jail", string(j)), spanID("jail", string(j))}
}

// under puts s below p: as a child in the same trace, or with a link to another trace.
func under(s *tracepb.Span, p position) {
	switch {
	case p.span == nil:
	case string(p.trace) == string(s.TraceId):
		s.ParentSpanId = p.span
	default:
		s.Links = append(s.Links, &tracepb.Span_Link{TraceId: p.trace, SpanId: p.span})
	}
}

// nanos converts milliseconds since 1970 to OTLP nanoseconds and clamps values out of range.
func nanos(ms int64) uint64 {
	const most = math.MaxInt64 / int64(time.Millisecond)
	return uint64(min(max(ms, 0), most)) * uint64(time.Millisecond)
}

func unixNano(t time.Time) uint64 { return nanos(t.UnixMilli()) + uint64(t.Nanosecond()%1e6) }

// before returns at minus d nanoseconds, but not before 1970.
func before(at uint64, d int64) uint64 {
	if d <= 0 || uint64(d) > at {
		return at
	}
	return at - uint64(d)
}

// text returns s with invalid UTF-8 replaced, as OTLP requires.
func text(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

func str(s string) *commonpb.AnyValue {
	return &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: text(s)}}
}

func integer(n int64) *commonpb.AnyValue {
	return &commonpb.AnyValue{Value: &commonpb.AnyValue_IntValue{IntValue: n}}
}

func list(all []string) *commonpb.AnyValue {
	values := make([]*commonpb.AnyValue, len(all))
	for i, s := range all {
		values[i] = str(s)
	}
	return &commonpb.AnyValue{Value: &commonpb.AnyValue_ArrayValue{ArrayValue: &commonpb.ArrayValue{Values: values}}}
}

// attributes collects attributes and omits empty ones.
type attributes []*commonpb.KeyValue

func (a *attributes) add(key string, v *commonpb.AnyValue) {
	*a = append(*a, &commonpb.KeyValue{Key: key, Value: v})
}

func (a *attributes) text(key, s string) {
	if s != "" {
		a.add(key, str(s))
	}
}

func (a *attributes) number(key string, n int64) {
	if n != 0 {
		a.add(key, integer(n))
	}
}

func failed(message string) *tracepb.Status {
	return &tracepb.Status{Code: tracepb.Status_STATUS_CODE_ERROR, Message: text(message)}
}
