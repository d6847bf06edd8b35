// Package otel says in the messages of OpenTelemetry what jails did and what the
// causal chain records, and brings these to a collector.
//
// Everything follows from the records alone: whoever exports them again makes the
// same spans, with the same ids and times.
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

// scope names who made the messages.
const scope = "glasshouse"

// Signals are what one record becomes. They are of Jail, which may be none.
type Signals struct {
	Jail  id.Jail
	Logs  []*logspb.LogRecord
	Spans []*tracepb.Span
}

// place is where in the traces something is.
type place struct{ trace, span []byte }

// digest is of parts that are told apart.
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

// jailPlace is the span that stands for a jail, at the root of its trace.
func jailPlace(j id.Jail) place {
	return place{traceID("jail", string(j)), spanID("jail", string(j))}
}

// under puts s below p: as its child in one trace, by a link across two.
func under(s *tracepb.Span, p place) {
	switch {
	case p.span == nil:
	case string(p.trace) == string(s.TraceId):
		s.ParentSpanId = p.span
	default:
		s.Links = append(s.Links, &tracepb.Span_Link{TraceId: p.trace, SpanId: p.span})
	}
}

// nanos is milliseconds since 1970 as OTLP has times. What does not fit is the
// nearest that does.
func nanos(ms int64) uint64 {
	const most = math.MaxInt64 / int64(time.Millisecond)
	return uint64(min(max(ms, 0), most)) * uint64(time.Millisecond)
}

func unixNano(t time.Time) uint64 { return nanos(t.UnixMilli()) + uint64(t.Nanosecond()%1e6) }

// before is d nanoseconds before at, and not before 1970.
func before(at uint64, d int64) uint64 {
	if d <= 0 || uint64(d) > at {
		return at
	}
	return at - uint64(d)
}

// text is s as OTLP takes it: what is not UTF-8 is replaced.
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

// attributes gathers what is known: what is empty is left out.
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
