// Package observetest checks a source of events against the contract written on
// observe.Source and observe.Watch.
package observetest

import (
	"sync"

	"glasshouse/event"
)

// A Log is a Sink in memory. Its zero value works.
type Log struct {
	mu sync.Mutex
	// +checklocks:mu
	seq uint64
	// +checklocks:mu
	events []event.Event // what is kept
	// +checklocks:mu
	count map[event.Type]int // of all that was appended
	// +checklocks:mu
	lost map[event.Type]int64 // said in gaps; unknown losses count as none
	// +checklocks:mu
	gaps int
	// +checklocks:mu
	full bool
	// +checklocks:mu
	brief bool
	// +checklocks:mu
	hold uint64 // what is written at most, 0 is everything
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

// Room implements observe.Sink.
func (l *Log) Room() bool {
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
	if l.hold > 0 {
		return min(l.hold, l.seq)
	}
	return l.seq
}

// Push implements observe.Sink.
func (l *Log) Push() {}

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

// Fill says that there is no room, or room again.
func (l *Log) Fill(full bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.full = full
}

// Brief has what comes counted and not kept.
func (l *Log) Brief() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.brief = true
}

// Hold has nothing after seq count as written.
func (l *Log) Hold(seq uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hold = seq
}

// After is the log that a later daemon opens: what was written is kept, and the
// rest is not.
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

// Events returns what is kept of one type and, unless name is "", of the system
// call or operation of that name.
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

// Count is how many records of a type were appended.
func (l *Log) Count(of event.Type) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count[of]
}

// Lost is how many records of a type are missing, as gaps say.
func (l *Log) Lost(of event.Type) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost[of]
}

// Gaps is how many gaps there are.
func (l *Log) Gaps() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.gaps
}
