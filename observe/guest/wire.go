// Package guest records the events of jails in virtual machines.
//
// In the machine, the agent has a Recorder. It runs the same eBPF programs as package
// observe/kernel on a host, and keeps their events in a bounded buffer until the daemon has
// written them. The daemon has a Source, which reads the events through requests to the agent and
// appends them to the log of the jail.
//
// Each event has a position in the buffer. The daemon tells the recorder up to which position its
// log is written, and at which sequence number. A later daemon counts the events of the machine
// that the log has after that number, and so continues exactly where the earlier one stopped. An
// event that does not fit into the buffer is counted, and reported in a gap.
//
// The daemon does not trust the machine. It limits the size of each answer, checks each event, and
// reads only as fast as the log is written.
package guest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"glasshouse/fault"
	"glasshouse/observe/event"
)

// Operations of a request.
const (
	opAttach = "attach" // starts the recording, or continues that of an earlier daemon or of a snapshot
	opRead   = "read"   // returns events, and waits for them
	opSelect = "select" // changes which events are recorded
	opDrain  = "drain"  // returns the position of the last event
	opDetach = "detach" // ends the recording
)

// States of a machine in which it makes no more events. The recorder reports a state only after the
// last event.
const (
	running = ""
	frozen  = "frozen" // until it is thawed
	ended   = "ended"  // it is about to be switched off
)

// A request is what the daemon sends.
type request struct {
	Op        string           `json:"op"`
	Now       int64            `json:"now"`                 // clock of the host
	Selection *event.Selection `json:"selection,omitempty"` // of attach and select, and of read if it was not applied before

	// Of attach.
	Owner   string `json:"owner,omitempty"`   // the instance of the jail
	Resumed bool   `json:"resumed,omitempty"` // the jail ran without an observer

	Written anchor `json:"written"` // of read. That of attach has no position.

	// Of read.
	After  uint64 `json:"after,omitempty"` // position of the last event in the log
	Seen   string `json:"seen,omitempty"`  // the last state that the daemon has received
	Full   bool   `json:"full,omitempty"`  // the log has no room for events
	WaitMS int64  `json:"wait_ms,omitempty"`
}

// An anchor relates a position to a sequence number of the log: the events up to the position are
// in the log up to that number, and all others come later.
type anchor struct {
	Position uint64 `json:"position"`
	Seq      uint64 `json:"seq"`
	NS       int64  `json:"ns"` // no event after it is more than anchorSlack older
}

// A header is the first line of an answer. Events lines follow, one event in each.
type header struct {
	Kind   fault.Kind `json:"kind,omitempty"` // of an error
	Err    string     `json:"err,omitempty"`
	Remedy string     `json:"remedy,omitempty"`

	Events    int    `json:"events,omitempty"`
	State     string `json:"state,omitempty"`
	Last      uint64 `json:"last,omitempty"` // position of the last event
	Throttled uint64 `json:"throttled,omitempty"`
	Trouble   string `json:"trouble,omitempty"` // why recording has stopped

	// Of attach.
	Owned     bool   `json:"owned,omitempty"` // the recording of the same instance continues
	Anchor    anchor `json:"anchor"`
	Delivered uint64 `json:"delivered,omitempty"` // position up to which a daemon has read
}

// Limits of an answer.
const (
	maxLine   = 2 << 20   // of an event
	batchSize = 256 << 10 // after which no other event is added
	maxHeader = 4 << 10
	maxAnswer = maxHeader + batchSize + maxLine + 1
)

// maxRequest limits a request of the daemon. Its largest part is the names of system calls in the selection.
const maxRequest = 1 << 20

// An answer is a decoded answer of the machine.
type answer struct {
	header
	lines []byte
}

// readAnswer reads an answer of the machine, which is not trusted.
func readAnswer(r io.Reader) (answer, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxAnswer+1))
	if err != nil {
		return answer{}, fmt.Errorf("read the answer of the machine: %w", err)
	}
	return parseAnswer(data)
}

var errMalformed = errors.New("the machine has sent an answer that is not valid")

func parseAnswer(data []byte) (a answer, err error) {
	if len(data) > maxAnswer {
		return a, errMalformed
	}
	first, rest, found := bytes.Cut(data, []byte("\n"))
	if !found || len(first) > maxHeader || json.Unmarshal(first, &a.header) != nil {
		return a, errMalformed
	}
	a.lines = rest
	if a.Events < 0 || a.Events != bytes.Count(rest, []byte("\n")) || len(rest) > 0 && rest[len(rest)-1] != '\n' {
		return a, errMalformed
	}
	if !slices.Contains([]string{running, frozen, ended}, a.State) {
		return a, errMalformed
	}
	return a, nil
}

// Bounds of the numbers in an event.
const (
	maxPID   = 1 << 22 // PID_MAX_LIMIT (include/linux/threads.h)
	maxLost  = 1 << 40
	maxShort = 512 // length of names, reasons and addresses
)

// flagsOfGuest are the flags that a machine may set.
const flagsOfGuest = event.Denied | event.Unfinished | event.Partial | event.Child | event.Cut | event.Raced | event.Unresolved | event.Existing | event.Thread

// sources are the types of the events of a machine.
var sources = [...]event.Type{event.Syscall, event.File, event.Proc}

// parseEvent decodes and checks an event of a machine. It sets the fields that only the host knows. The
// event is valid if ok; otherwise e is a gap that stands for it.
func parseEvent(line []byte, e *event.Event, now, wall int64) (ok bool) {
	ok = event.Parse(line, e) == nil && valid(e)
	if ok && len(line) > maxLine/4 { // one byte can become an escape of six
		ok = len(e.AppendJSON(nil)) <= maxLine
	}
	if !ok {
		*e = event.Event{Type: event.Gap, FD: -1, NS: now, Source: event.Syscall, Lost: 1, Reason: "the machine sent an event that is not valid"}
	}
	e.Seq, e.Jail, e.HostPID = 0, "", 0
	e.Flags = e.Flags&flagsOfGuest | event.Guest
	e.NS = min(max(e.NS, 1), now)
	e.Begin = min(e.Begin, e.NS)
	e.TS = (e.NS + wall) / 1e6
	return ok
}

func valid(e *event.Event) bool {
	for _, id := range []int32{e.PID, e.TID, e.PPID} {
		if id < 0 || id > maxPID {
			return false
		}
	}
	for _, short := range []string{e.Name, e.Comm, e.ABI, e.Addr, e.Signal, e.Reason} {
		if len(short) > maxShort {
			return false
		}
	}
	if e.FD < -1 || e.Dur < 0 || e.Calls < 0 || e.UserNS < 0 || e.SystemNS < 0 || e.RSS < 0 {
		return false
	}
	switch e.Type {
	case event.Syscall:
		return e.Name != ""
	case event.File:
		return event.IsFileOperation(e.Op)
	case event.Proc:
		return e.Op == event.OpFork || e.Op == event.OpExec || e.Op == event.OpExit
	case event.Gap:
		return slices.Contains(sources[:], e.Source) && e.From == 0 && e.Through == 0 && (e.Lost == -1 || e.Lost > 0 && e.Lost < maxLost)
	}
	return false
}
