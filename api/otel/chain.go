package otel

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
)

// began maps the kind of an entry that ends a span to the kind that begins it. The span is
// exported when it has ended.
var began = map[string]string{
	"session.closed": "session.opened", "run.ended": "run.started", "call.ended": "call.started",
	"approval.answered": "approval.asked", "approval.expired": "approval.asked",
}

// begins is the set of kinds that begin a span.
var begins = func() map[string]bool {
	all := map[string]bool{}
	for _, start := range began {
		all[start] = true
	}
	return all
}()

// ownSpan is the set of kinds whose entry alone is a span. A call.ended without a call.started
// is a span as well: a call that stays within this process has one entry.
var ownSpan = map[string]bool{"llm.called": true, "call.ended": true}

const (
	maxDepth = 100   // causes that are followed to find the parent span
	maxKept  = 10000 // entries that are cached
)

// Chain maps entries of the causal chain to signals. Entries must be given in order.
type Chain struct {
	get  func(seq int64) (wire.ChainEntry, error)
	kept map[int64]wire.ChainEntry // without bodies
}

// NewChain returns a mapper that fetches the causes of entries with get.
func NewChain(get func(seq int64) (wire.ChainEntry, error)) *Chain {
	return &Chain{get: get, kept: map[int64]wire.ChainEntry{}}
}

// Map maps an entry to a log record, and to a span if the entry ends one. Its errors are those
// of fetching causes.
func (c *Chain) Map(e wire.ChainEntry) (Signals, error) {
	c.keep(e)
	at, err := entryTime(e)
	if err != nil {
		return Signals{}, err
	}
	where, err := c.positionOf(e, maxDepth)
	if err != nil {
		return Signals{}, err
	}
	sev := entrySeverity(e)
	a := c.attributes(e)
	a.add("glasshouse.chain.hash", str(e.Hash))
	out := Signals{Jail: id.Jail(e.Jail), Logs: []*logspb.LogRecord{{
		TimeUnixNano: at, ObservedTimeUnixNano: at, EventName: "glasshouse.chain." + text(e.Kind),
		SeverityNumber: sev, SeverityText: sev.String()[len("SEVERITY_NUMBER_"):],
		Body: str(string(e.Body)), Attributes: a, TraceId: where.trace, SpanId: where.span,
	}}}
	span, err := c.span(e, at)
	if span != nil {
		out.Spans = append(out.Spans, span)
	}
	return out, err
}

func (c *Chain) keep(e wire.ChainEntry) {
	if len(c.kept) >= maxKept {
		clear(c.kept)
	}
	e.Body = nil
	c.kept[e.Seq] = e
}

// cause returns the entry that caused e. It may be missing, or not visible to the caller.
func (c *Chain) cause(e wire.ChainEntry) (wire.ChainEntry, bool, error) {
	if e.Parent <= 0 || e.Parent >= e.Seq {
		return wire.ChainEntry{}, false, nil
	}
	if p, ok := c.kept[e.Parent]; ok {
		return p, true, nil
	}
	p, err := c.get(e.Parent)
	if errors.Is(err, fault.NotFound) || errors.Is(err, fault.Denied) {
		return wire.ChainEntry{}, false, nil
	}
	if err != nil {
		return wire.ChainEntry{}, false, fmt.Errorf("read the cause of entry %d: %w", e.Seq, err)
	}
	c.keep(p)
	return p, true, nil
}

// positionOf returns the span that an entry belongs to: its own span if it has one, otherwise that
// of its cause, otherwise that of its jail.
func (c *Chain) positionOf(e wire.ChainEntry, depth int) (position, error) {
	if begins[e.Kind] {
		return position{entryTrace(e), entrySpan(e)}, nil
	}
	parent, ok, err := c.cause(e)
	if err != nil {
		return position{}, err
	}
	if ok && began[e.Kind] == parent.Kind {
		return position{entryTrace(parent), entrySpan(parent)}, nil
	}
	if ownSpan[e.Kind] {
		return position{entryTrace(e), entrySpan(e)}, nil
	}
	if ok && depth > 0 {
		return c.positionOf(parent, depth-1)
	}
	if e.Jail != "" {
		return jailPosition(id.Jail(e.Jail)), nil
	}
	return position{}, nil
}

