package gvisor

import "golang.org/x/sys/unix"

// A clock converts gVisor's wall clock times to the host's monotonic time. gVisor synchronizes
// its clock with the host's to within microseconds. If the host's clock is set, the times of
// concurrent events are off by the change. Results are clamped to the time between the start
// of the session and now.
type clock struct {
	first  int64 // monotonic time of the first reading
	last   int64 // monotonic time of the last reading
	offset int64 // wall time minus monotonic time
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

// now returns the monotonic time of the last reading.
func (c *clock) now() int64 { return c.last }

// ns converts a wall time of gVisor to monotonic time.
func (c *clock) ns(wall int64) int64 { return max(c.first, min(wall-c.offset, c.last)) }

// past is like ns, but for times before the session.
func (c *clock) past(wall int64) int64 { return max(0, min(wall-c.offset, c.last)) }

// ms converts a monotonic time to wall time in milliseconds.
func (c *clock) ms(ns int64) int64 { return (ns + c.offset) / 1e6 }
