package enforce

import (
	"testing"

	"glasshouse/internal/notify"
)

// A tracer forgets its call only after it has detached, when another tracer may already trace
// the thread.
func TestTracerForgetsOnlyItsOwnCall(t *testing.T) {
	tracers := newTracers()
	defer tracers.close()
	first := notify.Call{ID: 1, TID: 7, Nr: 257}
	next := notify.Call{ID: 2, TID: 7, Nr: 257, Args: [6]uint64{1}}
	forgetFirst := tracers.expect(first)
	forgetNext := tracers.expect(next)
	forgetFirst()
	if !tracers.isRestart(next) {
		t.Error("isRestart(next) = false after forgetting the first call, want true")
	}
	forgetNext()
	if tracers.isRestart(next) {
		t.Error("isRestart(next) = true after forgetting it, want false")
	}
}
