package observe

import "golang.org/x/sys/unix"

// Now returns the clock of Event.NS: the host's monotonic clock.
func Now() int64 {
	var ts unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // cannot fail
	return ts.Nano()
}
