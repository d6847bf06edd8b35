package api

import "time"

// HurryOutput shortens the write timeout and the lease renewal interval of output streams
// until undo is called.
func HurryOutput(patience, renew time.Duration) (undo func()) {
	oldPatience, oldRenew := execWriteTime, renewEvery
	execWriteTime, renewEvery = patience, renew
	return func() { execWriteTime, renewEvery = oldPatience, oldRenew }
}
