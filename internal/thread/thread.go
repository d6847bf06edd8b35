// Package thread runs code on a dedicated thread.
package thread

import (
	"runtime"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

// Alone runs f on a new thread, which ends with f, so that f may change the thread's state. It
// is never the main thread, which cannot end and to which /proc/self refers. A panic of f is
// returned as an error.
func Alone(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the runtime ends a goroutine's locked thread with the goroutine; only the main thread is unlocked
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread()
			done <- Alone(f) // this goroutine keeps the main thread occupied meanwhile
			return
		}
		done <- fault.Catch(f)() // a panic in this goroutine cannot be recovered by the caller
	}()
	return <-done
}
