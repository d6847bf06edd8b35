// Package thread controls the threads of this process.
package thread

import (
	"runtime"
	"sync"

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

// Reserve creates n threads. The Go runtime keeps idle threads for reuse, so it creates no
// others while it needs at most n. Call it in a process that shares a process limit with
// untrusted programs: the runtime aborts if it needs a thread when the limit is reached
// (newosproc in runtime/os_linux.go).
func Reserve(n int) {
	var ready, done sync.WaitGroup
	ready.Add(n)
	release := make(chan struct{})
	for range n {
		done.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			ready.Done()
			<-release
		})
	}
	ready.Wait()
	close(release)
	done.Wait()
}
