package otel

import (
	"fmt"
	"testing"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
)

func TestJSONHasHexadecimalIDs(t *testing.T) {
	m := &tracepb.TracesData{ResourceSpans: []*tracepb.ResourceSpans{{ScopeSpans: []*tracepb.ScopeSpans{{Spans: []*tracepb.Span{{
		TraceId: []byte("\x00\x01\xfe\xff0123456789ab"), SpanId: []byte("abcdefgh"), Kind: tracepb.Span_SPAN_KIND_CLIENT,
		StartTimeUnixNano: 1<<63 + 1, Name: "<traceId>",
	}}}}}}}
	got, err := marshalJSON(m)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"resourceSpans":[{"scopeSpans":[{"spans":[{"kind":3,"name":"\u003ctraceId\u003e","spanId":"6162636465666768","startTimeUnixNano":"9223372036854775809","traceId":"0001feff303132333435363738396162"}]}]}]}`
	if string(got) != want {
		t.Errorf("got %s; want %s", got, want)
	}
}

func TestPartialSuccessInJSON(t *testing.T) {
	for answer, want := range map[string]string{
		`{}`:                    "",
		`{"partialSuccess":{}}`: "",
		`no JSON`:               "",
		`{"partialSuccess":{"rejectedSpans":"3","errorMessage":"full"}}`: "3 full",
		`{"partialSuccess":{"rejectedLogRecords":2}}`:                    "2 ",
	} {
		got := ""
		s := Sender{Rejected: func(n int64, why string) { got = fmt.Sprint(n, " ", why) }}
		s.partialJSON([]byte(answer))
		if got != want {
			t.Errorf("%s: told %q, want %q", answer, got, want)
		}
	}
}
