package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
)

// EventQuery selects events of a jail. The zero value selects all stored events.
type EventQuery struct {
	Filter string    // terms separated by spaces, as in docs/reference/events.md
	Since  time.Time // start of the time range; zero is unbounded
	Until  time.Time // end of the time range; zero is unbounded
	After  uint64    // only events with a higher sequence number
	Tail   int       // only the last Tail of the stored events; 0 is all
	Limit  int       // maximum number of events; 0 is unlimited
	Follow bool      // continue with new events
}

func (q EventQuery) values() url.Values {
	v := url.Values{"follow": {strconv.FormatBool(q.Follow)}}
	set := func(name, s string, ok bool) {
		if ok {
			v.Set(name, s)
		}
	}
	set("q", q.Filter, q.Filter != "")
	set("after", strconv.FormatUint(q.After, 10), q.After != 0)
	set("tail", strconv.Itoa(q.Tail), q.Tail != 0)
	set("limit", strconv.Itoa(q.Limit), q.Limit != 0)
	return Period{q.Since, q.Until}.query(v)
}

// A Record is an event of a jail's log in the encoding of the daemon.
type Record struct {
	Seq  uint64 // 0 for a gap that concerns only this stream
	Type string
	JSON []byte
}

// Event decodes the record. Decoding replaces invalid UTF-8 in strings; r.JSON contains the
// original bytes.
func (r Record) Event() (wire.Event, error) {
	var e wire.Event
	err := json.Unmarshal(r.JSON, &e)
	if err != nil {
		return e, fmt.Errorf("decode event %d: %w", r.Seq, err)
	}
	return e, nil
}

// Events yields the events of a jail, oldest first. With q.Follow it continues with new
// events until ctx is cancelled or the jail is deleted. If the connection breaks, Events
// reconnects and resumes after the last event; it fails if the daemon is unavailable for too
// long. The iterator can be used once.
func (c *Client) Events(ctx context.Context, j id.Jail, q EventQuery) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		s := &eventStream{c: c, jail: j, q: q}
		if err := s.connect(ctx); err != nil {
			yield(Record{}, err)
			return
		}
		defer func() { s.body.Close() }()
		for {
			r, err := s.next(ctx)
			if err == io.EOF {
				return
			}
			if !yield(r, err) || err != nil {
				return
			}
		}
	}
}

type eventStream struct {
	c    *Client
	jail id.Jail
	q    EventQuery
	body io.ReadCloser
	sse  *sseReader
	all  bool // the limit is reached
}

func (s *eventStream) request() request {
	return request{method: "GET", path: jailPath(s.jail, "/events"), query: s.q.values(), header: http.Header{"Accept": {"text/event-stream"}}}
}

func (s *eventStream) connect(ctx context.Context) error {
	resp, err := s.c.send(ctx, s.request())
	if err != nil {
		return err
	}
	s.body, s.sse = resp.Body, newSSEReader(resp.Body)
	return nil
}

// next returns the next event, or io.EOF after the last.
func (s *eventStream) next(ctx context.Context) (Record, error) {
	for {
		if s.all {
			return Record{}, io.EOF
		}
		e, err := s.sse.next()
		switch {
		case err != nil:
			if err = s.comeBack(ctx, err); err != nil {
				return Record{}, err
			}
			continue
		case e.name == wire.EventEnd:
			return Record{}, io.EOF
		case e.name == wire.EventError:
			var p wire.Problem
			if err := json.Unmarshal([]byte(e.data), &p); err != nil {
				return Record{}, fmt.Errorf("client: parse error event: %w", err)
			}
			return Record{}, Error(p)
		}
		r := Record{Type: e.name, JSON: []byte(e.data)}
		if !e.own {
			return r, nil
		}
		if r.Seq, err = strconv.ParseUint(e.id, 10, 64); err != nil {
			return Record{}, fmt.Errorf("client: the id of an event is %q", e.id)
		}
		s.seen(r.Seq)
		return r, nil
	}
}

