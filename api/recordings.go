package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/observe/event"
	"glasshouse/observe/eventlog"
	"glasshouse/observe/report"
)

// Observed gives access to the recorded events of jails.
type Observed interface {
	// Log returns the event log of a jail. It contains all events that the sources saw before
	// the call. It returns fault.NotFound if there is no such jail. The log is closed when the
	// jail is deleted.
	Log(ctx context.Context, j id.Jail) (*eventlog.Log, error)

	// Status returns the state of a jail's event sources by name. A jail that does not run has
	// none.
	Status(j id.Jail) map[string]wire.Source

	// Packets returns the retained pcapng files of a jail, oldest first.
	Packets(j id.Jail) ([]string, error)
}

// errNotObserved is the error of a daemon without observers.
var errNotObserved = fault.Cannot("api.recordings", "this daemon does not observe jails", "run glasshouse doctor for the missing requirements")

// recordings reads the recorded events of jails for handlers.
type recordings struct {
	observed Observed // nil: jails are not observed
	logger   *slog.Logger
}

// log returns the event log of a jail.
func (rec *recordings) log(ctx context.Context, j id.Jail) (*eventlog.Log, error) {
	if rec.observed == nil {
		return nil, errNotObserved
	}
	return rec.observed.Log(ctx, j)
}

// observation returns the state of a jail's recording, or nil if it is not recorded.
func (rec *recordings) observation(ctx context.Context, j id.Jail) *wire.Observation {
	l, err := rec.log(ctx, j)
	if err != nil {
		if rec.observed != nil {
			rec.logger.Debug("no log", "jail", j, "err", err)
		}
		return nil
	}
	st := l.Stats()
	o := &wire.Observation{Sources: rec.observed.Status(j), Log: wire.EventLog{
		Events: st.Events, Bytes: st.Bytes, Segments: st.Segments, First: st.OldestSeq, Last: st.Last, Lost: st.Lost, Err: st.Err,
	}}
	if o.Sources == nil {
		o.Sources = map[string]wire.Source{}
	}
	return o
}

// flushTime is how long a reader waits until appended events are on disk.
const flushTime = 2 * time.Second

// read opens a log including all events that were appended before the call. If the disk is
// full, it returns the events that were written: the jail's status reports the condition, and
// the log is needed most in this state.
func read(ctx context.Context, l *eventlog.Log, q eventlog.Query) (*eventlog.Cursor, error) {
	if err := flushed(ctx, l); err != nil {
		return nil, err
	}
	return l.Read(ctx, q)
}

func flushed(ctx context.Context, l *eventlog.Log) error {
	flush, cancel := context.WithTimeout(ctx, flushTime)
	defer cancel()
	if err := l.Flush(flush); err != nil && (flush.Err() == nil || ctx.Err() != nil) {
		return err
	}
	return nil
}

// folded passes the events that a filter selects to a fold of package report.
func (rec *recordings) folded(ctx context.Context, j id.Jail, filter string, w window, fold func(report.Events) error) error {
	f, err := event.ParseFilter(filter)
	if err != nil {
		return err
	}
	l, err := rec.log(ctx, j)
	if err != nil {
		return err
	}
	q, err := w.query(f, l)
	if err != nil {
		return err
	}
	c, err := read(ctx, l, q)
	if err != nil {
		return err
	}
	defer c.Close()
	return fold(&records{ctx, c})
}

// records is a cursor that ends with the context of the client: a fold may take long.
type records struct {
	ctx context.Context
	c   *eventlog.Cursor
}

func (r *records) Next(e *event.Event) ([]byte, error) {
	if err := r.ctx.Err(); err != nil {
		return nil, err
	}
	return r.c.Next(e)
}

// netLog returns the network log of a jail for a time range.
func (rec *recordings) netLog(ctx context.Context, j id.Jail, from, to time.Time) (*report.NetLog, error) {
	f, err := event.ParseFilter(netRecords)
	if err != nil {
		return nil, err
	}
	l, err := rec.log(ctx, j)
	if err != nil {
		return nil, err
	}
	c, err := read(ctx, l, eventlog.Query{Filter: f, Since: from, Until: to})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	log := report.NewNetLog()
	src := &records{ctx, c}
	var e event.Event
	for {
		if _, err := src.Next(&e); errors.Is(err, io.EOF) {
			return log, nil
		} else if err != nil {
			return nil, fmt.Errorf("read the event log of jail %s: %w", j, err)
		}
		log.Add(&e)
	}
}
