package thread_test

import (
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/internal/thread"
)

func threads(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// Goroutines that block in system calls use the reserved threads.
func TestReservedThreadsAreUsed(t *testing.T) {
	const reserved, blocked = 24, 12
	thread.Reserve(reserved)
	before := threads(t)
	if before < reserved {
		t.Fatalf("%d threads, want at least %d", before, reserved)
	}
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pipe[0])
	var reads sync.WaitGroup
	for range blocked {
		reads.Go(func() { unix.Read(pipe[0], make([]byte, 1)) })
	}
	// The runtime gives the processor of a blocked thread to another thread within 10 ms
	// (retake in runtime/proc.go).
	time.Sleep(100 * time.Millisecond)
	if after := threads(t); after > before {
		t.Errorf("%d threads with %d blocked goroutines, want the %d from before", after, blocked, before)
	}
	unix.Close(pipe[1]) // the reads return
	reads.Wait()
}