// span returns the span that ends with an entry, or nil.
func (c *Chain) span(e wire.ChainEntry, at uint64) (*tracepb.Span, error) {
	if e.Kind == "jail.created" && e.Jail != "" {
		return c.jail(e, at), nil
	}
	start, paired, err := c.cause(e)
	if err != nil {
		return nil, err
	}
	paired = paired && began[e.Kind] != "" && began[e.Kind] == start.Kind
	if !paired {
		if !ownSpan[e.Kind] {
			return nil, nil
		}
		start = e
	}
	from, err := entryTime(start)
	if err != nil {
		return nil, err
	}
	if !paired {
		from = before(at, took(e))
	}
	s := &tracepb.Span{
		TraceId: entryTrace(start), SpanId: entrySpan(start), Name: spanName(e), Kind: tracepb.Span_SPAN_KIND_INTERNAL,
		StartTimeUnixNano: min(from, at), EndTimeUnixNano: at, Attributes: c.attributes(e), Status: outcome(e),
	}
	if e.Kind == "llm.called" {
		s.Kind = tracepb.Span_SPAN_KIND_CLIENT
	}
	return s, c.below(s, start)
}

// below makes the span that begins with an entry a child of the span of its cause.
func (c *Chain) below(s *tracepb.Span, start wire.ChainEntry) error {
	cause, ok, err := c.cause(start)
	if err != nil {
		return err
	}
	var p position
	if ok {
		p, err = c.positionOf(cause, maxDepth)
		if err != nil {
			return err
		}
	}
	if p.span == nil && start.Jail != "" {
		p = jailPosition(id.Jail(start.Jail))
	}
	under(s, p)
	return nil
}

// jail returns the span that represents a jail. Its duration is zero, because a jail has no
// end before its deletion and its children should not wait for that.
func (c *Chain) jail(e wire.ChainEntry, at uint64) *tracepb.Span {
	p := jailPosition(id.Jail(e.Jail))
	return &tracepb.Span{
		TraceId: p.trace, SpanId: p.span, Name: "jail " + text(e.Jail), Kind: tracepb.Span_SPAN_KIND_INTERNAL,
		StartTimeUnixNano: at, EndTimeUnixNano: at, Attributes: c.attributes(e),
	}
}

// Steps returns the spans of a run's steps, below the run that ended with an entry.
func (c *Chain) Steps(e wire.ChainEntry, actions []wire.RunAction) (Signals, error) {
	out := Signals{Jail: id.Jail(e.Jail)}
	run, err := c.positionOf(e, maxDepth)
	if err != nil {
		return out, err
	}
	for _, step := range actions {
		if step.Ended == nil {
			continue
		}
		a := attributes{}
		a.text("glasshouse.run", e.Run)
		a.add("glasshouse.step", integer(step.N))
		a.text("glasshouse.step.kind", step.Kind)
		a.text("glasshouse.step.key", step.Key)
		a.text("glasshouse.step.state", step.State)
		a.number("glasshouse.chain.seq", step.Entry)
		s := &tracepb.Span{
			TraceId: traceID("run", e.Run), SpanId: spanID("step", e.Run, fmt.Sprint(step.N)), Name: text(step.Kind + " " + step.Name),
			Kind: tracepb.Span_SPAN_KIND_INTERNAL, StartTimeUnixNano: min(unixNano(step.Began), unixNano(*step.Ended)),
			EndTimeUnixNano: unixNano(*step.Ended), Attributes: a,
		}
		if step.State == "failed" || step.State == "refused" {
			s.Status = failed(step.State)
		}
		under(s, run)
		out.Spans = append(out.Spans, s)
	}
	return out, nil
}

