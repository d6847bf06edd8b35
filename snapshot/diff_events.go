package snapshot

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strconv"
	"time"

	"glasshouse/event"
	"glasshouse/eventlog"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/report"
)

// A leg is the time that a line of jails spent in one of them: up to a record.
type leg struct {
	jail id.Jail
	upto uint64
}

// line returns how an end came to be, from the first jail on. Of jails and
// snapshots that are gone it knows what those that stay say.
func (k *Keeper) line(ctx context.Context, e *end) []leg {
	line := []leg{{e.jail.ID, e.seq}}
	origin := e.jail.Origin
	for origin != nil && len(line) < 1000 {
		k.mu.Lock()
		s := k.all[origin.Snapshot]
		k.mu.Unlock()
		at := leg{jail: origin.Jail}
		if s != nil {
			at.upto, origin = s.Seq, s.Jail.Origin
		} else {
			at.upto = k.forkOf(ctx, line[len(line)-1].jail)
			parent, err := k.cfg.Jails.Get(ctx, origin.Jail)
			if origin = nil; err == nil {
				origin = parent.Origin
			}
		}
		line = append(line, at)
	}
	slices.Reverse(line)
	return line
}

// forkOf returns up to which record a jail's log is its parent's, as its first
// record says; 0 if that is not kept.
func (k *Keeper) forkOf(ctx context.Context, jid id.Jail) uint64 {
	var first uint64
	err := k.read(ctx, jid, 0, func(kind string, seq uint64) bool {
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

// events counts what both sides did since they parted.
func (k *Keeper) events(ctx context.Context, a, b *end) (*report.EventChanges, error) {
	x, y := k.line(ctx, a), k.line(ctx, b)
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
	if c.From, err = k.count(ctx, x, since); err != nil {
		return nil, err
	}
	c.To, err = k.count(ctx, y, since)
	return c, err
}

// maxCounted is how many records of one side are looked at, which takes seconds.
const maxCounted = 3_000_000

// count counts the records of a line, of its first leg those after one.
func (k *Keeper) count(ctx context.Context, line []leg, after uint64) (report.EventCount, error) {
	c := report.EventCount{ByType: map[string]int64{}}
	if k.cfg.Records == nil {
		c.Unknown = "jails are not watched"
		return c, nil
	}
	looked := int64(0)
	for _, l := range line {
		begin := after
		after = l.upto // the next leg's records count on from there
		if l.upto <= begin {
			continue
		}
		c.Total += int64(l.upto - begin)
		if looked >= maxCounted {
			c.AtLeast = true
			continue
		}
		seen := int64(0)
		err := k.read(ctx, l.jail, begin, func(kind string, seq uint64) bool {
			if seq > l.upto {
				return false
			}
			if seq != 0 { // a gap that the reader met has none
				c.ByType[kind]++
				seen++
			}
			return looked+seen < maxCounted
		})
		if looked += seen; seen < int64(l.upto-begin) {
			c.AtLeast = true // some were not kept, or there are too many
		}
		if errors.Is(err, fault.NotFound) {
			c.AtLeast = true // the jail is gone, and its log
			continue
		}
		if err != nil {
			return c, err
		}
	}
	return c, nil
}

// flushTime is how long a reader waits for what is not yet written.
const flushTime = 2 * time.Second

// read tells f of the records of a jail after one, until it wants no more.
func (k *Keeper) read(ctx context.Context, jid id.Jail, after uint64, f func(kind string, seq uint64) bool) error {
	if k.cfg.Records == nil {
		return fault.Newf(fault.NotFound, "snapshot.Compare", string(jid), "jails are not watched")
	}
	l, err := k.cfg.Records(ctx, jid)
	if err != nil {
		return err
	}
	flush, cancel := context.WithTimeout(ctx, flushTime)
	defer cancel()
	if err := l.Flush(flush); err != nil && ctx.Err() != nil {
		return err // else what is written must do
	}
	c, err := l.Read(ctx, eventlog.Query{After: after})
	if err != nil {
		return err
	}
	defer c.Close()
	for n := 0; ; n++ {
		if n%4096 == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		line, err := c.Next(nil) // its head is enough, and is had many times faster
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		kind, rest, _ := bytes.Cut(bytes.TrimPrefix(line, []byte(`{"type":"`)), []byte(`","seq":`))
		digits := rest[:len(rest)-len(bytes.TrimLeft(rest, "0123456789"))]
		seq, _ := strconv.ParseUint(string(digits), 10, 64)
		if !f(string(kind), seq) {
			return nil
		}
	}
}
