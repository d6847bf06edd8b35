package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"

	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/text"
	"glasshouse/observe/event"
	"glasshouse/observe/eventlog"
)

// Filters for all events of a type, including gaps, which a term for the type alone would
// exclude. A rewind also ends processes.
const (
	netRecords  = "proto:*"
	procRecords = "type:proc,lineage,gap"
)

// A recordFilter is the filter of a request. Each parameter except q is one term.
type recordFilter struct {
	Q    string `query:"q" description:"A filter: terms separated by spaces, such as 'type:net host:*.example.com ret:<0 pid:42'. docs/reference/events.md describes the filter language."`
	Type string `query:"type" description:"Event types, separated by commas: syscall, file, net, proc, gap, usage, lineage. Like pid, path, host, name, ret, comm and op, it adds a term to q."`
	PID  string `query:"pid"`
	Path string `query:"path"`
	Host string `query:"host"`
	Name string `query:"name" description:"Name of a system call."`
	Ret  string `query:"ret" description:"Return value of a system call, such as <0 or EACCES."`
	Comm string `query:"comm"`
	Op   string `query:"op"`
}

// filter returns nil if all events match.
func (f recordFilter) filter() (*event.Filter, error) {
	terms := []string{f.Q}
	v := reflect.ValueOf(f)
	for i := 1; i < v.NumField(); i++ {
		value := v.Field(i).String()
		if value == "" {
			continue
		}
		name := v.Type().Field(i).Tag.Get("query")
		term := name + ":" + quoted(value)
		if _, err := event.ParseFilter(term); err != nil {
			return nil, &fault.Error{Op: "api.filter", Kind: fault.Invalid, Field: name, Err: cause(err)}
		}
		terms = append(terms, term)
	}
	q := strings.TrimSpace(strings.Join(terms, " "))
	if q == "" {
		return nil, nil
	}
	return event.ParseFilter(q)
}

// quoted quotes a parameter's value, so that a space in it does not start another term.
func quoted(value string) string {
	if !strings.ContainsAny(value, " \t\r\n\"\\") {
		return value
	}
	return `"` + strings.NewReplacer(`"`, `\"`, `\`, `\\`).Replace(value) + `"`
}

// cause returns the message of err without the prefix of the inner error.
func cause(err error) error {
	if e, ok := errors.AsType[*fault.Error](err); ok && e.Err != nil {
		return e.Err
	}
	return err
}

// A window selects a part of a log.
type window struct {
	Since string  `query:"since" description:"Start of the time range: a time (RFC 3339), or a duration before now, such as 5m."`
	Until string  `query:"until" description:"End of the time range."`
	After *uint64 `query:"after" description:"Only events with a higher sequence number."`
	Tail  *int    `query:"tail" minimum:"0" description:"Only the last this many of the stored events."`
	Limit int     `query:"limit" minimum:"1" description:"Maximum number of events. Default: no limit."`
}

func (w window) query(f *event.Filter, l *eventlog.Log) (eventlog.Query, error) {
	q := eventlog.Query{Filter: f, Limit: w.Limit}
	var err error
	now := time.Now()
	q.Since, err = instant("since", w.Since, now)
	if err != nil {
		return q, err
	}
	q.Until, err = instant("until", w.Until, now)
	if err != nil {
		return q, err
	}
	if w.Limit < 0 {
		return q, fault.Fieldf("api.query", "limit", "%d is less than 1", w.Limit)
	}
	last := l.Last()
	if w.After != nil {
		q.After = *w.After
		if q.After > last {
			return q, &fault.Error{Op: "api.query", Kind: fault.Invalid, Field: "after", Err: fmt.Errorf("the last event of the log is %d", last),
				Remedy: "omit it to start with the oldest retained event"}
		}
	}
	if w.Tail != nil {
		switch q.Tail = *w.Tail; {
		case q.Tail < 0:
			return q, fault.Fieldf("api.query", "tail", "%d is less than 0", q.Tail)
		case q.Tail == 0: // only new events
			q.After = max(q.After, last)
		}
	}
	return q, nil
}

// instant parses a time, or a duration before now. "" is the zero time.
func instant(field, s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return t, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return time.Time{}, fault.Fieldf("api.instant", field, "%q is neither a time such as 2026-01-02T15:04:05Z nor a duration before now, such as 5m", text.Clip(s, 64))
	}
	return now.Add(-d), nil
}

// eventHandler serves the events of jails and their counts.
type eventHandler struct {
	recordings *recordings
	streams    *streams
	metrics    *metrics
	tallies    recent[filtered, *eventlog.Tally]
}

type eventParams struct {
	ID id.Jail `path:"id"`
	recordFilter
	window
	Follow *bool  `query:"follow" description:"Continue with new events. Default: true for server-sent events, false for lines of JSON."`
	Offset *int64 `query:"offset" description:"Return a JSON window of the matching events, from this position, up to limit. 0 is the oldest event, -1 the newest."`
	At     string `query:"at" description:"Like offset, but the window starts at a time (RFC 3339), or a duration before now, such as 5m."`
	Format string `query:"format" enum:"sse,ndjson" description:"Response format, like the Accept header: text/event-stream (the default) or application/x-ndjson."`
}

