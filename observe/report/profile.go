package report

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"glasshouse/observe/event"
)

// A Profile is which system calls were made, how long they took and how they failed.
type Profile struct {
	Count      int64 `json:"count"`
	Total      int64 `json:"total_ns"`
	Unfinished int64 `json:"unfinished"`
	Failed     int64 `json:"failed"`
	Denied     int64 `json:"denied"`
	Refused    int64 `json:"refused"`

	Kinds     Count          `json:"kinds"`
	Latency   Latency        `json:"latency"`
	Calls     []Call         `json:"calls"` // the most frequent first
	More      int64          `json:"more"`
	Errors    []ErrorCount   `json:"errors"` // the most frequent first
	Failures  []Failure      `json:"failures"`
	FailsMore int64          `json:"failures_more"`
	Processes []ProcessCalls `json:"processes"` // with the most calls first
	Lost      Lost           `json:"lost"`
}

// An ErrorCount counts the calls that returned an error, including those that seccomp denied.
type ErrorCount struct {
	Errno string `json:"errno"`
	Count int64  `json:"count"`
}

// ProcessCalls summarizes the calls of one process, identified by its PID in the jail.
type ProcessCalls struct {
	PID     int32   `json:"pid"`
	Comm    Text    `json:"comm"`
	Count   int64   `json:"count"`
	AtLeast bool    `json:"at_least,omitempty"`
	Failed  int64   `json:"failed"`
	Denied  int64   `json:"denied"`
	Latency Latency `json:"latency"`
}

// ProfileOptions bounds the size of a Profile.
type ProfileOptions struct {
	Rows      int // maximum rows of each of Calls, Errors and Failures; default 50
	Processes int // maximum rows of Processes; default none
}

type callsOfOne struct {
	comm                  string
	count, failed, denied int64
	h                     histogram
}

// MakeProfile reads src to its end. It ignores events that are not system calls.
func MakeProfile(ctx context.Context, src Events, o ProfileOptions) (*Profile, error) {
	if o.Rows <= 0 {
		o.Rows = defaultRows
	}
	p := profile{calls: newCalls(), errnos: map[int64]int64{}}
	p.ofOne.keep = 512
	p.ofOne.weight = func(c *callsOfOne) int64 { return c.count }
	var e event.Event
	for n := 0; ; n++ {
		if n%4096 == 0 && ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if _, err := src.Next(&e); errors.Is(err, io.EOF) {
			return p.made(o), nil
		} else if err != nil {
			return nil, fmt.Errorf("read the events: %w", err)
		}
		switch {
		case e.Type == event.Gap && (e.Source == event.Syscall || e.Source == 0):
			p.lost.add(&e)
		case e.Type == event.Syscall && e.Flags&event.Injected == 0:
			p.add(&e, o.Processes > 0)
		}
	}
}

type profile struct {
	calls  *calls
	all    histogram
	errnos map[int64]int64
	ofOne  table[int32, callsOfOne]
	lost   Lost
}

func (p *profile) add(e *event.Event, processes bool) {
	if p.calls.add(e) == nil {
		return
	}
	timed := timed(e)
	if timed {
		p.all.add(e.Dur)
	}
	failed := e.Flags&event.Unfinished == 0 && e.Ret < 0 && e.Ret >= -4095
	if failed {
		p.errnos[e.Ret]++
	}
	if !processes {
		return
	}
	one, _ := p.ofOne.get(e.PID)
	// A process has the name of its first thread.
	if one.comm != e.Comm && e.PID == e.TID {
		one.comm = keep(e.Comm)
	}
	one.count++
	switch {
	case denied(e):
		one.denied++
	case failed:
		one.failed++
	}
	if timed {
		one.h.add(e.Dur)
	}
}

func (p *profile) made(o ProfileOptions) *Profile {
	c, f := p.calls.report(o.Rows), p.calls.failures(o.Rows)
	out := &Profile{
		Count: c.Count, Total: c.Total, Unfinished: c.Unfinished, Failed: f.Count, Denied: f.Denied, Refused: f.Refused,
		Kinds: c.Kinds, Latency: p.all.latency(), Calls: c.List, More: c.More, Failures: f.List, FailsMore: f.More,
		Errors: []ErrorCount{}, Processes: []ProcessCalls{}, Lost: p.lost,
	}
	rets := slices.SortedFunc(maps.Keys(p.errnos), func(a, b int64) int {
		return cmp.Or(cmp.Compare(p.errnos[b], p.errnos[a]), cmp.Compare(b, a))
	})
	for _, ret := range rets[:min(len(rets), o.Rows)] {
		out.Errors = append(out.Errors, ErrorCount{errno(ret), p.errnos[ret]})
	}
	rows := p.ofOne.rows()
	for _, r := range rows[:min(len(rows), max(o.Processes, 0))] {
		out.Processes = append(out.Processes, ProcessCalls{
			PID: r.key, Comm: Text(r.v.comm), Count: r.v.count, AtLeast: r.late, Failed: r.v.failed, Denied: r.v.denied, Latency: r.v.h.latency(),
		})
	}
	return out
}
