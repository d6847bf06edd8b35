package jail

import (
	"errors"

	"glasshouse/fault"
)

// A Condition is a lasting problem of a jail that its State does not show.
type Condition struct {
	Type   string // one of the Condition constants
	Detail string
	Remedy string
}

// DiskReadOnly is the Condition of a jail whose writable layer refuses all writes
// because its filesystem had an error. The usual cause is that the host's disk was
// full. Starting the jail again repairs the filesystem.
const DiskReadOnly = "disk_read_only"

var diskReadOnly = Condition{
	Type:   DiskReadOnly,
	Detail: "the jail's filesystem had an error, for instance because the host's disk was full, and is read-only",
	Remedy: "free space on the host's disk, then stop the jail and start it again, which repairs its filesystem",
}

// EventsNotWritten is the Condition of a jail that is held (frozen) because its events cannot
// be written and its Selection does not permit loss. It continues when events can be written.
const EventsNotWritten = "events_not_written"

var eventsNotWritten = Condition{
	Type:   EventsNotWritten,
	Detail: "the jail is held because its events cannot be written, for instance because the host's disk is full",
	Remedy: "free space on the host's disk; to let jails run then, with events lost and counted, set on_overload to count",
}

// A VolumeChecker is an Instance that can detect an error of the filesystem of its writable
// layer.
type VolumeChecker interface {
	// VolumeFailed reports whether the kernel refuses writes to the layer after an error. It
	// costs a few system calls, and returns false if the state is unknown.
	VolumeFailed() bool
}

func (l *liveInstance) volumeFailed() bool {
	v, ok := l.inst.(VolumeChecker)
	return ok && v.VolumeFailed()
}

// withConditions returns the jail's record with its current conditions.
func (e *entry) withConditions() Jail {
	j := *e.jail.Load()
	l := e.live.Load()
	if l != nil && l.volumeFailed() {
		j.Conditions = append(j.Conditions, diskReadOnly)
	}
	if l != nil && l.freeze.unwritten() {
		j.Conditions = append(j.Conditions, eventsNotWritten)
	}
	return j
}

// checkHeld returns an error if the jail is held until space is free. It is for operations
// that need an answer of the jail's init.
func (l *liveInstance) checkHeld(op string, j Jail) error {
	if !l.freeze.unwritten() {
		return nil
	}
	return &fault.Error{Op: op, On: string(j.ID), Kind: fault.NoSpace, Err: errors.New(eventsNotWritten.Detail), Remedy: eventsNotWritten.Remedy}
}

// checkWritable returns an error if the jail's files cannot be written.
func (l *liveInstance) checkWritable(op string, j Jail) error {
	if !l.volumeFailed() {
		return nil
	}
	return &fault.Error{Op: op, On: string(j.ID), Kind: fault.Conflict, Err: errors.New(diskReadOnly.Detail), Remedy: diskReadOnly.Remedy}
}
