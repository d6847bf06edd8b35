package otel

import (
	"google.golang.org/protobuf/proto"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"glasshouse/id"
)

// A Batch is a set of signals that are sent together. Its zero value is empty.
type Batch struct {
	spans map[id.Jail][]*tracepb.Span
	logs  map[id.Jail][]*logspb.LogRecord

	nspans, nlogs int
	size          int // bytes, approximately
}

// Add adds the signals of a record.
func (b *Batch) Add(s Signals) {
	if b.spans == nil {
		b.spans, b.logs = map[id.Jail][]*tracepb.Span{}, map[id.Jail][]*logspb.LogRecord{}
	}
	for _, span := range s.Spans {
		b.spans[s.Jail] = append(b.spans[s.Jail], span)
		b.size += proto.Size(span)
	}
	for _, record := range s.Logs {
		b.logs[s.Jail] = append(b.logs[s.Jail], record)
		b.size += proto.Size(record)
	}
	b.nspans += len(s.Spans)
	b.nlogs += len(s.Logs)
}

// Count returns the number of spans and log records.
func (b *Batch) Count() (spans, logs int) { return b.nspans, b.nlogs }

// Full reports whether the batch should be sent before more is added: collectors refuse large
// requests.
func (b *Batch) Full() bool { return b.nspans+b.nlogs >= 1000 || b.size >= 1<<20 }

// Source identifies the origin of telemetry.
type Source struct {
	Service string // service.name
	Host    string // host.name; empty if not known
	Jails   func(id.Jail) (name string)
}

func (s Source) resource(j id.Jail) *resourcepb.Resource {
	a := attributes{}
	a.text("service.name", s.Service)
	a.text("host.name", s.Host)
	if j != "" {
		a.text("glasshouse.jail.id", string(j))
		a.text("glasshouse.jail.name", s.Jails(j))
	}
	return &resourcepb.Resource{Attributes: a}
}

// traces returns the body of a request to /v1/traces. TracesData has the same encoding as
// ExportTraceServiceRequest, whose package depends on gRPC.
func (b *Batch) traces(from Source) *tracepb.TracesData {
	out := &tracepb.TracesData{}
	for j, spans := range b.spans {
		out.ResourceSpans = append(out.ResourceSpans, &tracepb.ResourceSpans{
			Resource:   from.resource(j),
			ScopeSpans: []*tracepb.ScopeSpans{{Scope: &commonpb.InstrumentationScope{Name: scope}, Spans: spans}},
		})
	}
	return out
}

// records returns the body of a request to /v1/logs, likewise.
func (b *Batch) records(from Source) *logspb.LogsData {
	out := &logspb.LogsData{}
	for j, records := range b.logs {
		out.ResourceLogs = append(out.ResourceLogs, &logspb.ResourceLogs{
			Resource:  from.resource(j),
			ScopeLogs: []*logspb.ScopeLogs{{Scope: &commonpb.InstrumentationScope{Name: scope}, LogRecords: records}},
		})
	}
	return out
}
