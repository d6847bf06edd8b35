// Package thread runs code on a thread of its own.
package thread

import (
	"runtime"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

// Alone runs f on a thread that f may change in ways that no other code may
// inherit: the thread ends with f. It never is the main thread, which cannot
// end, and which /proc/self speaks of. A panic of f is returned as an error.
func Alone(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked, save for the main thread
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread()
			done <- Alone(f) // while this goroutine occupies the main thread
			return
		}
		done <- fault.Catch(f)() // the caller could not recover what panics here
	}()
	return <-done
}
