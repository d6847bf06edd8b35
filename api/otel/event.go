package otel

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"glasshouse/api/wire"
	"glasshouse/id"
	"glasshouse/observe/event"
)

// semantic maps fields to the names of the OpenTelemetry semantic conventions. Other fields
// are exported as glasshouse.NAME.
var semantic = map[string]string{
	"pid": "process.pid", "ppid": "process.parent_pid", "tid": "thread.id", "comm": "thread.name",
	"exe": "process.executable.path", "argv": "process.command_args", "cwd": "process.working_directory",
	"exit_code": "process.exit.code", "iface": "network.interface.name", "proto": "network.transport",
}

// Events maps the events of one jail to signals. Events must be given in order. It keeps the
// running processes of the jail in memory.
type Events struct {
	jail id.Jail
	live map[int32]process
}

type process struct {
	begin int64
	exe   string
	argv  []string
}

// NewEvents returns a mapper for the events of a jail from an instant at which alive were its
// processes.
func NewEvents(j id.Jail, alive []wire.Process) *Events {
	m := &Events{jail: j, live: map[int32]process{}}
	for _, p := range alive {
		m.live[p.PID] = process{p.Begin, p.Exe, p.Argv}
	}
	return m
}

// Map maps an event in the API's format to a log record, and to a span if it ends a process.
func (m *Events) Map(record []byte) (Signals, error) {
	var e event.Event
	if err := event.Parse(record, &e); err != nil {
		return Signals{}, err
	}
	fields, err := fieldsOf(record)
	if err != nil {
		return Signals{}, fmt.Errorf("not an event: %w", err)
	}
	at := nanos(e.TS)
	where := m.positionOf(&e)
	out := Signals{Jail: m.jail, Logs: []*logspb.LogRecord{{
		TimeUnixNano: at, ObservedTimeUnixNano: at, EventName: "glasshouse." + e.Type.String(),
		SeverityNumber: severity(&e), SeverityText: severity(&e).String()[len("SEVERITY_NUMBER_"):],
		Body: str(summary(&e)), Attributes: fields, TraceId: where.trace, SpanId: where.span,
	}}}
	if e.Type == event.Proc && e.Flags&event.Thread == 0 {
		if span := m.process(&e, at); span != nil {
			out.Spans = append(out.Spans, span)
		}
	}
	return out, nil
}

// positionOf returns the process of an event, otherwise its jail.
func (m *Events) positionOf(e *event.Event) position {
	p := jailPosition(m.jail)
	if e.PID == 0 {
		return p
	}
	if e.Type == event.Proc && e.Flags&event.Thread == 0 {
		p.span = m.processID(e.PID, e.Begin)
	} else if known, ok := m.live[e.PID]; ok {
		p.span = m.processID(e.PID, known.begin)
	}
	return p
}

func (m *Events) processID(pid int32, begin int64) []byte {
	return spanID("process", string(m.jail), strconv.Itoa(int(pid)), strconv.FormatInt(begin, 10))
}

// process tracks a process and returns its span when it has ended.
func (m *Events) process(e *event.Event, at uint64) *tracepb.Span {
	p, known := m.live[e.PID]
	if !known || p.begin != e.Begin {
		p = process{begin: e.Begin}
	}
	if parent, ok := m.live[e.PPID]; ok && e.Op == event.OpFork && p.exe == "" {
		p.exe, p.argv = parent.exe, parent.argv // until it calls execve
	}
	if e.Exe != "" {
		p.exe = e.Exe
	}
	if len(e.Argv) > 0 {
		p.argv = e.Argv
	}
	if e.Op != event.OpExit {
		m.live[e.PID] = p
		return nil
	}
	delete(m.live, e.PID)
	return m.ended(e, p, at)
}

