package snapshot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/observe/event"
	"glasshouse/observe/eventlog"
	"glasshouse/observe/report"
)

// A logRange is the part of a lineage that one jail contributes: the records up to upto.
type logRange struct {
	jail id.Jail
	upto uint64
}

// history returns the lineage of an end, from the first jail on. If jails or snapshots were
// deleted, it uses the data of the remaining ones.
func (co *comparer) history(ctx context.Context, e *end) []logRange {
	line := []logRange{{e.jail.ID, e.seq}}
	origin := e.jail.Origin
	for origin != nil && len(line) < 1000 {
		co.mu.Lock()
		s := co.all[origin.Snapshot]
		co.mu.Unlock()
		at := logRange{jail: origin.Jail}
		if s != nil {
			at.upto, origin = s.Seq, s.Jail.Origin
		} else {
			at.upto = co.forkSeq(ctx, line[len(line)-1].jail)
			parent, err := co.cfg.Jails.Get(ctx, origin.Jail)
			origin = nil
			if err == nil {
				origin = parent.Origin
			}
		}
		line = append(line, at)
	}
	slices.Reverse(line)
	return line
}

// forkSeq returns the sequence number up to which the log of a jail is that of its parent,
// taken from its first record. It returns 0 if the record was dropped.
func (co *comparer) forkSeq(ctx context.Context, jid id.Jail) uint64 {
	var first uint64
	err := co.readLog(ctx, jid, 0, func(kind string, seq uint64) bool {
		if kind == event.Lineage.String() {
			first = seq
		}
		return false
	})
	if err != nil || first == 0 {
		return 0
	}
	return first - 1
}

// events counts the records of both sides since their lineages diverged.
func (co *comparer) events(ctx context.Context, a, b *end) (*report.EventChanges, error) {
	x, y := co.history(ctx, a), co.history(ctx, b)
	n := 0
	for n < len(x) && n < len(y) && x[n].jail == y[n].jail {
		n++
	}
	c := &report.EventChanges{}
	var since uint64
	if n > 0 {
		at := x[n-1]
		since = min(at.upto, y[n-1].upto)
		c.Since = &report.End{Jail: at.jail, Seq: since}
		x, y = x[n-1:], y[n-1:]
	}
	var err error
	c.From, err = co.count(ctx, x, since)
	if err != nil {
		return nil, err
	}
	c.To, err = co.count(ctx, y, since)
	return c, err
}

// maxCounted is the maximum number of records that are read for one side. That takes seconds.
const maxCounted = 3_000_000

// count counts the records of a lineage, starting after the given record of its first range.
func (co *comparer) count(ctx context.Context, line []logRange, after uint64) (report.EventCount, error) {
	c := report.EventCount{ByType: map[string]int64{}}
	if co.cfg.Logs == nil {
		c.Unknown = "event recording is disabled"
		return c, nil
	}
	looked := int64(0)
	for _, l := range line {
		begin := after
		after = l.upto // the numbers of the next range continue from there
		if l.upto <= begin {
			continue
		}
		c.Total += int64(l.upto - begin)
		if looked >= maxCounted {
			c.AtLeast = true
			continue
		}
		seen := int64(0)
		err := co.readLog(ctx, l.jail, begin, func(kind string, seq uint64) bool {
			if seq > l.upto {
				return false
			}
			if seq != 0 { // gaps created by the reader have no number
				c.ByType[kind]++
				seen++
			}
			return looked+seen < maxCounted
		})
		looked += seen
		if seen < int64(l.upto-begin) {
			c.AtLeast = true // some records were dropped, or there are too many
		}
		if errors.Is(err, fault.NotFound) {
			c.AtLeast = true // the jail and its log were deleted
			continue
		}
		if err != nil {
			return c, err
		}
	}
	return c, nil
}

// flushTime is the time for which a reader waits for records that are not yet written.
const flushTime = 2 * time.Second

// readLog calls f for each record of a jail after the given one, until f returns false.
func (co *comparer) readLog(ctx context.Context, jid id.Jail, after uint64, f func(kind string, seq uint64) bool) error {
	if co.cfg.Logs == nil {
		return fault.Newf(fault.NotFound, "snapshot.Compare", string(jid), "event recording is disabled")
	}
	l, err := co.cfg.Logs(ctx, jid)
	if err != nil {
		return fmt.Errorf("open the event log of jail %s: %w", jid, err)
	}
	flush, cancel := context.WithTimeout(ctx, flushTime)
	defer cancel()
	// After a mere timeout of the flush, use the written records.
	if err := l.Flush(flush); err != nil && ctx.Err() != nil {
		return fmt.Errorf("flush the event log of jail %s: %w", jid, err)
	}
	c, err := l.Read(ctx, eventlog.Query{After: after})
	if err != nil {
		return fmt.Errorf("read the event log of jail %s: %w", jid, err)
	}
	defer c.Close()
	for n := 0; ; n++ {
		if n%4096 == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		line, err := c.Next(nil) // type and number suffice, and full parsing is many times slower
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the event log of jail %s: %w", jid, err)
		}
		kind, rest, _ := bytes.Cut(bytes.TrimPrefix(line, []byte(`{"type":"`)), []byte(`","seq":`))
		digits := rest[:len(rest)-len(bytes.TrimLeft(rest, "0123456789"))]
		seq, _ := strconv.ParseUint(string(digits), 10, 64)
		if !f(string(kind), seq) {
			return nil
		}
	}
}
