// Package observetest tests sources of events against the contract documented on
// observe.Source and observe.Watch.
package observetest

import (
	"sync"

	"glasshouse/observe/event"
)

// A Log is an in-memory Sink. The zero value is ready to use.
type Log struct {
	mu sync.Mutex
	// +checklocks:mu
	seq uint64
	// +checklocks:mu
	events []event.Event // events kept
	// +checklocks:mu
	count map[event.Type]int // events appended, by type
	// +checklocks:mu
	lost map[event.Type]int64 // events reported in gaps; unknown losses are not counted
	// +checklocks:mu
	gaps int
	// +checklocks:mu
	full bool
	// +checklocks:mu
	brief bool
	// +checklocks:mu
	limit uint64 // maximum Written value; 0 is no limit
	// +checklocks:mu
	older []event.Event
}

// Append implements observe.Sink.
func (l *Log) Append(e *event.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.count == nil {
		l.count, l.lost = map[event.Type]int{}, map[event.Type]int64{}
	}
	l.seq++
	e.Seq = l.seq
	l.count[e.Type]++
	if e.Type == event.Gap {
		l.gaps++
		l.lost[e.Source] += max(e.Lost, 0)
	}
	if !l.brief {
		kept := *e
		l.events = append(l.events, kept)
	}
}

// HasRoom implements observe.Sink.
func (l *Log) HasRoom() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.full
}

// Last implements observe.Sink.
func (l *Log) Last() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seq
}

// Written implements observe.Sink.
func (l *Log) Written() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.limit > 0 {
		return min(l.limit, l.seq)
	}
	return l.seq
}

// FlushSoon implements observe.Sink.
func (l *Log) FlushSoon() {}

// Kept implements observe.Sink.
func (l *Log) Kept(since int64, of event.Type, each func(*event.Event)) error {
	l.mu.Lock()
	older := l.older
	l.mu.Unlock()
	for i := range older {
		if e := &older[i]; e.Type == of && e.NS >= since {
			each(e)
		}
	}
	return nil
}

// Fill sets whether the log has room.
func (l *Log) Fill(full bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.full = full
}

// Brief makes the log count events without keeping them.
func (l *Log) Brief() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.brief = true
}

// LimitWritten makes Written return at most seq.
func (l *Log) LimitWritten(seq uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.limit = seq
}

// After returns the log that a later daemon opens. It contains only the written events.
func (l *Log) After() *Log {
	written := l.Written()
	l.mu.Lock()
	defer l.mu.Unlock()
	next := &Log{seq: written}
	for _, e := range l.events {
		if e.Seq <= written {
			next.older = append(next.older, e)
		}
	}
	return next
}

// Events returns the kept events of one type and, unless name is "", of the system call or
// operation with that name.
func (l *Log) Events(of event.Type, name string) []event.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	var some []event.Event
	for _, e := range append(append([]event.Event(nil), l.older...), l.events...) {
		if e.Type == of && (name == "" || e.Name == name || e.Op == name) {
			some = append(some, e)
		}
	}
	return some
}

// Count returns the number of appended events of a type.
func (l *Log) Count(of event.Type) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count[of]
}

// Lost returns the number of lost events of a type, as reported in gaps.
func (l *Log) Lost(of event.Type) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost[of]
}

// Gaps returns the number of gaps.
func (l *Log) Gaps() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.gaps
}
