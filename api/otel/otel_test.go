package otel_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"glasshouse/api/otel"
	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/observe/event"
)

const (
	shell = `{"type":"proc","seq":50,"ts":1706000000400,"ns":120000000,"jail":"j-3f2akm9x7qpw","op":"exec","pid":42,"tid":42,"host_pid":31,"comm":"bash","ppid":1,"uid":0,"gid":0,"exe":"/bin/bash","argv":["bash"],"begin":110000000}`
	fork  = `{"type":"proc","seq":51,"ts":1706000000500,"ns":220000000,"jail":"j-3f2akm9x7qpw","op":"fork","pid":48,"tid":48,"host_pid":32,"comm":"bash","ppid":42,"uid":0,"gid":0,"begin":220000000}`
	exec  = `{"type":"proc","seq":52,"ts":1706000000501,"ns":221000000,"jail":"j-3f2akm9x7qpw","op":"exec","pid":48,"tid":48,"host_pid":32,"comm":"git","ppid":42,"uid":0,"gid":0,"exe":"/usr/bin/git","argv":["git","push","\udcff"],"cwd":"/work","begin":220000000}`
	wrote = `{"type":"file","seq":53,"ts":1706000000502,"ns":222000000,"jail":"j-3f2akm9x7qpw","pid":48,"tid":48,"host_pid":32,"comm":"git","op":"write","path":"/work/a","bytes":7,"fd":3}`
	exit  = `{"type":"proc","seq":54,"ts":1706000000600,"ns":320000000,"jail":"j-3f2akm9x7qpw","op":"exit","pid":48,"tid":48,"host_pid":32,"comm":"git","ppid":42,"uid":0,"gid":0,"begin":220000000,"exit_code":128}`
	bye   = `{"type":"proc","seq":55,"ts":1706000000700,"ns":420000000,"jail":"j-3f2akm9x7qpw","op":"exit","pid":42,"tid":42,"host_pid":31,"comm":"bash","ppid":1,"uid":0,"gid":0,"begin":110000000,"exit_code":0}`
)

const jail = "j-3f2akm9x7qpw"

func mapped(t *testing.T, m *otel.Events, records ...string) (all otel.Signals) {
	t.Helper()
	for _, r := range records {
		s, err := m.Map([]byte(r))
		if err != nil {
			t.Fatal(err)
		}
		all.Logs, all.Spans = append(all.Logs, s.Logs...), append(all.Spans, s.Spans...)
	}
	return all
}

func attribute(all []*commonpb.KeyValue, key string) *commonpb.AnyValue {
	for _, kv := range all {
		if kv.Key == key {
			return kv.Value
		}
	}
	return nil
}

func TestProcessSpanHasParent(t *testing.T) {
	s := mapped(t, otel.NewEvents(jail, nil), shell, fork, exec, wrote, exit, bye)
	if len(s.Spans) != 2 || len(s.Logs) != 6 {
		t.Fatalf("%d spans and %d logs; want 2 and 6", len(s.Spans), len(s.Logs))
	}
	git, bash := s.Spans[0], s.Spans[1]
	if git.Name != "git" || bash.Name != "bash" {
		t.Errorf("spans are %s and %s", git.Name, bash.Name)
	}
	if string(git.ParentSpanId) != string(bash.SpanId) || string(git.TraceId) != string(bash.TraceId) {
		t.Error("the span of git is not a child of that of bash")
	}
	if took := git.EndTimeUnixNano - git.StartTimeUnixNano; took != 100_000_000 || git.EndTimeUnixNano != 1706000000600_000_000 {
		t.Errorf("git took %d and ended at %d", took, git.EndTimeUnixNano)
	}
	if git.Status.GetCode() != tracepb.Status_STATUS_CODE_ERROR || bash.Status != nil {
		t.Errorf("exit code 128 is %v, and 0 is %v", git.Status, bash.Status)
	}
	if a := attribute(git.Attributes, "process.command_args").GetArrayValue().GetValues(); len(a) != 3 || a[1].GetStringValue() != "push" {
		t.Errorf("arguments are %v", a)
	}
	write := s.Logs[3]
	if string(write.SpanId) != string(git.SpanId) || write.Body.GetStringValue() != "write /work/a" || write.EventName != "glasshouse.file" {
		t.Errorf("the log record of the write is %v", write)
	}
	if n := attribute(write.Attributes, "glasshouse.bytes").GetIntValue(); n != 7 {
		t.Errorf("bytes written: %d", n)
	}
}