// streamEvents responds with the events of a jail: the recorded ones, and then new ones as
// they occur.
func (h *eventHandler) streamEvents(w http.ResponseWriter, r *http.Request, p eventParams) error {
	if _, err := readBody(w, r, &none{}); err != nil {
		return err
	}
	if p.Offset != nil || p.At != "" {
		return h.eventWindow(w, r, p)
	}
	lines, err := p.lines(r)
	if err != nil {
		return err
	}
	if err := lastEvent(r, &p.After); err != nil {
		return err
	}
	f, err := p.filter()
	if err != nil {
		return err
	}
	ctx, cancel := h.streams.context(r)
	defer cancel()
	l, err := h.recordings.log(ctx, p.ID)
	if err != nil {
		return err
	}
	q, err := p.query(f, l)
	if err != nil {
		return err
	}
	out := &recordWriter{w: w, rc: http.NewResponseController(w), lines: lines}
	w.(*recorder).stream = true
	if p.Follow == nil && !lines || p.Follow != nil && *p.Follow {
		defer h.metrics.opened("events")()
		err = out.follow(ctx, l, q)
	} else {
		err = out.history(ctx, l, q)
	}
	if err != nil && ctx.Err() != nil && !lines {
		return nil // the stream has no end event, so the client reconnects
	}
	return err
}

func (p eventParams) lines(r *http.Request) (bool, error) {
	switch p.Format {
	case "":
		return accepts(r, lineKind) && !wantsEvents(r), nil
	case "sse", "ndjson":
		return p.Format == "ndjson", nil
	}
	return false, fault.Fieldf("api.lines", "format", "%q is neither sse nor ndjson", text.Clip(p.Format, 64))
}

// lastEvent sets after to the Last-Event-ID of a client that reconnects.
func lastEvent(r *http.Request, after **uint64) error {
	last := r.Header.Get("Last-Event-ID")
	if last == "" {
		return nil
	}
	n, err := strconv.ParseUint(last, 10, 64)
	if err != nil {
		return fault.Fieldf("api.lastEvent", "Last-Event-ID", "%q is not an event id of this stream", text.Clip(last, 64))
	}
	*after = &n
	return nil
}

// A recordWriter writes events as server-sent events or as lines of JSON. It needs little
// memory, because there may be a thousand.
type recordWriter struct {
	w     http.ResponseWriter
	rc    *http.ResponseController
	lines bool
}

func (o *recordWriter) start() error {
	h := o.w.Header()
	h.Set("Content-Type", eventKind)
	if o.lines {
		h.Set("Content-Type", lineKind)
	}
	h.Set("X-Accel-Buffering", "no") // prevents buffering in a reverse proxy
	o.w.WriteHeader(http.StatusOK)
	return o.beat() // confirms that the stream is open
}

// beat writes a comment, so that a dead connection is detected. A JSON stream has no comments
// and relies on TCP keep-alive.
func (o *recordWriter) beat() error {
	if o.lines {
		return o.rc.Flush()
	}
	return o.write([]byte(":\n\n"))
}

// write sends bytes immediately. It fails if the client does not read them in time.
func (o *recordWriter) write(b []byte) error {
	o.rc.SetWriteDeadline(time.Now().Add(writeTime))
	if _, err := o.w.Write(b); err != nil {
		return err
	}
	return o.rc.Flush()
}

// end writes the end event, which distinguishes the end from a broken connection.
func (o *recordWriter) end() error {
	if o.lines {
		return nil
	}
	return o.write([]byte("event: " + wire.EventEnd + "\ndata: {}\n\n"))
}

// history writes the recorded events.
func (o *recordWriter) history(ctx context.Context, l *eventlog.Log, q eventlog.Query) error {
	if q.Tail == 0 && q.After != 0 && q.After >= l.Last() {
		if err := o.start(); err != nil {
			return err
		}
		return o.end()
	}
	c, err := read(ctx, l, q)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := o.start(); err != nil {
		return err
	}
	const chunk = 32 << 10
	var b bytes.Buffer
	var e event.Event
	for {
		line, err := c.Next(&e)
		if err == io.EOF {
			break
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		if o.lines {
			b.Write(line)
			b.WriteByte('\n')
		} else {
			if e.Seq != 0 { // a gap that the reader detected is not in the log and has no number
				fmt.Fprintf(&b, "id: %d\n", e.Seq)
			}
			fmt.Fprintf(&b, "event: %s\ndata: %s\n\n", e.Type, line)
		}
		if b.Len() >= chunk {
			if err := o.write(b.Bytes()); err != nil {
				return err
			}
			b.Reset()
		}
	}
	if b.Len() > 0 {
		if err := o.write(b.Bytes()); err != nil {
			return err
		}
	}
	return o.end()
}

// follow writes the recorded events and then new ones until the log is closed, when the jail
// is deleted.
func (o *recordWriter) follow(ctx context.Context, l *eventlog.Log, q eventlog.Query) error {
	stream, err := l.Follow(ctx, q)
	if err != nil {
		return err
	}
	defer stream.Close()
	if err := o.start(); err != nil {
		return err
	}
	for {
		wait, cancel := context.WithTimeout(ctx, heartbeat)
		batch, err := stream.Next(wait)
		cancel()
		switch {
		case err == io.EOF:
			return o.end()
		case err != nil && ctx.Err() == nil && wait.Err() != nil:
			err = o.beat()
		case err != nil:
			return err
		case o.lines:
			err = o.write(append(bytes.Join(batch.Lines, []byte{'\n'}), '\n'))
		default:
			err = o.write(batch.SSE())
		}
		if err != nil {
			return err
		}
	}
}