func (m *Events) ended(e *event.Event, p process, at uint64) *tracepb.Span {
	start := at
	if e.Begin > 0 && e.NS > e.Begin {
		start = before(at, e.NS-e.Begin)
	}
	a := attributes{}
	a.add("process.pid", integer(int64(e.PID)))
	a.number("process.parent_pid", int64(e.PPID))
	a.text("process.executable.path", p.exe)
	if len(p.argv) > 0 {
		a.add("process.command_args", list(p.argv))
	}
	a.text("process.working_directory", e.Cwd)
	a.add("glasshouse.uid", integer(int64(e.UID)))
	a.number("glasshouse.user_ns", e.UserNS)
	a.number("glasshouse.system_ns", e.SystemNS)
	a.number("glasshouse.rss", e.RSS)
	a.add("glasshouse.seq", str(strconv.FormatUint(e.Seq, 10)))
	s := &tracepb.Span{
		TraceId: traceID("jail", string(m.jail)), SpanId: m.processID(e.PID, e.Begin), Kind: tracepb.Span_SPAN_KIND_INTERNAL,
		Name: text(cmp.Or(path.Base("/"+p.exe), "/")), StartTimeUnixNano: start, EndTimeUnixNano: at,
	}
	if p.exe == "" {
		s.Name = text(cmp.Or(e.Comm, "process"))
	}
	if e.Signal != "" {
		a.text("glasshouse.signal", e.Signal)
		s.Status = failed("ended by " + e.Signal)
	} else {
		a.add("process.exit.code", integer(int64(e.Code)))
		if e.Code != 0 {
			s.Status = failed(fmt.Sprintf("exit code %d", e.Code))
		}
	}
	s.Attributes = a
	parent := jailPosition(m.jail)
	if p, ok := m.live[e.PPID]; ok {
		parent.span = m.processID(e.PPID, p.begin)
	}
	under(s, parent)
	return s
}

// fieldsOf returns the fields of an event, sorted by name.
func fieldsOf(record []byte) (attributes, error) {
	dec := json.NewDecoder(bytes.NewReader(record))
	dec.UseNumber()
	var fields map[string]any
	if err := dec.Decode(&fields); err != nil {
		return nil, fmt.Errorf("decode the fields of the event: %w", err)
	}
	var a attributes
	for _, k := range slices.Sorted(maps.Keys(fields)) {
		switch k {
		case "type", "ts", "jail": // the event's name, its time, the resource
			continue
		}
		if v := value(k, fields[k]); v != nil {
			name, ok := semantic[k]
			if !ok {
				name = "glasshouse." + text(k)
			}
			a.add(name, v)
		}
	}
	return a, nil
}

// value converts a JSON value. Registers are unsigned 64-bit numbers, which OTLP integers
// cannot represent: they are exported as strings, and so is seq.
func value(key string, v any) *commonpb.AnyValue {
	switch v := v.(type) {
	case string:
		return str(v)
	case bool:
		return &commonpb.AnyValue{Value: &commonpb.AnyValue_BoolValue{BoolValue: v}}
	case json.Number:
		if n, err := v.Int64(); err == nil && key != "seq" {
			return integer(n)
		}
		return str(v.String())
	case []any:
		all := make([]string, len(v))
		for i, item := range v {
			all[i] = fmt.Sprint(item)
		}
		return list(all)
	case nil:
		return nil
	}
	return str(fmt.Sprint(v))
}

func severity(e *event.Event) logspb.SeverityNumber {
	if e.Type == event.Gap || e.Flags&event.Denied != 0 {
		return logspb.SeverityNumber_SEVERITY_NUMBER_WARN
	}
	return logspb.SeverityNumber_SEVERITY_NUMBER_INFO
}

// summary describes an event in a few words.
func summary(e *event.Event) string {
	var words []string
	switch e.Type {
	case event.Syscall:
		words = []string{e.Name, cmp.Or(e.Real, e.Path), e.To, e.Addr}
	case event.File:
		words = []string{e.Op, e.Path, e.To}
	case event.Net:
		words = []string{e.Dir, e.Proto, e.Src, e.Dst, e.Host}
	case event.Proc:
		words = append([]string{e.Op, cmp.Or(e.Exe, e.Comm)}, e.Argv[min(1, len(e.Argv)):]...)
	case event.Gap:
		words = []string{"gap:", e.Source.String(), e.Reason}
	case event.Lineage:
		words = []string{e.Op, string(e.Snapshot)}
	default:
		words = []string{e.Type.String()}
	}
	return strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "" }), " ")
}
