package fault

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
)

// Panic is a panic that was turned into an error. It has no kind: it is an
// internal error, which is logged and not shown.
type Panic struct {
	Value any
	In    string // the function that panicked, with file and line
	Stack []byte // stack of the goroutine that panicked
}

func (p *Panic) Error() string { return fmt.Sprintf("panic in %s: %v", p.In, p.Value) }

// Recover turns a panic of the function that defers it into an error in *err.
// It does nothing without a panic. Deferred functions that were deferred before
// Recover run after it and find the error:
//
//	defer func() { err = errors.Join(err, cleanUp()) }()
//	defer fault.Recover(&err)
func Recover(err *error) {
	v := recover() // has effect only in the deferred function itself
	if v == nil {
		return
	}
	*err = &Panic{Value: v, In: panicked(), Stack: debug.Stack()}
}

// Catch returns a function that does what f does and returns a panic of f as an error. A panic in
// any goroutine ends the process. Therefore wrap functions in Catch that run in their own goroutine
// on behalf of one request.
func Catch(f func() error) func() error {
	return func() (err error) {
		defer Recover(&err)
		return f()
	}
}

// panicked returns the function that panicked: the first one below
// runtime.gopanic that is not of package runtime, as sigpanic is.
func panicked() string {
	var pcs [64]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	for below := false; ; {
		f, more := frames.Next()
		if below && !strings.HasPrefix(f.Function, "runtime.") {
			return fmt.Sprintf("%s (%s:%d)", f.Function, f.File[strings.LastIndexByte(f.File, '/')+1:], f.Line)
		}
		below = below || f.Function == "runtime.gopanic"
		if !more {
			return "an unknown function"
		}
	}
}
