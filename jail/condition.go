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

// EventsNotWritten is the Condition of a jail that is held, that is frozen, because its
// events cannot be written and its Selection says that none may be lost. It continues when
// they can be written.
const EventsNotWritten = "events_not_written"

var eventsNotWritten = Condition{
	Type:   EventsNotWritten,
	Detail: "the jail is held because its events cannot be written, for instance because the host's disk is full",
	Remedy: "free space on the host's disk; to let jails run then, with events lost and counted, set on_overload to count",
}

// A VolumeChecker is an Instance that can tell whether the filesystem of its
// writable layer had an error.
type VolumeChecker interface {
	// VolumeFailed reports whether the kernel refuses to write to the layer since
	// then. It costs a few system calls, and is false if that is not known.
	VolumeFailed() bool
}

func (l *live) volumeFailed() bool {
	v, ok := l.inst.(VolumeChecker)
	return ok && v.VolumeFailed()
}

// shown is the jail of c as callers see it.
func (c *cell) shown() Jail {
	j := *c.jail.Load()
	l := c.live.Load()
	if l != nil && l.volumeFailed() {
		j.Conditions = append(j.Conditions, diskReadOnly)
	}
	if l != nil && l.ice.unwritten() {
		j.Conditions = append(j.Conditions, eventsNotWritten)
	}
	return j
}

// checkHeld refuses an operation for which the jail's init must answer while the jail is
// held and will be until space is free.
func (l *live) checkHeld(op string, j Jail) error {
	if !l.ice.unwritten() {
		return nil
	}
	return &fault.Error{Op: op, On: string(j.ID), Kind: fault.NoSpace, Err: errors.New(eventsNotWritten.Detail), Remedy: eventsNotWritten.Remedy}
}

// checkWritable refuses an operation on a jail whose files cannot be written.
func (l *live) checkWritable(op string, j Jail) error {
	if !l.volumeFailed() {
		return nil
	}
	return &fault.Error{Op: op, On: string(j.ID), Kind: fault.Conflict, Err: errors.New(diskReadOnly.Detail), Remedy: diskReadOnly.Remedy}
}