// An export that starts in the middle gets the processes at that time from the daemon.
func TestResumedExportProducesSameSpans(t *testing.T) {
	whole := mapped(t, otel.NewEvents(jail, nil), shell, fork, exec, wrote, exit, bye)
	alive := []wire.Process{
		{PID: 42, Begin: 110000000, Exe: "/bin/bash", Argv: []string{"bash"}},
		{PID: 48, PPID: 42, Begin: 220000000, Exe: "/usr/bin/git", Argv: []string{"git", "push", "\uFFFD"}},
	}
	rest := mapped(t, otel.NewEvents(jail, alive), wrote, exit, bye)
	for i := range whole.Spans {
		if !proto.Equal(whole.Spans[i], rest.Spans[i]) {
			t.Errorf("once\n%v\nthen\n%v", whole.Spans[i], rest.Spans[i])
		}
	}
	for i, l := range rest.Logs {
		if !proto.Equal(whole.Logs[3+i], l) {
			t.Errorf("once\n%v\nthen\n%v", whole.Logs[3+i], l)
		}
	}
}

// entry returns an entry with a hash derived from its sequence number.
func entry(seq, parent int64, kind, run, body string) wire.ChainEntry {
	return wire.ChainEntry{
		Seq: seq, Parent: parent, Kind: kind, Run: run, Session: "a", Jail: jail, Capability: "git.push", Body: json.RawMessage(body),
		Time: time.UnixMilli(1706000000000 + 100*seq).UTC().Format("2006-01-02T15:04:05.000Z"),
		Hash: fmt.Sprintf("%02x%062x", seq, 7),
	}
}

var story = []wire.ChainEntry{
	entry(1, 0, "session.opened", "", `{}`),
	entry(2, 1, "run.started", "r-1", `{}`),
	entry(3, 2, "decision", "r-1", `{"effect":"allow"}`),
	entry(4, 3, "call.started", "r-1", `{}`),
	entry(5, 4, "llm.called", "r-1", `{"outcome":"answered","model":"m","took_ms":50,"input_tokens":9}`),
	entry(6, 4, "call.ended", "r-1", `{"state":"failed"}`),
	entry(7, 2, "run.ended", "r-1", `{"to":"done"}`),
	entry(8, 1, "session.closed", "", `{}`),
}

func lookUp(seq int64) (wire.ChainEntry, error) {
	if seq < 1 || int(seq) > len(story) {
		return wire.ChainEntry{}, fault.NotFound
	}
	return story[seq-1], nil
}

func told(t *testing.T, entries []wire.ChainEntry) (all otel.Signals) {
	t.Helper()
	m := otel.NewChain(lookUp)
	for _, e := range entries {
		s, err := m.Map(e)
		if err != nil {
			t.Fatal(err)
		}
		all.Logs, all.Spans = append(all.Logs, s.Logs...), append(all.Spans, s.Spans...)
		if e.Kind == "run.ended" {
			ended := time.UnixMilli(1706000000500)
			steps, err := m.Steps(e, []wire.RunAction{{N: 1, Kind: "tool", Name: "ls", State: "done", Began: ended.Add(-time.Second), Ended: &ended}, {N: 2, State: "begun"}})
			if err != nil {
				t.Fatal(err)
			}
			all.Spans = append(all.Spans, steps.Spans...)
		}
	}
	return all
}

