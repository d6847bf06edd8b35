package enforce

import (
	"testing"

	"glasshouse/internal/notify"
)

// A tracer that has let a thread go may forget it when another has it already.
func TestATracerForgetsItsOwnCallAlone(t *testing.T) {
	tracers := newTracers()
	defer tracers.close()
	first := notify.Call{ID: 1, TID: 7, Nr: 257}
	next := notify.Call{ID: 2, TID: 7, Nr: 257, Args: [6]uint64{1}}
	forgetFirst := tracers.expect(first)
	forgetNext := tracers.expect(next)
	forgetFirst()
	if !tracers.again(next) {
		t.Error("the call that the second tracer waits for would be asked about, and never be made")
	}
	forgetNext()
	if tracers.again(next) {
		t.Error("it goes on unasked for ever")
	}
}
