package api

import "time"

// HurryOutput has streams of output wait for so long for their reader, and say so
// often that it is still there, until undo is called.
func HurryOutput(patience, renew time.Duration) (undo func()) {
	oldPatience, oldRenew := execWriteTime, renewEvery
	execWriteTime, renewEvery = patience, renew
	return func() { execWriteTime, renewEvery = oldPatience, oldRenew }
}