func TestRunCallsAndStepsAreOneTrace(t *testing.T) {
	s := told(t, story)
	var names []string
	byName := map[string]*tracepb.Span{}
	for _, span := range s.Spans {
		names = append(names, span.Name)
		byName[span.Name] = span
	}
	if want := []string{"llm m", "call git.push", "run r-1", "tool ls", "session a"}; !slices.Equal(names, want) {
		t.Fatalf("spans are %q; want %q", names, want)
	}
	run := byName["run r-1"]
	for child, parent := range map[string]string{"llm m": "call git.push", "call git.push": "run r-1", "tool ls": "run r-1"} {
		if string(byName[child].ParentSpanId) != string(byName[parent].SpanId) || string(byName[child].TraceId) != string(run.TraceId) {
			t.Errorf("span %s is not a child of %s", child, parent)
		}
	}
	if l := run.Links; len(run.ParentSpanId) != 0 || len(l) != 1 || string(l[0].SpanId) != string(byName["session a"].SpanId) {
		t.Errorf("the run is not linked to its session: %v", run)
	}
	if d := run.EndTimeUnixNano - run.StartTimeUnixNano; d != 500_000_000 {
		t.Errorf("duration of the run is %d ns; want from its first entry to its last", d)
	}
	if d := byName["llm m"].EndTimeUnixNano - byName["llm m"].StartTimeUnixNano; d != 50_000_000 {
		t.Errorf("duration of the model call is %d ns", d)
	}
	if byName["call git.push"].Status.GetCode() != tracepb.Status_STATUS_CODE_ERROR || run.Status != nil {
		t.Error("the failed call has no error status, or the completed run has one")
	}
	if len(s.Logs) != len(story) || string(s.Logs[2].SpanId) != string(run.SpanId) {
		t.Errorf("the decision does not belong to the run: %v", s.Logs[2])
	}
}

func TestEntriesFromMiddleProduceSameSpans(t *testing.T) {
	whole, rest := told(t, story), told(t, story[4:])
	if len(rest.Spans) != len(whole.Spans) {
		t.Fatalf("%d spans; want %d", len(rest.Spans), len(whole.Spans))
	}
	for i := range whole.Spans {
		if !proto.Equal(whole.Spans[i], rest.Spans[i]) {
			t.Errorf("once\n%v\nthen\n%v", whole.Spans[i], rest.Spans[i])
		}
	}
}

// valid fails the test unless a collector would accept s.
func valid(t *testing.T, s otel.Signals) {
	t.Helper()
	for _, l := range s.Logs {
		if _, err := proto.Marshal(l); err != nil {
			t.Errorf("%v: %v", l, err)
		}
		if n := len(l.SpanId); n != 0 && (n != 8 || len(l.TraceId) != 16) {
			t.Errorf("ids have %d and %d bytes", len(l.TraceId), n)
		}
	}
	for _, span := range s.Spans {
		if _, err := proto.Marshal(span); err != nil {
			t.Errorf("%v: %v", span, err)
		}
		zero := strings.Repeat("\x00", 16)
		if len(span.TraceId) != 16 || len(span.SpanId) != 8 || string(span.SpanId) == zero[:8] || string(span.TraceId) == zero {
			t.Errorf("invalid ids %x and %x", span.TraceId, span.SpanId)
		}
		if span.EndTimeUnixNano < span.StartTimeUnixNano || span.Name == "" {
			t.Errorf("span %q has invalid times %d to %d", span.Name, span.StartTimeUnixNano, span.EndTimeUnixNano)
		}
	}
}

func FuzzAnyRecordMapsToValidMessages(f *testing.F) {
	for _, r := range []string{shell, fork, exec, wrote, exit, bye} {
		f.Add([]byte(r))
	}
	f.Add([]byte(`{"type":"proc","op":"exit","ts":-9223372036854775808,"ns":9223372036854775807,"begin":1,"pid":-1,"exe":"\udcff","é\udcff":[1,{"a":null}]}`))
	f.Fuzz(func(t *testing.T, record []byte) {
		m := otel.NewEvents(jail, nil)
		for range 2 {
			s, err := m.Map(record)
			var e event.Event
			if err != nil {
				if event.Parse(record, &e) == nil && json.Valid(record) {
					t.Errorf("a record is not mapped: %v", err)
				}
				return
			}
			valid(t, s)
		}
	})
}

func FuzzAnyEntryMapsToValidMessages(f *testing.F) {
	for _, e := range story {
		f.Add(e.Seq, e.Parent, e.Kind, e.Time, e.Hash, e.Run, []byte(e.Body))
	}
	f.Add(int64(9), int64(4), "call.ended", "0001-01-01T00:00:00Z", "zz\xff", "\xff", []byte(`{"took_ms":9223372036854775807,"state":7}`))
	f.Fuzz(func(t *testing.T, seq, parent int64, kind, when, hash, run string, body []byte) {
		s, err := otel.NewChain(lookUp).Map(wire.ChainEntry{Seq: seq, Parent: parent, Kind: kind, Time: when, Hash: hash, Run: run, Capability: run, Body: body})
		if err == nil {
			valid(t, s)
		}
	})
}