// seen makes a reconnect resume after the event with the given sequence number.
func (s *eventStream) seen(seq uint64) {
	s.q.After, s.q.Tail = seq, 0
	if s.q.Limit > 0 {
		s.q.Limit--
		s.all = s.q.Limit == 0
	}
}

// comeBack reconnects after the connection broke with cause.
func (s *eventStream) comeBack(ctx context.Context, cause error) error {
	s.body.Close()
	return s.c.comeBack(ctx, s.request(), cause, func() error { return s.connect(ctx) })
}

// comeBack calls connect until it succeeds, fails with another error than fault.Unavailable,
// or patience has elapsed.
func (c *Client) comeBack(ctx context.Context, r request, cause error, connect func() error) error {
	start := time.Now()
	for wait := firstTry; ; wait = min(2*wait, lastTry) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		err := connect()
		if err == nil {
			return nil
		}
		if !errors.Is(err, fault.Unavailable) {
			return err // not transient: for example, the object was deleted or access was revoked
		}
		if time.Since(start) > patience {
			return c.lost(ctx, r, errors.Join(cause, err))
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

// Processes returns the process tree of a jail, with each process after its parent. At is a
// time, a duration before now or the sequence number of an event; "" is now. If all is true,
// the tree includes processes that have ended.
func (c *Client) Processes(ctx context.Context, j id.Jail, at string, all bool) (wire.Processes, error) {
	var p wire.Processes
	err := c.do(ctx, request{method: "GET", path: jailPath(j, "/processes"), query: atQuery(at, all)}, &p)
	return p, err
}

// ProcessText returns Processes as a text table.
func (c *Client) ProcessText(ctx context.Context, j id.Jail, at string, all bool) (string, error) {
	return c.text(ctx, jailPath(j, "/processes"), atQuery(at, all))
}

func atQuery(at string, all bool) url.Values {
	q := flags("all", all)
	if at != "" {
		q.Set("at", at)
	}
	return q
}

// text returns a response in text format.
func (c *Client) text(ctx context.Context, path string, q url.Values) (string, error) {
	resp, err := c.send(ctx, request{method: "GET", path: path, query: q, header: http.Header{"Accept": {"text/plain"}}})
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var b strings.Builder
	_, err = io.Copy(&b, resp.Body)
	return b.String(), err
}

// A Period limits a result to a time range. The zero time is no limit.
type Period struct {
	Since, Until time.Time
}

// query adds the limits to q, and returns q.
func (p Period) query(q url.Values) url.Values {
	for name, t := range map[string]time.Time{"since": p.Since, "until": p.Until} {
		if !t.IsZero() {
			q.Set(name, t.UTC().Format(time.RFC3339Nano))
		}
	}
	return q
}

// Flows yields a jail's network flows, in order of their start.
func (c *Client) Flows(ctx context.Context, j id.Jail, p Period) iter.Seq2[wire.Flow, error] {
	return pages[wire.Flow](ctx, c, jailPath(j, "/network/log"), p.query(url.Values{"limit": {"1000"}}))
}

// NetworkText returns a jail's network flows as a text table.
func (c *Client) NetworkText(ctx context.Context, j id.Jail, p Period) (string, error) {
	return c.text(ctx, jailPath(j, "/network/log"), p.query(url.Values{}))
}

// Packets returns a jail's captured packets in pcapng format. The caller closes it.
func (c *Client) Packets(ctx context.Context, j id.Jail) (io.ReadCloser, error) {
	return c.open(ctx, request{method: "GET", path: jailPath(j, "/network/pcap")})
}

// Report returns the report about a period of a jail in the format "json", "html" or "md". The
// caller closes it.
func (c *Client) Report(ctx context.Context, j id.Jail, format string, p Period) (io.ReadCloser, error) {
	return c.open(ctx, request{method: "GET", path: jailPath(j, "/report"), query: p.query(url.Values{"format": {format}})})
}
