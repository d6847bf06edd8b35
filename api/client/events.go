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

// EventQuery says which of a jail's records are wanted. The zero value is all
// that are kept.
type EventQuery struct {
	Filter string    // terms joined by spaces, as in docs/events.md
	Since  time.Time // not before
	Until  time.Time // not after
	After  uint64    // only later sequence numbers
	Tail   int       // of those there are, only the last so many; 0 is all
	Limit  int       // at most so many; 0 is all
	Follow bool      // go on with those to come
}

func (q EventQuery) values() url.Values {
	v := url.Values{"follow": {strconv.FormatBool(q.Follow)}}
	set := func(name, s string, ok bool) {
		if ok {
			v.Set(name, s)
		}
	}
	set("q", q.Filter, q.Filter != "")
	set("since", q.Since.Format(time.RFC3339Nano), !q.Since.IsZero())
	set("until", q.Until.Format(time.RFC3339Nano), !q.Until.IsZero())
	set("after", strconv.FormatUint(q.After, 10), q.After != 0)
	set("tail", strconv.Itoa(q.Tail), q.Tail != 0)
	set("limit", strconv.Itoa(q.Limit), q.Limit != 0)
	return v
}

// A Record is one record of a jail's log, as the daemon sent it.
type Record struct {
	Seq  uint64 // 0 in a gap that is this reader's own
	Type string
	JSON []byte
}

// Event decodes a record. A string that is not UTF-8 is changed by that; JSON has
// it in full.
func (r Record) Event() (wire.Event, error) {
	var e wire.Event
	err := json.Unmarshal(r.JSON, &e)
	return e, err
}

// Events yields a jail's records, oldest first: those there are and, to follow,
// those to come until ctx ends or the jail is deleted. If the connection breaks
// it goes on where it was; only a daemon that stays away ends it. It is to be
// ranged over once.
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
	all  bool // as many have come as were asked for
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

// next returns the next record, and io.EOF when the daemon has said that there
// is no more.
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
				return Record{}, fmt.Errorf("client: error event: %w", err)
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

// seen has a stream that comes back go on after a record.
func (s *eventStream) seen(seq uint64) {
	s.q.After, s.q.Tail = seq, 0
	if s.q.Limit > 0 {
		s.q.Limit--
		s.all = s.q.Limit == 0
	}
}

// comeBack connects again after the connection broke with cause.
func (s *eventStream) comeBack(ctx context.Context, cause error) error {
	s.body.Close()
	return s.c.comeBack(ctx, s.request(), cause, func() error { return s.connect(ctx) })
}

// comeBack calls connect until it works, the daemon has refused, or it has stayed
// away for too long since cause.
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
			return err // what it was about is gone, or we may no longer
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

// Processes returns the tree of a jail's processes, each after its parent. At is
// a time, or how long ago, or a sequence number of the log; "" is now. With all
// those that have ended are in it.
func (c *Client) Processes(ctx context.Context, j id.Jail, at string, all bool) (wire.Processes, error) {
	var p wire.Processes
	err := c.do(ctx, request{method: "GET", path: jailPath(j, "/processes"), query: atQuery(at, all)}, &p)
	return p, err
}

// ProcessText is Processes as a table for people.
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

// text returns an answer in the form for people.
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

// Flows yields a jail's connections, in the order they began.
func (c *Client) Flows(ctx context.Context, j id.Jail) iter.Seq2[wire.Flow, error] {
	return pages[wire.Flow](ctx, c, jailPath(j, "/network/log"), url.Values{"limit": {"1000"}})
}

// NetworkText is what a jail said to whom, as a table for people.
func (c *Client) NetworkText(ctx context.Context, j id.Jail) (string, error) {
	return c.text(ctx, jailPath(j, "/network/log"), nil)
}

// Packets returns the bytes kept of a jail's packets, as pcapng. The caller
// closes it.
func (c *Client) Packets(ctx context.Context, j id.Jail) (io.ReadCloser, error) {
	return c.open(ctx, request{method: "GET", path: jailPath(j, "/network/pcap")})
}

// Report returns the report on a jail, as "json", "html" or "md". The caller
// closes it.
func (c *Client) Report(ctx context.Context, j id.Jail, format string) (io.ReadCloser, error) {
	return c.open(ctx, request{method: "GET", path: jailPath(j, "/report"), query: url.Values{"format": {format}}})
}