func (c *Chain) attributes(e wire.ChainEntry) attributes {
	a := attributes{}
	a.add("glasshouse.chain.seq", integer(e.Seq))
	a.add("glasshouse.chain.kind", str(e.Kind))
	a.number("glasshouse.chain.parent", e.Parent)
	a.text("glasshouse.jail.id", e.Jail)
	a.text("glasshouse.session", e.Session)
	a.text("glasshouse.run", e.Run)
	a.text("glasshouse.capability", e.Capability)
	a.text("glasshouse.agent", e.Agent)
	if e.Kind == "llm.called" {
		b := saidBy(e)
		a.text("gen_ai.request.model", b.Model)
		a.text("gen_ai.response.model", b.Served)
		a.number("gen_ai.usage.input_tokens", b.Input)
		a.number("gen_ai.usage.output_tokens", b.Output)
	}
	return a
}

// entryTrace returns the trace id of an entry: one trace per run, otherwise per session, jail or
// entry.
func entryTrace(e wire.ChainEntry) []byte {
	switch {
	case e.Run != "":
		return traceID("run", e.Run)
	case e.Session != "":
		return traceID("session", e.Session)
	case e.Jail != "":
		return jailPosition(id.Jail(e.Jail)).trace
	}
	return traceID("entry", e.Hash)
}

// entrySpan derives the span id from the hash of the entry: sequence numbers are not unique
// across daemons.
func entrySpan(e wire.ChainEntry) []byte {
	if h, err := hex.DecodeString(e.Hash); err == nil && len(h) >= 8 && string(h[:8]) != string(make([]byte, 8)) {
		return h[:8]
	}
	return spanID("entry", e.Hash, fmt.Sprint(e.Seq))
}

func entryTime(e wire.ChainEntry) (uint64, error) {
	t, err := time.Parse(time.RFC3339, e.Time)
	if err != nil {
		return 0, fault.Newf(fault.Mismatch, "otel.entryTime", fmt.Sprintf("entry %d", e.Seq), "invalid time %.40q", e.Time)
	}
	return unixNano(t), nil
}

// entryData has the fields of entry bodies that are mapped.
type entryData struct {
	State   string `json:"state"`
	To      string `json:"to"`
	Outcome string `json:"outcome"`
	Effect  string `json:"effect"`
	Allowed *bool  `json:"allowed"`
	Model   string `json:"model"`
	Served  string `json:"served"`
	Input   int64  `json:"input_tokens"`
	Output  int64  `json:"output_tokens"`
	TookMS  int64  `json:"took_ms"`
}

// saidBy parses the body of an entry. A field of another type than expected stays empty.
func saidBy(e wire.ChainEntry) entryData {
	var b entryData
	_ = json.Unmarshal(e.Body, &b)
	return b
}

func took(e wire.ChainEntry) int64 {
	const most = int64(365 * 24 * time.Hour / time.Millisecond)
	return min(max(saidBy(e).TookMS, 0), most) * int64(time.Millisecond)
}

func spanName(e wire.ChainEntry) string {
	switch e.Kind {
	case "call.ended":
		return text("call " + e.Capability)
	case "run.ended":
		return text("run " + e.Run)
	case "session.closed":
		return text("session " + e.Session)
	case "llm.called":
		return text("llm " + saidBy(e).Model)
	}
	return "approval"
}

// outcome returns an error status if the operation failed or was denied.
func outcome(e wire.ChainEntry) *tracepb.Status {
	b := saidBy(e)
	switch {
	case e.Kind == "call.ended" && (b.State == "failed" || b.State == "refused"):
		return failed(b.State)
	case e.Kind == "run.ended" && b.To == "failed":
		return failed(b.To)
	case e.Kind == "llm.called" && b.Outcome != "answered":
		return failed(b.Outcome)
	}
	return nil
}

func entrySeverity(e wire.ChainEntry) logspb.SeverityNumber {
	b := saidBy(e)
	switch {
	case e.Kind == "jail.failed" || outcome(e) != nil:
		return logspb.SeverityNumber_SEVERITY_NUMBER_ERROR
	case b.Effect == "deny" || b.Allowed != nil && !*b.Allowed || e.Kind == "secret.refused" || e.Kind == "budget.spent" || e.Kind == "approval.expired":
		return logspb.SeverityNumber_SEVERITY_NUMBER_WARN
	}
	return logspb.SeverityNumber_SEVERITY_NUMBER_INFO
}
