// Package report folds a jail's events into what a person wants to know of it:
// the tree of its processes, the log of its connections, and one page on all it
// did.
//
// Everything is made in one pass, in memory that does not grow with the length of
// the log or with the number of different paths, processes and addresses in it.
// What is counted is counted in full; what is listed is the most important of it,
// with the sum of the rest.
package report

import (
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"glasshouse/event"
	"glasshouse/id"
)

// Events is where records come from, in the order of their sequence numbers. An
// eventlog.Cursor is one.
type Events interface {
	// Next fills e, or returns io.EOF after the last.
	Next(e *event.Event) (line []byte, err error)
}

// Options say what a report cannot know from the events.
type Options struct {
	Jail      id.Jail
	Selection *event.Selection // what was recorded; nil is unknown
	Workspace []string         // directories it is meant to write below, beside /tmp, /var/tmp, /dev/shm and /run
	Memory    int64            // its limit in bytes; 0 is none
	Rows      int              // of each list; default 50
}

// A Report is all that is worth saying of one jail. Its JSON is stable: fields
// are added, never renamed.
type Report struct {
	Jail     id.Jail   `json:"jail"`
	From     time.Time `json:"from"` // of the first and the last record
	To       time.Time `json:"to"`
	Duration int64     `json:"duration_ms"`

	Summary      []string     `json:"summary"` // the page in a few sentences
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

// fold is a report in the making.
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
	f.tree.began, f.tree.over = f.commands.began, f.commands.over
	return f
}

// Make reads src to its end and reports on what was in it.
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
			return nil, err
		}
		f.add(&e)
	}
}

// keepEnded is how many ended processes the fold remembers. Twice as many are
// let gather before the oldest are forgotten.
const keepEnded = 2048

func (f *fold) add(e *event.Event) {
	f.complete.add(e)
	if f.to == 0 {
		f.from, f.to = e.TS, e.TS
	}
	f.from, f.to = min(f.from, e.TS), max(f.to, e.TS)
	if e.Flags&event.Injected != 0 {
		return // our own doing; it is counted and said, and is none of the jail's
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
	r.Completeness.Limits = f.limits()
	r.Duration = r.To.Sub(r.From).Milliseconds()
	f.elsewhere(r)
	r.Notable = f.notable.report(f.o.Rows)
	r.Timeline = timeline(r)
	r.Summary = r.summary()
	return r
}

// limits says where the report had to stop following.
func (f *fold) limits() []string {
	out := []string{}
	if n := f.tree.untold; n > 0 {
		out = append(out, count(n, "record", "records")+" of processes could not be followed, for more than "+number(maxLive)+" lived at once")
	}
	if f.files.unlisted {
		out = append(out, "of the written files "+number(maxWritten)+" are remembered: programs run from others are not among the notable")
	}
	return out
}

// processes is the tree as it was at the end, with as many of the ended as there
// is room for: the living and the ancestors of what is shown come first.
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

// processRows bounds the tree of a report. GET /jails/{id}/processes has it all.
const processRows = 200

// Processes is who ran.
type Processes struct {
	Count  int64     `json:"count"`
	Ended  int64     `json:"ended"`
	Failed int64     `json:"failed"` // exited with another code than 0
	Killed int64     `json:"killed"` // ended by a signal
	Tree   []Process `json:"tree"`
	More   int64     `json:"more"` // that are not in Tree
}
