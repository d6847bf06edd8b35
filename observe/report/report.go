// Package report summarizes the events of a jail: the process tree, the connection log, and a
// one-page report.
//
// Each summary is computed in one pass. Its memory does not grow with the length of the log or
// with the number of distinct paths, processes and addresses. Counts are exact; lists contain
// the most important entries and the sum of the others.
package report

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"glasshouse/id"
	"glasshouse/observe/event"
)

// Events is a source of events in the order of their sequence numbers, such as an
// eventlog.Cursor.
type Events interface {
	// Next fills e, or returns io.EOF after the last event.
	Next(e *event.Event) (line []byte, err error)
}

// Options supplies what a report cannot derive from the events.
type Options struct {
	Jail      id.Jail
	Selection *event.Selection // recording options; nil if unknown
	Workspace []string         // writable directories in addition to /tmp, /var/tmp, /dev/shm and /run
	Memory    int64            // memory limit in bytes; 0 is unlimited
	Rows      int              // maximum length of each list; default 50
}

// A Report summarizes the activity of one jail. Its JSON is stable: fields are added, never
// renamed.
type Report struct {
	Jail     id.Jail   `json:"jail"`
	From     time.Time `json:"from"` // time of the first event; To is that of the last
	To       time.Time `json:"to"`
	Duration int64     `json:"duration_ms"`

	Summary      []string     `json:"summary"` // the report in a few sentences
	Completeness Completeness `json:"completeness"`
	Notable      []Notable    `json:"notable"` // most serious first
	Timeline     []Moment     `json:"timeline"`
	Commands     Commands     `json:"commands"`
	Processes    Processes    `json:"processes"`
	Network      Network      `json:"network"`
	Files        Files        `json:"files"`
	Failures     Failures     `json:"failures"`
	Syscalls     Syscalls     `json:"syscalls"`
	Usage        Usage        `json:"usage"`
}

// fold accumulates a report.
type fold struct {
	o        Options
	from, to int64 // milliseconds; to is 0 before the first record
	complete completeness
	tree     *Tree
	commands *commands
	net      *NetLog
	files    *files
	calls    *calls
	usage    *usage
	notable  *notables
}

const defaultRows = 50

func newFold(o Options) *fold {
	if o.Rows <= 0 {
		o.Rows = defaultRows
	}
	f := &fold{o: o, tree: NewTree(), commands: newCommands(), net: NewNetLog(), usage: newUsage()}
	f.complete.init()
	f.files = newFiles(o.Workspace)
	f.calls = newCalls()
	f.notable = newNotables()
	f.notable.outside = f.files.outside()
	f.tree.began, f.tree.stopped = f.commands.began, f.commands.stopped
	return f
}

// Make reads src to its end and returns the report.
func Make(ctx context.Context, src Events, o Options) (*Report, error) {
	f := newFold(o)
	var e event.Event
	for n := 0; ; n++ {
		if n%4096 == 0 && ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if _, err := src.Next(&e); errors.Is(err, io.EOF) {
			return f.report(), nil
		} else if err != nil {
			return nil, fmt.Errorf("read the events: %w", err)
		}
		f.add(&e)
	}
}

// keepEnded is how many ended processes the fold keeps. The oldest are pruned when there are
// twice as many.
const keepEnded = 2048

func (f *fold) add(e *event.Event) {
	f.complete.add(e)
	if f.to == 0 {
		f.from, f.to = e.TS, e.TS
	}
	f.from, f.to = min(f.from, e.TS), max(f.to, e.TS)
	if e.Flags&event.Injected != 0 {
		return // caused by Glasshouse itself: counted, but not attributed to the jail
	}
	switch e.Type {
	case event.Syscall:
		f.tree.Add(e)
		f.usage.call(e)
		f.syscall(e)
	case event.File:
		f.file(e)
	case event.Net:
		f.net.Add(e)
	case event.Proc:
		f.proc(e)
	case event.Gap:
		f.tree.Add(e)
		f.net.Add(e)
	case event.Usage:
		f.usage.sample(e)
	case event.Lineage:
		f.tree.Add(e)
		f.notable.add(kindLineage, e.Op+" "+string(e.Snapshot)+" of "+string(e.Parent), e, 0)
	}
}

func (f *fold) report() *Report {
	r := &Report{
		Jail: f.o.Jail, From: instant(f.from), To: instant(f.to),
		Completeness: f.complete.report(f.o),
		Commands:     f.commands.report(f.tree, f.o.Rows),
		Processes:    f.processes(),
		Network:      f.net.report(f.o.Rows),
		Files:        f.files.report(f.o.Rows),
		Failures:     f.calls.failures(f.o.Rows),
		Syscalls:     f.calls.report(f.o.Rows),
		Usage:        f.usage.report(),
	}
	// The order matters: addDerived reads the lists of peers and gaps, the timeline also the
	// notables, and the summary all.
	r.Completeness.Limits = f.limits()
	r.Duration = r.To.Sub(r.From).Milliseconds()
	f.addDerived(r)
	r.Notable = f.notable.report(f.o.Rows)
	r.Timeline = timeline(r)
	r.Summary = r.summary()
	return r
}

// limits lists the limits of the report that were exceeded.
func (f *fold) limits() []string {
	out := []string{}
	if n := f.tree.omitted; n > 0 {
		out = append(out, count(n, "record", "records")+" of processes could not be tracked: more than "+number(maxLive)+" processes ran simultaneously")
	}
	if f.files.writtenFull {
		out = append(out, "only "+number(maxWritten)+" written files are tracked: programs run from other written files are not reported as notable")
	}
	return out
}

// processes returns the process tree at the end, with at most processRows entries.
func (f *fold) processes() Processes {
	all := f.tree.Processes(true)
	p := Processes{
		Count: f.tree.count, Ended: f.tree.endings, Failed: f.tree.failed, Killed: f.tree.killed,
		Tree: all[:min(len(all), processRows)],
	}
	p.More = p.Count - int64(len(p.Tree))
	p.Tree = slices.Clip(p.Tree)
	return p
}

// processRows bounds the tree of a report. GET /jails/{id}/processes returns all processes.
const processRows = 200

// Processes summarizes the processes.
type Processes struct {
	Count  int64     `json:"count"`
	Ended  int64     `json:"ended"`
	Failed int64     `json:"failed"` // exit code other than 0
	Killed int64     `json:"killed"` // ended by a signal
	Tree   []Process `json:"tree"`
	More   int64     `json:"more"` // processes that are not in Tree
}
