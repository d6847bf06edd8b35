package gvisor

import "golang.org/x/sys/unix"

// A clock turns gVisor's times, which are the wall clock's, into the host's
// monotonic time. gVisor keeps its clock in step with the host's to within
// microseconds; when the host's own is set, records of that moment are off by as
// much. None is later than now, or before the session began.
type clock struct {
	first  int64 // monotonic, when it was read first
	last   int64 // monotonic, when it was read
	offset int64 // of the wall clock to the monotonic
}

// read reads the host's clocks.
func (c *clock) read() {
	var wall, mono unix.Timespec
	unix.ClockGettime(unix.CLOCK_REALTIME, &wall)
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &mono)
	c.last = mono.Nano()
	c.offset = wall.Nano() - c.last
	if c.first == 0 {
		c.first = c.last
	}
}

// now is the monotonic time at which the clock was read.
func (c *clock) now() int64 { return c.last }

// ns is the monotonic time of a wall time that gVisor gave.
func (c *clock) ns(wall int64) int64 { return max(c.first, min(wall-c.offset, c.last)) }

// past is ns for times before the session.
func (c *clock) past(wall int64) int64 { return max(0, min(wall-c.offset, c.last)) }

// ms is the wall time in milliseconds of a monotonic time.
func (c *clock) ms(ns int64) int64 { return (ns + c.offset) / 1e6 }
