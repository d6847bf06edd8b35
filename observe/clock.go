package observe

import "golang.org/x/sys/unix"

// monotonic is the clock of Event.NS.
func monotonic() int64 {
	var ts unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // cannot fail
	return ts.Nano()
}
